"""The values of a scan. All are small, immutable and picklable: they are sent to other machines.

    HistoryPlace   the source of history: a tier, store directories, or both
    ScanRequest    what to read of it
    ScanTask       one unit of work: a range of queue offsets on one side, or exact record offsets
    ScanPlan       the tasks, what was pruned, and losses (Loss)
    RecordRun      records in memory, as a task reads them

Offsets are queue offsets, ranges are [from, to), times are store times in ms and inclusive on both ends.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self

from tiermq.clock import EVER_MS
from tiermq.errors import DataLoss
from tiermq.kernel import TIME_MAX_MS, TIME_MIN_MS
from tiermq.message import properties as names
from tiermq.message.properties import get_property
from tiermq.message.stored_message import StoredMessage
from tiermq.tier.block_sums import BlockSums
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey

DEFAULT_CLUSTER = "DefaultCluster"
DEFAULT_BROKER = "broker-a"


class Side(enum.StrEnum):
    """Where a record was read from; the values of the column `tier`."""

    HOT = "hot"
    COLD = "cold"
    WIRE = "wire"  # From a broker, hot or cold.


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store directory and its broker.

    Without names the catalogue uses those recorded when the store was used with a tier, else the tier's only broker
    if its messages are the same (`store_broker`), else the defaults. A QueueHistory and a ScanTask always have names.
    """

    path: str
    cluster: str = ""
    broker: str = ""


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """The source of history. Credentials are not in here: each machine has its own in the environment."""

    tier: str | None = None
    stores: tuple[StorePlace, ...] = ()
    cluster: str = ""
    """Only this cluster; empty: all. Of several clusters with one broker name only one can be read at a time."""


class LossReason(enum.StrEnum):
    """Why requested messages are missing."""

    EXPIRED = "expired"  # Before the oldest message that is left.
    GAP = "gap"  # Gone before they were copied to the tier; recorded there.
    DELETED = "deleted topic"
    CORRUPT = "corrupt"
    BEYOND_END = "beyond the end"  # A start that the queue has not reached: it was reset, or this is another queue.


@dataclass(frozen=True, slots=True)
class Loss:
    """Requested messages [from_offset, to_offset) of a queue that are missing."""

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
    only_offsets: tuple[int, int | None] = (0, None)  # Missing messages outside are no loss.
    delays_ms: tuple[int, ...] = ()  # The broker's delay levels, where they are not RocketMQ's.


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """One record at a known log offset of its side, and its size."""

    log_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """A segment of one of a queue's files in the tier: it begins at offset `base` and has `size` bytes.

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
    """One unit of work. `places`: only these records, ascending; otherwise every message in [from, to).

    Rows are still to be checked against `request` (times, tags, keys): planning prunes, reading decides.
    `log_bytes` is what it will read of records, about; `loss_is_error`: whether a hole is an error or a note.
    `unit_spans` and `log_spans` are the segments that the range touches on the cold side, so that a task needs no
    listing. The request in here has no bounds: they are in the range already.
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
    """Tasks that one worker does one after the other: many small queues become few partitions."""

    tasks: tuple[ScanTask, ...]

    @property
    def log_bytes(self) -> int:
        return sum(task.log_bytes for task in self.tasks)


@dataclass(slots=True)
class ScanCounters:
    """What a scan planned, skipped and read, for users and metrics. Added up over tasks with `+=`."""

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
    """The tasks of a scan. `losses` are known before anything is read."""

    tasks: tuple[ScanTask, ...]
    counters: ScanCounters
    losses: tuple[Loss, ...] = ()


@dataclass(slots=True)
class RecordRun:
    """Records of one queue in one buffer, ascending. `starts` and `sizes` are arrays of int64, one per record.

    The record at `starts[i]` is at `log_base + starts[i]` in the log of its side (its own physical
    offset), and is `sizes[i]` bytes long. The buffer is read-only and may be a map of a file.
    `first_offset`: the queue offset of the first record if offsets are consecutive; None: only the records have them.
    `has_bodies`: false when bodies were not read, since they are not wanted; they are zeros.
    `damage`: why a record is damaged although its own checksum may be valid, by its start.
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


SHOWN_MAX = 8
_ADVICE = {
    LossReason.EXPIRED: "Begin at what is left (startingOffsets earliest)",
    LossReason.GAP: "They were gone from the broker's disk before they were copied to the tier",
    LossReason.DELETED: "Leave the topic out, or begin a new checkpoint if it was created again",
    LossReason.CORRUPT: "'tiermq tier verify' lists what is damaged, and '--repair' restores what still exists locally",
    LossReason.BEYOND_END: "The queue was reset, or the offsets are of another tier: check them, or start over",
}


def describe(loss: Loss) -> str:
    """One loss in one line."""
    detail = f" ({loss.detail})" if loss.detail else ""
    count = loss.to_offset - loss.from_offset
    what = (
        f"{count} messages, offsets {loss.from_offset} to {loss.to_offset}"
        if count > 0
        else f"offset {loss.from_offset}"
    )
    return f"{loss.queue.logical_path}: {what}: {loss.reason.value}{detail}"


def data_loss(losses: Iterable[Loss]) -> DataLoss:
    """The error for these losses, of which there is at least one."""
    found = list(losses)
    shown = [describe(loss) for loss in found[:SHOWN_MAX]]
    if len(found) > SHOWN_MAX:
        shown.append(f"and {len(found) - SHOWN_MAX} more")
    advice = dict.fromkeys(_ADVICE[loss.reason] for loss in found)
    return DataLoss(
        f"requested messages are missing: {'; '.join(shown)}. {'. '.join(advice)}. "
        "To skip them, set failOnDataLoss=false"
    )


def corrupt(queue: QueueKey, from_offset: int, to_offset: int, detail: str) -> Loss:
    """Damage of one message or a run of them."""
    return Loss(queue, from_offset, to_offset, LossReason.CORRUPT, detail)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The exact condition on a message: store time, tags and keys, joined by "and"; empty ones do not restrict.

    Planning prunes by whole segments and by hashes; this decides about each message. The kernel does so over bytes,
    before it decodes anything costly; `matches` is the same rule for one decoded message. Tags and keys are compared as
    UTF-8, to the byte. A key is one word of KEYS, split on spaces, or UNIQ_KEY.
    """

    begin_ms: int = TIME_MIN_MS
    end_ms: int = TIME_MAX_MS
    tags: tuple[bytes, ...] = ()
    keys: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, request: ScanRequest) -> RowFilter:
        """The part of a request that only the message's fields can answer."""
        return cls(
            begin_ms=request.begin_ms if request.begin_ms > 0 else TIME_MIN_MS,
            end_ms=request.end_ms if request.end_ms < EVER_MS else TIME_MAX_MS,
            tags=tuple(sorted(tag.encode() for tag in request.tags)),
            keys=tuple(sorted(key.encode() for key in request.keys)),
        )

    @property
    def takes_everything(self) -> bool:
        return self == RowFilter()

    def matches(self, message: StoredMessage) -> bool:
        """Whether `message` is wanted."""
        if not self.begin_ms <= message.store_timestamp_ms <= self.end_ms:
            return False
        encoded = message.encoded_properties
        if self.tags and get_property(encoded, names.TAGS.encode()) not in self.tags:
            return False
        if not self.keys:
            return True
        own = (get_property(encoded, names.KEYS.encode()) or b"").split(b" ")
        own.append(get_property(encoded, names.UNIQ_KEY.encode()) or b"")
        return any(key and key in self.keys for key in own)
