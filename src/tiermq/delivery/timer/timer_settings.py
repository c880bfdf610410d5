"""What the timer wheel can be told, by RocketMQ's names. `slots` is fixed in RocketMQ; tests make small wheels.

Invariants: a slot lasts `precision_ms`; a wheel has twice `slots`; nothing is put further ahead than `roll_window_ms`,
which fits the signed 32 bits of a unit's delay (the original overflows there with a coarse precision).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.errors import BadConfig

SLOTS = 7 * 24 * 3600
"""Half of the wheel: seven days of seconds, whatever the precision."""
BLANK_SLOTS = 60
ROLL_WINDOW_SLOTS = 2 * 24 * 3600
MAX_DELAY_S = 3 * 24 * 3600
LOG_FILE_BYTES = 100 * 1024 * 1024
CONGEST_NUM = 2**31 - 1
DELAY_MS_MAX = 2**31 - 1
LOG_FILE_BYTES_MIN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerSettings:
    """See the module."""

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
        """The window in slots, as RocketMQ understands the setting, and never so long that a delay overflows."""
        most = self.slots - BLANK_SLOTS if self.slots > 2 * BLANK_SLOTS else self.slots
        window = self.roll_window_slots
        asked = most if window > most or window < 2 else window
        return max(2, min(asked, DELAY_MS_MAX // self.precision_ms))

    @property
    def roll_window_ms(self) -> int:
        return self.roll_slots * self.precision_ms

    def floor(self, time_ms: int) -> int:
        """The beginning of the slot that a time lies in."""
        return time_ms // self.precision_ms * self.precision_ms
