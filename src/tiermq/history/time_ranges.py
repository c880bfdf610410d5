"""Which offsets of a queue can hold messages of a time, by what its segments and its sparse time index say. Pure.

    entries     100 @ 10:00      200 @ 10:05      300 @ 10:09
    stretches   [min, 100) ≤ 10:00   [100, 200) 10:00–10:05   [200, 300) 10:05–10:09   [300, max) ≥ 10:09

Store times of a queue do not decrease, unless a clock was set back. Then entries disagree with their order, and each
stretch is given the widest times that they allow: so nothing is left out that the entries show.
Everything that stays is still to be filtered row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment, TimeEntry

OffsetRange = tuple[int, int]


def narrow_by_entries(
    entries: Sequence[TimeEntry], begin_ms: int, end_ms: int, from_offset: int, to_offset: int
) -> OffsetRange:
    """The part of [from, to) outside of which no entry allows a message of the time."""
    low, high = from_offset, to_offset
    newest = -1
    for entry in entries:
        newest = max(newest, entry.store_ms)
        if newest >= begin_ms:
            break
        # Everything before this entry is older than begin.
        low = max(low, entry.queue_offset)
    oldest = NEVER_MS
    for entry in reversed(entries):
        oldest = min(oldest, entry.store_ms)
        if oldest <= end_ms:
            break
        high = min(high, entry.queue_offset)
    return (low, high) if low < high else (from_offset, from_offset)


def without_segments(
    ranges: Iterable[OffsetRange], segments: Iterable[Segment], begin_ms: int, end_ms: int
) -> list[OffsetRange]:
    """The ranges without the messages of segments that are of another time as a whole."""
    left = list(ranges)
    for segment in segments:
        known = 0 <= segment.begin_offset < segment.end_offset and segment.end_ms != NEVER_MS
        if known and (segment.end_ms < begin_ms or segment.begin_ms > end_ms):
            left = subtract(left, (segment.begin_offset, segment.end_offset))
    return left


def subtract(ranges: Iterable[OffsetRange], hole: OffsetRange) -> list[OffsetRange]:
    """Ranges without a hole."""
    left = []
    for begin, end in ranges:
        pieces = ((begin, min(end, hole[0])), (max(begin, hole[1]), end))
        left += [piece for piece in pieces if piece[0] < piece[1]]
    return left


def intersect(ranges: Iterable[OffsetRange], other: OffsetRange) -> list[OffsetRange]:
    """The parts of ranges within another one."""
    cut = ((max(begin, other[0]), min(end, other[1])) for begin, end in ranges)
    return [(begin, end) for begin, end in cut if begin < end]
