"""The segments of the tier: size, times, offsets, checksum and state of each.

    NEW ──seal──► SEALED          no more bytes come
     └──────┬───────┘
       mark_deleted ──► DELETED ──delete_segment──► (no row)

A deletion marks the row first, then removes the object, then the row. A crash in between leaves a row that says what is
still to be done (`segments_being_deleted`), never a row of a live segment whose object is gone.
"""

# ruff: noqa: S608 (statements are joined from constants of this module; values are always bound)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tiermq.clock import Clock
from tiermq.errors import IllegalTransition, SegmentConflict, SegmentMissing
from tiermq.tier.block_sums import BlockSums
from tiermq.tier.metadata.database import Database, Row
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus, TimeEntry
from tiermq.tier.metadata.queue_rows import QueueRows, queue_values
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType

_SELECT = (
    "SELECT cluster, broker, topic, queue_id, type, base, size, status, created_ms, begin_ms, end_ms, sealed_ms, "
    "crc32, begin_offset, end_offset, block_sums FROM segment"
)
_THIS_QUEUE = " WHERE topic = ? AND queue_id = ? AND broker = ? AND cluster = ?"
_THIS_SEGMENT = _THIS_QUEUE + " AND type = ? AND base = ?"
_LIVE = f" AND status <> {SegmentStatus.DELETED:d}"
_IN_ORDER = " ORDER BY topic, queue_id, broker, cluster, type, base"
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

    Listings and sums leave out segments that are being deleted: nobody may read them, and their bytes are not kept.
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
    ) -> None:
        """What a commit made of the segment; the queue's offsets follow in the same transaction.

        The offsets are queue offsets of a commit log's messages; a consume queue's follow from base and size.
        Raises SegmentMissing when there is no such segment, or when it is being deleted.
        """
        with self._database.transaction():
            self._set_size(SegmentSize(key, size, begin_ms, end_ms, crc32, begin_offset, end_offset))
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
        """Hide the segment from readers, before its object goes; the queue's minimum offset follows."""
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
        """The segment of that key in whatever state, or None."""
        row = self._database.read_one(_SELECT + _THIS_SEGMENT, segment_values(key))
        return None if row is None else _segment(row)

    def segments(self, queue: QueueKey, type: SegmentType | None = None) -> list[Segment]:  # noqa: A002
        """The live segments of a queue, by type and base."""
        statement, values = _SELECT + _THIS_QUEUE + _LIVE, list[object](queue_values(queue))
        if type is not None:
            statement, values = statement + " AND type = ?", [*values, int(type)]
        return [_segment(row) for row in self._database.read(statement + _IN_ORDER, values)]

    def all_segments(self, topic: str | None = None) -> list[Segment]:
        """The live segments of everything, or of a topic, by topic, queue, type and base."""
        where, values = (" WHERE 1", ()) if topic is None else (" WHERE topic = ?", (topic,))
        return [_segment(row) for row in self._database.read(_SELECT + where + _LIVE + _IN_ORDER, values)]

    def segments_being_deleted(self) -> list[Segment]:
        """The segments whose deletion has begun and is not finished."""
        where = f" WHERE status = {SegmentStatus.DELETED:d}"
        return [_segment(row) for row in self._database.read(_SELECT + where + _IN_ORDER)]

    def segment_count(self, queue: QueueKey | None = None) -> int:
        """How many live segments there are, in all or in a queue."""
        where, values = (" WHERE 1", ()) if queue is None else (_THIS_QUEUE, queue_values(queue))
        row = self._database.read_one("SELECT count(*) FROM segment" + where + _LIVE, values)
        return int(row[0]) if row else 0

    def size_of_queue(self, queue: QueueKey, type: SegmentType | None = None) -> int:  # noqa: A002
        """The committed bytes of a queue's live segments, of one type or of all."""
        statement, values = "SELECT coalesce(sum(size), 0) FROM segment" + _THIS_QUEUE, queue_values(queue)
        return self._sum(statement + _LIVE, values, type)

    def size_of_topic(self, topic: str, type: SegmentType | None = None) -> int:  # noqa: A002
        """The committed bytes of a topic's live segments, of one type or of all."""
        return self._sum("SELECT coalesce(sum(size), 0) FROM segment WHERE topic = ?" + _LIVE, (topic,), type)

    def _sum(self, statement: str, values: Iterable[object], type: SegmentType | None) -> int:  # noqa: A002
        if type is None:
            row = self._database.read_one(statement, [*values])
        else:
            row = self._database.read_one(statement + " AND type = ?", [*values, int(type)])
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


def _segment(row: Row) -> Segment:
    cluster, broker, topic, queue_id, kind, base, size, status, *rest, packed_sums = row
    key = SegmentKey(cluster, broker, topic, queue_id, SegmentType(kind), base)
    return Segment(key, size, SegmentStatus(status), *[*rest, BlockSums.unpacked(packed_sums)])
