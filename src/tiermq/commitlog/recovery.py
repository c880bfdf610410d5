"""The scan of the commit log at start: finds the end of valid data.

Every record is checked: lengths, magic, body CRC (or the whole-record CRC), that it contains its own physical offset,
and that its topic and properties reached the disk. The scan ends at the first byte that fails. Bytes behind it are not
data, even if they look valid: they are zeroed, so that old bytes can never line up with new records.

Records torn by a power cut outside of their checksum:
A record's CRC covers its body. Its topic and properties follow the body, often on another page of the disk, and
when that page never reached the disk they read as zeros while everything else is valid: lengths, magic, offset, CRC.
Such a record would be delivered with a corrupt topic or without its keys.

A page that never reached the disk is a whole, aligned, zero page, because the log is zero beyond its end. A record is
torn when such a page begins inside its topic or properties, and the checkpoint does not cover it. (Not needed when the
whole-record CRC property is verified. The original accepts such records as valid.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tiermq.files.mapped_file import MappedFile
from tiermq.kernel import Stop, WriteCursor, first_zero_page, scan
from tiermq.message.record_head import HeadKind, read_head

DISK_PAGE_BYTES = 512
"""The smallest unit that a disk writes atomically; what the kernel's `first_zero_page` looks for."""


def sound_end(file: MappedFile) -> int:
    """Start of the file's first hole: sound data ends there, or before."""
    ranges = file.data_ranges()
    return ranges[0][1] if ranges and ranges[0][0] == 0 else 0


def sound_below(file: MappedFile) -> int:
    """Records that end at or before this position are not torn, because no zero page precedes it.

    After a crash that is the end of the log, or of a full file; finding it reads no record.
    """
    end = sound_end(file)
    selected = file.select(0, end)
    if selected is None:
        return 0
    with selected:
        found = first_zero_page(selected.data, 0, end)
    return end if found < 0 else found


def first_torn_record(file: MappedFile, vouched_before_ms: int, start: int = 0) -> int | None:
    """The position of the first record of `file` that is torn and not older than `vouched_before_ms`; None: none is.

    Looks from `start` on, where a record begins.
    """
    selected = file.select(0, file.size)
    if selected is None:
        return None
    with selected:
        end = scan(file.view, start, file.size, 0)[0]
        position = start
        for page in _zero_pages(selected.data, start, end):
            while position < end:
                head = read_head(selected.data, position, file.size)
                if head.kind is not HeadKind.OK:
                    return None
                if position + head.size > page:
                    unchecked = head.body_position + head.body_length
                    if page >= unchecked and head.store_timestamp_ms >= vouched_before_ms:
                        return position
                    break
                position += head.size
    return None


