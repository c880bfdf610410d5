"""The tier's metadata on the broker's disk: topics, queues and segments in one small database.

It caches the tier's manifests and listings, so that a start needs no request to the tier and a commit costs a fixed
number of statements. When the file is lost, `restore` rebuilds it.

    store.record_commit(queue, sizes, entries)     # one sync for all of it, or nothing; shared with other queues
    with store.transaction():                      # the same for other changes that belong together
        store.add_topic(...)
        store.add_queue(...)

The status of a segment:

    NEW ──seal──► SEALED          no more bytes come
     └──────┬───────┘
       mark_deleted ──► DELETED ──delete_segment──► (no row)

A deletion marks the row first, then removes the object, then the row. A crash in between leaves a row in
status DELETED (`segments_being_deleted`), never a row of a live segment without its object.
"""

# ruff: noqa: S608 (statements are joined from constants of this module; values are always bound)

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from tiermq.clock import Clock, SystemClock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import IllegalTransition, SegmentConflict, SegmentMissing, TierError
from tiermq.store.tier_continuation import RECORDED_NAMES, Names
from tiermq.tier.block_sums import BlockSums
from tiermq.tier.metadata.database import Database, Row
from tiermq.tier.metadata.metadata_values import (
    NEVER_MS,
    UNKNOWN_OFFSET,
    UNLIMITED,
    Gap,
    Queue,
    Segment,
    SegmentStatus,
    TimeEntry,
    Topic,
    TopicStatus,
)
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType

# The queues of the tier: offsets, gaps, and the sparse time index.
#
# RocketMQ's metadata has minimum and maximum offsets too, but never updates them. Here the rows of segments and the
# offsets change in the same transaction (`refresh_offsets`).

_SELECT_QUEUE = "SELECT cluster, broker, topic, queue_id, min_offset, max_offset, epoch, updated_ms FROM queue"
_BY_QUEUE = " ORDER BY topic, queue_id, broker, cluster"
_THIS_QUEUE = " WHERE topic = ? AND queue_id = ? AND broker = ? AND cluster = ?"

# The units of the consume queue define the offsets. A message whose record has expired does not count although its unit
# exists, so the first commit-log segment limits the minimum. A queue without units keeps its maximum: the offset of the
# next message.
_REFRESH_OFFSETS = f"""
    UPDATE queue SET
        max_offset = coalesce(
            (SELECT (s.base + s.size) / {UNIT_BYTES} FROM segment AS s
             WHERE s.topic = queue.topic AND s.queue_id = queue.queue_id AND s.broker = queue.broker
               AND s.cluster = queue.cluster AND s.type = {SegmentType.CONSUME_QUEUE:d}
               AND s.status <> {SegmentStatus.DELETED:d}
             ORDER BY s.base DESC LIMIT 1),
            max_offset),
        min_offset = coalesce(
            max((SELECT s.base / {UNIT_BYTES} FROM segment AS s
                 WHERE s.topic = queue.topic AND s.queue_id = queue.queue_id AND s.broker = queue.broker
                   AND s.cluster = queue.cluster AND s.type = {SegmentType.CONSUME_QUEUE:d}
                   AND s.status <> {SegmentStatus.DELETED:d}
                 ORDER BY s.base LIMIT 1),
                coalesce(
                    (SELECT s.begin_offset FROM segment AS s
                     WHERE s.topic = queue.topic AND s.queue_id = queue.queue_id AND s.broker = queue.broker
                       AND s.cluster = queue.cluster AND s.type = {SegmentType.COMMIT_LOG:d}
                       AND s.status <> {SegmentStatus.DELETED:d}
                     ORDER BY s.base LIMIT 1),
                    {UNKNOWN_OFFSET})),
            max_offset),
        updated_ms = ?
    WHERE topic = ? AND queue_id = ? AND broker = ? AND cluster = ?"""


def queue_values(key: QueueKey) -> tuple[str, int, str, str]:
    """The key in the order of the tables' primary keys."""
    return key.topic, key.queue_id, key.broker, key.cluster


