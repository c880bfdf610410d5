"""TierView: read a tier from the bucket alone: topics, queues, segments, messages. No broker, no metadata, read-only.

A queue's content comes from the listing, its manifest if there is one, and its units if the manifest is missing or
behind (`restore.queue_discovery`). A restore uses the same code, so it finds what is shown here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tiermq.clock import EVER_MS, Clock, SystemClock
from tiermq.errors import CorruptSegment, TierError
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.compacted_index import CompactedIndex
from tiermq.tier.index.index_item import IndexItem, index_hash, low_32_bits
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_values import NEVER_MS, UNKNOWN_OFFSET, Segment, SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentType
from tiermq.tier.queue.records import CODA_BYTES
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.queue.tier_queue import MessageRow, TierQueue
from tiermq.tier.queue.units import Unit
from tiermq.tier.restore.queue_discovery import DiscoveredQueue, discover_index
from tiermq.tier.restore.restore import Discovery
from tiermq.tier.restore.restore_report import Remark

TOPICS_NAMED = 10


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue as it was found, with its manifest if it could be read."""

    discovered: DiscoveredQueue
    manifest: QueueManifest | None

    @property
    def key(self) -> QueueKey:
        return self.discovered.queue.key

    @property
    def min_offset(self) -> int:
        return self.discovered.queue.min_offset

    @property
    def max_offset(self) -> int:
        return self.discovered.queue.max_offset

    @property
    def message_count(self) -> int:
        """Messages that can be read: without those in gaps."""
        low, high = self.min_offset, self.max_offset
        lost = sum(
            max(0, min(gap.to_offset, high) - max(gap.from_offset, low))
            for gap in {(gap.from_offset, gap.to_offset): gap for gap in self.discovered.gaps}.values()
        )
        return max(0, high - low - lost)

    def segments(self, kind: SegmentType | None = None) -> list[Segment]:
        live = [s for s in self.discovered.segments if s.status is not SegmentStatus.DELETED]
        return sorted((s for s in live if kind in (None, s.key.type)), key=lambda s: s.key)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments())

    @property
    def begin_ms(self) -> int:
        """Store time of the oldest message; -1 when there is none."""
        times = [s.begin_ms for s in self.segments(SegmentType.COMMIT_LOG) if s.begin_ms != NEVER_MS]
        return min(times, default=-1)

    @property
    def end_ms(self) -> int:
        return max((s.end_ms for s in self.segments(SegmentType.COMMIT_LOG) if s.end_ms != NEVER_MS), default=-1)


