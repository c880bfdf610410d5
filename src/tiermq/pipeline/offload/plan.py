"""What an offload copies, as values: what a wave takes of each queue, tasks and their results.

    driver ── OffloadTask (QueueWork per queue: where it ends, how far to go) ──► task
    driver ◄── TaskResult (QueueCommit per queue: where it ends now; where its keys are staged) ── task

A task copies records of queues [from_offset, to_offset) after the tier's end of the queue. It never begins a segment
and never trims one: at a full segment it stops and reports it, and the driver continues. So the metadata always have
every segment before its first byte is written, and a second run of the same task writes the same bytes to the same
offsets.

A wave has a limit in bytes, in messages and in queues: it bounds what a crash leaves to be looked at again, how
long a commit waits, how many keys a task has in memory, and the driver's memory. Small backlogs are taken
whole, large ones share the rest evenly, so that one queue with years of history does not block other queues.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tiermq.pipeline.index_build import StagedKeys
from tiermq.pipeline.offload.wire_source import BrokerPlace
from tiermq.tier.driver.contract import ChunkRange
from tiermq.tier.metadata.metadata_store import SegmentSize
from tiermq.tier.metadata.metadata_values import Segment, TimeEntry, Topic
from tiermq.tier.names import QueueKey

MIB = 1 << 20
TASK_S = 10.0
COMMON_TASK_S = 2.0
"""Of a task in a continuous job's wave of several brokers: a broker that needs longer has waves of its own."""
TASK_BYTES = 32 * MIB
TASKS_PER_PROCESSOR = 2


@dataclass(frozen=True, slots=True)
class OffloadSettings:
    """How much at a time. A wave is what is copied between two commits; a chunk is what is in memory of a queue."""

    wave_bytes: int = 4096 * MIB
    wave_messages: int = 16_000_000
    wave_queues: int = 25_000  # A driver has the files of these open, 3 KB each, and holds 3 KB more for each.
    queue_messages: int = 2_000_000  # Of one queue: a task holds the keys of these messages in memory.
    task_bytes: int = TASK_BYTES  # Less is not worth a task of its own.
    chunk_bytes: int = 16 * MIB
    chunk_messages: int = 65_536
    packs: bool = True  # Whether quiet queues share objects, where a tier has objects.
    task_s: float = TASK_S  # Over the wire a task ends then: its wave commits when all of its tasks have ended.


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
    is_packed: bool = False  # Whether its bytes share an object with other quiet queues.


@dataclass(frozen=True, slots=True)
class OffloadTask:
    """One task: some queues of one broker, read from its store directory, or over the wire where `wire` is given."""

    store: str
    tier: str
    works: tuple[QueueWork, ...]
    lease: LeaseClaim
    log_segment_bytes: int
    queue_segment_bytes: int
    with_index: bool = True
    settings: OffloadSettings = OffloadSettings()
    wire: BrokerPlace | None = None
    rate: float = 0.0  # Bytes a second over the wire; 0: as many as there are.


class Stop(enum.Enum):
    """Why a task went no further with a queue."""

    TARGET = "reached its target"
    LOG_FULL = "the commit log's segment is full"
    UNITS_FULL = "the consume queue's segment is full"
    NO_RECORD = "the local store has no record at the next place"
    UNAVAILABLE = "the tier is out of reach"
    REFUSED = "the tier refused"
    NO_SOURCE = "the broker is out of reach, or refused"
    SLOW = "the time of its task is over"
    DAMAGED = "the next record is damaged at its source"
    NOT_QUIET = "it has more than fits beside other quiet queues"


@dataclass(frozen=True, slots=True)
class QueueCommit:
    """What a task did to a queue: messages [from_offset, to_offset) are durable in the tier, whole.

    Where there are `ranges`, nothing of it counts before the driver has committed those.
    """

    queue: QueueKey
    from_offset: int
    to_offset: int
    bytes: int
    sizes: tuple[SegmentSize, ...]
    entries: tuple[TimeEntry, ...]
    stop: Stop
    error: str = ""
    took_s: float = field(default=0.0, compare=False)  # 0: the queue's turn did not come.
    seen: int = 0  # Messages behind `to_offset` that were read and not copied.
    ranges: tuple[ChunkRange, ...] = field(default=(), compare=False)  # Each attempt has its own chunks.

    @property
    def messages(self) -> int:
        return self.to_offset - self.from_offset

    @property
    def is_settled(self) -> bool:
        """Whether this covers everything that can have been written."""
        return self.stop not in (Stop.UNAVAILABLE, Stop.REFUSED)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """All of a task. `keys`: of what it copied; a range whose keys could not be staged is missing there."""

    commits: tuple[QueueCommit, ...]
    keys: tuple[StagedKeys, ...] = ()
    cpu_s: float = 0.0
    took_s: float = 0.0


# Waves


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages of a queue that wait, and about how many bytes they have."""

    messages: int
    bytes: int


def share(backlogs: Sequence[Backlog], settings: OffloadSettings) -> list[int]:
    """How many messages of each backlog a wave takes; one at least of each, as far as the wave reaches."""
    taken = [0] * len(backlogs)
    bytes_left, messages_left = settings.wave_bytes, settings.wave_messages
    in_order = sorted(range(len(backlogs)), key=lambda number: backlogs[number].bytes)
    for done, number in enumerate(in_order):
        backlog, others = backlogs[number], len(backlogs) - done
        if bytes_left <= 0 or messages_left <= 0:
            break
        by_bytes = backlog.messages
        if backlog.bytes > bytes_left // others:
            by_bytes = backlog.messages * (bytes_left // others) // backlog.bytes
        count = max(1, min(backlog.messages, by_bytes, messages_left // others, settings.queue_messages))
        taken[number] = count
        messages_left -= count
        bytes_left -= backlog.bytes * count // backlog.messages
    return taken


def part(
    works: Sequence[QueueWork],
    parallelism: int,
    settings: OffloadSettings,
    groups_max: int | None = None,
) -> list[tuple[QueueWork, ...]]:
    """The works in groups of about the same number of bytes, the heaviest group first, each in the order of the works.

    Two groups for each processor, if there is enough to do: one slow task then does not leave other processors idle for
    long.
    """
    total = sum(work.bytes for work in works)
    most = min(len(works), TASKS_PER_PROCESSOR * parallelism if groups_max is None else groups_max)
    count = max(1, min(most, -(-total // settings.task_bytes)))
    if count < parallelism:
        count = max(count, min(parallelism, most, total // (settings.task_bytes // 4)))
    groups: list[list[QueueWork]] = [[] for _ in range(max(1, count))]
    lightest = [(0, number) for number in range(len(groups))]
    for work in sorted(works, key=lambda each: each.bytes, reverse=True):
        weight, number = heapq.heappop(lightest)
        groups[number].append(work)
        heapq.heappush(lightest, (weight + max(1, work.bytes), number))
    full = [group for group in groups if group]
    full.sort(key=lambda group: sum(work.bytes for work in group), reverse=True)
    order = {work.queue: number for number, work in enumerate(works)}
    return [tuple(sorted(group, key=lambda work: order[work.queue])) for group in full]


def cut(work: QueueWork, messages: int) -> QueueWork:
    """The work with fewer messages."""
    whole = work.to_offset - work.from_offset
    return replace(work, to_offset=work.from_offset + messages, bytes=work.bytes * messages // max(1, whole))
