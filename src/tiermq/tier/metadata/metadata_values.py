"""What the metadata knows, as values: topics, queues, segments, gaps. No SQL and no JSON in here.

Invariants: a segment that never received a message has begin and end at NEVER_MS, as RocketMQ writes it; an offset that
is not known is -1; a reserve time or byte limit that is not set is -1 and means "the global setting".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from tiermq.tier.block_sums import BlockSums
from tiermq.tier.names import QueueKey, SegmentKey

NEVER_MS = (1 << 63) - 1
"""The begin and end time of a segment without messages."""

UNKNOWN_OFFSET = -1
UNLIMITED = -1


class SegmentStatus(enum.IntEnum):
    """RocketMQ's codes. DELETED says that the object may be gone already: nobody reads it, the sweep finishes it."""

    NEW = 0
    SEALED = 1
    DELETED = 2


class TopicStatus(enum.IntEnum):
    """RocketMQ stores 0 and nothing else; we mark a topic whose deletion is under way."""

    NORMAL = 0
    DELETING = 1


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the tier knows it. Its id stands in every index item, so it never names another topic again."""

    id: int
    name: str
    status: int = TopicStatus.NORMAL
    reserve_time_hours: int = UNLIMITED
    max_bytes: int = UNLIMITED
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """Queue offsets [from_offset, to_offset) that the tier does not hold and never will, why, and since when."""

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
