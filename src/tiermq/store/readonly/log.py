"""An offline walk over one commit-log file: records, blank ends, damage, and where the data ends.

Works on the files of a dead store and of a running one. Invariants: a record is yielded only if its structure, its
checksums and its own physical offset are right; every damaged place is yielded once, with the reason; the walk always
ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tiermq.errors import CorruptRecord
from tiermq.message.layout import BLANK_BYTES_MIN
from tiermq.message.record import decode_record
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.message.stored_message import StoredMessage
from tiermq.store.store_files import ReadOnlyMap, is_zero

# A record that is just being written looks damaged for the moment. A second look tells the two apart.
SECOND_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class LogItem:
    """What lies at one place of a file: a message, a blank end (`blank_bytes`), or damage (`error`)."""

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
            # Its size is believed only if it leads to something that is a record.
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
    """The head at `position`, looked at again a moment later if it is not sound; None at the end of the data."""
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


def end_of_data(view: memoryview) -> int:
    """The position after the last sound record or blank end, judged by structure alone: quick, for statistics."""
    position = 0
    while len(view) - position >= BLANK_BYTES_MIN:
        head = read_head(view, position)
        if head.kind not in (HeadKind.OK, HeadKind.BLANK):
            break
        position += head.size
    return position
