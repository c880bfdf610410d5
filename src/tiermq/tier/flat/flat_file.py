"""FlatAppendFile: segments end to end, of which only the last one grows.

    |  segment at base 0  |  segment at base 1073741775  |  segment at base 2147483550 ...|
    min_offset                                                        commit_offset   append_offset

Invariants: a segment begins where the one before ends, to the byte; all but the last are wholly committed; every
segment has its metadata row before its first byte is written, so nothing in the tier is unknown.
Threads: `lock` guards the list; the queue's only writer appends, commits and rolls; any thread reads.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise

from tiermq.clock import Clock
from tiermq.errors import CorruptSegment, IllegalRange, IllegalTransition
from tiermq.message.layout import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT, UNIT_BYTES
from tiermq.tier.driver.contract import Buffer, TierDriver
from tiermq.tier.flat.flat_segment import AppendStatus, FlatSegment
from tiermq.tier.metadata.metadata_store import MetadataStore, SegmentSize
from tiermq.tier.metadata.metadata_values import NEVER_MS, UNKNOWN_OFFSET, Segment, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType
from tiermq.tier.queue.tier_queue import DAMAGE_ADVICE

SUMS_READ_MAX = 16 * 1024 * 1024
NONE_SEALED: frozenset[SegmentKey] = frozenset()
"""One for all files: an empty set has 200 bytes."""


class FlatAppendFile:
    """See the module."""

    __slots__ = ("_clock", "_driver", "_lock", "_metadata", "_sealed", "_segments", "max_size", "queue", "type")

    def __init__(
        self,
        driver: TierDriver,
        metadata: MetadataStore,
        queue: QueueKey,
        segment_type: SegmentType,
        max_size: int,
        clock: Clock,
    ) -> None:
        self.queue = queue
        self.type = segment_type
        self.max_size = max_size
        self._driver = driver
        self._metadata = metadata
        self._clock = clock
        self._lock = threading.Lock()
        rows = metadata.segments(queue, segment_type)
        self._segments = tuple(FlatSegment(driver, row, max_size) for row in rows)
        self._sealed = frozenset(row.key for row in rows if row.status is SegmentStatus.SEALED) or NONE_SEALED
        for before, after in pairwise(self._segments):
            if before.commit_offset != after.base:
                raise CorruptSegment(
                    f"{after.key}: expected it to begin at {before.commit_offset}, where the segment before ends; "
                    "run `tiermq tier verify`"
                )

    # Bounds

    @property
    def segments(self) -> tuple[FlatSegment, ...]:
        return self._segments

    @property
    def is_empty(self) -> bool:
        return not self._segments

    @property
    def min_offset(self) -> int:
        """Offset of the oldest byte; -1 without a segment."""
        segments = self._segments
        return segments[0].base if segments else -1

    @property
    def commit_offset(self) -> int:
        """Where durable bytes end; 0 without a segment."""
        segments = self._segments
        return segments[-1].commit_offset if segments else 0

    @property
    def append_offset(self) -> int:
        segments = self._segments
        return segments[-1].append_offset if segments else 0

    @property
    def begin_ms(self) -> int:
        """Time of the oldest record; NEVER_MS when there is none."""
        return min((segment.begin_ms for segment in self._segments), default=NEVER_MS)

    @property
    def end_ms(self) -> int:
        times = [segment.end_ms for segment in self._segments if segment.end_ms != NEVER_MS]
        return max(times, default=NEVER_MS)

    @property
    def last(self) -> FlatSegment:
        if not self._segments:
            raise IllegalTransition(f"{self.queue.logical_path}: expected a segment to write to, found none; create it")
        return self._segments[-1]

    # Growing

    def create_segment(self, base: int, row: Segment | None = None) -> FlatSegment:
        """Begin the file at `base`, or continue at its end. Durable in the metadata on return; sends no request.

        `row`: what the metadata has of it already.
        """
        if self._segments and base != self.append_offset:
            raise IllegalTransition(f"{self.queue.logical_path}: expected a base of {self.append_offset}, found {base}")
        row = row or self._metadata.add_segment(self.queue.segment(self.type, base))
        segment = FlatSegment(self._driver, row, self.max_size)
        with self._lock:
            self._segments = (*self._segments, segment)
        return segment

    def roll(self) -> bool:
        """Begin a new segment; False when the last one could not be committed first. An empty last one stays."""
        if self.last.append_position == 0:
            return True
        if not self.commit():
            return False
        self.create_segment(self.append_offset)
        return True

    def append(
        self,
        data: Buffer,
        begin_ms: int,
        end_ms: int | None = None,
        *,
        begin_offset: int = UNKNOWN_OFFSET,
        end_offset: int = UNKNOWN_OFFSET,
    ) -> AppendStatus:
        """Append bytes that must be in one segment. Rolls when they do not fit the last one."""
        if not self.last.has_room_for(len(data)) and not self.roll():
            return AppendStatus.FILE_FULL
        return self.last.append(data, begin_ms, end_ms, begin_offset=begin_offset, end_offset=end_offset)

    def commit(self) -> bool:
        """Make everything appended durable, and record it in the metadata; False when the back end is unreachable."""
        if not self.write_pending():
            return False
        sizes = self.unrecorded()
        if sizes:
            self._metadata.record_commit(self.queue, sizes)
            self.note_recorded()
        return True

    def write_pending(self) -> bool:
        """The tier's half of a commit: the metadata record what is `unrecorded` later."""
        return self.is_empty or self.last.commit()

    def unrecorded(self) -> list[SegmentSize]:
        """What the metadata does not know yet of what is committed, for `record_commit`."""
        segments = self._segments
        if not segments or segments[-1].recorded_position == segments[-1].commit_position:
            return []
        segment = segments[-1]
        return [
            SegmentSize(
                segment.key,
                segment.commit_position,
                segment.begin_ms,
                segment.end_ms,
                segment.crc32,
                _known(segment.begin_offset),
                _known(segment.end_offset),
                segment.sums,
            )
        ]

    def note_recorded(self) -> None:
        """Call when `record_commit` of what was `unrecorded` is through."""
        if not self.is_empty:
            self.last.recorded_position = self.last.commit_position

    def discard_pending(self) -> int:
        return 0 if self.is_empty else self.last.discard_pending()

    def take_rows(self) -> bool:
        """Learn what another process has committed, rolled, sealed or deleted; whether that was anything.

        Only where that process is the writer: pending bytes here are dropped.
        """
        rows = self._metadata.segments(self.queue, self.type)
        known = {segment.key: segment for segment in self._segments}
        segments = []
        for row in rows:
            segment = known.get(row.key)
            if segment is None or not segment.take_row(row):
                segment = FlatSegment(self._driver, row, self.max_size)
            segments.append(segment)
        changed = len(segments) != len(known) or any(known.get(new.key) is not new for new in segments)
        changed = changed or any(segment.grew for segment in segments)
        self._sealed = frozenset(row.key for row in rows if row.status is SegmentStatus.SEALED) or NONE_SEALED
        with self._lock:
            self._segments = tuple(segments)
        return changed

    # Sealing, after the roll and off the writer's path: merging a gigabyte of parts takes its time

    def unsealed(self) -> list[FlatSegment]:
        """Segments that will not grow any more and still wait to be sealed."""
        return [segment for segment in self._segments[:-1] if segment.key not in self._sealed]

    def seal(self, segment: FlatSegment) -> None:
        """Seal one of `unsealed`: afterwards it is one object, and SEALED in the metadata."""
        self._driver.seal(segment.key, crc32=segment.crc32)
        self._metadata.seal_segment(segment.key)
        self._sealed |= {segment.key}

    # Reading

    def is_confirmed(self, offset: int, end: int) -> bool:
        """Whether the back end's own checksums have confirmed all bytes of [offset, end), in this process' life."""
        touched = [segment for segment in self._segments if segment.base < end and offset < segment.commit_offset]
        return bool(touched) and all(
            segment.base + segment.confirmed_from <= max(offset, segment.base) for segment in touched
        )

    def reread(self, offset: int, length: int) -> bytes:
        """Committed bytes from where they are stored, unchecked. Raises IllegalRange as `read`."""
        return b"".join(
            self._driver.reread(segment.key, start, count) for segment, start, count in self.pieces(offset, length)
        )

    def rewrite(self, offset: int, data: Buffer) -> None:
        """Store committed bytes again, in place: the repair of a damaged range."""
        view, at = memoryview(data), 0
        for segment, start, count in self.pieces(offset, len(view)):
            self._driver.rewrite(segment.key, start, view[at : at + count])
            at += count

    def pieces(self, offset: int, length: int) -> list[tuple[FlatSegment, int, int]]:
        """The segments that hold the committed bytes [offset, offset + length): each, where in it, and how many."""
        end = offset + length
        found = [
            (
                segment,
                max(offset, segment.base) - segment.base,
                min(end, segment.commit_offset) - max(offset, segment.base),
            )
            for segment in self._segments
            if segment.base < end and offset < segment.commit_offset
        ]
        if sum(count for _, _, count in found) != length:
            raise IllegalRange(
                f"{self.queue.logical_path} {self.type.name}: expected committed bytes {offset}..{end}, found "
                f"{self.min_offset}..{self.commit_offset}"
            )
        return found

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Committed bytes [offset, offset + length), cut to the committed end, over as many segments as it takes."""
        segments = self._segments
        if not segments or length <= 0 or not segments[0].base <= offset < segments[-1].commit_offset:
            raise IllegalRange(
                f"{self.queue.logical_path} {self.type.name}: expected an offset within "
                f"{self.min_offset}..{self.commit_offset} and a length > 0, found {offset} and {length}"
            )
        end = min(offset + length, segments[-1].commit_offset)
        index = bisect_right(segments, offset, key=lambda segment: segment.base) - 1
        parts: list[memoryview] = []
        while offset < end:
            segment = segments[index]
            count = min(end, segment.commit_offset) - offset
            parts.append(self._read_segment(segment, offset - segment.base, count))
            offset += count
            index += 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_segment(self, segment: FlatSegment, position: int, length: int) -> memoryview:
        """Committed bytes of one segment, in whole blocks, which are compared with their checksums."""
        key, sums = segment.key, segment.sums
        low, count = sums.range_to_read(position, length)
        try:
            return sums.checked(self._driver.read(key, low, count), low, position, length, key, DAMAGE_ADVICE)
        except CorruptSegment:
            # Bypass caches: the stored bytes may be correct. If not, this raises.
            return sums.checked(self._driver.reread(key, low, count), low, position, length, key, DAMAGE_ADVICE)

    def complete_sums(self) -> None:
        """Sum up what a recovery found, so that what is written behind it is covered. Raises TierUnavailable.

        Not where much is missing: a segment of RocketMQ's, or of a TierMQ that had no sums, is as it is until it ends.
        Nor where a block that has a sum is damaged: it keeps its own, and what is behind it has none.
        """
        segment = self.last
        size, sums = segment.commit_position, segment.sums
        if 0 < size - sums.size <= SUMS_READ_MAX:
            whole = sums.cut(sums.size // sums.block_bytes * sums.block_bytes)
            with suppress(CorruptSegment):
                segment.sums = whole.extended(self._read_segment(segment, whole.size, size - whole.size))
        if segment.crc32 is None and segment.sums.size == size:
            segment.crc32 = segment.sums.whole()

    # Shrinking

    def expired(self, threshold_ms: int) -> list[FlatSegment]:
        """The leading segments whose newest record is older than `threshold_ms`.

        The last one counts too once everything in it is that old; one that never got a record never expires: it is
        where the next message goes.
        """
        found = []
        for segment in self._segments:
            if segment.end_ms == NEVER_MS or segment.end_ms >= threshold_ms or segment.pending_bytes:
                break
            found.append(segment)
        return found

    def hide_first(self, segment: FlatSegment) -> None:
        """Mark the oldest segment as deleted; `finish_deletion` is to follow. Sends no request.

        When the last segment is deleted, an empty one replaces it at the same end, so that numbering continues.
        """
        if not self._segments or self._segments[0] is not segment:
            raise IllegalTransition(f"{segment.key}: expected the oldest segment of its file, found another")
        if len(self._segments) == 1:
            self.create_segment(segment.append_offset)
        self._metadata.mark_deleted(segment.key)
        with self._lock:
            self._segments = self._segments[1:]
        segment.close()

    def destroy(self) -> None:
        """Delete every segment. Raises TierError when one cannot be deleted; another call continues."""
        for segment in self._segments:
            self._metadata.mark_deleted(segment.key)
            segment.close()
        with self._lock:
            self._segments = ()
        self.finish_deletions()

    def finish_deletions(self) -> None:
        """Delete what was marked and is still there, from an earlier life of the queue too. Raises TierError."""
        for row in self._metadata.segments_being_deleted():
            if row.key.queue == self.queue and row.key.type is self.type:
                self.finish_deletion(row.key)

    def finish_deletion(self, key: SegmentKey) -> None:
        """Delete the object of a marked segment, then its row. A crash in between leaves the marked row.

        Raises TierError.
        """
        self._driver.delete(key)
        self._metadata.delete_segment(key)

    def close(self, timeout_s: float = -1) -> bool:
        """Take nothing more; False when a commit under way outlasted `timeout_s`."""
        ended = [segment.close(timeout_s) for segment in self._segments]
        return all(ended)


def _known(offset: int) -> int | None:
    return None if offset == UNKNOWN_OFFSET else offset


# FlatCommitLog: the records of one queue in the tier, and when its segment is rolled by age.


class FlatCommitLog(FlatAppendFile):
    """A flat file of records. Each record's physical offset is its own offset in this file."""

    __slots__ = ()

    def __init__(
        self, driver: TierDriver, metadata: MetadataStore, queue: QueueKey, max_size: int, clock: Clock
    ) -> None:
        super().__init__(driver, metadata, queue, SegmentType.COMMIT_LOG, max_size, clock)

    def first_queue_offset(self) -> int:
        """The queue offset of the oldest record; -1 while none is committed.

        From the metadata. Only for a tier that RocketMQ wrote it is read from the record, once.
        """
        if self.is_empty or self.commit_offset - self.min_offset < PHYSICAL_OFFSET_AT:
            return -1
        first = self.segments[0]
        if first.begin_offset == UNKNOWN_OFFSET:
            head = self.read(first.base, PHYSICAL_OFFSET_AT)
            first.begin_offset = int.from_bytes(head[QUEUE_OFFSET_AT:PHYSICAL_OFFSET_AT], "big", signed=True)
        return first.begin_offset