class TierView:
    """The content of a scope of a tier. Made by `view_tier`; any thread may use it."""

    def __init__(
        self, driver: TierDriver, queues: Sequence[QueueView], index: Sequence[Segment], remarks: Sequence[Remark]
    ) -> None:
        self._driver = driver
        self.url = driver.url
        self.queues = list(queues)
        self.index = list(index)
        self.remarks = list(remarks)

    @property
    def brokers(self) -> list[tuple[str, str]]:
        found = {(queue.key.cluster, queue.key.broker) for queue in self.queues}
        return sorted(found | {(segment.key.cluster, segment.key.broker) for segment in self.index})

    def find(self, topic: str, queue_id: int) -> QueueView:
        """The queue. Raises TierError without one, or with one on each of several brokers."""
        found = [queue for queue in self.queues if (queue.key.topic, queue.key.queue_id) == (topic, queue_id)]
        if len(found) == 1:
            return found[0]
        if found:
            brokers = ", ".join(queue.key.broker for queue in found)
            raise TierError(
                f"{self.url}: queue {queue_id} of topic {topic!r} is on several brokers ({brokers}); name the broker"
            )
        queues = sorted({queue.key.queue_id for queue in self.queues if queue.key.topic == topic})
        if not queues:
            raise self.no_topic(topic)
        there = f"{'queues' if len(queues) > 1 else 'queue'} {', '.join(map(str, queues))}"
        raise TierError(f"{self.url}: expected queue {queue_id} of topic {topic!r}, found none; it has {there}")

    def no_topic(self, topic: str) -> TierError:
        """The error that a topic is not there, with those that are."""
        names = sorted({queue.key.topic for queue in self.queues})
        more = f" and {len(names) - TOPICS_NAMED:,} more" if len(names) > TOPICS_NAMED else ""
        there = f"there are {', '.join(names[:TOPICS_NAMED])}{more}" if names else "there is no topic at all"
        return TierError(f"{self.url}: expected topic {topic!r}, found none of that name; {there}")

    # Messages

    def messages(self, queue: QueueView, offset: int, count: int) -> Iterator[MessageRow]:
        """Up to `count` rows from queue offset `offset` on, or from the first message if that is later."""
        offset = max(offset, queue.min_offset, 0)
        return self._reader(queue).messages(offset, min(offset + count, queue.max_offset))

    def _reader(self, queue: QueueView) -> TierQueue:
        logs, units = (queue.segments(kind) for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE))
        return TierQueue(self._driver, queue.key, logs, units)

    def find_by_key(
        self, topic: str, key: str, max_count: int, queue_id: int | None = None
    ) -> Iterator[tuple[QueueView, MessageRow]]:
        """Messages that have a key, from uploaded index files, newest file first; each message once.

        A record of the index that is damaged or cannot be read is a row with its error: whether it has the key is
        unknown. Index files that a broker has not uploaded yet are not searched.
        Raises CorruptSegment, TierUnavailable.
        """
        queues = [q for q in self.queues if q.key.topic == topic and queue_id in (None, q.key.queue_id)]
        ids = {low_32_bits(queue.manifest.topic_id) for queue in queues if queue.manifest is not None}
        wanted = index_hash(topic, key)
        seen: set[tuple[QueueKey, int]] = set()
        for segment in sorted(self.index, key=lambda segment: segment.key.base, reverse=True):
            selected = CompactedIndex(self._driver, segment).select(wanted, 1 << 20, 0, EVER_MS)
            for item in selected.items:
                queue = next((q for q in queues if _is_of(q.key, segment, item.queue_id)), None)
                if queue is None or (queue.key, item.tier_offset) in seen or (ids and item.topic_id not in ids):
                    continue
                seen.add((queue.key, item.tier_offset))
                row = self._candidate(queue, item)
                if row is None or (row.message is not None and key not in (*row.message.keys, row.message.unique_key)):
                    continue
                yield queue, row
                max_count -= row.message is not None
                if max_count <= 0:
                    return

    def _candidate(self, queue: QueueView, item: IndexItem) -> MessageRow | None:
        """What an item of the index leads to; None when it has expired, or was uploaded after the queue was listed."""
        reader = self._reader(queue)
        row = reader.message(Unit(UNKNOWN_OFFSET, item.tier_offset, item.size))
        if row.message is not None:
            return replace(row, queue_offset=row.message.queue_offset)
        first, last = reader.first_unit(queue.min_offset, queue.max_offset), reader.unit(queue.max_offset - 1)
        is_expired = queue.max_offset <= queue.min_offset or (first is not None and item.tier_offset < first.log_offset)
        is_later = last is not None and not last.is_blank and item.tier_offset > last.end + CODA_BYTES
        return None if is_expired or is_later else row

    def unindexed(self, topic: str) -> list[QueueView]:
        """Queues of the topic whose every key is not known to be in the uploaded index.

        RocketMQ's index files do not record that. Raises what the driver raises.
        """
        return [
            queue
            for queue in self.queues
            if queue.key.topic == topic and queue.max_offset > queue.min_offset and not self._is_indexed(queue)
        ]

    def _is_indexed(self, queue: QueueView) -> bool:
        of_broker = [
            row for row in self.index if (row.key.cluster, row.key.broker) == (queue.key.cluster, queue.key.broker)
        ]
        logs = queue.segments(SegmentType.COMMIT_LOG)
        if not of_broker or not logs:
            return not logs
        try:
            companion = CompactedIndex(self._driver, max(of_broker, key=lambda row: row.key.base)).companion()
        except CorruptSegment:
            return False
        known = None if companion is None else companion.coverage().queues.get((queue.key.topic, queue.key.queue_id))
        return known is not None and known.is_complete and known.end >= max(row.end for row in logs)


def view_tier(
    driver: TierDriver,
    scope: TierScope | None = None,
    *,
    with_index: bool = True,
    threads: int = 8,
    clock: Clock | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> TierView:
    """List a tier, with the index of its brokers even if the scope is one topic.

    `progress` is called with (queues done, queues in all). Raises what the driver raises.
    """
    scope = scope or TierScope()
    listing = list_tier(driver, scope)
    if with_index and scope.topic is not None:
        index_listing = list_tier(driver, TierScope(scope.cluster, scope.broker, INDEX_TOPIC))
        listing.segments.extend(index_listing.segments)
        listing.objects.extend(index_listing.objects)
    found = Discovery.of(driver, listing, threads)
    manifests, remarks = found.read.manifests, list(found.read.remarks)
    index: list[Segment] = []
    for key in sorted(key for key in found.infos.keys() | manifests.keys() if key.topic == INDEX_TOPIC):
        segments, index_remarks = discover_index(driver, found.infos.get(key, ()), manifests.get(key))
        index += [segment for segment in segments if segment.status is not SegmentStatus.DELETED]
        remarks += index_remarks
    now_ms = (clock or SystemClock()).now_ms()
    discoveries = found.discover(
        driver, found.queues(), now_ms, threads, lambda done, total, _key: progress(done, total)
    )
    queues = [QueueView(discovered, manifests.get(discovered.queue.key)) for discovered in discoveries]
    remarks += [remark for queue in queues for remark in queue.discovered.remarks]
    return TierView(driver, queues, index, remarks)


def _is_of(key: QueueKey, segment: Segment, queue_id: int) -> bool:
    return (key.cluster, key.broker, key.queue_id) == (segment.key.cluster, segment.key.broker, queue_id)
