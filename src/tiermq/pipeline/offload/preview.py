"""What waits for an offload: for a dry run, and for topics that were named. Nothing is written, no lease is taken."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from tiermq.errors import BadConfig
from tiermq.history.scan_values import StorePlace
from tiermq.pipeline.offload.broker import unread_text
from tiermq.pipeline.offload.plan import Backlog
from tiermq.pipeline.offload.wire_broker import WireBroker
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.dispatch.local_source import ReadOnlySource
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.metadata.manifest_store import ManifestStore
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import INDEX_TOPIC, QueueKey
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.tier_config import TierConfig
from tiermq.tier.tier_identity import missing_tail, require_known_tier, require_sound_metadata
from tiermq.tier.tier_wiring import topic_filter


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


def require_topics(places: Iterable[StorePlace], topics: frozenset[str]) -> None:
    """Raises BadConfig when none of the stores has a topic that was named."""
    known: set[str] = set()
    for place in places:
        with ReadOnlyStore.open(place.path) as store:
            known |= {topic for topic, _ in ReadOnlySource(store, trusted=True).queues()}
    for topic in sorted(topics - known):
        near = difflib.get_close_matches(topic, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise BadConfig(f"there is no topic {topic!r} in these stores{hint} There are {', '.join(sorted(known)[:20])}")


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
    chosen = topic_filter(config, topics)
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


def waiting_at(broker: WireBroker, driver: TierDriver) -> list[Waiting]:
    """The same of a running broker: by the tier's manifests. Messages that are not settled yet count as well."""
    scope = TierScope(broker.cluster, broker.broker)
    listing = list_tier(driver, scope)
    broker.expect({info.key.queue.name for info in listing.segments if info.key.queue.topic != INDEX_TOPIC})
    found, manifests = [], ManifestStore(driver, "a reader")
    for name in broker.queues():
        key = QueueKey(broker.cluster, broker.broker, *name)
        known = manifests.read(key) if manifest_name(key) in listing.objects else None
        at, end = -1 if known is None else known.max_offset, broker.max_offset(*name)
        start = max(at, broker.min_offset(*name))
        if start < end:
            backlog = Backlog(end - start, (end - start) * broker.record_bytes)
            found.append(Waiting(broker.path, key, at, end, backlog))
    return found


def unread_at(broker: WireBroker, driver: TierDriver) -> dict[str, str]:
    """The queues of a running broker with messages that the tier has not and that no client may read, and why."""
    problems, manifests = {}, ManifestStore(driver, "a reader")
    for name, messages in broker.unread.items():
        known = manifests.read(QueueKey(broker.cluster, broker.broker, *name))
        if text := unread_text(name, messages, -1 if known is None else known.max_offset):
            problems[f"{broker.path} {name[0]}-{name[1]}"] = text
    return problems
