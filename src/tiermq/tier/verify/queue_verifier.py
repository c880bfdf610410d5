"""One queue of a tier, read to its last byte: its records, its units, and both against each other.

Records and units are walked side by side, as both are in the order of the log. Where a unit stands before its record,
the kernel checks runs of them at once (offset, size, own offset, queue number, checksum of the body, topic, tag); only
where that fails, or between records of units, they are checked one by one:

    unit, sound record here          checked, both move on
    unit, damaged bytes here         DAMAGED_RECORD; continues behind the unit's size
    unit elsewhere, its record here  UNIT_DISAGREES
    unit elsewhere, and true there   the bytes here are UNREFERENCED, as a repeated upload leaves them
    no unit any more                 RECORDS_WITHOUT_UNITS, then perhaps a TORN_TAIL
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from tiermq.consumequeue.unit import UNIT_BYTES, is_ext_address
from tiermq.errors import CorruptRecord
from tiermq.kernel import Disagreement, check_records, check_window
from tiermq.message.java_hash import tags_code
from tiermq.message.layout import SIZE_AND_MAGIC
from tiermq.message.properties import TAGS, get_text_property
from tiermq.message.record import CrcPropertyCheck, decode_record
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.queue.log_walk import LogWindow
from tiermq.tier.queue.records import CODA_BYTES, bytes_to_read, is_coda, is_whole_coda
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.queue.units import Unit, UnitCursor, chunks_of, log_offset_at
from tiermq.tier.verify.checked_segment import VERIFY_READ_BYTES, CheckedSegment
from tiermq.tier.verify.missing_keys import KeySums
from tiermq.tier.verify.verify_plan import QueueTask, VerifyResult
from tiermq.tier.verify.verify_report import Note, Problem, VerifyReport

MORE = -1
"""What a step answers when it needs more bytes of the log than it was given."""


class QueueVerifier:
    """Verifies one queue, or a range of it; used once, by one thread."""

    def __init__(
        self,
        driver: TierDriver,
        task: QueueTask,
        report: VerifyReport,
        progress: Callable[[int], None] = lambda _bytes: None,
    ) -> None:
        self._driver, self._task, self._key = driver, task, task.key
        self._report, self._progress = report, progress
        self._logs = task.logs
        self._queue = TierQueue(driver, task.key, task.logs, task.units)
        self._entries = sorted(task.time_entries, key=lambda entry: entry.queue_offset)
        self._topic = task.key.topic.encode()
        self._opened: list[CheckedSegment] = []
        self._times: tuple[int, int] | None = None
        self._unreferenced = 0
        # The queue offset of the last unit whose record was looked for ahead, and found.
        self._found_true = task.then.queue_offset if task.then is not None else -1
        self._key_sums = KeySums(task.key_ranges) if task.key_ranges else None
        self._cursor = UnitCursor(self._unit_chunks(), self._blank, task.then)

    def run(self) -> VerifyResult:
        if self._task.is_first:
            self._pass_expired()
        for info, start, stop in self._task.log_ranges():
            segment, base = self._open(info, start, stop), info.key.base
            log = LogWindow(segment.read_log, base + start, base + stop, VERIFY_READ_BYTES)
            self._walk(segment, log, info is self._logs[-1])
        self._pass_rest()
        self._report.count("units", self._cursor.passed)
        pieces = [piece for segment in self._opened for piece in segment.pieces]
        sums = self._key_sums.found() if self._key_sums is not None else ()
        self._report.count("keys", sum(each.count for each in sums))
        return VerifyResult.of(self._task.number, self._report, pieces, self._times, sums)

    def _open(self, info: SegmentInfo, start: int, stop: int) -> CheckedSegment:
        rows = [row for row in self._task.rows if row.key == info.key]
        self._opened.append(CheckedSegment(self._driver, info, rows, self._report, self._progress, start, stop))
        return self._opened[-1]

    def _unit_chunks(self) -> Iterator[tuple[int, memoryview]]:
        """The units of the task; bytes beside whole units are read for the checksum alone."""
        for info, start, stop in self._task.unit_ranges():
            segment, begin = self._open(info, start, stop), info.key.base + start
            segment.read(-begin % UNIT_BYTES)
            for first, count in chunks_of(begin, info.key.base + stop):
                yield first, segment.read(count * UNIT_BYTES)
            segment.read(UNIT_BYTES)

    # The walk

    def _walk(self, segment: CheckedSegment, log: LogWindow, is_last: bool) -> None:
        while log.at < log.end and not segment.is_broken:
            used = MORE if len(log.data) < min(CODA_BYTES, log.end - log.at) else self._step(log, is_last)
            if used == MORE:
                log.more(self._wanted(log))
            else:
                log.advance(min(used, log.end - log.at))  # What is skipped is read all the same, for the checksum.
        self._end_unreferenced(log.at)

    def _step(self, log: LogWindow, is_last: bool) -> int:
        """Go over some bytes of the log: how many, perhaps none because only a unit was passed; or MORE.

        More are read only where some are left.
        """
        unit = self._cursor.peek()
        if len(log.data) >= CODA_BYTES and is_coda(log.data):
            return self._step_over_coda(unit, log)
        if unit is not None and unit.log_offset == log.at:
            self._end_unreferenced(log.at)
            return self._look(unit, log) if unit.size > len(log.data) + log.left else self._run(unit, log)
        return self._without_unit(unit, log, is_last)

    def _run(self, first: Unit, log: LogWindow) -> int:
        """Check consecutive records at the offsets of their units."""
        units, window, at = self._cursor.window, log.data, log.at
        good, size, oldest_ms, newest_ms, ended = check_records(
            units, window, at, first.queue_offset, self._topic, self._key.queue_id
        )
        if good:
            self._check_entries(first.queue_offset, units[: good * UNIT_BYTES], window, at)
            before = self._times or (oldest_ms, newest_ms)
            self._times = min(before[0], oldest_ms), max(before[1], newest_ms)
        elif ended is Disagreement.ROOM:
            return MORE
        elif check_window(units[:UNIT_BYTES], window, at, first.queue_offset) == 0:
            return self._look(first, log)
        else:
            self._check_identity(first, window)
            good, size = 1, first.size
        if self._key_sums is not None:
            self._key_sums.add_records(units[: good * UNIT_BYTES], window[:size], first.queue_offset)
        self._report.count("records", good)
        self._cursor.advance(good)
        return size

    def _look(self, unit: Unit, log: LogWindow) -> int:
        """A unit points here, and something is wrong: with the record, or with the unit."""
        self._cursor.advance(1)
        head = read_head(log.data)
        if head.kind is HeadKind.OK and _is_sound(log.data, head, log.at):
            said = f"{unit.size} bytes, found a record of {head.size} bytes with queue offset {head.queue_offset}"
            self._problem(Problem.UNIT_DISAGREES, unit, f"expected {said}")
            self._report.count("records")
            return head.size
        self._problem(Problem.DAMAGED_RECORD, unit, _what_is_wrong(log.data, unit, log.at))
        if head.kind is HeadKind.OK:
            return head.size
        # The unit counts where the next unit, or the end, is found behind its record.
        following = self._cursor.peek()
        is_plausible = 0 < unit.size <= len(log.data) and (following is None or following.log_offset >= unit.end)
        return unit.size if is_plausible else max(1, (following.log_offset if following else 0) - log.at)

    def _without_unit(self, unit: Unit | None, log: LogWindow, is_last: bool) -> int:
        """Bytes to which no unit points, or not the next one."""
        head = read_head(log.data)
        if head.kind is HeadKind.HALF and log.left and head.size <= len(log.data) + log.left:
            return MORE
        is_record = head.kind is HeadKind.OK and head.physical_offset == log.at
        if unit is not None and not self._is_true(unit):
            self._cursor.advance(1)
            if is_record and head.queue_offset == unit.queue_offset:
                text = f"its record is at {log.at}, the unit has {unit.log_offset}"
                self._problem(Problem.UNIT_DISAGREES, unit, text)
                self._report.count("records")
                return head.size
            self._problem(Problem.UNIT_WITHOUT_RECORD, unit, f"it has offset {unit.log_offset} and {unit.size} bytes")
            return 0
        if not is_record:
            return self._no_record(unit, head.reason or "a record with another physical offset", log, is_last)
        if unit is None:
            self._report.count("records")
        self._unreferenced += head.size
        return head.size

    def _no_record(self, unit: Unit | None, reason: str, log: LogWindow, is_last: bool) -> int:
        """Bytes that are no record: up to the next unit's record, or to the end."""
        behind = min(unit.log_offset, log.end) if unit is not None else log.end
        where = f"{self._key.directory}/COMMIT_LOG"
        text = f"log offsets {log.at} to {behind}: {reason}"
        if unit is not None:
            self._report.note(Note.UNREFERENCED, where, text)
        elif is_last:
            self._end_unreferenced(log.at)
            self._report.note(Note.TORN_TAIL, where, text)
        else:
            self._report.problem(Problem.DAMAGED_RECORD, where, text)
        return behind - log.at

    def _step_over_coda(self, unit: Unit | None, log: LogWindow) -> int:
        """The mark that ends a sealed segment; a unit may point to it instead of the record behind it."""
        if not is_whole_coda(log.data):
            return self._no_record(unit, f"an end mark of {_claimed_bytes(log)} bytes", log, is_last=False)
        if unit is None or unit.log_offset != log.at:
            return CODA_BYTES
        wanted = bytes_to_read(unit)
        if len(log.data) < wanted <= len(log.data) + log.left:
            return MORE
        record = log.data[CODA_BYTES:wanted]
        head = read_head(record)
        is_own = head.kind is HeadKind.OK and head.size == unit.size and _is_sound(record, head, log.at + CODA_BYTES)
        if not is_own:
            return self._look(unit, log)
        self._cursor.advance(1)
        self._report.count("records")
        return wanted

    def _wanted(self, log: LogWindow) -> int:
        """How many bytes the next step needs at least."""
        unit = self._cursor.peek()
        here = bytes_to_read(unit) if unit is not None and unit.log_offset == log.at else 0
        return max(here, _claimed_bytes(log))

    # What a record must be

    def _check_identity(self, unit: Unit, window: memoryview) -> None:
        """A sound record of this queue has its name and number, and its unit has its tag."""
        head = read_head(window, 0, unit.size)
        if head.queue_id != self._key.queue_id or head.topic != self._topic:
            found = f"topic {head.topic.decode(errors='backslashreplace')!r}, queue {head.queue_id}"
            self._problem(Problem.FOREIGN_RECORD, unit, f"expected {self._key.logical_path}, found {found}")
        properties = window[head.properties_position : head.properties_position + head.properties_length]
        try:
            code = tags_code(get_text_property(bytes(properties), TAGS))
        except CorruptRecord as error:
            self._problem(Problem.DAMAGED_RECORD, unit, str(error))
            return
        if code != unit.tags_code and not is_ext_address(unit.tags_code):
            self._problem(Problem.UNIT_DISAGREES, unit, f"expected tags code {code}, found {unit.tags_code}")
        self._check_entries(unit.queue_offset, unit.packed(), window, unit.log_offset)

    def _check_entries(self, offset: int, units: memoryview | bytes, window: memoryview, at: int) -> None:
        """The entries of the time index for these records, which are in `window` at the offsets of their units."""
        first = bisect_left(self._entries, offset, key=lambda entry: entry.queue_offset)
        for entry in self._entries[first:]:
            index = entry.queue_offset - offset
            if index * UNIT_BYTES >= len(units):
                return
            log_offset = log_offset_at(units, index)
            store_ms = read_head(window, log_offset - at).store_timestamp_ms
            # An entry holds the earliest time of its commit: one earlier than its record's costs a search nothing.
            if entry.store_ms > store_ms or entry.log_offset != log_offset:
                found = f"{entry}, its record was stored at {store_ms} and is at {log_offset}"
                self._report.problem(Problem.TIME_INDEX, self._key.directory, found)

    def _is_true(self, unit: Unit) -> bool:
        """Whether a unit that does not fit here has its record at its offset. One request per unit."""
        if self._found_true == unit.queue_offset:
            return True
        if not self._queue.leads(unit):
            return False
        self._found_true = unit.queue_offset
        return True

    # Ends

    def _pass_expired(self) -> None:
        """Units at the head that have outlived their records."""
        begin = self._logs[0].key.base if self._logs else None
        while (unit := self._cursor.peek()) is not None and begin is not None and 0 <= unit.log_offset < begin:
            if not 0 < unit.size <= begin - unit.log_offset:
                return
            self._report.count("expired_units")
            self._cursor.advance(1)

    def _pass_rest(self) -> None:
        """Units behind the last record: a writer may have gone on since the listing, else their records are lost."""
        first = self._cursor.peek()
        if first is None or first is self._task.then:
            return
        last, count = first, 0
        while (unit := self._cursor.peek()) is not None and unit is not self._task.then:
            last, count = unit, count + 1
            self._cursor.advance(1)
        offsets = f"queue offsets {first.queue_offset} to {last.queue_offset}"
        text = f"{count} units, {offsets}, from log offset {first.log_offset}"
        where = f"{self._key.directory}/CONSUME_QUEUE"
        if self._task.is_last and self._has_grown():
            self._report.note(Note.CHANGED_MEANWHILE, where, text)
        else:
            self._report.problem(Problem.UNIT_WITHOUT_RECORD, where, text)

    def _has_grown(self) -> bool:
        return bool(self._logs) and self._driver.size(self._logs[-1].key) > self._logs[-1].size

    def _end_unreferenced(self, at: int) -> None:
        if not self._unreferenced:
            return
        begin = at - self._unreferenced
        at_end = self._cursor.peek() is None
        kind = Note.RECORDS_WITHOUT_UNITS if at_end else Note.UNREFERENCED
        self._report.note(kind, f"{self._key.directory}/COMMIT_LOG", f"log offsets {begin} to {at}")
        self._unreferenced = 0

    def _blank(self, queue_offset: int) -> None:
        self._report.count("blank_units")
        if (
            not any(gap.from_offset <= queue_offset < gap.to_offset for gap in self._task.gaps)
            and self._task.has_manifest
        ):
            where = f"{self._key.directory}/CONSUME_QUEUE"
            self._report.problem(Problem.BLANK_WITHOUT_GAP, where, f"queue offset {queue_offset}")

    def _problem(self, kind: Problem, unit: Unit, text: str) -> None:
        where = f"{self._key.directory}/COMMIT_LOG"
        self._report.problem(kind, where, f"queue offset {unit.queue_offset}, log offset {unit.log_offset}: {text}")


def _claimed_bytes(log: LogWindow) -> int:
    """The size that the next record, or end mark, claims; 0: too few bytes."""
    return int(SIZE_AND_MAGIC.unpack_from(log.data)[0]) if len(log.data) >= SIZE_AND_MAGIC.size else 0


def _is_sound(window: memoryview, head: RecordHead, at: int) -> bool:
    if head.physical_offset != at:
        return False
    try:
        decode_record(window[: head.size], crc_property=CrcPropertyCheck.IGNORE)
    except CorruptRecord:
        return False
    return True


def _what_is_wrong(window: memoryview, unit: Unit, at: int) -> str:
    head = read_head(window)
    if head.kind is not HeadKind.OK:
        return head.reason
    try:
        decode_record(window[: head.size], crc_property=CrcPropertyCheck.IGNORE)
    except CorruptRecord as error:
        return str(error)
    found = f"log offset {head.physical_offset}, queue offset {head.queue_offset} and {head.size} bytes"
    return f"expected log offset {at}, queue offset {unit.queue_offset} and {unit.size} bytes, found {found}"
