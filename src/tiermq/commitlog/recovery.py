"""The walk over the commit log after a start: where does valid data end?

Every record is checked: lengths, magic, body CRC (or the whole-record CRC), that it carries the physical offset at
which it lies, and that its topic and properties came to the disk (see `torn_pages`). The walk ends at the first byte
that fails. What lies behind is not data, even where it looks like it:
the end of the log is then zeroed, so that bytes of an older life can never line up with new records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiermq.commitlog.check_ahead import CheckAhead
from tiermq.commitlog.torn_pages import sound_below
from tiermq.files.mapped_file import MappedFile
from tiermq.kernel import Stop, Tail, scan
from tiermq.message.record_head import HeadKind, read_head

Step = Callable[[Tail, int, int], tuple[int, Stop]]
"""(view, start, end) -> (position, stop): walk one file's records as `kernel.scan` or `Builder.dispatch` do."""

FindTorn = Callable[[MappedFile, int], int | None]
"""The first record of a file, from a record's position on, that a power cut tore unseen; None when there is none."""

CHECK_AHEAD_BYTES_MIN = 8 * 1024 * 1024
"""A thread is not worth its start for smaller files."""

FIRST_RECORD_BYTES = 64 * 1024 * 1024  # More than any record; a file is usually smaller.


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where valid data ends. `damaged` is False when the log simply stops (zeros, or the end of the last file)."""

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
    """Walk the files from number `start` on with `step` and find the end of valid data.

    What lies before a file's first zero page is walked at once: nothing there is torn, and that is usually everything.
    With `step_checked`, which does the same as `step` but for checking bodies, a second thread checks them ahead of it.
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
    """(where the first zero page lies, position, stop) of a walk up to there."""
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

    def check(view: Tail, position: int, size: int) -> tuple[int, Stop]:
        nonlocal records
        position, stop, count, _, _, _ = scan(view, position, size, crc_mode)
        records += count
        return position, stop

    return walk_log(files, start, check, find_torn), records


def _has_data(file: MappedFile, position: int) -> bool:
    """Whether anything but zeros lies at the place where the walk ended."""
    ahead = file.read(position, min(64, file.size - position))
    return ahead is not None and any(ahead)