# FlatConsumeQueue: the units of one queue in the tier. Unit k is at byte 20 * k, as in the local store.


class FlatConsumeQueue(FlatAppendFile):
    """A flat file of 20-byte units; offsets in it are queue offsets times 20."""

    __slots__ = ()

    def __init__(
        self, driver: TierDriver, metadata: MetadataStore, queue: QueueKey, max_size: int, clock: Clock
    ) -> None:
        whole = max(1, max_size // UNIT_BYTES) * UNIT_BYTES
        super().__init__(driver, metadata, queue, SegmentType.CONSUME_QUEUE, whole, clock)

    @property
    def min_queue_offset(self) -> int:
        return max(0, self.min_offset) // UNIT_BYTES

    @property
    def commit_queue_offset(self) -> int:
        return self.commit_offset // UNIT_BYTES

    @property
    def append_queue_offset(self) -> int:
        return self.append_offset // UNIT_BYTES

    @property
    def room_units(self) -> int:
        """How many more units the last segment takes."""
        return self.last.room() // UNIT_BYTES

    def append_units(self, units: Buffer, begin_ms: int, end_ms: int) -> AppendStatus:
        """Take units for the next commit, all or none. FILE_FULL: they pass the segment's end, part them and roll."""
        return self.last.append(units, begin_ms, end_ms)

    def read_units(self, queue_offset: int, count: int) -> bytes | memoryview:
        """Up to `count` committed units from `queue_offset` on."""
        return self.read(queue_offset * UNIT_BYTES, count * UNIT_BYTES)
