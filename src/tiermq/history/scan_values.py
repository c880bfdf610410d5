"""The values that a scan is made of. All are small, immutable and can be pickled: they travel to other machines.

    HistoryPlace   where history lies: a tier, store directories, or both
    ScanRequest    what somebody wants of it
    ScanTask       one piece of work: a run of queue offsets on one side, or exact places of records
    ScanPlan       the tasks, what they leave out, and what cannot be had (Loss)
    RecordRun      records in memory, as a task reads them

Offsets are queue offsets, ranges are [from, to), times are store times in ms and inclusive on both ends.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Self

from tiermq.tier.block_sums import BlockSums
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey

EVER_MS = (1 << 63) - 1
DEFAULT_CLUSTER = "DefaultCluster"
DEFAULT_BROKER = "broker-a"


class Side(enum.StrEnum):
    """Where a record was read from; the values of the column `tier`."""

    HOT = "hot"
    COLD = "cold"
    WIRE = "wire"  # A broker gave it, from wherever it had it.


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store directory and whose it is. A directory does not know its broker's name.

    Empty names were not said: the catalogue then takes the tier's only broker, or the defaults without a tier. Places
    in a QueueHistory and in a ScanTask always have names.
    """

    path: str
    cluster: str = ""
    broker: str = ""


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """Where history lies. Credentials are not in here: each machine has its own in the environment."""

    tier: str | None = None
    stores: tuple[StorePlace, ...] = ()


class LossReason(enum.StrEnum):
    """Why messages that were asked for cannot be had."""

    EXPIRED = "expired"  # Before the oldest message that is left.
    GAP = "gap"  # Gone before they were copied to the tier; recorded there.
    DELETED = "deleted topic"
    CORRUPT = "corrupt"
    BEYOND_END = "beyond the end"  # A start that the queue has not reached: it was reset, or this is another queue.


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages [from_offset, to_offset) of a queue that were asked for and are not there."""

    queue: QueueKey
    from_offset: int
    to_offset: int
    reason: LossReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Where a scan of one queue begins and ends; None: at what there is."""

    from_offset: int | None = None
    to_offset: int | None = None


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """What is wanted. Empty sets mean no restriction; restrictions are joined by "and".

    `bounds` is by queue (a QueueKey of the catalogue); queues that it does not name are read whole.
    `keys`: messages with at least one of them, by KEYS or UNIQ_KEY, as RocketMQ's index counts them.
    """

    topics: frozenset[str] = frozenset()
    topic_pattern: str | None = None
    brokers: frozenset[str] = frozenset()
    queue_ids: frozenset[int] = frozenset()
    bounds: dict[QueueKey, OffsetBounds] = field(default_factory=dict)
    begin_ms: int = 0
    end_ms: int = EVER_MS
    keys: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    include_body: bool = True
    only_offsets: tuple[int, int | None] = (0, None)  # Others are of no interest: no loss when they are not there.
    delays_ms: tuple[int, ...] = ()  # The broker's delay levels, where they are not RocketMQ's.


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """One record whose place is known: its offset in the log of its side, and its size."""

    log_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """A segment of one of a queue's files in the tier: it begins at offset `base` and has so many bytes.

    `sums` are the checksums of its blocks, as far as the tier's manifest knows them.
    """

    base: int
    size: int
    sums: BlockSums | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, segment: Segment) -> SegmentSpan:
        sums = None if segment.sums is None else segment.sums.cut(segment.size)
        return cls(segment.key.base, segment.size, sums)

    @property
    def end(self) -> int:
        return self.base + self.size


@dataclass(frozen=True, slots=True)
class ScanTask:
    """One piece of work. `places`: only these records, ascending; otherwise every message in [from, to).

    Rows are still to be checked against `request` (times, tags, keys): planning prunes, reading decides.
    `log_bytes` is what it will read of records, about; `loss_is_error`: whether a hole is an error or a note.
    `unit_spans` and `log_spans` are the segments that the range touches on the cold side, so that a task asks nobody.
    The request in here has no bounds: they are in the range already.
    """

    place: HistoryPlace
    queue: QueueKey
    side: Side
    from_offset: int
    to_offset: int
    request: ScanRequest
    log_bytes: int = 0
    places: tuple[RecordPlace, ...] | None = None
    store: StorePlace | None = None  # The directory, on the hot side.
    loss_is_error: bool = True
    unit_spans: tuple[SegmentSpan, ...] = ()
    log_spans: tuple[SegmentSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class ScanBundle:
    """Tasks that one worker does one after the other: so many small queues are few partitions."""

    tasks: tuple[ScanTask, ...]

    @property
    def log_bytes(self) -> int:
        return sum(task.log_bytes for task in self.tasks)


@dataclass(slots=True)
class ScanCounters:
    """What a scan planned, left out and did, for people and for metrics. Added up over tasks with `+=`."""

    queues: int = 0
    segments_planned: int = 0
    segments_skipped: int = 0
    bytes_planned: int = 0
    bytes_skipped: int = 0
    index_files_asked: int = 0
    index_bytes_read: int = 0
    requests: int = 0
    bytes_read: int = 0
    rows_read: int = 0
    rows_given: int = 0
    hot_bytes_read: int = 0
    cold_bytes_read: int = 0
    messages_lost: int = 0

    def __iadd__(self, other: ScanCounters) -> Self:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """What is to be done. `losses` are known before anything is read."""

    tasks: tuple[ScanTask, ...]
    counters: ScanCounters
    losses: tuple[Loss, ...] = ()


@dataclass(slots=True)
class RecordRun:
    """Records of one queue in one buffer, ascending. `starts` and `sizes` are arrays of int64, one per record.

    The record at `starts[i]` lies at `log_base + starts[i]` in the log of its side (its own physical offset says so
    too), and is `sizes[i]` bytes long. The buffer is read-only and may be a map of a file.
    `first_offset`: the queue offset of the first record where the others follow one by one; None: only they know.
    `has_bodies`: false when bodies were not read, since nobody wants them; zeros stand in their place.
    `damage`: why a record is damaged although its own checksum may not say so, by its start.
    `delays_ms`: the delay levels of the store that has them; empty where they are not known.
    """

    queue: QueueKey
    side: Side
    buffer: Any
    starts: Any
    sizes: Any
    log_base: int
    segment: str
    first_offset: int | None = None
    has_bodies: bool = True
    delays_ms: tuple[int, ...] = ()
    damage: dict[int, str] = field(default_factory=dict)