class QueueRows:
    """Queues, gaps and time entries in the database. Part of MetadataStore."""

    _database: Database
    _clock: Clock

    def add_queue(self, key: QueueKey, offset: int = UNKNOWN_OFFSET) -> Queue:
        """The queue of that key; a new one begins and ends at `offset`. An existing queue is returned as it is."""
        with self._database.transaction():
            known = self.queue(key)
            if known is not None:
                return known
            queue = Queue(key, offset, offset, 0, self._clock.now_ms())
            self.put_queue(queue)
            return queue

    def put_queue(self, queue: Queue) -> None:
        """Store the queue exactly as given. For import and restore."""
        self._database.write(
            "INSERT OR REPLACE INTO queue (topic, queue_id, broker, cluster, min_offset, max_offset, epoch, "
            "updated_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*queue_values(queue.key), queue.min_offset, queue.max_offset, queue.epoch, queue.updated_ms),
        )

    def queue(self, key: QueueKey) -> Queue | None:
        """The queue of that key, or None."""
        row = self._database.read_one(_SELECT_QUEUE + _THIS_QUEUE, queue_values(key))
        return None if row is None else _queue(row)

    def queues(self, topic: str | None = None) -> list[Queue]:
        """All queues, or a topic's, by topic and queue id."""
        if topic is None:
            return [_queue(row) for row in self._database.read(_SELECT_QUEUE + _BY_QUEUE)]
        return [_queue(row) for row in self._database.read(_SELECT_QUEUE + " WHERE topic = ?" + _BY_QUEUE, (topic,))]

    def update_queue(
        self,
        key: QueueKey,
        *,
        min_offset: int | None = None,
        max_offset: int | None = None,
        epoch: int | None = None,
    ) -> bool:
        """Change what is given. False, and nothing changed, when there is no such queue."""
        changed = self._database.write(
            "UPDATE queue SET min_offset = coalesce(?, min_offset), max_offset = coalesce(?, max_offset), "
            "epoch = coalesce(?, epoch), updated_ms = ?" + _THIS_QUEUE,
            (min_offset, max_offset, epoch, self._clock.now_ms(), *queue_values(key)),
        )
        return changed > 0

    def refresh_offsets(self, key: QueueKey) -> None:
        """Derive minimum and maximum offset from the segments that are there. One statement, a few look-ups by key."""
        self._database.write(_REFRESH_OFFSETS, (self._clock.now_ms(), *queue_values(key)))

    def delete_queue(self, key: QueueKey) -> None:
        """Forget the queue, its gaps and its time entries. Its segments keep their rows until they are deleted."""
        with self._database.transaction():
            for table in ("DELETE FROM queue", "DELETE FROM gap", "DELETE FROM time_entry"):
                self._database.write(table + _THIS_QUEUE, queue_values(key))

    def add_gap(self, key: QueueKey, gap: Gap) -> None:
        """Record that messages are missing for good. Of two gaps from the same offset the longer is kept."""
        self._database.write(
            "INSERT INTO gap (topic, queue_id, broker, cluster, from_offset, to_offset, reason, at_ms) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET to_offset = excluded.to_offset, "
            "reason = excluded.reason, at_ms = excluded.at_ms WHERE excluded.to_offset > to_offset",
            (*queue_values(key), gap.from_offset, gap.to_offset, gap.reason, gap.at_ms),
        )

    def gaps(self, key: QueueKey) -> list[Gap]:
        """The queue's gaps in the order of offsets."""
        statement = "SELECT from_offset, to_offset, reason, at_ms FROM gap" + _THIS_QUEUE + " ORDER BY from_offset"
        return [Gap(*row) for row in self._database.read(statement, queue_values(key))]

    def add_time_entries(self, key: QueueKey, entries: Iterable[TimeEntry]) -> None:
        """Add to the sparse time index. An entry for the same queue offset is replaced."""
        rows = [(*queue_values(key), entry.queue_offset, entry.store_ms, entry.log_offset) for entry in entries]
        self._database.write_many(
            "INSERT OR REPLACE INTO time_entry (topic, queue_id, broker, cluster, queue_offset, store_ms, log_offset) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )

    def time_entries(self, key: QueueKey) -> list[TimeEntry]:
        """The queue's sparse time index in the order of offsets."""
        statement = "SELECT queue_offset, store_ms, log_offset FROM time_entry" + _THIS_QUEUE + " ORDER BY queue_offset"
        return [TimeEntry(*row) for row in self._database.read(statement, queue_values(key))]

    def last_time_entry(self, key: QueueKey) -> TimeEntry | None:
        """The newest entry of the sparse time index."""
        statement = "SELECT queue_offset, store_ms, log_offset FROM time_entry" + _THIS_QUEUE
        row = self._database.read_one(statement + " ORDER BY queue_offset DESC LIMIT 1", queue_values(key))
        return None if row is None else TimeEntry(*row)

    def trim_time_entries(self, key: QueueKey, min_offset: int) -> int:
        """Drop the entries of messages before `min_offset`, after an expiry. Returns how many went."""
        return self._database.write(
            "DELETE FROM time_entry" + _THIS_QUEUE + " AND queue_offset < ?", (*queue_values(key), min_offset)
        )


def _queue(row: Row) -> Queue:
    cluster, broker, topic, queue_id, min_offset, max_offset, epoch, updated_ms = row
    cluster, broker, topic = _shared(cluster, broker, topic)
    return Queue(QueueKey(cluster, broker, topic, queue_id), min_offset, max_offset, epoch, updated_ms)


_SELECT_SEGMENT = (
    "SELECT cluster, broker, topic, queue_id, type, base, size, status, created_ms, begin_ms, end_ms, sealed_ms, "
    "crc32, begin_offset, end_offset, block_sums FROM segment"
)
_THIS_SEGMENT = _THIS_QUEUE + " AND type = ? AND base = ?"
_LIVE = f" AND status <> {SegmentStatus.DELETED:d}"
_IN_ORDER = _BY_QUEUE + ", type, base"
_SET_SIZE = (
    "UPDATE segment SET size = ?, begin_ms = ?, end_ms = ?, crc32 = ?, "
    "begin_offset = coalesce(?, begin_offset), end_offset = coalesce(?, end_offset), block_sums = ?"
    + _THIS_SEGMENT
    + _LIVE
)


def segment_values(key: SegmentKey) -> tuple[str, int, str, str, int, int]:
    """The key in the order of the table's primary key."""
    return key.topic, key.queue_id, key.broker, key.cluster, int(key.type), key.base


class SegmentSize(NamedTuple):
    """What a commit made of a segment. Offsets are queue offsets of a commit log's messages; None: as they were."""

    key: SegmentKey
    size: int
    begin_ms: int
    end_ms: int
    crc32: int | None = None
    begin_offset: int | None = None
    end_offset: int | None = None
    sums: BlockSums | None = None


class SegmentRows(QueueRows):
    """Segments in the database. Part of MetadataStore.

    Listings and sums exclude segments that are being deleted.
    """

    _database: Database
    _clock: Clock

    def add_segment(self, key: SegmentKey) -> Segment:
        """Durably announce a segment before its first byte is written. An existing one is returned as it is.

        Raises SegmentConflict while a segment of that name is being deleted: its removal would take the new bytes.
        """
        with self._database.transaction():
            known = self.segment(key)
            if known is None:
                segment = Segment(key, created_ms=self._clock.now_ms())
                self.put_segment(segment)
                self._offsets_changed(key)
                return segment
            if known.status is SegmentStatus.DELETED:
                raise SegmentConflict(
                    f"{key.path}: expected a free name, found a segment whose deletion is not finished; "
                    f"delete it and its row before a segment of that name is created"
                )
            return known

    def put_segment(self, segment: Segment) -> None:
        """Store the segment exactly as given. For import and restore; does not touch the queue's offsets."""
        self._database.write(
            "INSERT OR REPLACE INTO segment (topic, queue_id, broker, cluster, type, base, size, status, created_ms, "
            "begin_ms, end_ms, sealed_ms, crc32, begin_offset, end_offset, block_sums) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *segment_values(segment.key),
                segment.size,
                int(segment.status),
                segment.created_ms,
                segment.begin_ms,
                segment.end_ms,
                segment.sealed_ms,
                segment.crc32,
                segment.begin_offset,
                segment.end_offset,
                None if segment.sums is None else segment.sums.packed(),
            ),
        )

    def update_size(
        self,
        key: SegmentKey,
        size: int,
        begin_ms: int,
        end_ms: int,
        crc32: int | None = None,
        *,
        begin_offset: int | None = None,
        end_offset: int | None = None,
        sums: BlockSums | None = None,
    ) -> None:
        """What a commit made of the segment; the queue's offsets follow in the same transaction.

        The offsets are queue offsets of a commit log's messages; a consume queue's follow from base and size.
        Raises SegmentMissing when there is no such segment, or when it is being deleted.
        """
        with self._database.transaction():
            self._set_size(SegmentSize(key, size, begin_ms, end_ms, crc32, begin_offset, end_offset, sums))
            self._offsets_changed(key)

    def record_commit(self, queue: QueueKey, sizes: Sequence[SegmentSize], entries: Sequence[TimeEntry] = ()) -> None:
        """What a commit made of a queue: its segments, its offsets, its time index; all of it durable, or nothing.

        Commits of several queues that come at the same time share one sync. Raises SegmentMissing as `update_size`.
        """

        def work() -> None:
            for size in sizes:
                self._set_size(size)
            self.refresh_offsets(queue)
            if entries:
                self.add_time_entries(queue, entries)

        self._database.together(work)

    def _set_size(self, new: SegmentSize) -> None:
        changed = self._database.write(
            _SET_SIZE,
            (
                new.size,
                new.begin_ms,
                new.end_ms,
                new.crc32,
                new.begin_offset,
                new.end_offset,
                None if new.sums is None else new.sums.packed(),
                *segment_values(new.key),
            ),
        )
        self._require_changed(changed, new.key, "a live row")

    def seal_segment(self, key: SegmentKey, sealed_ms: int | None = None) -> Segment:
        """No more bytes will come. Sealing again changes nothing. Raises SegmentMissing, IllegalTransition."""
        with self._database.transaction():
            segment = self._require_segment(key)
            if segment.status is SegmentStatus.DELETED:
                raise IllegalTransition(f"{key.path}: expected NEW or SEALED, found DELETED; it cannot be sealed")
            when = self._clock.now_ms() if sealed_ms is None else sealed_ms
            self._database.write(
                "UPDATE segment SET status = ?, sealed_ms = ?" + _THIS_SEGMENT + " AND status = ?",
                (int(SegmentStatus.SEALED), when, *segment_values(key), int(SegmentStatus.NEW)),
            )
            return self._require_segment(key)

    def mark_deleted(self, key: SegmentKey) -> None:
        """Hide the segment from readers, before its object is deleted; updates the queue's minimum offset."""
        with self._database.transaction():
            changed = self._database.write(
                "UPDATE segment SET status = ?" + _THIS_SEGMENT, (int(SegmentStatus.DELETED), *segment_values(key))
            )
            self._require_changed(changed, key, "a row")
            self._offsets_changed(key)

    def delete_segment(self, key: SegmentKey) -> bool:
        """Forget the segment, after its object went. False when there was no row."""
        with self._database.transaction():
            changed = self._database.write("DELETE FROM segment" + _THIS_SEGMENT, segment_values(key))
            self._offsets_changed(key)
            return changed > 0

    def segment(self, key: SegmentKey) -> Segment | None:
        """The segment of that key in any state, or None."""
        row = self._database.read_one(_SELECT_SEGMENT + _THIS_SEGMENT, segment_values(key))
        return None if row is None else _segment(row)

    def segments(self, queue: QueueKey, type: SegmentType | None = None) -> list[Segment]:  # noqa: A002
        """The live segments of a queue, by type and base."""
        statement, values = _SELECT_SEGMENT + _THIS_QUEUE + _LIVE, list[object](queue_values(queue))
        if type is not None:
            statement, values = statement + " AND type = ?", [*values, int(type)]
        return [_segment(row) for row in self._database.read(statement + _IN_ORDER, values)]

    def all_segments(self, topic: str | None = None) -> list[Segment]:
        """The live segments of everything, or of a topic, by topic, queue, type and base."""
        where, values = (" WHERE 1", ()) if topic is None else (" WHERE topic = ?", (topic,))
        return [_segment(row) for row in self._database.read(_SELECT_SEGMENT + where + _LIVE + _IN_ORDER, values)]

    def unrolled_ends(self) -> dict[QueueKey, int]:
        """Where the units of each queue end that has one segment of units, and one of records or none."""
        statement = (
            "SELECT cluster, broker, topic, queue_id, max(iif(type = ?, base + size, 0)) FROM segment WHERE 1" + _LIVE
            + " AND type IN (?, ?) GROUP BY cluster, broker, topic, queue_id "
            "HAVING sum(type = ?) = 1 AND sum(type = ?) <= 1"
        )  # fmt: skip
        log, units = int(SegmentType.COMMIT_LOG), int(SegmentType.CONSUME_QUEUE)
        rows = self._database.read(statement, (units, log, units, units, log))
        return {_queue_key(row): row[-1] for row in rows}

    def segments_being_deleted(self) -> list[Segment]:
        """The segments whose deletion has begun and is not finished."""
        where = f" WHERE status = {SegmentStatus.DELETED:d}"
        return [_segment(row) for row in self._database.read(_SELECT_SEGMENT + where + _IN_ORDER)]

    def segment_count(self, queue: QueueKey | None = None) -> int:
        """How many live segments there are, in all or in a queue."""
        where, values = (" WHERE 1", ()) if queue is None else (_THIS_QUEUE, queue_values(queue))
        row = self._database.read_one("SELECT count(*) FROM segment" + where + _LIVE, values)
        return int(row[0]) if row else 0

    def size_of_topic(self, topic: str, type: SegmentType | None = None) -> int:  # noqa: A002
        """The committed bytes of a topic's live segments, of one type or of all."""
        statement = "SELECT coalesce(sum(size), 0) FROM segment WHERE topic = ?" + _LIVE
        if type is None:
            row = self._database.read_one(statement, [topic])
        else:
            row = self._database.read_one(statement + " AND type = ?", [topic, int(type)])
        return int(row[0]) if row else 0

    def _offsets_changed(self, key: SegmentKey) -> None:
        if key.type != SegmentType.INDEX:
            self.refresh_offsets(key.queue)

    def _require_segment(self, key: SegmentKey) -> Segment:
        segment = self.segment(key)
        if segment is None:
            raise SegmentMissing(
                f"{key.path}: expected a row in the tier's metadata, found none; add the segment first"
            )
        return segment

    def _require_changed(self, changed: int, key: SegmentKey, expected: str) -> None:
        if not changed:
            raise SegmentMissing(
                f"{key.path}: expected {expected} in the tier's metadata, found none; add the segment first, "
                f"and write nothing to one that is being deleted"
            )


