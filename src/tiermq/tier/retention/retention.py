"""Retention: what leaves the tier, when, and in which order, so that a crash between any two steps does no harm.

    finish    rows that are marked deleted: their objects, then the rows
    topics    deletions that were begun: the same, queue by queue
    time      segments that are older than the topic's `reserve.time`, or else the setting for all; by default none
    size      the oldest segments of topics that hold more bytes than they may
    index     index files that lead to no message any more

One round does each of it once. What cannot be deleted is reported and left to the next round: nothing is tried twice in
one. A back end that does not answer ends the round after a few attempts. A segment is hidden from readers before its
object goes and the queue's minimum offset follows in the same transaction, so minimum offsets are right at each step.
Threads: one round or topic deletion at a time (`_lock`); each queue is changed under its own lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tiermq.clock import HOUR_MS, Clock
from tiermq.errors import CorruptSegment, StaleWriter, TierMQError, TierUnavailable
from tiermq.message.layout import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT
from tiermq.message.topic_name import LIGHT_QUEUE_PREFIX, is_system_topic
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_file import FlatAppendFile
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import FlatSegment
from tiermq.tier.index.compacted_index import CompactedIndex
from tiermq.tier.metadata.manifest import ManifestCause, manifest_name, queue_of_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import (
    NEVER_MS,
    UNKNOWN_OFFSET,
    UNLIMITED,
    Segment,
    SegmentStatus,
    Topic,
    TopicStatus,
)
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType, broker_directory
from tiermq.tier.retention.retention_plan import ExpiryPlan, Kept, plan_by_size, plan_by_time, wants_roll
from tiermq.tier.tier_config import TierConfig

# Deleting what the tier holds of a topic, in steps that can each be repeated.
#
#     units and records of each queue ─► rows of the queue ─► other objects below the topic's name ─► manifests
#
# The last two steps go by the tier's own listing, so that nothing is forgotten that a crash, a restore or a foreign
# program left there: a topic that is made again begins at offset 0, under the same names, and must find them free.
# Manifests go last: until then the tier records that the topic is being deleted.


def delete_topic_objects(
    files: FlatFileStore,
    metadata: MetadataStore,
    driver: TierDriver,
    topic: str,
    on_gone: Callable[[QueueKey], None],
    forget: Callable[[QueueKey], None],
) -> None:
    """Delete the topic's segments, queues and manifests; its own row stays. Raises TierError; another call continues.

    `on_gone` removes the manifest of a queue, `forget` makes the index start over with it.
    """
    queues = {queue.key for queue in metadata.queues(topic)}
    queues |= {file.queue for file in files if file.queue.topic == topic}
    for key in sorted(queues):
        if not files.destroy(topic, key.queue_id):
            _delete_rows(metadata, driver, key)
        files.damaged.pop((topic, key.queue_id), None)
        forget(key)
    prefix = f"{broker_directory(files.cluster, files.broker)}/{topic}/"
    for info in list(driver.list_segments(prefix)):
        driver.delete(info.key)
        metadata.delete_segment(info.key)
    for name in driver.list_objects(prefix):
        owner = queue_of_manifest(name)
        if owner is None:
            driver.delete_object(name)
        else:
            on_gone(owner)


def _delete_rows(metadata: MetadataStore, driver: TierDriver, key: QueueKey) -> None:
    """The segments of a queue that could not be opened: it is known to the metadata alone."""
    for segment in metadata.segments(key):
        metadata.mark_deleted(segment.key)
    for segment in metadata.segments_being_deleted():
        if segment.key.queue == key:
            driver.delete(segment.key)
            metadata.delete_segment(segment.key)
    metadata.delete_queue(key)


_log = logging.getLogger(__name__)

SILENCES_MAX = 3
"""Calls in a row without a response that end a round: the back end is down, and each call costs a time-out."""


class ExpiringIndex(Protocol):
    """The part of the key index that retention uses (`index.index_store.IndexStore`)."""

    def expire(self) -> int:
        """Delete index files that are not needed; returns their number."""
        ...

    def forget_queue(self, topic: str, queue_id: int) -> None:
        """The queue is gone; its offsets start over if it is created again."""
        ...


@dataclass(frozen=True, slots=True)
class RetentionFailure:
    """What could not be done in this round, and why."""

    where: str
    error: TierMQError

    def __str__(self) -> str:
        return f"{self.where}: {self.error}"


@dataclass(slots=True)
class RetentionReport:
    """What one round did."""

    segments: list[Segment] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    finished_count: int = 0
    rolled_count: int = 0
    index_file_count: int = 0
    failures: list[RetentionFailure] = field(default_factory=list)
    emptied: set[QueueKey] = field(default_factory=set)
    """Queues without any segment left, whose manifest records that."""
    silences: int = 0
    """Calls that got no answer since the last one that did."""

    @property
    def bytes_freed(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def is_cut_short(self) -> bool:
        """Whether the round ended early because the back end does not answer."""
        return self.silences >= SILENCES_MAX


@dataclass(slots=True)
class RetentionCounts:
    """What was done since the start; for metrics."""

    segments: int = 0
    bytes: int = 0
    topics: int = 0
    index_files: int = 0
    failures: int = 0


def _nothing(_key: QueueKey, _cause: ManifestCause) -> None:
    """For a tier without manifests."""


class Retention:
    """See the module.

    `on_changed` is called for each queue whose manifest is out of date; `on_gone` removes the manifest of a queue that
    is gone (by default without asking whose it is). `check_owner` raises StaleWriter when another process owns the tier
    by now: only the owner deletes. `before_emptied` writes the manifest of a queue whose last segment is hidden and
    about to be deleted: after that, only the manifest has the assigned offsets.
    """

    def __init__(
        self,
        files: FlatFileStore,
        metadata: MetadataStore,
        driver: TierDriver,
        index: ExpiringIndex | None,
        config: TierConfig,
        clock: Clock,
        *,
        on_changed: Callable[[QueueKey, ManifestCause], None] = _nothing,
        on_gone: Callable[[QueueKey], None] | None = None,
        check_owner: Callable[[], None] = lambda: None,
        before_emptied: Callable[[QueueKey], object] = lambda _key: None,
        own: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        """`own`: hours and bytes of topics by name, -1 for none, which count instead of those in the metadata."""
        self._own = own or {}
        self._files = files
        self._metadata = metadata
        self._driver = driver
        self._index = index
        self._config = config
        self._clock = clock
        self._on_changed = on_changed
        self._on_gone = on_gone or (lambda key: driver.delete_object(manifest_name(key)))
        self._check_owner = check_owner
        self._before_emptied = before_emptied
        self._lock = threading.Lock()
        self.counts = RetentionCounts()

    # How long messages are kept

    def kept(self, topic: Topic | None) -> Kept:
        """How long and how much of a topic is kept."""
        own = (UNLIMITED, UNLIMITED) if topic is None else (topic.reserve_time_hours, topic.max_bytes)
        if topic is not None:
            own = self._own.get(topic.name, own)
        return Kept.by(*own, self._config.tiered_store_file_reserved_time, self._config.tier_max_bytes_per_topic)

    def kept_ms(self, topic: Topic | None) -> int:
        """For how long messages of a topic are kept; longer than any time there is when for ever."""
        hours = self.kept(topic).hours
        return NEVER_MS if hours is None else hours * HOUR_MS

    def kept_ms_of_ids(self, topic_ids: Collection[int] | None) -> int:
        """The longest time that any of these topics (None: any at all) keeps its messages; 0 when none is left.

        Ids are compared by their low 32 bits: an index item has no more of them.
        """
        wanted = None if topic_ids is None else {topic_id & 0xFFFFFFFF for topic_id in topic_ids}
        topics = [topic for topic in self._metadata.topics() if wanted is None or topic.id & 0xFFFFFFFF in wanted]
        return max((self.kept_ms(topic) for topic in topics), default=0)

    def is_unneeded(self, remote: CompactedIndex, *, knows_all_topics: bool = True) -> bool:
        """Whether no message is left to which an uploaded index file leads. Raises what the driver raises.

        The companion has each queue's indexed end when the file was full. Where it lacks that of a topic, and
        for RocketMQ's files, which have none, the age of the newest message decides.
        `knows_all_topics`: an id that no topic has is of a deleted one; else a manifest may be lost.
        """
        try:
            record, facts = remote.companion(), remote.facts()
        except CorruptSegment:
            record = facts = None
        ids = frozenset(topic_id & 0xFFFFFFFF for topic_id in facts.topic_ids) if facts is not None else None
        if not knows_all_topics and ids is not None:
            known = {topic.id & 0xFFFFFFFF for topic in self._metadata.topics()}
            ids = ids if ids <= known else None
        queues = record.queues if record is not None else ()
        if ids is None or not ids <= {topic_id & 0xFFFFFFFF for _, topic_id, _, _, _ in queues}:
            return remote.segment.end_ms < self._clock.now_ms() - self.kept_ms_of_ids(ids)
        return not any(
            self._leads_to_some(topic, topic_id, queue_id, end)
            for topic, topic_id, queue_id, end, _ in queues
            if topic_id & 0xFFFFFFFF in ids
        )

    def _leads_to_some(self, topic: str, topic_id: int, queue_id: int, end: int) -> bool:
        """Whether the tier still has messages of this life of a queue before log offset `end`."""
        if (topic, queue_id) in self._files.damaged:
            return True
        file = self._files.find(topic, queue_id)
        return file is not None and file.topic.id == topic_id and not file.log.is_empty and file.log.min_offset < end

    def bytes_max(self, topic: Topic) -> int:
        """How many bytes a topic may hold; -1: any number."""
        return self.kept(topic).max_bytes or UNLIMITED

    # One round

    def run(self) -> RetentionReport:
        """One round. Failures are in the report; raises StaleWriter when another process owns the tier by now."""
        with self._lock:
            report = RetentionReport()
            if self._attempt(report, self._driver.url, self._check_owner):
                self._finish_deletions(report)
                for topic in self.deleting_topics():
                    self._attempt(report, f"topic {topic}", partial(self._delete_topic, topic, report))
                if self._config.tiered_store_delete_file_enable:
                    self._expire(report)
            self._count(report)
            return report

    def _expire(self, report: RetentionReport) -> None:
        topics = {topic.name: topic for topic in self._metadata.topics()}
        now_ms = self._clock.now_ms()
        for file in self._files:
            threshold_ms = now_ms - self.kept_ms(topics.get(file.queue.topic))
            self._change(file, report, partial(self._expire_by_time, file, threshold_ms, report))
        for topic in topics.values():
            self._expire_by_size(topic, report)
        self._attempt(report, "index", partial(self._expire_index, report))

    def _expire_index(self, report: RetentionReport) -> None:
        if self._index is not None:
            report.index_file_count += self._index.expire()

    def _change(self, file: FlatMessageFile, report: RetentionReport, step: Callable[[], None]) -> bool:
        """Run a step under the queue's lock; its changes are reported, also when it fails. False: it failed."""
        done_before = len(report.segments), report.rolled_count

        def locked() -> None:
            with file.lock:
                step()

        is_done = self._attempt(report, file.queue.logical_path, locked)
        if len(report.segments) > done_before[0] and is_done:
            report.silences = 0  # It answered.
        if (len(report.segments), report.rolled_count) != done_before:
            queue = self._metadata.queue(file.queue)
            self._metadata.trim_time_entries(file.queue, queue.min_offset if queue is not None else 0)
            self._attempt(
                report, manifest_name(file.queue), partial(self._on_changed, file.queue, ManifestCause.EXPIRY)
            )
        return is_done

    def _expire_by_time(self, file: FlatMessageFile, threshold_ms: int, report: RetentionReport) -> None:
        plan = plan_by_time(file.log.segments, file.units.segments, threshold_ms)
        old_tail = any(wants_roll(each.last, threshold_ms) for each in (file.log, file.units) if not each.is_empty)
        if not plan and not old_tail:
            return
        if not file.recovered:
            # The metadata may be behind the tier: what a crash left unrecorded must not go with what is too old.
            file.recover()
            plan = plan_by_time(file.log.segments, file.units.segments, threshold_ms)
        for each in (file.log, file.units):
            if not each.is_empty and wants_roll(each.last, threshold_ms) and file.commit() and each.roll():
                report.rolled_count += 1
        self._remove(file, plan, report)

    def _expire_by_size(self, topic: Topic, report: RetentionReport) -> None:
        limit = self.bytes_max(topic)
        if limit < 0 or self._metadata.size_of_topic(topic.name) <= limit:
            return
        left = [file for file in self._files if file.queue.topic == topic.name]
        while self._metadata.size_of_topic(topic.name) > limit:
            left = [file for file in left if plan_by_size(file.log.segments, file.units.segments)]
            if not left or report.is_cut_short:
                return
            file = min(left, key=lambda file: file.log.segments[0].end_ms)
            if not self._change(file, report, partial(self._remove_oldest, file, report)):
                left.remove(file)

    def _remove_oldest(self, file: FlatMessageFile, report: RetentionReport) -> None:
        self._remove(file, plan_by_size(file.log.segments, file.units.segments), report)

    def _remove(self, file: FlatMessageFile, plan: ExpiryPlan, report: RetentionReport) -> None:
        """Carry a plan out, under the queue's lock. Raises TierError; what was done by then counts."""
        hidden: list[tuple[FlatAppendFile, SegmentKey]]
        hidden = [(file.units, self._hide_first(file.units, report)) for _ in range(plan.unit_count)]
        for _ in range(plan.log_count):
            if len(file.log.segments) > 1:
                self._learn_first_offset(file.log, file.log.segments[1])
            hidden.append((file.log, self._hide_first(file.log, report)))
        if hidden and self._is_emptied(file.queue):
            self._before_emptied(file.queue)
            report.emptied.add(file.queue)
        for part, key in hidden:
            part.finish_deletion(key)

    def _hide_first(self, part: FlatAppendFile, report: RetentionReport) -> SegmentKey:
        segment = part.segments[0]
        report.segments.append(self._row(segment))
        part.hide_first(segment)
        return segment.key

    def _is_emptied(self, key: QueueKey) -> bool:
        """Whether the live segments no longer have the next offset of the queue, or of its log."""
        rows = self._metadata.segments(key)
        return {row.key.type for row in rows if row.size} != {SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE}

    def _row(self, segment: FlatSegment) -> Segment:
        return self._metadata.segment(segment.key) or Segment(segment.key, segment.commit_position)

    def _learn_first_offset(self, log: FlatAppendFile, segment: FlatSegment) -> None:
        """Let the metadata know where a segment begins that is about to be the first: the queue's minimum needs it.

        A tier that RocketMQ wrote lacks it; then it is read from the first record.
        """
        if segment.begin_offset != UNKNOWN_OFFSET or segment.commit_position < PHYSICAL_OFFSET_AT:
            return
        head = log.read(segment.base, PHYSICAL_OFFSET_AT)
        begin = int.from_bytes(head[QUEUE_OFFSET_AT:PHYSICAL_OFFSET_AT], "big", signed=True)
        self._metadata.update_size(
            segment.key,
            segment.commit_position,
            segment.begin_ms,
            segment.end_ms,
            segment.crc32,
            begin_offset=begin,
            sums=segment.sums,
        )
        segment.begin_offset = begin

    # What was begun before

    def _finish_deletions(self, report: RetentionReport) -> None:
        """Index segments are left to the index, which knows what else belongs to them."""
        for row in self._metadata.segments_being_deleted():
            if row.key.type is not SegmentType.INDEX:
                self._attempt(report, row.key.path, partial(self._finish, row, report))

    def _finish(self, row: Segment, report: RetentionReport) -> None:
        """The object, then the row; not if the name was given to a new segment meanwhile."""
        name = row.key.topic, row.key.queue_id
        file = self._files.find(*name)
        # A queue that is not open has no lock. The metadata are not locked: the back end may be slow.
        with file.lock if file is not None else self._files.name_lock(*name):
            if self._files.find(*name) is not file:
                return  # Opened or closed meanwhile; the next round takes the right lock.
            known = self._metadata.segment(row.key)
            if known is not None and known.status is SegmentStatus.DELETED:
                self._tell_if_emptied(row.key.queue, report)
                self._driver.delete(row.key)
                self._metadata.delete_segment(row.key)
                report.finished_count += 1
                report.silences = 0
        if self._metadata.queue(row.key.queue) is not None:
            self._on_changed(row.key.queue, ManifestCause.EXPIRY)

    def _tell_if_emptied(self, key: QueueKey, report: RetentionReport) -> None:
        topic = self._metadata.topic(key.topic)
        is_kept = topic is not None and topic.status != TopicStatus.DELETING and self._metadata.queue(key) is not None
        if is_kept and key not in report.emptied and self._is_emptied(key):
            self._before_emptied(key)
            report.emptied.add(key)

    # Topics

    def deleting_topics(self) -> list[str]:
        """Topics whose deletion has begun. Nothing may be dispatched to them until it is through."""
        return [topic.name for topic in self._metadata.topics() if topic.status == TopicStatus.DELETING]

    def delete_topic(self, topic: str) -> bool:
        """Delete everything of a topic; False when the tier has nothing of it.

        Durably begun when it returns or raises TierError; what is left then is finished by later rounds.
        """
        with self._lock:
            if self._metadata.topic(topic) is None and not self._metadata.queues(topic):
                return False
            self._check_owner()
            report = RetentionReport()
            try:
                self._delete_topic(topic, report)
            finally:
                self._count(report)
            return True

    def clean_unused_topics(self, retained: Collection[str]) -> RetentionReport:
        """Delete every topic that is not retained, except system topics and light queues. Failures are reported."""
        with self._lock:
            report = RetentionReport()
            if not self._attempt(report, self._driver.url, self._check_owner):
                return report
            for topic in [topic.name for topic in self._metadata.topics()]:
                if topic in retained or is_system_topic(topic) or topic.startswith(LIGHT_QUEUE_PREFIX):
                    continue
                self._attempt(report, f"topic {topic}", partial(self._delete_topic, topic, report))
            self._count(report)
            return report

    def _delete_topic(self, topic: str, report: RetentionReport) -> None:
        if self._metadata.update_topic(topic, status=TopicStatus.DELETING):
            for queue in self._metadata.queues(topic):
                # A restore from the tier in the middle of it continues the deletion.
                self._on_changed(queue.key, ManifestCause.TOPIC_CHANGE)
        report.segments += self._metadata.all_segments(topic)
        delete_topic_objects(self._files, self._metadata, self._driver, topic, self._on_gone, self._forget)
        self._metadata.delete_topic(topic)
        report.topics.append(topic)

    def _forget(self, key: QueueKey) -> None:
        if self._index is not None:
            self._index.forget_queue(key.topic, key.queue_id)

    # Keeping going

    def _attempt(self, report: RetentionReport, where: str, step: Callable[[], None]) -> bool:
        """Do a step; a failure is reported and the round continues, unless another process owns the tier."""
        if report.is_cut_short:
            return False
        try:
            step()
        except StaleWriter:
            raise
        except TierMQError as error:
            report.silences += isinstance(error, TierUnavailable)
            report.failures.append(RetentionFailure(where, error))
            _log.warning("retention: %s is left to the next round: %s", where, error)
            return False
        return True

    def _count(self, report: RetentionReport) -> None:
        counts = self.counts
        counts.segments += len(report.segments)
        counts.bytes += report.bytes_freed
        counts.topics += len(report.topics)
        counts.index_files += report.index_file_count
        counts.failures += len(report.failures)
