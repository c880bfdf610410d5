"""What the real RocketMQ says about a tier while its broker runs, as facts for `golden.tier_reading`."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from golden.tier_reading import Fact, WrittenTier
from interop import workload
from interop.peer import Described, Peer
from interop.tier_broker import UPLOAD_TIMEOUT_S, metadata_path
from tiermq.errors import CorruptRecord
from tiermq.tier.index.index_item import decode_header

Topics = Sequence[tuple[str, int]]


def send_all(peer: Peer, messages: Iterable[Described]) -> list[Fact]:
    return [{"kind": "sent", **workload.manifest_line(message), "result": peer.send(message)} for message in messages]


def counts_of(facts: Iterable[Fact]) -> Counter[tuple[str, int]]:
    """(topic, queue) → how many messages."""
    return Counter((fact["topic"], fact["queue"]) for fact in facts)


def read_back(peer: Peer, topics: Topics) -> list[Fact]:
    """Every message as RocketMQ's consumer gets it; from the tier, when the broker's level is FORCE."""
    return [
        {"kind": "stored", **workload.manifest_line(message)}
        for topic, queues in topics
        for queue in range(queues)
        for message in peer.read(topic, queue)
    ]


def query_keys(peer: Peer, sent: Sequence[Fact], step: int = 1) -> list[Fact]:
    """Each key of every `step`-th message, its unique id, and one key that nothing has.

    Ids by place are of no use here: a place in the tier is one in a queue's own log, and repeats in the next queue.
    """
    asked: dict[tuple[str, str, bool], None] = {}
    for fact in sent[::step]:
        asked.update({(fact["topic"], key, False): None for key in [*fact["keys"], "nobody-has-it"]})
        asked[fact["topic"], fact["unique_id"], True] = None
    return [
        {
            "kind": "query",
            "topic": topic,
            "key": key,
            "unique_ids": sorted(hit["properties"]["UNIQ_KEY"] for hit in peer.query(topic, key, unique=unique)),
        }
        for topic, key, unique in asked
    ]


def search_times(peer: Peer, stored: Iterable[Fact]) -> list[Fact]:
    """Before the first, at and just after every fifth, and after the last message of each queue."""
    times: dict[tuple[str, int], list[int]] = {}
    for fact in stored:
        times.setdefault((fact["topic"], fact["queue"]), []).append(fact["store_timestamp"])
    found: list[Fact] = []
    for (topic, queue), all_ms in times.items():
        asked_ms = {all_ms[0] - 1, all_ms[-1] + 1, *all_ms[::5], *(time_ms + 1 for time_ms in all_ms[::5])}
        for time_ms in sorted(asked_ms):
            offset = peer.offset_at(topic, queue, time_ms)
            found.append({"kind": "offset_at", "topic": topic, "queue": queue, "timestamp": time_ms, "offset": offset})
    return found


def key_count(stored: Iterable[Fact]) -> int:
    """How many index items these messages make."""
    return sum(len({*fact["properties"].get("KEYS", "").split(), "the unique id"}) for fact in stored)


def catch_open_index(store: Path, tier: Path, item_count: int) -> dict[int, bytes]:
    """Begin time → bytes of the broker's local index files, once they and the uploaded ones hold all items.

    The newest one stays open until the broker stops, so at least one is caught.
    """
    deadline = time.monotonic() + UPLOAD_TIMEOUT_S
    while True:
        local = [path for path in (store / "tiered_index_file").iterdir() if path.name.isdigit()]
        uploaded = [path.read_bytes() for path in tier.glob("*/*/rmq_sys_INDEX/0/INDEX/*")]
        caught: dict[int, bytes] = {}
        try:
            caught = {int(path.name): path.read_bytes() for path in local}
            headers = [decode_header(data) for data in caught.values()]
            headers += [header for header in map(decode_header, uploaded) if header.begin_ms not in caught]
            if sum(header.item_count for header in headers) == item_count:
                return caught
        except (FileNotFoundError, CorruptRecord):
            pass  # A file was uploaded or removed between two looks.
        if time.monotonic() > deadline:
            raise AssertionError(f"expected {item_count} index items, found {[len(data) for data in caught.values()]}")
        time.sleep(0.1)


def keep_tier(
    store: Path, tier: Path, settings: dict[str, object], facts: Sequence[Fact], caught: dict[int, bytes], copy: Path
) -> WrittenTier:
    """A copy of what a broker that has stopped left behind."""
    shutil.copytree(tier, copy)
    return WrittenTier(copy, metadata_path(store).read_bytes(), settings, facts, caught)
