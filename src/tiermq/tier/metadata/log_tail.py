"""The end of a commit log in the tier, behind the last record that has a unit: how much of it is whole.

There may be whole records (the writer died between the commit log and the consume queue), an end mark (CODA), and on a
back end that can tear a write a record that is cut. The bytes are read in windows; a record that is larger than the
window makes the window grow.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.message import HeadKind, RecordHead, read_head
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment

WINDOW_BYTES = 1 << 20


@dataclass(slots=True)
class LogTail:
    """The whole part [begin, end) of a segment's tail in log offsets, the records in it, and why it ends there."""

    begin: int
    end: int
    record_count: int = 0
    first_queue_offset: int = -1
    last_queue_offset: int = -1
    begin_ms: int = NEVER_MS
    end_ms: int = -1
    torn: str = ""


def walk_tail(driver: TierDriver, segment: Segment, begin: int, window_bytes: int = WINDOW_BYTES) -> LogTail:
    """Walk the segment's records from log offset `begin`, which is a record boundary, to its last whole record."""
    tail = LogTail(begin, begin)
    while tail.end < segment.end and not tail.torn:
        position = tail.end - segment.key.base
        length = min(window_bytes, segment.size - position)
        window = driver.read(segment.key, position, length)
        used, wanted = _walk_window(window, tail)
        if used == 0 and not tail.torn:
            if wanted > segment.size - position or length == segment.size - position:
                tail.torn = f"a record of {wanted} bytes, of which only {segment.size - position} are there"
            else:
                window_bytes = max(wanted, window_bytes * 2)
    return tail


def _walk_window(window: memoryview, tail: LogTail) -> tuple[int, int]:
    """Take the whole records at the start of the window. Returns the bytes taken, and what the next record needs."""
    position = 0
    while position < len(window):
        head = read_head(window, position)
        if head.kind is HeadKind.HALF:
            return position, max(head.size, 8)
        if head.kind is HeadKind.BLANK:
            # An end mark; one that claims more than there is, is cut like a record.
            if position + head.size > len(window):
                return position, head.size
        elif head.kind is HeadKind.CORRUPT:
            tail.torn = head.reason
            return position, 0
        elif head.physical_offset != tail.end:
            tail.torn = f"a record that says it lies at {head.physical_offset}"
            return position, 0
        else:
            _take(tail, head)
        position += head.size
        tail.end += head.size
    return position, 0


def _take(tail: LogTail, head: RecordHead) -> None:
    tail.record_count += 1
    if tail.first_queue_offset < 0:
        tail.first_queue_offset = head.queue_offset
    tail.last_queue_offset = head.queue_offset
    tail.begin_ms = min(tail.begin_ms, head.store_timestamp_ms)
    tail.end_ms = max(tail.end_ms, head.store_timestamp_ms)
