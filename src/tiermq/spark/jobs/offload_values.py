"""The values of an offload: what the driver tells a task, and what a task tells the driver. All can be pickled.

    driver ── OffloadTask (QueueWork per queue: where it ends, how far to go) ──► task
    driver ◄── TaskResult (QueueCommit per queue: where it ends now, what the index must know) ── task

A task copies records of queues [from_offset, to_offset) behind what the tier has. It never begins a segment and never
cuts one: where a segment is full it stops and says so, and the driver goes on. So the metadata always knows every
segment before its first byte is written, and a second run of the same task writes the same bytes to the same places.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tiermq.tier.index.index_fragment import IndexFragment
from tiermq.tier.metadata.metadata_values import Segment, TimeEntry, Topic
from tiermq.tier.metadata.segment_rows import SegmentSize
from tiermq.tier.names import QueueKey

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class OffloadSettings:
    """How much at a time. A wave is what is copied between two commits; a chunk is what is in memory of a queue."""

    wave_bytes: int = 4096 * MIB
    wave_messages: int = 16_000_000
    queue_messages: int = 2_000_000  # Of one queue: a task has the keys of so many messages in memory.
    task_bytes: int = 32 * MIB  # Less is not worth a task of its own.
    chunk_bytes: int = 16 * MIB
    chunk_messages: int = 65_536


@dataclass(frozen=True, slots=True)
class LeaseClaim:
    """Under which right a task writes: it stops when the lease has another owner or epoch."""

    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class QueueWork:
    """One queue's part of a task. `log` and `units` are the last segment of each, as the metadata has them."""

    queue: QueueKey
    topic: Topic
    log: Segment
    units: Segment
    last_entry: TimeEntry | None
    from_offset: int
    to_offset: int
    bytes: int  # About.


@dataclass(frozen=True, slots=True)
class OffloadTask:
    """One task: some queues of one store."""

    store: str
    tier: str
    works: tuple[QueueWork, ...]
    lease: LeaseClaim
    log_segment_bytes: int
    queue_segment_bytes: int
    spool: str  # A directory for fragments that are too large to travel; empty: they travel all the same.
    with_index: bool = True
    settings: OffloadSettings = OffloadSettings()


class Stop(enum.Enum):
    """Why a task went no further with a queue."""

    TARGET = "reached its target"
    LOG_FULL = "the commit log's segment is full"
    UNITS_FULL = "the consume queue's segment is full"
    NO_RECORD = "the local store has no record at the next place"
    UNAVAILABLE = "the tier is out of reach"
    REFUSED = "the tier refused"


@dataclass(frozen=True, slots=True)
class QueueCommit:
    """What a task did to a queue: messages [from_offset, to_offset) are durable in the tier, whole."""

    queue: QueueKey
    from_offset: int
    to_offset: int
    bytes: int
    sizes: tuple[SegmentSize, ...]
    entries: tuple[TimeEntry, ...]
    stop: Stop
    error: str = ""
    fragment: IndexFragment | None = None
    fragment_path: str = ""  # Where the fragment's keys are, when they did not travel.

    @property
    def messages(self) -> int:
        return self.to_offset - self.from_offset

    @property
    def is_settled(self) -> bool:
        """Whether nothing can have been written that this does not tell."""
        return self.stop not in (Stop.UNAVAILABLE, Stop.REFUSED)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """All of a task."""

    commits: tuple[QueueCommit, ...]
    cpu_s: float = 0.0
