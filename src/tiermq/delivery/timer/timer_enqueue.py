"""TimerEnqueue: takes messages of the timer topic into the wheel, in the order of their queue.

    due before the slot that is now    put to their topic at once
    due beyond the horizon             given to the far timers, if there are any and they can be reached
    due beyond the roll window         in a slot on the way: they come back into the timer topic then
    otherwise                          in the slot of their time

Invariants: one unit per message; `queue_offset` moves when a message was dealt with, never before. What was given to
the far timers counts only when they have flushed it: until then `safe_progress` stays before it.
Threads: the timer service alone.
"""

from __future__ import annotations

import logging

from tiermq.delivery.timer.far_timers import FarTimer, FarTimers
from tiermq.delivery.timer.timer_place import TIMER_QUEUE
from tiermq.delivery.timer.timer_record import AT_ONCE_MS, TimerRecord, check_destination, delivered, read_timer
from tiermq.delivery.timer.timer_settings import TimerSettings
from tiermq.delivery.timer.timer_state import TimerState, is_done
from tiermq.delivery.timer.timer_unit import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TimerUnit, unit_sum
from tiermq.delivery.timer.timer_wheel import Slot
from tiermq.errors import CorruptRecord, IllegalMessage, TierError
from tiermq.message.record import reencode
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TIMER_TOPIC

_log = logging.getLogger(__name__)

BATCH = 1_024
"""Messages that are taken in before deliveries get their turn."""
FAR_MAX = 4_096
"""Far timers that are held before they are flushed."""


class TimerEnqueue:
    """See the module."""

    def __init__(self, state: TimerState, far: FarTimers | None) -> None:
        self._state = state
        self._far = far
        self._far_reachable = True
        self._far_held = 0
        self._far_since: tuple[int, int] | None = None
        """Queue offset and log end before the first far timer that is not flushed."""

    @property
    def safe_progress(self) -> tuple[int, int]:
        """(queue offset, log end) that a checkpoint may name once the log is flushed."""
        return self._far_since or (self._state.queue_offset, self._state.log.end)

    @property
    def behind_count(self) -> int:
        """Messages that were not taken in yet."""
        end = self._state.store.max_offset(TIMER_TOPIC, TIMER_QUEUE, committed=False)
        return max(0, end - self._state.queue_offset)

    def run(self) -> bool:
        """Take in what came; whether there is more. Raises DiskFull."""
        state = self._state
        store = state.store
        end = store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        begin = max(state.queue_offset, store.min_offset(TIMER_TOPIC, TIMER_QUEUE))
        if begin > state.queue_offset:
            _log.warning("timer topic: offset %d is gone, going on at %d", state.queue_offset, begin)
            state.queue_offset = begin
        if state.settings.stop_enqueue or begin >= end:
            return False
        stop = min(end, begin + BATCH)
        for offset, physical_offset, size in store.units_between(TIMER_TOPIC, TIMER_QUEUE, begin, stop):
            if not self._take(physical_offset, size):
                return False
            state.queue_offset = offset + 1
        state.queue_offset = stop  # Places without a message are passed over.
        return stop < end

    def _take(self, physical_offset: int, size: int) -> bool:
        """Deal with one message; False when it must wait."""
        state = self._state
        try:
            message = state.store.message_at(physical_offset, size)
            if message is None:
                raise CorruptRecord("it is gone from the commit log")
            timer = read_timer(message)
            if not timer.is_delete:  # Or it would be counted, and roll for years, before that is found.
                check_destination(message)
        except (CorruptRecord, IllegalMessage) as error:
            state.skip(f"physical offset {physical_offset}", error)
            return True
        if timer.deliver_ms < state.write_ms:
            return self._deliver(message, timer)
        if self._is_far(timer):
            return self._give_away(message, timer)
        return self._insert(timer, physical_offset, size)

    def _deliver(self, message: StoredMessage, timer: TimerRecord) -> bool:
        state = self._state
        if timer.is_delete:
            return True  # What it would cancel has been delivered.
        try:
            again = delivered(message, AT_ONCE_MS, state.clock.now_ms(), state.queue_for)
        except (CorruptRecord, IllegalMessage) as error:
            state.skip(f"queue offset {message.queue_offset}", error)
            return True
        status = state.put([again])[0]
        if not is_done(status):
            _log.warning("timer at queue offset %d waits: %s", message.queue_offset, status.name)
            return False
        state.counts.delivered += 1
        return True

    def _insert(self, timer: TimerRecord, physical_offset: int, size: int) -> bool:
        state = self._state
        slot_ms, rolls = slot_for(timer.deliver_ms, state.write_ms, state.settings)
        if slot_ms >= state.read_ms + state.settings.wheel_slots * state.settings.precision_ms:
            return False  # That slot still holds timers of the turn before: they are delivered first.
        magic = MAGIC_DEFAULT | (MAGIC_ROLL if rolls else 0) | (MAGIC_DELETE if timer.is_delete else 0)
        slot = state.wheel.slot(slot_ms)
        unit = TimerUnit(
            slot.last, magic, state.write_ms, slot_ms - state.write_ms, physical_offset, size, timer.topic_hash
        )
        position = state.log.append(unit)
        state.add_to_sum(unit_sum(position, unit))
        first = position if slot.time_ms < 0 else slot.first
        state.wheel.put(Slot(slot_ms, first, position, slot.timers + unit.weight))
        state.waiting += unit.weight
        state.metrics.add(timer.topic, unit.weight, state.clock.now_ms())
        state.counts.enqueued += 1
        return True

    # Far timers

    def _is_far(self, timer: TimerRecord) -> bool:
        return (
            self._far is not None
            and self._far_reachable
            and timer.deliver_ms > self._state.clock.now_ms() + self._far.horizon_ms
        )

    def _give_away(self, message: StoredMessage, timer: TimerRecord) -> bool:
        assert self._far is not None
        if self._far_since is None:
            self._far_since = (self._state.queue_offset, self._state.log.end)
        self._far.add(FarTimer(timer.deliver_ms, timer.is_delete, reencode(message)))
        self._state.counts.far += 1
        self._far_held += 1
        if self._far_held >= FAR_MAX:
            self.flush_far()
        return True

    def flush_far(self) -> None:
        """Let the far timers make durable what they were given. Where they cannot, new ones roll in the wheel."""
        if self._far is None or (self._far_since is None and self._far_reachable):
            return
        try:
            self._far.flush()
        except TierError as error:
            self._state.counts.far_errors += 1
            self._far_reachable = False
            _log.warning("far timers cannot be kept in the tier now, they roll in the wheel: %s", error)
            return
        self._far_reachable = True
        self._far_held = 0
        self._far_since = None


def slot_for(deliver_ms: int, write_ms: int, settings: TimerSettings) -> tuple[int, bool]:
    """The slot of a timer that is taken in now, and whether it rolls there: it lies beyond the window then."""
    window = settings.roll_slots
    excess_ms = deliver_ms - write_ms - window * settings.precision_ms
    if excess_ms < 0:
        return deliver_ms, False
    # Close behind the window: half of it now leaves enough for the rest.
    slots = window // 2 if excess_ms < window // 3 * settings.precision_ms else window
    return write_ms + slots * settings.precision_ms, True
