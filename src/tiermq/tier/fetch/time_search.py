"""Offset by time in the tier: the sparse time index says which few messages to look at, two reads say which one it is.

times 100 200 200 200 300 at offsets 7..11:
t =  50 -> 7      t = 150 -> 8      t = 200 -> lower 8, upper 10      t = 250 -> 11      t = 301 -> 12
"""

from __future__ import annotations

from tiermq.consumequeue.boundary import Boundary
from tiermq.tier.fetch.fetcher import TierFetcher
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.metadata.time_index import lower_window, upper_window


def offset_by_time(fetcher: TierFetcher, file: FlatMessageFile, timestamp_ms: int, boundary: Boundary) -> int:
    """LOWER: the first message stored at the time or later, or the committed end. UPPER: the last one stored exactly at
    the time, else the first one stored later. Never outside of what the tier holds.
    """
    low, high = max(0, file.min_offset), max(0, file.commit_offset)
    if low >= high:
        return low
    entries = file.time_entries()
    first_later = _first_from(fetcher, file, *lower_window(entries, timestamp_ms, low, high), timestamp_ms)
    if boundary is Boundary.LOWER:
        return first_later
    behind = _first_from(fetcher, file, *upper_window(entries, timestamp_ms, low, high), timestamp_ms + 1)
    return behind - 1 if behind > first_later else first_later


def _first_from(fetcher: TierFetcher, file: FlatMessageFile, begin: int, end: int, timestamp_ms: int) -> int:
    """The first message of [begin, end) stored at the time or later; `end` when there is none."""
    offset = begin
    while offset < end:
        window = fetcher.window_at(file, offset, end - offset)
        for queue_offset, store_ms in window.store_times():
            if offset <= queue_offset < end and store_ms >= timestamp_ms:
                return queue_offset
        offset = window.end_offset
    return end


def store_time_of(fetcher: TierFetcher, file: FlatMessageFile, offset: int) -> int:
    """Store time of one message; -1 when the tier does not hold it."""
    if not max(0, file.min_offset) <= offset < file.commit_offset:
        return -1
    return fetcher.window_at(file, offset, 1).store_time_of(offset)
