"""A tier seen from the bucket alone: topics, queues, segments and messages. No broker, no metadata, nothing written.

What a queue holds follows from the listing, its manifest where there is one, and its units where there is none or it is
behind (`metadata.queue_survey`, which a restore uses too). So what is shown here is what a restore would find.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tiermq.clock import Clock, SystemClock
from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tiermq.errors import CorruptRecord, CorruptSegment, FutureManifest, IllegalRange, SegmentMissing, TierError
from tiermq.message.layout import MAGIC_BLANK, SIZE_AND_MAGIC
from tiermq.message.record import CrcPropertyCheck, decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.compacted_index import CompactedIndex
from tiermq.tier.index.index_item import index_hash, low_32_bits
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.index_survey import survey_index
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, manifest_name, queue_of_manifest
from tiermq.tier.metadata.metadata_values import NEVER_MS, UNKNOWN_OFFSET, Segment, SegmentStatus
from tiermq.tier.metadata.queue_survey import QueueSurvey, survey_queue
from tiermq.tier.metadata.restore_report import Finding, Remark
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentType
from tiermq.tier.tier_listing import TierScope, list_tier

CODA_BYTES = 16
UNITS_AT_ONCE = 1_024
READ_BYTES = 4 * 1024 * 1024
EVER_MS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue as it was found, with its manifest if it could be read."""

    survey: QueueSurvey
    manifest: QueueManifest | None

    @property
    def key(self) -> QueueKey:
        return self.survey.queue.key

    @property
    def min_offset(self) -> int:
        return self.survey.queue.min_offset

    @property
    def max_offset(self) -> int:
        return self.survey.queue.max_offset

    @property
    def message_count(self) -> int:
        """Messages that can be read: without those in gaps."""
        low, high = self.min_offset, self.max_offset
        lost = sum(
            max(0, min(gap.to_offset, high) - max(gap.from_offset, low))
            for gap in {(gap.from_offset, gap.to_offset): gap for gap in self.survey.gaps}.values()
        )
        return max(0, high - low - lost)

    def segments(self, kind: SegmentType | None = None) -> list[Segment]:
        live = [s for s in self.survey.segments if s.status is not SegmentStatus.DELETED]
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


@dataclass(frozen=True, slots=True)
class MessageRow:
    """What stands at one queue offset: a message, a gap (neither), or damage (`error`)."""

    queue_offset: int
    message: StoredMessage | None = None
    error: str = ""