def _queue_key(row: Row) -> QueueKey:
    cluster, broker, topic = _shared(*row[:3])
    return QueueKey(cluster, broker, topic, row[3])


def _segment(row: Row) -> Segment:
    cluster, broker, topic, queue_id, kind, base, size, status, created_ms, begin_ms, end_ms, *rest, packed_sums = row
    cluster, broker, topic = _shared(cluster, broker, topic)
    key = SegmentKey(cluster, broker, topic, queue_id, SegmentType(kind), base)
    times = created_ms, _shared_ms(begin_ms), _shared_ms(end_ms)
    return Segment(key, size, SegmentStatus(status), *times, *[*rest, BlockSums.unpacked(packed_sums)])


def _shared(*names: str) -> Iterable[str]:
    """The names, each once in memory however many rows have it: a driver holds the rows of 100,000 queues."""
    return map(sys.intern, names)


def _shared_ms(time_ms: int) -> int:
    return NEVER_MS if time_ms == NEVER_MS else time_ms


# The topics of the tier and the counter of their ids.
#
# Ids count up from 0 and are never reused: index items contain them, and an item of a deleted topic must not be
# taken for one of its successor. The counter is a row of its own, so it outlives the topics.

_SELECT = "SELECT topic_id, name, status, reserve_time_hours, max_bytes, updated_ms FROM topic"
_COUNTER = "topic_serial_number"
_CHANGES_SEEN = "changes_seen"
_LEASE_EPOCH = "lease_epoch"


