"""TimerState: wheel, log and counts of one store, and how far they are: what taking in and delivering share.

    read_ms    the first slot that was not delivered        write_ms   the slot that is now
    delivered … │ read_ms … due … │ write_ms … wait … │ write_ms + roll window

Invariants: read_ms <= write_ms; every timer of the topic below `queue_offset` is in the wheel at read_ms or later, or
was delivered, or is far. Threads: the timer service changes, any thread reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tiermq.clock import Clock
from tiermq.config import FlushDiskType
from tiermq.delivery.put_again import NEVER, STORED, QueueFor, as_named
from tiermq.delivery.skipped_records import SkippedRecords
from tiermq.delivery.timer.timer_checkpoint import SUM_MASK
from tiermq.delivery.timer.timer_log import TimerLog
from tiermq.delivery.timer.timer_metrics import TimerMetrics
from tiermq.delivery.timer.timer_settings import TimerSettings
from tiermq.delivery.timer.timer_wheel import TimerWheel
from tiermq.kernel import Message
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore


@dataclass(slots=True)
class TimerCounts:
    """What was done since the start."""

    enqueued: int = 0
    delivered: int = 0
    rolled: int = 0
    cancelled: int = 0
    skipped: int = 0
    far: int = 0
    far_errors: int = 0


@dataclass(slots=True)
class TimerState:
    """See the module."""

    store: LocalStore
    clock: Clock
    settings: TimerSettings
    wheel: TimerWheel
    log: TimerLog
    metrics: TimerMetrics
    read_ms: int
    write_ms: int
    queue_offset: int
    waiting: int = 0
    """Timers in slots that were not delivered; cancellations take from it."""
    units_sum: int = 0
    """`unit_sum` over the units of the slots that were not delivered."""
    counts: TimerCounts = field(default_factory=TimerCounts)
    queue_for: QueueFor = as_named
    skipped: SkippedRecords = field(init=False)

    def __post_init__(self) -> None:
        self.skipped = SkippedRecords("timers", self.clock)

    def skip(self, where: str, reason: object) -> None:
        """A timer that can never be delivered is passed over: logged and counted."""
        self.counts.skipped += 1
        self.skipped.add(where, reason)

    def add_to_sum(self, amount: int) -> None:
        self.units_sum = (self.units_sum + amount) & SUM_MASK

    def put(self, messages: list[Message]) -> list[PutStatus]:
        """Put messages without waiting for the disk; what became of each."""
        if not messages:
            return []
        results = self.store.appender.put_many(messages)
        statuses = [result.status for result in results]
        if self.store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH and results.end_offset > 0:
            self.store.when_durable(results.end_offset, _nobody_waits)
        return statuses


def is_done(status: PutStatus) -> bool:
    """Whether a message need not be put again: it is stored, or never can be."""
    return status in STORED or status in NEVER


def _nobody_waits(_status: PutStatus) -> None:
    """Who asked wanted the flush to begin, and nothing else."""
