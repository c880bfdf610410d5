"""TimerHold: keeps commit-log files from being deleted while a timer in them waits.

A timer's message lies in the commit log until it is delivered or rolled. RocketMQ deletes a file when its time has come
or the disk is full, and the timers in it are lost; here it stays for as long as one of them waits, which is the roll
window at most.
Threads: asked by the store's cleaning thread.
"""

from __future__ import annotations

from tiermq.delivery.timer.timer_place import TIMER_QUEUE
from tiermq.delivery.timer.timer_state import TimerState
from tiermq.message.topic_name import TIMER_TOPIC

LOOK_INTERVAL_MS = 60_000


class TimerHold:
    """See the module."""

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._looked_ms = 0
        self._needed_from = 0
        self._is_closed = False

    def close(self) -> None:
        """The timers can no longer be asked: nothing goes."""
        self._is_closed = True

    def holds(self, first_offset: int, end_offset: int) -> bool:
        """Whether a message between two physical offsets is of a timer that waits."""
        del first_offset  # Files go from the front: one whose end is needed holds all behind it.
        if end_offset <= self._needed_from:
            return False
        if self._is_closed:
            return True
        now_ms = self._state.clock.now_ms()
        if self._needed_from and 0 <= now_ms - self._looked_ms < LOOK_INTERVAL_MS:
            return True
        self._looked_ms = now_ms
        self._needed_from = self._smallest_needed()
        return end_offset > self._needed_from

    def _smallest_needed(self) -> int:
        """The physical offset from which on messages are needed. What is needed later never lies before it."""
        state = self._state
        read_ms, queue_offset = state.read_ms, state.queue_offset
        needed = state.store.physical_offset_of(TIMER_TOPIC, TIMER_QUEUE, queue_offset)
        smallest = needed if needed >= 0 else state.store.max_physical_offset
        for _, unit in state.log.units():
            if unit.slot_ms >= read_ms and unit.physical_offset < smallest:
                smallest = unit.physical_offset
        return smallest
