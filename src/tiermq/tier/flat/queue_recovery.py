"""QueueRecovery: one queue's two files brought to the same end, after a crash or when pending bytes were given up.

    metadata knows            units beyond it                  records without units            torn
    |-------------------------|--------------------------------|--------------------------------|~~~~~|
    recorded                  every unit must continue the     whole records get their units    trimmed
                              chain of records                 from their own bytes

The commit log is written before the consume queue, and the metadata's row after both. So what the metadata record is
durable, and behind it are at most the bytes of commits since then. Units are accepted as long as they continue the
chain; at the first that does not, a write was torn. Records behind the last unit are accepted as long as they are
complete, intact and in order: nothing is uploaded twice. Torn bytes are trimmed, never bytes that the metadata or a
unit cover: if those are missing, the tier lost them, which is an error and not repaired here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import CorruptSegment, TierUnavailable
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_file import FlatAppendFile, FlatCommitLog, FlatConsumeQueue
from tiermq.tier.metadata.metadata_values import UNKNOWN_OFFSET, Gap
from tiermq.tier.queue.log_walk import LogWalk, read_in, take_head, take_in_order
from tiermq.tier.queue.records import RecordBatch, derive_units
from tiermq.tier.queue.units import RUN_BYTES, iter_units, log_range, runs_of_records, unit_at


@dataclass(frozen=True, slots=True)
class Accepted:
    """How many units of a tail continue the chain, and where the record of the last of them ends."""

    count: int
    log_end: int


def accept_units(
    tail: bytes | memoryview, queue_offset: int, log_offset: int, log_end: int, gaps: Sequence[Gap]
) -> Accepted:
    """The leading units of `tail`, the first of which is that of `queue_offset`, whose record begins at `log_offset`.

    A blank unit is accepted inside of a recorded gap. A record may begin later than the one before ends: an upload of
    RocketMQ that was repeated leaves bytes that no unit knows.
    """
    count = 0
    for unit in iter_units(tail, queue_offset):
        if unit.is_blank:
            if not any(gap.from_offset <= unit.queue_offset < gap.to_offset for gap in gaps):
                break
        elif not unit.is_sound or unit.log_offset < log_offset or unit.end > log_end:
            break
        else:
            log_offset = unit.end
        count += 1
    return Accepted(count, log_offset)


def intact_units(units: bytes | memoryview, derived: bytes) -> int:
    """How many leading units agree with their records; `derived` are the units made from the records.

    A tags code may differ, because the writer of the unit chose it; but not by missing its last bytes.
    """
    count = 0
    for at in range(0, min(len(units), len(derived)), UNIT_BYTES):
        unit, expected = bytes(units[at : at + UNIT_BYTES]), derived[at : at + UNIT_BYTES]
        is_torn = unit != expected and expected.startswith(unit.rstrip(b"\0"))
        if is_torn or unit[:12] != expected[:12]:
            break
        count += 1
    return count


class QueueRecovery:
    """Used once, by the queue's one writer, while nothing is pending and both files have a segment.

    `note` is called with every record that the metadata lack; `commit` makes the records noted so far durable, in the
    tier and in the metadata, and returns False when the back end is unreachable.
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
        self._read_log = read_in(driver, log.last.key)  # Also what is not checked yet.

    def run(self) -> None:
        """Bring both files to the same end; the last units may be pending afterwards.

        Raises TierUnavailable, after which it can be repeated, and CorruptSegment.
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
                "lists what is missing, `tiermq tier repair --store DIR` restores what a local store still has"
            )
        return size

    def _end_of_last_record(self, log_known: int) -> int:
        """Where the record of the newest unit that the metadata knows ends; the log's known end without one."""
        if self.units.commit_offset > self.units.min_offset:
            unit = unit_at(self.units.read(self.units.commit_offset - UNIT_BYTES, UNIT_BYTES), 0)
            return log_known if unit.is_blank else unit.end
        return self._first_without_unit(log_known)

    def _first_without_unit(self, log_known: int) -> int:
        """Offset of the first record without a unit, in a queue without units; else the known end.

        A restore finds records whose writer died before it wrote the queue's first units.
        """
        wanted = self.units.append_queue_offset
        for head in LogWalk(self._read_log, self.log.last.base, log_known, take_head):
            if head.queue_offset >= wanted:
                return head.physical_offset if head.queue_offset == wanted else log_known
        return log_known

    def _found(self, batch: RecordBatch, end: int) -> None:
        """Note records that the metadata lack, for times, index and end."""
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
        ends = [log_range(batch.units)[1] for batch in batches]
        start = max([start, *ends])
        if taken < accepted.count:
            self._require_records(start, accepted.log_end, offset + taken)
        if known + taken * UNIT_BYTES < size:
            self._driver.trim(segment.key, known + taken * UNIT_BYTES)
        segment.set_size(known + taken * UNIT_BYTES)
        for batch, end in zip(batches, ends, strict=True):
            segment.note_found(batch.begin_ms, batch.end_ms, UNKNOWN_OFFSET, UNKNOWN_OFFSET)
            self._found(batch, end)
        return start

    def _check_records(self, tail: memoryview, offset: int) -> tuple[list[RecordBatch], int]:
        """The records of a tail's units, as far as they are whole and intact, and how many units that makes."""
        batches = []
        for first, units in runs_of_records(tail, offset):
            start, end = log_range(units)
            data = self._read_log(start, end - start)
            intact = intact_units(units, derive_units(data, start, first))
            if intact:
                batches.append(RecordBatch.of_bytes(data, bytes(units[: intact * UNIT_BYTES]), first))
            if intact < len(units) // UNIT_BYTES:
                return batches, first + intact - offset
        return batches, len(tail) // UNIT_BYTES

    def _require_records(self, start: int, claimed: int, offset: int) -> None:
        """A unit may be torn; then the records are there without it. If they are not, they were damaged later."""
        records = LogWalk(self._read_log, start, self._log_end, take_in_order(offset), window_bytes=RUN_BYTES)
        for _ in records:
            if records.at >= claimed:
                return
        raise CorruptSegment(
            f"{self.log.queue.logical_path}: its consume queue points to records up to {claimed}, but the one "
            f"at {records.at} of its commit log is damaged; run `tiermq tier verify`"
        )

    # Records without units

    def _adopt(self, start: int) -> int:
        """Give whole records behind the last unit their units; where they end."""
        for batch in LogWalk(self._read_log, start, self._log_end, self._take_fitting, window_bytes=RUN_BYTES):
            self.units.append_units(batch.units, batch.begin_ms, batch.end_ms)
            start = log_range(batch.units)[1]
            self._found(batch, start)
        return start

    def _take_fitting(self, window: memoryview, at: int) -> tuple[int, RecordBatch] | None:
        """The records at the start of a window that come next, as many as the segment of units has room for."""
        offset = self.units.append_queue_offset
        units = derive_units(window, at, offset)
        if not units:
            return None
        if self.units.room_units == 0 and not (self._commit() and self.units.roll()):
            raise self.units.last.last_error or TierUnavailable(f"{self.units.last.key}: it could not be committed")
        units = units[: self.units.room_units * UNIT_BYTES]
        size = log_range(units)[1] - at
        return size, RecordBatch.of_bytes(window[:size], units, offset)