class TierView:
    """What lies within a scope of a tier. Made by `view_tier`; any thread may ask."""

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
        """The queue. Raises TierError when there is none, or one on each of several brokers."""
        found = [queue for queue in self.queues if (queue.key.topic, queue.key.queue_id) == (topic, queue_id)]
        if len(found) == 1:
            return found[0]
        if found:
            brokers = ", ".join(queue.key.broker for queue in found)
            raise TierError(
                f"{self.url}: queue {queue_id} of topic {topic!r} is on several brokers ({brokers}); say which"
            )
        queues = sorted({queue.key.queue_id for queue in self.queues if queue.key.topic == topic})
        there = f"it has queues {', '.join(map(str, queues))}" if queues else "the tier has no such topic"
        raise TierError(f"{self.url}: expected queue {queue_id} of topic {topic!r}, found none; {there}")

    # Messages

    def messages(self, queue: QueueView, offset: int, count: int) -> Iterator[MessageRow]:
        """Up to `count` rows from queue offset `offset` on, or from the first message if that is later."""
        offset = max(offset, queue.min_offset, 0)
        end = min(offset + count, queue.max_offset)
        while offset < end:
            units = self._read(queue, SegmentType.CONSUME_QUEUE, offset * UNIT_BYTES,
                               min(UNITS_AT_ONCE, end - offset) * UNIT_BYTES)  # fmt: skip
            if isinstance(units, str):
                yield MessageRow(offset, error=units)
                offset += 1
                continue
            whole = units[: len(units) // UNIT_BYTES * UNIT_BYTES]
            yield from self._rows(queue, offset, whole)
            offset += max(1, len(whole) // UNIT_BYTES)

    def _rows(self, queue: QueueView, offset: int, units: memoryview) -> Iterator[MessageRow]:
        window, start, why = memoryview(b""), 0, ""
        for place, size, _ in UNIT.iter_unpack(units):
            if (place, size) == (0, PRE_BLANK_SIZE):
                yield MessageRow(offset)
            else:
                if not start <= place <= place + size + CODA_BYTES <= start + len(window):
                    found = self._read(queue, SegmentType.COMMIT_LOG, place, max(size + CODA_BYTES, READ_BYTES))
                    if isinstance(found, str):  # Damage further on is none of this record's.
                        found = self._read(queue, SegmentType.COMMIT_LOG, place, size + CODA_BYTES)
                    window, start, why = (memoryview(b""), 0, found) if isinstance(found, str) else (found, place, "")
                if why:
                    yield MessageRow(offset, error=why)
                else:
                    yield _row(offset, window[place - start :] if window else window, place, size)
            offset += 1

    def _read(self, queue: QueueView, kind: SegmentType, offset: int, length: int) -> memoryview | str:
        """Bytes of one of the queue's files, cut to the segment they begin in; why not, if not."""
        segments = queue.segments(kind)
        index = bisect_right([segment.key.base for segment in segments], offset) - 1
        if index < 0 or offset >= segments[index].end or length <= 0:
            return f"offset {offset} is in no segment"
        segment = segments[index]
        try:
            read, position = partial(self._driver.read, segment.key), offset - segment.key.base
            length = min(length, segment.end - offset)
            if segment.sums is None:
                return memoryview(read(position, length))
            sums = segment.sums.cut(segment.size)
            return sums.read(str(segment.key), read, position, length, "run `tiermq tier verify`")
        except (SegmentMissing, IllegalRange, CorruptSegment) as error:
            return str(error)

    def find_by_key(self, topic: str, key: str, max_count: int) -> Iterator[StoredMessage]:
        """Messages that have a key, from uploaded index files, newest file first; each message once.

        What a broker has not uploaded of its index yet is not found here. Raises CorruptSegment, TierUnavailable.
        """
        queues = [queue for queue in self.queues if queue.key.topic == topic]
        ids = {low_32_bits(queue.manifest.topic_id) for queue in queues if queue.manifest is not None}
        wanted = index_hash(topic, key)
        seen: set[tuple[str, int, int]] = set()
        for segment in sorted(self.index, key=lambda segment: segment.key.base, reverse=True):
            selected = CompactedIndex(self._driver, segment).select(wanted, 1 << 20, 0, EVER_MS)
            for item in selected.items:
                queue = next((q for q in queues if _is_of(q.key, segment, item.queue_id)), None)
                place = (segment.key.broker, item.queue_id, item.tier_offset)
                if queue is None or place in seen or (ids and item.topic_id not in ids):
                    continue
                seen.add(place)
                found = self._read(queue, SegmentType.COMMIT_LOG, item.tier_offset, item.size)
                row = _row(
                    UNKNOWN_OFFSET, memoryview(b"") if isinstance(found, str) else found, item.tier_offset, item.size
                )
                if row.message is not None and key in (*row.message.keys, row.message.unique_key):
                    yield row.message
                    max_count -= 1
                    if max_count <= 0:
                        return

    def unindexed(self, topic: str) -> list[QueueView]:
        """Queues of the topic of which the uploaded index does not say that it holds every key.

        RocketMQ's index files never say. Raises what the driver raises.
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
            told = CompactedIndex(self._driver, max(of_broker, key=lambda row: row.key.base)).companion()
        except CorruptSegment:
            return False
        known = None if told is None else told.coverage().queues.get((queue.key.topic, queue.key.queue_id))
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
    """Look at a tier, with the index of its brokers even if the scope is one topic of them.

    `progress` is told (queues done, queues in all). Raises what the driver raises.
    """
    scope = scope or TierScope()
    listing = list_tier(driver, scope)
    if with_index and scope.topic is not None:
        index_listing = list_tier(driver, TierScope(scope.cluster, scope.broker, INDEX_TOPIC))
        listing.segments.extend(index_listing.segments)
        listing.objects.extend(index_listing.objects)
    manifests, remarks = _read_manifests(driver, listing.objects)
    infos: defaultdict[QueueKey, list[SegmentInfo]] = defaultdict(list)
    for info in listing.segments:
        infos[info.key.queue].append(info)
    keys = sorted(infos.keys() | manifests.keys())
    now_ms = (clock or SystemClock()).now_ms()
    index: list[Segment] = []
    for key in (key for key in keys if key.topic == INDEX_TOPIC):
        found, index_remarks = survey_index(driver, infos[key], manifests.get(key))
        index += [segment for segment in found if segment.status is not SegmentStatus.DELETED]
        remarks += index_remarks
    keys = [key for key in keys if key.topic != INDEX_TOPIC]
    queues = []
    with ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="tier-view") as pool:
        jobs = [pool.submit(survey_queue, driver, key, infos[key], manifests.get(key), now_ms) for key in keys]
        try:
            for done, (key, job) in enumerate(zip(keys, jobs, strict=True), start=1):
                queues.append(QueueView(job.result(), manifests.get(key)))
                progress(done, len(keys))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    remarks += [remark for queue in queues for remark in queue.survey.remarks]
    return TierView(driver, queues, index, remarks)


def _read_manifests(driver: TierDriver, names: Sequence[str]) -> tuple[dict[QueueKey, QueueManifest], list[Remark]]:
    manifests, remarks = {}, []
    for name in names:
        key = queue_of_manifest(name)
        stored = driver.get_object(name) if key is not None else None
        if key is None or stored is None:
            continue
        try:
            manifest = decode_manifest(stored.data, name)
        except FutureManifest as error:
            remarks.append(Remark(Finding.FUTURE_MANIFEST, name, str(error)))
        except CorruptManifest as error:
            remarks.append(Remark(Finding.CORRUPT_MANIFEST, name, str(error)))
        else:
            if manifest.key == key:
                manifests[key] = manifest
            else:
                remarks.append(Remark(Finding.MISPLACED_MANIFEST, name, f"it is of {manifest_name(manifest.key)}"))
    return manifests, remarks


def _row(queue_offset: int, data: memoryview, place: int, size: int) -> MessageRow:
    """The record at the start of `data`, behind an end mark if there is one."""
    at = 0
    if len(data) >= SIZE_AND_MAGIC.size and SIZE_AND_MAGIC.unpack_from(data)[1] == MAGIC_BLANK:
        at = CODA_BYTES
    if size <= 0 or len(data) < at + size:
        return MessageRow(queue_offset, error=f"its record of {size} bytes at log offset {place} is not there")
    try:
        message = decode_record(
            data[at : at + size], crc_property=CrcPropertyCheck.IGNORE, expect_physical_offset=place + at
        )
    except CorruptRecord as error:
        return MessageRow(queue_offset, error=f"log offset {place}: {error}")
    if message.size != size:
        return MessageRow(queue_offset, error=f"log offset {place}: a record of {message.size} bytes, not of {size}")
    if queue_offset not in (UNKNOWN_OFFSET, message.queue_offset):
        return MessageRow(queue_offset, error=f"log offset {place}: a record of queue offset {message.queue_offset}")
    return MessageRow(queue_offset, message)


def _is_of(key: QueueKey, segment: Segment, queue_id: int) -> bool:
    return (key.cluster, key.broker, key.queue_id) == (segment.key.cluster, segment.key.broker, queue_id)
