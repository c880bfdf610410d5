"""Tiers that the real RocketMQ wrote, opened as ours, and what must be found in them.

    tier/                       the directory of its POSIX back end
    tieredStoreMetadata.json    what its broker knew of it
    open_index/                 its local index files, copied while the broker ran
    tier.json                   release, cluster, broker, the tier's settings
    manifest.jsonl              one line per fact, by `kind`:
                                sent       what the client asked for, and the send result
                                stored     a message as RocketMQ's own consumer read it back from the tier
                                query      unique ids of the messages that RocketMQ's own query by key found
                                offset_at  the queue offset that RocketMQ's own search by time found

How they are made is in `tests/interop/make_golden_tier.py`. Tests against a running broker check with the same
functions: whether the tier was made a second or a year ago makes no difference.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tiermq.message.stored_message import StoredMessage
from tiermq.status import GetStatus
from tiermq.store.tier_continuation import METADATA_DATABASE
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.restore.rocketmq_json import FILE_NAME, ImportReport, import_rocketmq
from tiermq.tier.tiered_store import TieredStore

HERE = Path(__file__).parent
ALL_NAMES = sorted(path.parent.name for path in HERE.glob("*/tier.json"))
IPV6_NAMES = [name for name in ALL_NAMES if name.endswith("-ipv6")]
"""Tiers in which RocketMQ took a part of an address for a time."""
NAMES = [name for name in ALL_NAMES if name not in IPV6_NAMES]
CLUSTER = "DefaultCluster"
BROKER = "broker-a"
HITS_MAX = 64
PAGE_MESSAGES = 7  # Small and odd, so that pages begin and end anywhere.

Fact = dict[str, Any]
Place = tuple[str, int, int]


@dataclass
class WrittenTier:
    """A tier on disk, the metadata file that belongs to it, and facts about it. Never written to."""

    tier: Path
    metadata: bytes
    settings: Mapping[str, Any]
    facts: Sequence[Fact]
    open_index: Mapping[int, bytes] = field(default_factory=dict)

    @classmethod
    def golden(cls, name: str) -> WrittenTier:
        root = HERE / name
        return cls(
            tier=root / "tier",
            metadata=(root / FILE_NAME).read_bytes(),
            settings=json.loads((root / "tier.json").read_text(encoding="utf-8"))["tier"],
            facts=[json.loads(line) for line in (root / "manifest.jsonl").read_text(encoding="utf-8").splitlines()],
            open_index={int(path.name): path.read_bytes() for path in sorted((root / "open_index").iterdir())},
        )

    @property
    def tier_settings(self) -> dict[str, Any]:
        """Those settings that make the tier's shape, as `TieredStore.open` takes them."""
        return {re.sub("([A-Z]+)", r"_\1", name).lower(): value for name, value in self.settings.items()}

    def of_kind(self, kind: str) -> list[Fact]:
        return [fact for fact in self.facts if fact["kind"] == kind]

    @cached_property
    def stored(self) -> dict[Place, Fact]:
        return {(fact["topic"], fact["queue"], fact["offset"]): with_our_hosts(fact) for fact in self.of_kind("stored")}

    def queues(self) -> list[tuple[str, int]]:
        return sorted({(topic, queue) for topic, queue, _ in self.stored})

    def index_segments(self) -> list[bytes]:
        """The uploaded index files, in the order in which they were uploaded."""
        paths = self.tier.glob("*/*/rmq_sys_INDEX/0/INDEX/*")
        return [path.read_bytes() for path in sorted(paths, key=lambda path: path.name[-20:])]


def with_our_hosts(fact: Fact) -> Fact:
    """Java writes `0:0:0:0:0:0:0:1:80` where we write `[::1]:80`."""
    hosts = {}
    for name in ("born_host", "store_host"):
        address, _, port = fact[name].rpartition(":")
        shown = ipaddress.ip_address(address).compressed
        hosts[name] = f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"
    return {**fact, **hosts}


def import_into(directory: Path, written: WrittenTier) -> Path:
    """Make `directory` a store that knows the tier, as `tiermq tier import` does; returns a copy that may change."""
    copy = directory / "tier"
    shutil.copytree(written.tier, copy)
    take_over(directory, copy, written.metadata)
    return copy


def take_over(store: Path, tier: Path, metadata_file: bytes) -> ImportReport:
    """RocketMQ's file is the truth about a tier that RocketMQ wrote last, whatever the store knew before."""
    database = store / "config" / METADATA_DATABASE
    database.parent.mkdir(parents=True, exist_ok=True)
    database.unlink(missing_ok=True)
    with MetadataStore(str(database)) as metadata, closing(open_driver(tier.absolute().as_uri())) as driver:
        return import_rocketmq(driver, metadata, metadata_file, cluster=CLUSTER, broker=BROKER)


def open_tier(store: Path, tier: Path, written: WrittenTier, **more: Any) -> TieredStore:
    """Our store over the tier; it reads nothing from anywhere else, and starts no thread that could change the tier."""
    settings = {"background": False, "tiered_storage_level": "FORCE", "broker_name": BROKER, **written.tier_settings}
    return TieredStore.open(store, tier=tier.absolute().as_uri(), **{**settings, **more})


