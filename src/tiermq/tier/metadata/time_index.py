"""The sparse time index: a few (queue offset, store time, log offset) entries that stand for all messages of a queue.

An entry is the first message of a commit. It is kept when the stretch that began at the entry before would otherwise
grow beyond 4,096 messages or 4 MiB of commit log. So the messages between two entries are fetched with one read of the
consume queue and one of the commit log, and an offset is found by time with two requests, however long the queue is.

Store times of one queue do not decrease (the commit log hands them out under its lock). A clock that was set back makes
entries disagree; `lower_window` then still returns a window of the queue, but perhaps not the best one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tiermq.tier.metadata.metadata_values import TimeEntry


@dataclass(frozen=True, slots=True)
class Stretch:
    """The longest run of messages that one entry may stand for."""

    messages_max: int = 4096
    bytes_max: int = 4 * 1024 * 1024


DEFAULT_STRETCH = Stretch()


def entry_for_commit(
    last: TimeEntry | None,
    first: TimeEntry,
    end_queue_offset: int,
    end_log_offset: int,
    stretch: Stretch = DEFAULT_STRETCH,
) -> TimeEntry | None:
    """`first`, the first message of a commit, when it needs an entry of its own; None when `last` covers the commit.

    The ends are those of the commit: the first queue offset and the first log offset behind it.
    """
    if last is None:
        return first
    too_many = end_queue_offset - last.queue_offset > stretch.messages_max
    too_long = end_log_offset - last.log_offset > stretch.bytes_max
    return first if too_many or too_long else None


def sample(
    before: TimeEntry | None,
    queue_offsets: Sequence[int],
    log_offsets: Sequence[int],
    stretch: Stretch = DEFAULT_STRETCH,
) -> list[int]:
    """Which of these messages, given in order, need an entry behind `before`: as few as the stretch allows.

    The last message of a stretch begins within its bytes; its own length may reach beyond, as that of a message that
    is longer than a stretch always does.
    """
    if not queue_offsets:
        return []
    chosen = [] if before is not None else [0]
    queue_offset = queue_offsets[0] if before is None else before.queue_offset
    log_offset = log_offsets[0] if before is None else before.log_offset
    while True:
        reach = min(
            bisect_right(queue_offsets, queue_offset + stretch.messages_max),
            bisect_right(log_offsets, log_offset + stretch.bytes_max),
        )
        if reach == len(queue_offsets):
            return chosen
        # At least one step, also behind a message that is longer than the stretch.
        index = max(reach - 1, bisect_right(queue_offsets, queue_offset))
        chosen.append(index)
        queue_offset, log_offset = queue_offsets[index], log_offsets[index]


def lower_window(entries: Sequence[TimeEntry], timestamp_ms: int, min_offset: int, max_offset: int) -> tuple[int, int]:
    """Queue offsets (begin, end), such that the first message stored at or after the time is in [begin, end].

    The end itself is a possible answer, and needs no read: everything in [begin, end) is older then.
    """
    return _window(entries, bisect_left(entries, timestamp_ms, key=_store_ms), min_offset, max_offset)


def upper_window(entries: Sequence[TimeEntry], timestamp_ms: int, min_offset: int, max_offset: int) -> tuple[int, int]:
    """Queue offsets (begin, end), such that the first message stored *after* the time is in [begin, end]."""
    return _window(entries, bisect_right(entries, timestamp_ms, key=_store_ms), min_offset, max_offset)


def _store_ms(entry: TimeEntry) -> int:
    return entry.store_ms


def _window(entries: Sequence[TimeEntry], index: int, min_offset: int, max_offset: int) -> tuple[int, int]:
    begin = entries[index - 1].queue_offset if index > 0 else min_offset
    end = entries[index].queue_offset if index < len(entries) else max_offset
    # Entries of expired messages may still be there.
    begin = min(max(begin, min_offset), max_offset)
    return begin, min(max(end, begin), max_offset)