class TopicRows:
    """Topics in the database. Part of MetadataStore."""

    _database: Database
    _clock: Clock

    def add_topic(self, name: str, reserve_time_hours: int = UNLIMITED, max_bytes: int = UNLIMITED) -> Topic:
        """The topic of that name; a new one gets the next id. An existing topic is returned as it is."""
        with self._database.transaction():
            known = self.topic(name)
            if known is not None:
                return known
            topic_id = self.topic_serial_number() + 1
            topic = Topic(topic_id, name, TopicStatus.NORMAL, reserve_time_hours, max_bytes, self._clock.now_ms())
            self.put_topic(topic)
            return topic

    def put_topic(self, topic: Topic) -> None:
        """Store the topic exactly as given, id included; the counter moves up when the id is beyond it.

        For import and restore. Raises TierError when another topic has that id.
        """
        with self._database.transaction():
            holder = self._database.read_one("SELECT name FROM topic WHERE topic_id = ?", (topic.id,))
            if holder is not None and holder[0] != topic.name:
                raise TierError(
                    f"topic {topic.name!r}: expected an id of its own, found {topic.id}, which is the id of topic "
                    f"{holder[0]!r}; add it without an id to get the next one"
                )
            self._database.write(
                "INSERT OR REPLACE INTO topic (topic_id, name, status, reserve_time_hours, max_bytes, updated_ms) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (topic.id, topic.name, topic.status, topic.reserve_time_hours, topic.max_bytes, topic.updated_ms),
            )
            self.raise_topic_serial_number(topic.id)

    def topic(self, name: str) -> Topic | None:
        """The topic of that name, or None."""
        row = self._database.read_one(_SELECT + " WHERE name = ?", (name,))
        return None if row is None else _topic(row)

    def topic_of_id(self, topic_id: int) -> Topic | None:
        """The topic that has the id, or None."""
        row = self._database.read_one(_SELECT + " WHERE topic_id = ?", (topic_id,))
        return None if row is None else _topic(row)

    def topics(self) -> list[Topic]:
        """All topics in the order of their ids. The list is a snapshot: deleting while iterating is fine."""
        return [_topic(row) for row in self._database.read(_SELECT + " ORDER BY topic_id")]

    def update_topic(
        self,
        name: str,
        *,
        status: int | None = None,
        reserve_time_hours: int | None = None,
        max_bytes: int | None = None,
    ) -> bool:
        """Change what is given. False, and nothing changed, when there is no such topic."""
        changed = self._database.write(
            "UPDATE topic SET status = coalesce(?, status), reserve_time_hours = coalesce(?, reserve_time_hours), "
            "max_bytes = coalesce(?, max_bytes), updated_ms = ? WHERE name = ?",
            (status, reserve_time_hours, max_bytes, self._clock.now_ms(), name),
        )
        return changed > 0

    def topic_serial_number(self) -> int:
        """The last assigned id; -1 before the first."""
        row = self._database.read_one("SELECT value FROM counter WHERE name = ?", (_COUNTER,))
        return -1 if row is None else int(row[0])

    def raise_topic_serial_number(self, last_id: int) -> None:
        """Make sure that ids up to `last_id` are never assigned again."""
        self._database.write(
            "UPDATE counter SET value = ? WHERE name = ? AND value < ?",
            (last_id, _COUNTER, last_id),
        )


