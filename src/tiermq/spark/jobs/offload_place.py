"""Store directories before an offload touches them: whose they are, whether they can be read, what waits in them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiermq.clock import Clock
from tiermq.errors import BadConfig, BadTierName, StoreDamaged
from tiermq.history.scan_values import DEFAULT_BROKER, DEFAULT_CLUSTER, StorePlace
from tiermq.spark.jobs.offload_wave import Backlog
from tiermq.store.index_walk import IndexView
from tiermq.store.local_store import LocalStore
from tiermq.store.read_only_store import ReadOnlyStore
from tiermq.store.store_files import FileKind, ReadOnlyMap, StoreFile, list_store
from tiermq.store.store_state import StoreState, store_state
from tiermq.tier.dispatch.read_only_source import ReadOnlySource
from tiermq.tier.dispatch.topic_filter import TopicFilter
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.known_metadata import require_sound_metadata
from tiermq.tier.known_tier import forget_tier, missing_tail, require_known_tier
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import QueueKey
from tiermq.tier.tier_config import TierConfig


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queue that is not wholly in the tier: where the tier ends (-1: not begun), where the store does."""

    store: str
    queue: QueueKey
    tier_offset: int
    max_offset: int
    backlog: Backlog

    def as_row(self) -> dict[str, str | int]:
        return {
            "store": self.store,
            "topic": self.queue.topic,
            "queue": self.queue.queue_id,
            "from": self.tier_offset,
            "to": self.max_offset,
            "messages": self.backlog.messages,
            "bytes": self.backlog.bytes,
        }


def parse_place(text: str) -> tuple[str, str | None, str | None]:
    """`DIR` or `DIR=cluster/broker`: the directory, and the names if there are any."""
    path, _, names = text.partition("=")
    if not names:
        if "=" in text or not path:
            raise BadConfig(f"--store is DIR or DIR=cluster/broker, found {text!r}")
        return path, None, None
    cluster, _, broker = names.partition("/")
    if not cluster or not broker or "/" in broker or not path:
        raise BadConfig(f"--store is DIR or DIR=cluster/broker, found {text!r}")
    return path, cluster, broker


def place_of(text: str) -> StorePlace:
    """The place that a text names. A directory that was tiered before knows its broker; others get the default names.

    Raises BadConfig when the names are others than those under which the directory was tiered, StoreDamaged when what
    it knows of that is damaged.
    """
    path, cluster, broker = parse_place(text)
    known: set[tuple[str, str]] = set()
    metadata_path = require_sound_metadata(path)
    if metadata_path.is_file():
        with MetadataStore(metadata_path) as metadata:
            known = {(queue.key.cluster, queue.key.broker) for queue in metadata.queues()}
    given = (cluster, broker) if cluster is not None and broker is not None else None
    if given is None:
        given = next(iter(known)) if len(known) == 1 else (DEFAULT_CLUSTER, DEFAULT_BROKER)
    if known and given not in known:
        was = ", ".join(sorted("/".join(names) for names in known))
        raise BadConfig(
            f"{path}: expected the names under which its history is in the tier already ({was}), found "
            f"{'/'.join(given)}; under other names it would be copied a second time"
        )
    try:
        QueueKey(*given, "topic", 0)
    except BadTierName as error:
        raise BadConfig(f"{text}: {error}") from error
    return StorePlace(path, *given)


