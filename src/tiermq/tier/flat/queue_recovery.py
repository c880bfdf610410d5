"""QueueRecovery: one queue's two files brought to the same end, after a crash or when pending bytes were given up.

What is decided is in `segment_recovery`; here it is asked and done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiermq.consumequeue.unit import PRE_BLANK, UNIT, UNIT_BYTES
from tiermq.errors import CorruptSegment, TierUnavailable
from tiermq.message import HeadKind, read_head
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_append_file import FlatAppendFile
from tiermq.tier.flat.flat_commit_log import FlatCommitLog
from tiermq.tier.flat.flat_consume_queue import FlatConsumeQueue
from tiermq.tier.flat.record_batch import RecordBatch
from tiermq.tier.flat.segment_recovery import (
    accept_units,
    adopt_records,
    intact_units,
    read_window,
    runs_of_records,
)
from tiermq.tier.metadata.metadata_values import UNKNOWN_OFFSET, Gap


class QueueRecovery:
    """Used once, by the queue's one writer, while nothing is pending and both files have a segment.

    `note` is told of every record that the metadata does not know yet; `commit` makes durable, in the tier and in the
    metadata, what was noted so far, and says False when the back end is out of reach.
    """

    def __init__(
        self,
        driver: TierDriver,
        log: FlatCommitLog,
        units: FlatConsumeQueue,
        gaps: Sequence[Gap],
        note: Callable[[RecordBatch], None],
        commit: Callable[[], bool],
    ) -> None:
        self.log = log
        self.units = units
        self._driver = driver
        self._gaps = gaps
        self._note = note
        self._commit = commit
        self._log_end = 0

    def run(self) -> None:
        """Bring both files to the same end; the last units may be pending afterwards.

        Raises TierUnavailable, after which it can be begun anew, and CorruptSegment.
        """
        for file in (self.log, self.units):
            file.last.set_size(file.last.recorded_position)  # An attempt that failed half way has left its own guess.
        units_size, log_size = self._true_size(self.units), self._true_size(self.log)
        log_known, self._log_end = self.log.commit_offset, self.log.last.base + log_size
        start = self._end_of_last_record(log_known)
        if start > self._log_end:
            raise CorruptSegment(
                f"{self.log.queue.logical_path}: its consume queue points to records up to {start}, but its commit "
                f"log ends at {self._log_end}; run `tiermq tier verify`"
            )
        start = self._adopt(self._take_units(units_size, max(start, self.log.last.base)))
        end = max(start, log_known)
        if end < self._log_end:
            self._driver.trim(self.log.last.key, end - self.log.last.base)

    def _true_size(self, file: FlatAppendFile) -> int:
        """The size of the file's last segment in the tier."""
        segment = file.last
        size = self._driver.size(segment.key)
        if size < segment.commit_position:
            raise CorruptSegment(
                f"{segment.key}: expected the {segment.commit_position} bytes that were committed, found {size} in the "
                "tier; nothing is written to this queue until the tier has them again: `tiermq tier verify` "
                "says what is missing, `tiermq tier repair --store DIR` brings back what a local store still has"
            )
        return size

    def _end_of_last_record(self, log_known: int) -> int:
        """Where the record of the newest unit that the metadata knows ends; the log's known end without one."""
        if self.units.commit_offset > self.units.min_offset:
            unit = self.units.read(self.units.commit_offset - UNIT_BYTES, UNIT_BYTES)
            if unit != PRE_BLANK:
                place, size, _ = UNIT.unpack(unit)
                return int(place) + int(size)
            return log_known
        return self._first_without_unit(log_known)

    def _first_without_unit(self, log_known: int) -> int:
        """Where the first record lies that should have a unit, when there is none at all; the known end without one.

        A restore knows of records whose writer died before it wrote the queue's first units.
        """
        position, wanted = self.log.last.base, self.units.append_queue_offset
        while position < log_known:
            window = read_window(self._read_log, position, log_known)
            at = 0
            while at < len(window) and (head := read_head(window, at)).kind is HeadKind.OK:
                if head.queue_offset >= wanted:
                    return position + at if head.queue_offset == wanted else log_known
                at += head.size
            if at == 0:
                break
            position += at
        return log_known

    def _read_log(self, offset: int, length: int) -> memoryview:
        """Bytes of the log's last segment, also of those that nobody has vouched for yet."""
        segment = self.log.last
        return self._driver.read(segment.key, offset - segment.base, length)

    def _found(self, batch: RecordBatch, end: int) -> None:
        """Records that landed without our knowing: they have times, a place in the index, and an end."""
        segment = self.log.last
        segment.set_size(max(segment.commit_position, end - segment.base))
        segment.note_found(batch.begin_ms, batch.end_ms, batch.first_offset, batch.next_offset)
        self._note(batch)

    # Units that are there

    def _take_units(self, size: int, start: int) -> int:
        """Accept the units behind the known ones, and trim what is torn; where the record of the last one ends."""
        segment = self.units.last
        known, offset = segment.commit_position, self.units.commit_queue_offset
        if size == known:
            return start
        whole = size - (size - known) % UNIT_BYTES
        tail = self._driver.read(segment.key, known, whole - known) if whole > known else memoryview(b"")
        accepted = accept_units(tail, offset, start, self._log_end, self._gaps)
        batches, taken = self._check_records(tail[: accepted.count * UNIT_BYTES], offset)
        ends = [UNIT.unpack_from(batch.units, len(batch.units) - UNIT_BYTES) for batch in batches]
        start = max([start, *(place + length for place, length, _ in ends)])
        if taken < accepted.count:
            self._require_records(start, accepted.log_end, offset + taken)
        if known + taken * UNIT_BYTES < size:
            self._driver.trim(segment.key, known + taken * UNIT_BYTES)
        segment.set_size(known + taken * UNIT_BYTES)
        for batch, (place, length, _) in zip(batches, ends, strict=True):
            segment.note_found(batch.begin_ms, batch.end_ms, UNKNOWN_OFFSET, UNKNOWN_OFFSET)
            self._found(batch, place + length)
        return start

    def _check_records(self, tail: memoryview, offset: int) -> tuple[list[RecordBatch], int]:
        """The records of a tail's units, as far as they are whole and intact, and how many units that makes."""
        batches = []
        for first, units in runs_of_records(tail, offset):
            place = UNIT.unpack_from(units)[0]
            last_place, last_size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
            data = self._read_log(place, last_place + last_size - place)
            intact = intact_units(units, adopt_records(data, place, first))
            if intact:
                batches.append(RecordBatch.of_bytes(data, bytes(units[: intact * UNIT_BYTES]), first))
            if intact < len(units) // UNIT_BYTES:
                return batches, first + intact - offset
        return batches, len(tail) // UNIT_BYTES

    def _require_records(self, start: int, claimed: int, offset: int) -> None:
        """A unit may be torn; then the records are there without it. If they are not, they were damaged later."""
        while start < claimed:
            units = adopt_records(read_window(self._read_log, start, self._log_end), start, offset)
            if not units:
                raise CorruptSegment(
                    f"{self.log.queue.logical_path}: its consume queue points to records up to {claimed}, but the one "
                    f"at {start} of its commit log is damaged; run `tiermq tier verify`"
                )
            offset += len(units) // UNIT_BYTES
            place, size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
            start = place + size

    # Records without units

    def _adopt(self, start: int) -> int:
        """Give whole records behind the last unit their units; where they end."""
        while start < self._log_end:
            data = read_window(self._read_log, start, self._log_end)
            units = memoryview(adopt_records(data, start, self.units.append_queue_offset))
            if not units:
                break
            if self.units.room_units == 0 and not (self._commit() and self.units.roll()):
                raise self.units.last.last_error or TierUnavailable(f"{self.units.last.key}: it could not be committed")
            units = units[: self.units.room_units * UNIT_BYTES]
            place, size, _ = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
            end = int(place) + int(size)
            batch = RecordBatch.of_bytes(data[: end - start], bytes(units), self.units.append_queue_offset)
            self.units.append_units(batch.units, batch.begin_ms, batch.end_ms)
            self._found(batch, end)
            start = end
        return start