def index_everything(store: TieredStore) -> None:
    """What the index's own thread does after a restore: read back every record that no index is known to cover."""
    index = store.tier.index
    assert index is not None
    while index.hole_count or not index._table.coverage.is_base_known:
        index.run_once()


def described(message: StoredMessage) -> Fact:
    """A message in the words of a `stored` fact."""
    body = message.decompressed_body()
    return {
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size": message.size,
        "flag": message.flag,
        "body_crc": message.body_crc,
        "born_timestamp": message.born_timestamp_ms,
        "store_timestamp": message.store_timestamp_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "prepared_offset": message.prepared_transaction_offset,
        "offset_id": message.message_id,
        "properties": dict(message.properties),
        "body_bytes": len(body),
        "body_sha256": hashlib.sha256(body).hexdigest(),
    }


def read_queue(store: TieredStore, topic: str, queue_id: int, offset: int | None = None) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    next_offset = store.min_offset(topic, queue_id) if offset is None else offset
    while (page := store.get(topic, queue_id, next_offset, PAGE_MESSAGES)).status is GetStatus.FOUND:
        found += page.messages
        next_offset = page.next_offset
    assert page.status is GetStatus.OFFSET_OVERFLOW_ONE, (topic, queue_id, next_offset, page.status)
    return found


def check_messages(store: TieredStore, written: WrittenTier) -> None:
    """Every message is there, every field as RocketMQ's own consumer saw it, and nothing else is."""
    found: dict[Place, Fact] = {}
    for topic, queue_id in written.queues():
        for message in read_queue(store, topic, queue_id):
            found[topic, queue_id, message.queue_offset] = described(message)
    assert found.keys() == written.stored.keys()
    for place, fact in written.stored.items():
        # The consumer clears the bit of a compressed body when it inflates it, so flags are compared by `sent`.
        assert found[place] == {name: value for name, value in fact.items() if name not in ("kind", "sys_flag")}
    check_sent(found, written)


def check_sent(found: Mapping[Place, Fact], written: WrittenTier) -> None:
    """The same, of what the producer meant."""
    for sent in written.of_kind("sent"):
        message = found[sent["topic"], sent["result"]["queue"], sent["result"]["offset"]]
        properties = message["properties"]
        assert properties["UNIQ_KEY"] == sent["unique_id"]
        assert (message["body_sha256"], message["flag"]) == (sent["body_sha256"], sent["flag"])
        assert properties.get("KEYS", "").split() == sent["keys"]
        assert properties.get("TAGS") == sent["tags"]
        assert sent["properties"].items() <= properties.items()


def check_times(store: TieredStore, written: WrittenTier) -> None:
    """A time finds the first message stored then or later, as RocketMQ's own search does; earliest times are right."""
    times = {place: fact["store_timestamp"] for place, fact in written.stored.items()}
    for fact in written.of_kind("offset_at"):
        queue = (fact["topic"], fact["queue"])
        later = [
            offset for (*place, offset), time_ms in times.items() if (*place,) == queue and time_ms >= fact["timestamp"]
        ]
        first = min(later, default=store.max_offset(*queue))
        assert store.offset_at(*queue, fact["timestamp"]) == first, fact
        # Where messages of one millisecond lie in two segments, RocketMQ may give the first one of the later segment.
        assert first == fact["offset"] or times[*queue, fact["offset"]] == fact["timestamp"] == times[*queue, first]
    for topic, queue_id in written.queues():
        earliest = min(time_ms for (*place, _), time_ms in times.items() if place == [topic, queue_id])
        assert store.earliest_time(topic, queue_id) == earliest


def check_keys(store: TieredStore, written: WrittenTier) -> None:
    """Every key and unique id finds exactly the messages that have it; RocketMQ's own hits are among them."""
    holders = messages_by_key(written)
    for (topic, key), unique_ids in holders.items():
        hits = store.query(topic, key, max_messages=HITS_MAX).messages
        found = [str(hit.unique_key) for hit in hits]
        assert len(found) == len(set(found)) == min(len(unique_ids), HITS_MAX), (topic, key)
        assert set(found) <= unique_ids
    for fact in written.of_kind("query"):
        assert set(fact["unique_ids"]) <= holders.get((fact["topic"], fact["key"]), set()), fact
        if (fact["topic"], fact["key"]) not in holders:
            assert store.query(fact["topic"], fact["key"]).messages == []


def messages_by_key(written: WrittenTier) -> dict[tuple[str, str], set[str]]:
    """(topic, key) → unique ids of the messages that have the key, or that are themselves the key."""
    holders: dict[tuple[str, str], set[str]] = {}
    for fact in written.stored.values():
        unique_id = fact["properties"]["UNIQ_KEY"]
        for key in {unique_id, *fact["properties"].get("KEYS", "").split()}:
            holders.setdefault((fact["topic"], key), set()).add(unique_id)
    return holders