def require_topics(places: Iterable[StorePlace], topics: frozenset[str]) -> None:
    """Raises BadConfig when none of the stores has a topic that was named."""
    known: set[str] = set()
    for place in places:
        with ReadOnlyStore.open(place.path) as store:
            known |= {topic for topic, _ in ReadOnlySource(store, trusted=True).queues()}
    for topic in sorted(topics - known):
        near = difflib.get_close_matches(topic, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        raise BadConfig(f"there is no topic {topic!r} in these stores{hint} There are {', '.join(sorted(known)[:20])}")


def require_free(driver: TierDriver, place: StorePlace, owner: str, clock: Clock) -> None:
    """Raises LeaseHeld when somebody else holds the broker: before a file is touched. `acquire` asks again."""
    found = BrokerLease(driver, place.cluster, place.broker, owner, clock=clock).read()
    if found is not None and found.owner not in ("", owner) and clock.now_ms() < found.expires_ms:
        raise LeaseHeld(
            f"{place.path}: expected nobody to copy the history of {place.cluster}/{place.broker}, found {found.owner} "
            f"at it, for another {(found.expires_ms - clock.now_ms()) / 1000:.0f} s at least. A store that runs with "
            "its own dispatcher keeps the lease: set tierDispatchEnable=false there, and this job does the copying"
        )


def settle_tier(
    driver: TierDriver, place: StorePlace, config: TierConfig, clock: Clock, *, forget: bool = False
) -> list[str]:
    """See to it that the tier is the one that the store knows, or with `forget` that the store knows none.

    What was put away, under which names; a tier that is known is not forgotten. Raises TierError, StoreLocked,
    StoreDamaged.
    """
    if not require_sound_metadata(config.root_path).is_file():
        return []
    with MetadataStore(config.metadata_path, clock=clock) as metadata:
        if not forget:
            require_known_tier(driver, metadata, place.path)
            return []
        if missing_tail(driver, metadata) is None:
            return []
    return forget_tier(config.metadata_path, Path(place.path).expanduser(), clock)


def recover_store(path: str) -> bool:
    """Open a store whose process died, and close it: what its files say is true then. False when it needed none."""
    root = Path(path).expanduser()
    if store_state(root) is not StoreState.CRASHED:
        return False
    LocalStore.open(root, background=False, with_tier=True, **store_settings(root)).close()
    return True


def store_settings(root: Path) -> dict[str, Any]:
    """The settings that are part of a directory's format, told from its files."""
    settings: dict[str, Any] = {}
    names = {
        FileKind.COMMIT_LOG: "mapped_file_size_commit_log",
        FileKind.CONSUME_QUEUE: "mapped_file_size_consume_queue",
        FileKind.CONSUME_QUEUE_EXT: "mapped_file_size_consume_queue_ext",
        FileKind.BATCH_CONSUME_QUEUE: "mapper_file_size_batch_consume_queue",
    }
    for file in list_store(root):
        size = file.path.stat().st_size
        if file.kind in names and size:
            settings.setdefault(names[file.kind], size)
        elif file.kind is FileKind.INDEX and size and "max_hash_slot_num" not in settings:
            settings |= _index_settings(file)
    settings["enable_consume_queue_ext"] = "mapped_file_size_consume_queue_ext" in settings
    return settings


def _index_settings(file: StoreFile) -> dict[str, Any]:
    with ReadOnlyMap(file.path) as opened:
        try:
            view = IndexView(opened.view)
        except StoreDamaged:
            return {}  # Of an index file that a crash left the start of the store makes what can be made.
        return {"max_hash_slot_num": view.slot_count_max, "max_index_num": view.entry_count_max}


def waiting_in(
    place: StorePlace, config: TierConfig, topics: frozenset[str], driver: TierDriver, *, forget: bool = False
) -> list[Waiting]:
    """What an offload would copy now. Writes nothing and takes no lock. Raises TierError for a tier that is not known.

    `forget`: what would be copied if the store first forgot a tier that it does not know again.
    """
    ends: dict[tuple[str, int], int] = {}
    if require_sound_metadata(config.root_path).is_file():
        with MetadataStore(config.metadata_path) as metadata:
            if not forget:
                require_known_tier(driver, metadata, place.path)
            if not forget or missing_tail(driver, metadata) is None:
                ends = {(queue.key.topic, queue.key.queue_id): queue.max_offset for queue in metadata.queues()}
    chosen = TopicFilter(place.broker, place.cluster, whitelist=topics or None)
    found = []
    with ReadOnlyStore.open(place.path) as store:
        store.require_recovered()
        source = ReadOnlySource(store, trusted=True)
        for topic, queue_id in source.queues():
            if chosen.is_filtered(topic):
                continue
            end = ends.get((topic, queue_id), -1)
            state = source.state(topic, queue_id, end)
            if state is not None and state.next_offset is not None:
                backlog = Backlog(state.max_offset - state.next_offset, state.backlog_bytes)
                key = QueueKey(place.cluster, place.broker, topic, queue_id)
                found.append(Waiting(place.path, key, end, state.max_offset, backlog))
    return found
