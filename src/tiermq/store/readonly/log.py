"""ReadOnlyLog: the commit log of a store that another process may be writing, and a scan of one of its files.

The scan works on the files of a stopped store and of a running one. Invariants: a record is yielded only if its
structure, its checksums and its own physical offset are valid; every damaged position is yielded once, with the reason;
the scan always ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tiermq.errors import CorruptRecord
from tiermq.kernel import scan
from tiermq.message.layout import BLANK_BYTES_MIN
from tiermq.message.record import decode_record
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.message.stored_message import StoredMessage
from tiermq.store.readonly.mapped_run import MappedRun, ReadOnlyMap, is_zero

# A record that is just being written looks damaged. It is read again after this time.
SECOND_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class LogItem:
    """One item of a file: a message, a blank end (`blank_bytes`), or damage (`error`)."""

    position: int
    physical_offset: int
    size: int
    message: StoredMessage | None = None
    error: str = ""


def walk_log_file(file: ReadOnlyMap, base_offset: int, start: int = 0) -> Iterator[LogItem]:
    """Items of the file from position `start` on, in order. The last one may be damage; an all-zero rest is the end."""
    view = file.view
    position = start
    while len(view) - position >= BLANK_BYTES_MIN:
        head = _head_twice(file, position, base_offset)
        offset = base_offset + position
        if head is None:
            return
        if head.kind is HeadKind.BLANK:
            yield LogItem(position, offset, head.size)
            return
        if head.kind is not HeadKind.OK:
            yield LogItem(position, offset, 0, error=head.reason)
            # Its size is used only if a record follows.
            if head.size <= 0 or read_head(view, position + head.size).kind is not HeadKind.OK:
                return
            position += head.size
            continue
        try:
            message = decode_record(view, position, expect_physical_offset=offset)
            yield LogItem(position, offset, head.size, message)
        except CorruptRecord as error:
            yield LogItem(position, offset, head.size, error=str(error))
        position += head.size


def _head_twice(file: ReadOnlyMap, position: int, base_offset: int) -> RecordHead | None:
    """The head at `position`, read again a moment later if it is not valid; None at the end of the data."""
    view = file.view
    head = read_head(view, position)
    if _sound(head, base_offset + position):
        return head
    if is_zero(view, position, position + BLANK_BYTES_MIN):
        if file.is_zero_from(position):
            return None
        head = RecordHead(
            HeadKind.CORRUPT, 0, f"byte {position}: zeros where a record should be, with data behind them"
        )
    time.sleep(SECOND_LOOK_SECONDS)
    again = read_head(view, position)
    return again if _sound(again, base_offset + position) else head


def _sound(head: RecordHead, offset: int) -> bool:
    return head.kind is HeadKind.BLANK or (head.kind is HeadKind.OK and head.physical_offset == offset)


class ReadOnlyLog(MappedRun):
    """The commit log by physical offset."""

    __slots__ = ()

    def head_at(self, physical_offset: int) -> RecordHead | None:
        """The head of the record at `physical_offset`; None when no valid record is stored there."""
        found = self.find(physical_offset)
        if found is None:
            return None
        head = read_head(*found)
        return head if head.kind is HeadKind.OK and head.physical_offset == physical_offset else None

    def properties_of(self, physical_offset: int, head: RecordHead) -> bytes:
        found = self.find(physical_offset)
        if found is None:
            return b""
        return bytes(found[0][head.properties_position : head.properties_position + head.properties_length])

    def end_offset(self, known: int = 0) -> int:
        """Behind the last whole record, judged by structure alone. Walks the heads of the last file that has data, or
        from `known`, where a record ends, if that is later."""
        end = max(known, self.min_offset)
        for file in reversed(self.files):
            opened = self.map_of(file)
            if opened is not None and not is_zero(opened.view, 0, min(BLANK_BYTES_MIN, file.size)):
                end = max(end, file.base)
                break
        segments = self.segments()
        while (view := segments.find(end)) is not None:
            position, _, records, _, _, blank = scan(view, end - view.base, view.size, 0)
            end = view.base + position + blank
            if not records and not blank:
                break
        return end