def _topic(row: Row) -> Topic:
    topic_id, name, status, reserve_time_hours, max_bytes, updated_ms = row
    # A code of a later version is kept as the number it is.
    known = TopicStatus(status) if status in set(TopicStatus) else status
    return Topic(topic_id, sys.intern(name), known, reserve_time_hours, max_bytes, updated_ms)


Result = TypeVar("Result")


class MetadataStore(TopicRows, SegmentRows):
    """One broker's tier metadata. Every change is durable when the call, or the transaction around it, returns.

    Any thread may call anything; see `Database` for what it sees. Opening raises StoreDamaged (a foreign or newer
    file), ReadOnlyStore or StoreLocked; every write may raise DiskFull, and has then changed nothing.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        clock: Clock | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._database = Database(path, trace=trace)
        self.path = self._database.path

    def transaction(self) -> AbstractContextManager[None]:
        """Changes inside become durable together, or not at all when an error leaves the block."""
        return self._database.transaction()

    def together(self, work: Callable[[], Result]) -> Result:
        """The answer of `work`, which reads and writes this store and nothing else, perhaps more than once.

        Like a transaction, but those of several threads that come at the same time share one sync: for what thousands
        of queues do at once, such as to begin.
        """
        answers: list[Result] = []
        self._database.together(lambda: answers.append(work()))
        return answers[-1]

    def data_version(self) -> int:
        """A number that changes with every commit of any process."""
        return self._database.data_version()

    def delete_topic(self, name: str) -> bool:
        """Forget the topic and its queues, and mark its segments for deletion, all at once.

        The objects go afterwards (`segments_being_deleted`, then `delete_segment` for each). False when neither the
        topic nor anything of it was known.
        """
        with self.transaction():
            changed = self._database.write("DELETE FROM topic WHERE name = ?", (name,))
            changed += self._database.write("UPDATE segment SET status = 2 WHERE topic = ? AND status <> 2", (name,))
            for statement in ("DELETE FROM queue", "DELETE FROM gap", "DELETE FROM time_entry"):
                changed += self._database.write(statement + " WHERE topic = ?", (name,))
        return changed > 0

    def replace_queue(self, queue: Queue, segments: Iterable[Segment], gaps: Iterable[Gap]) -> None:
        """The queue exactly as given, with these segments and gaps; its time index is emptied."""
        with self.transaction():
            self.delete_queue(queue.key)
            self.replace_segments(queue.key, segments)
            self.put_queue(queue)
            for gap in gaps:
                self.add_gap(queue.key, gap)

    def replace_segments(self, queue: QueueKey, segments: Iterable[Segment]) -> None:
        """The segments of the queue, exactly as given, instead of those that are known."""
        with self.transaction():
            self._database.write("DELETE FROM segment" + _THIS_QUEUE, queue_values(queue))
            for segment in segments:
                self.put_segment(segment)

    def changes_seen(self) -> int | None:
        """The last publication of changes that these metadata contain (`manifest_changes`); None: of none."""
        row = self._database.read_one("SELECT value FROM counter WHERE name = ?", (_CHANGES_SEEN,))
        return None if row is None else int(row[0])

    def put_changes_seen(self, serial: int) -> None:
        self._database.write("INSERT OR REPLACE INTO counter VALUES (?, ?)", (_CHANGES_SEEN, serial))

    def lease_epoch(self) -> int:
        """The newest epoch whose manifests these metadata contain: the last one under which their store wrote."""
        row = self._database.read_one("SELECT value FROM counter WHERE name = ?", (_LEASE_EPOCH,))
        if row is not None:
            return int(row[0])
        return max((queue.epoch for queue in self.queues()), default=0)  # Of a version that did not record it.

    def put_lease_epoch(self, epoch: int) -> None:
        self._database.write("INSERT OR REPLACE INTO counter VALUES (?, ?)", (_LEASE_EPOCH, epoch))

    def names(self) -> list[Names]:
        """Cluster and broker whose metadata these are; nothing in new ones, several if they were used under several."""
        return sorted((str(cluster), str(broker)) for cluster, broker in self._database.read(RECORDED_NAMES))

    def record_names(self, cluster: str, broker: str) -> None:
        """These are the metadata of that broker, also while it has no queue in the tier."""
        if self._database.read_one("SELECT 1 FROM owner WHERE cluster = ? AND broker = ?", (cluster, broker)) is None:
            self._database.write("INSERT OR IGNORE INTO owner VALUES (?, ?)", (cluster, broker))

    def is_empty(self) -> bool:
        """Whether there is no topic, no queue and no segment."""
        tables = ("SELECT 1 FROM topic", "SELECT 1 FROM queue", "SELECT 1 FROM segment")
        return all(self._database.read_one(table + " LIMIT 1") is None for table in tables)

    def close(self) -> None:
        """Let go of the file. Calling it again does nothing."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
