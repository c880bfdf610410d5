"""TimerState: wheel, log and counts of one store, and their progress: shared by enqueue and dequeue.

    read_ms    the first slot that was not delivered        write_ms   the slot that is now
    delivered … │ read_ms … due … │ write_ms … wait … │ write_ms + roll window

Invariants: read_ms <= write_ms; every timer of the topic below `queue_offset` is in the wheel at read_ms or later, or
was delivered, or is a tiered timer. Threads: the timer service changes, any thread reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tiermq.clock import Clock
from tiermq.config import FlushDiskType
from tiermq.delivery.redeliver import NEVER, STORED, Escape, QueueFor, SkippedRecords, as_named
from tiermq.delivery.timer.timer_checkpoint import SUM_MASK
from tiermq.delivery.timer.timer_log import TimerLog
from tiermq.delivery.timer.timer_wheel import TimerWheel
from tiermq.errors import BadConfig, StoreDamaged
from tiermq.files.config_file import decode_lenient_json
from tiermq.kernel import Message
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

FILE = "timermetrics"
SLOTS = 7 * 24 * 3600
"""Half of the wheel: seven days of seconds, at any precision."""
BLANK_SLOTS = 60
ROLL_WINDOW_SLOTS = 2 * 24 * 3600
MAX_DELAY_S = 3 * 24 * 3600
LOG_FILE_BYTES = 100 * 1024 * 1024
CONGEST_NUM = 2**31 - 1
DELAY_MS_MAX = 2**31 - 1
LOG_FILE_BYTES_MIN = 4096


class TimerMetrics:
    """How many timers wait for each topic, in RocketMQ's `config/timermetrics`.

        {"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},
         "timingCount":{"orders":{"count":12,"timeStamp":1700000000000}}}

    A cancellation counts -1 from the moment it is enqueued. The counts are for display: no delivery depends on them.
    When recovery cuts the timer log or rebuilds the wheel, they are counted again. Threads: the timer service changes,
    any thread reads.
    """

    def __init__(self, counts: dict[str, tuple[int, int]] | None = None, counter: int = 0) -> None:
        """`counts` is topic → (how many wait, when that changed last)."""
        self.changed = False
        self._counts = dict(counts or {})
        self._counter = counter

    def add(self, topic: str, number: int, now_ms: int) -> None:
        self._counts[topic] = (self._counts.get(topic, (0, 0))[0] + number, now_ms)
        self._counter += 1
        self.changed = True

    def counts(self) -> dict[str, int]:
        """Topic → how many wait, of topics for which some do."""
        return {topic: count for topic, (count, _) in sorted(self._counts.copy().items()) if count > 0}

    def encode(self, now_ms: int) -> bytes:
        document = {
            "dataVersion": {"counter": self._counter, "stateVersion": 0, "timestamp": now_ms},
            "timingCount": {
                topic: {"count": count, "timeStamp": changed_ms}
                for topic, (count, changed_ms) in sorted(self._counts.items())
            },
        }
        return json.dumps(document, separators=(",", ":")).encode()


def decode_timer_metrics(data: bytes) -> TimerMetrics:
    """Raises StoreDamaged for anything else."""
    document = decode_lenient_json(data, FILE)
    table = document.get("timingCount") if isinstance(document, dict) else None
    if not isinstance(table, dict) or not all(_is_count(value) for value in table.values()):
        raise StoreDamaged(f"{FILE}: expected a timingCount of topics and counts, found {str(document)[:80]}")
    version = document.get("dataVersion")
    counter = version.get("counter", 0) if isinstance(version, dict) else 0
    counts = {topic: (value["count"], value.get("timeStamp", 0)) for topic, value in table.items()}
    return TimerMetrics(counts, counter if isinstance(counter, int) else 0)


def _is_count(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("count")) is int and type(value.get("timeStamp", 0)) is int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerSettings:
    """Settings of the timer wheel, by RocketMQ's names. `slots` is fixed in RocketMQ; tests make small wheels.

    Invariants: a slot lasts `precision_ms`; a wheel has twice `slots`; nothing is put further ahead than
    `roll_window_ms`, which fits the signed 32 bits of a unit's delay (RocketMQ overflows there with a coarse
    precision).
    """

    precision_ms: int = 1_000
    roll_window_slots: int = ROLL_WINDOW_SLOTS
    max_delay_s: int = MAX_DELAY_S
    congest_num_each_slot: int = CONGEST_NUM
    flush_interval_ms: int = 1_000
    log_file_bytes: int = LOG_FILE_BYTES
    slots: int = SLOTS
    stop_enqueue: bool = False
    stop_dequeue: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.precision_ms <= DELAY_MS_MAX // 2:
            raise BadConfig(f"timerPrecisionMs: expected 1 to {DELAY_MS_MAX // 2}, found {self.precision_ms}")
        if self.log_file_bytes < LOG_FILE_BYTES_MIN:
            raise BadConfig(
                f"mappedFileSizeTimerLog: expected at least {LOG_FILE_BYTES_MIN} bytes, found {self.log_file_bytes}"
            )

    @property
    def wheel_slots(self) -> int:
        return 2 * self.slots

    @property
    def roll_slots(self) -> int:
        """The window in slots, as RocketMQ understands the setting, limited so that a delay does not overflow."""
        most = self.slots - BLANK_SLOTS if self.slots > 2 * BLANK_SLOTS else self.slots
        window = self.roll_window_slots
        asked = most if window > most or window < 2 else window
        return max(2, min(asked, DELAY_MS_MAX // self.precision_ms))

    @property
    def roll_window_ms(self) -> int:
        return self.roll_slots * self.precision_ms

    @property
    def roll_rest_ms(self) -> int:
        """What a timer that rolls has left, at least: its slot is so long before its time."""
        return max(1, self.roll_slots // 3) * self.precision_ms

    def floor(self, time_ms: int) -> int:
        """The start of the slot that contains a time."""
        return time_ms // self.precision_ms * self.precision_ms


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
class Unput:
    """Messages that were not stored."""

    waiting: list[Message] = field(default_factory=list)
    """To be put again."""
    status: PutStatus | None = None
    """Why the first of them waits."""
    never: list[Message] = field(default_factory=list)
    """The store will never accept these; logged and counted."""


class DeliveredElsewhere(NamedTuple):
    """Timers that a slave delivered while it acted for this broker: those that its log had, up to a time."""

    until_ms: int
    below: int
    """The end of its log."""


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
    escape: Escape | None = None
    """Of a slave that acts for its master: where messages are put."""
    elsewhere: tuple[DeliveredElsewhere, ...] = ()
    skipped: SkippedRecords = field(init=False)

    def __post_init__(self) -> None:
        self.skipped = SkippedRecords("timers", self.clock)

    def skip(self, where: str, reason: object) -> None:
        """A timer that can never be delivered is skipped: logged and counted."""
        self.counts.skipped += 1
        self.skipped.add(where, reason)

    def add_to_sum(self, amount: int) -> None:
        self.units_sum = (self.units_sum + amount) & SUM_MASK

    def is_elsewhere(self, slot_ms: int, physical_offset: int) -> bool:
        """Whether a slave has delivered a timer of this slot."""
        return any(slot_ms < each.until_ms and physical_offset < each.below for each in self.elsewhere)

    def put(self, messages: list[Message]) -> Unput:
        """Put messages without waiting for the disk; returns those not stored. Illegal ones are skipped."""
        if not messages:
            return Unput()
        if self.escape is not None:
            return self._sorted_out(messages, self.escape(messages))
        results = self.store.appender.put_many(messages)
        statuses = [result.status for result in results]
        if self.store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH and results.end_offset > 0:
            self.store.when_durable(results.end_offset, _no_reader)
        return self._sorted_out(messages, statuses)

    def _sorted_out(self, messages: list[Message], statuses: list[PutStatus]) -> Unput:
        unput = Unput()
        for message, status in zip(messages, statuses, strict=True):
            if status is PutStatus.PUT_OK or status in STORED:
                continue
            if status in NEVER:
                self.skip(f"a timer for {message.topic}", f"the store never takes it: {status.name}")
                unput.never.append(message)
            else:
                unput.status = unput.status or status
                unput.waiting.append(message)
        return unput


def _no_reader(_status: PutStatus) -> None:
    """The caller only requests a flush."""