def _zero_pages(data: memoryview, start: int, end: int) -> Iterator[int]:
    """Positions of zero pages in [start, end). A partial last page does not count."""
    # Only pages with records: holes follow, and on a full tmpfs even reading a hole allocates a block, which kills the
    # process.
    stop = min(len(data), -(-end // DISK_PAGE_BYTES) * DISK_PAGE_BYTES)
    at = first_zero_page(data, start, stop)
    while 0 <= at < end:
        yield at
        at = first_zero_page(data, at + DISK_PAGE_BYTES, stop)


STEP_BYTES = 2 * 1024 * 1024
assert STEP_BYTES % DISK_PAGE_BYTES == 0
_CRC_OF_BODIES = 1


class CheckAhead:
    """A second thread that checks the records of a log file while the first one dispatches those behind it.

        checked     |- step -|- step -|- step -|- step -| ...      zero pages, lengths, offsets, body CRCs
        dispatched           |- step -|- all that is checked -|    units, index entries

    The only dependency is the order: no record is dispatched before it was checked. The compiled kernel does both
    without the interpreter lock, so that a recovery takes as long as the slower of the two.

    Invariant: the outcome is that of `sound_below` and of one scan up to there, at any speed of the two threads.

    The check of one file, running while the object is entered. One thread enters it, iterates and leaves.

    `sound`, `position` and `stop` are final when the iteration has ended: no zero page precedes `sound`, the records
    before `position` are valid, and `stop` is the reason why the check ended there.
    """

    def __init__(self, file: MappedFile, step_bytes: int | None = None) -> None:
        self._file = file
        self._step_bytes = step_bytes or STEP_BYTES
        self._changed = threading.Condition()  # Guards what follows.
        self._done = self._unwanted = False
        self._failure: Exception | None = None
        self.sound = self.position = 0
        self.stop = Stop.END
        self._thread = threading.Thread(target=self._run, name="check-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._unwanted = True
        self._thread.join()

    def __iter__(self) -> Iterator[int]:
        """Positions up to which the records are valid, each greater than the one before, as soon as they are known."""
        taken = 0
        while True:
            with self._changed:
                while not self._done and self.position == taken:
                    self._changed.wait()
                if self._failure is not None:
                    raise self._failure
                if self.position == taken:
                    return
                taken = self.position
            yield taken

    def _run(self) -> None:
        try:
            self._check()
        except Exception as error:  # noqa: BLE001 - the thread's outermost edge; the scanning thread raises it.
            self._failure = error
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _check(self) -> None:
        end = sound_end(self._file)
        selected = self._file.select(0, end)
        if selected is None:
            return
        with selected:
            looked, found = 0, -1
            while looked < end and found < 0 and not self._unwanted:
                ahead = min(end, looked + self._step_bytes)
                found = first_zero_page(selected.data, looked, ahead)
                looked = ahead
                self._check_records(ahead if found < 0 else found)

    def _check_records(self, sound: int) -> None:
        """Check up to the last record that ends before `sound`. A later one looks corrupt until `sound` passes it."""
        position, stop, *_ = scan(self._file.view, self.position, sound, _CRC_OF_BODIES)
        with self._changed:
            self.sound, self.position, self.stop = sound, position, stop
            self._changed.notify_all()


Step = Callable[[WriteCursor, int, int], tuple[int, Stop]]
"""(view, start, end) -> (position, stop): scan one file's records as `kernel.scan` or `Builder.dispatch` do."""

FindTorn = Callable[[MappedFile, int], int | None]
"""The first record of a file, from a record's position on, that a power cut tore undetected; None when none is."""

CHECK_AHEAD_BYTES_MIN = 8 * 1024 * 1024
"""For smaller files a thread costs more than it saves."""

FIRST_RECORD_BYTES = 64 * 1024 * 1024  # More than any record; a file is usually smaller.


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of valid data. `damaged` is False when the log ends normally (zeros, or the end of the last file)."""

    offset: int
    damaged: bool


def crc_mode_of(check_crc: bool, force_property: bool) -> int:
    """The kernel's crc_mode for the two settings that decide what recovery verifies."""
    return 2 if force_property else 1 if check_crc else 0


def first_record(file: MappedFile) -> tuple[int, int] | None:
    """(physical offset, store time) of a file's first record; None when there is no valid one."""
    length = min(file.read_position, FIRST_RECORD_BYTES)
    selected = file.select(0, length)
    if selected is None:
        return None
    with selected:
        head = read_head(selected.data, 0, length)
        if head.kind is not HeadKind.OK or head.store_timestamp_ms == 0:
            return None
        return head.physical_offset, head.store_timestamp_ms


def start_file(files: Sequence[MappedFile], matches: Callable[[int, int], bool]) -> int:
    """The newest file whose first record satisfies `matches(physical offset, store time)`; 0 when none does."""
    for index in range(len(files) - 1, 0, -1):
        found = first_record(files[index])
        if found is not None and matches(*found):
            return index
    return 0


def walk_log(
    files: Sequence[MappedFile],
    start: int,
    step: Step,
    find_torn: FindTorn | None = None,
    step_checked: Step | None = None,
) -> LogEnd:
    """Scan the files from number `start` on with `step` and find the end of valid data.

    Records before a file's first zero page are scanned in one call: none is torn, and usually that is the whole file.
    With `step_checked`, which is `step` without checking bodies, a second thread checks them ahead of it.
    """
    end = files[start].from_offset
    for index in range(start, len(files)):
        file = files[index]
        if find_torn is not None and step_checked is not None and file.size >= CHECK_AHEAD_BYTES_MIN:
            sound, position, stop = _walk_behind_check(file, step_checked)
        else:
            sound = file.size if find_torn is None else sound_below(file)
            position, stop = step(file.view, 0, sound)
        torn_at = None
        if find_torn is not None and sound < file.size and stop is not Stop.BLANK:
            torn_at = find_torn(file, position)
            position, stop = step(file.view, position, file.size if torn_at is None else torn_at)
        end = file.from_offset + position
        if position == torn_at:
            return LogEnd(end, damaged=True)
        if stop is Stop.CORRUPT:
            return LogEnd(end, damaged=_has_data(file, position))
        if index + 1 < len(files):
            end = files[index + 1].from_offset
    return LogEnd(end, damaged=False)


def _walk_behind_check(file: MappedFile, step_checked: Step) -> tuple[int, int, Stop]:
    """(position of the first zero page, position, stop) of a scan up to there."""
    position = 0
    with CheckAhead(file) as ahead:
        for checked in ahead:
            position, stop = step_checked(file.view, position, checked)
            if position < checked:
                return ahead.sound, position, stop
        return ahead.sound, position, ahead.stop


def verify_log(
    files: Sequence[MappedFile], start: int = 0, crc_mode: int = 1, find_torn: FindTorn | None = None
) -> tuple[LogEnd, int]:
    """Check every record from file number `start` on, changing nothing: (end of valid data, records)."""
    records = 0

    def check(view: WriteCursor, position: int, size: int) -> tuple[int, Stop]:
        nonlocal records
        position, stop, count, _, _, _ = scan(view, position, size, crc_mode)
        records += count
        return position, stop

    return walk_log(files, start, check, find_torn), records


def _has_data(file: MappedFile, position: int) -> bool:
    """Whether anything but zeros follows the end of the scan."""
    ahead = file.read(position, min(64, file.size - position))
    return ahead is not None and any(ahead)
