"""Values of the metadata: topics, queues, segments, gaps, time entries. No SQL and no JSON here.

Invariants: a segment that never received a message has begin and end at NEVER_MS, as RocketMQ writes it; an offset that
is not known is -1; a reserve time or byte limit that is not set is -1 and means "the global setting".

The sparse time index of a queue has an entry (queue offset, store time, log offset) for the first message of a commit,
if the range since the entry before would otherwise exceed 4,096 messages or 4 MiB of commit log. So the messages
between two entries are fetched with one read of the consume queue and one of the commit log, and a lookup by time takes
two requests, however long the queue is.

Store times of one queue do not decrease (the commit log assigns them under its lock), unless a clock was set back.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiermq.tier.block_sums import BlockSums
from tiermq.tier.names import QueueKey, SegmentKey

NEVER_MS = (1 << 63) - 1
"""The begin and end time of a segment without messages."""

LEASE_TERM_MS = 60_000
"""How long a lease on a broker's tier holds without a renewal, for brokers (`tier_lease_term`), jobs and repairs."""

UNKNOWN_OFFSET = -1
UNLIMITED = -1


class SegmentStatus(enum.IntEnum):
    """RocketMQ's codes. DELETED: the object may be gone already; it is not read, and the sweep finishes it."""

    NEW = 0
    SEALED = 1
    DELETED = 2


class TopicStatus(enum.IntEnum):
    """RocketMQ always stores 0; DELETING marks a topic whose deletion is not finished."""

    NORMAL = 0
    DELETING = 1


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic in the tier. Its id is in every index item, so it is never reused for another topic."""

    id: int
    name: str
    status: int = TopicStatus.NORMAL
    reserve_time_hours: int = UNLIMITED
    max_bytes: int = UNLIMITED
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """Queue offsets [from_offset, to_offset) that the tier will never have, the reason, and the time of the record."""

    from_offset: int
    to_offset: int
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue: messages [min_offset, max_offset) are in the tier, less the gaps. -1 for both: nothing yet."""

    key: QueueKey
    min_offset: int = UNKNOWN_OFFSET
    max_offset: int = UNKNOWN_OFFSET
    epoch: int = 0
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment: its committed bytes [0, size), the store times in it, and the queue offsets [begin, end) of it.

    `crc32` is that of all bytes; `sums` are those of its blocks, of the first bytes at least. None: not known.
    """

    key: SegmentKey
    size: int = 0
    status: SegmentStatus = SegmentStatus.NEW
    created_ms: int = 0
    begin_ms: int = NEVER_MS
    end_ms: int = NEVER_MS
    sealed_ms: int = 0
    crc32: int | None = None
    begin_offset: int = UNKNOWN_OFFSET
    end_offset: int = UNKNOWN_OFFSET
    sums: BlockSums | None = None

    @property
    def end(self) -> int:
        """The logical offset behind the last committed byte, where the next segment begins."""
        return self.key.base + self.size

    @property
    def has_all_sums(self) -> bool:
        """Whether each of its blocks has a checksum, so that every read can be checked."""
        return self.size == 0 or (self.sums is not None and self.sums.size >= self.size)

    def cut(self, size: int) -> Segment:
        """The segment when only its first `size` bytes count."""
        sums = None if self.sums is None else self.sums.cut(size)
        return replace(self, size=size, crc32=None, sums=sums)


@dataclass(frozen=True, slots=True)
class TimeEntry:
    """One entry of the sparse time index: the message at that queue offset, when it was stored, where in the log."""

    queue_offset: int
    store_ms: int
    log_offset: int


@dataclass(frozen=True, slots=True)
class EntrySpacing:
    """The longest range of messages of one entry."""

    messages_max: int = 4096
    bytes_max: int = 4 * 1024 * 1024


DEFAULT_SPACING = EntrySpacing()


def entry_for_commit(
    last: TimeEntry | None,
    first: TimeEntry,
    end_queue_offset: int,
    end_log_offset: int,
    spacing: EntrySpacing = DEFAULT_SPACING,
) -> TimeEntry | None:
    """`first`, the first message of a commit, when it needs an entry of its own; None when `last` covers the commit.

    The ends are those of the commit: the first queue offset and the first log offset behind it.
    """
    if last is None:
        return first
    too_many = end_queue_offset - last.queue_offset > spacing.messages_max
    too_long = end_log_offset - last.log_offset > spacing.bytes_max
    return first if too_many or too_long else None


def sample(
    before: TimeEntry | None,
    queue_offsets: Sequence[int],
    log_offsets: Sequence[int],
    spacing: EntrySpacing = DEFAULT_SPACING,
) -> list[int]:
    """Which of these messages, given in order, need an entry behind `before`: as few as `spacing` allows.

    The last message of a range begins within `bytes_max`; it may end beyond.
    """
    if not queue_offsets:
        return []
    chosen = [] if before is not None else [0]
    queue_offset = queue_offsets[0] if before is None else before.queue_offset
    log_offset = log_offsets[0] if before is None else before.log_offset
    while True:
        reach = min(
            bisect_right(queue_offsets, queue_offset + spacing.messages_max),
            bisect_right(log_offsets, log_offset + spacing.bytes_max),
        )
        if reach == len(queue_offsets):
            return chosen
        # At least one step, also behind a message longer than `bytes_max`.
        index = max(reach - 1, bisect_right(queue_offsets, queue_offset))
        chosen.append(index)
        queue_offset, log_offset = queue_offsets[index], log_offsets[index]
