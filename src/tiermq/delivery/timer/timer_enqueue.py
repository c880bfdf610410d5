"""TimerEnqueue: takes messages of the timer topic into the wheel, in the order of their queue.

    due before the slot that is now    put to their topic at once
    due beyond the horizon             given to the tiered timers, if they are enabled and reachable
    due beyond the roll window         in an earlier slot: they are put into the timer topic again then
    otherwise                          in the slot of their time

Invariants: one unit per message; `queue_offset` passes a message only after it was processed. Tiered timers count only
when they are flushed: until then `safe_progress` stays before them.
Threads: the timer service alone.
"""

from __future__ import annotations

import logging

from tiermq.delivery.redeliver import undeliverable
from tiermq.delivery.timer.timer_destination import TIMER_QUEUE
from tiermq.delivery.timer.timer_log import (
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    TimerUnit,
    encode_unit,
    unit_sum,
)
from tiermq.delivery.timer.timer_record import (
    AT_ONCE_MS,
    TieredTimer,
    TieredTimers,
    TimerRecord,
    check_destination,
    delivered,
    read_timer,
)
from tiermq.delivery.timer.timer_state import TimerSettings, TimerState
from tiermq.delivery.timer.timer_wheel import EMPTY, Slot
from tiermq.errors import CorruptRecord, IllegalMessage, TierError
from tiermq.kernel.deferred_record import CANCELS
from tiermq.message.record import reencode
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TIMER_TOPIC

_log = logging.getLogger(__name__)

ENQUEUE_BATCH = 1_024
"""Messages enqueued before the next deliveries."""
FAR_MAX = 4_096
"""Tiered timers that are held before they are flushed."""


class TimerEnqueue:
    """See the module."""

    def __init__(self, state: TimerState, tiered: TieredTimers | None) -> None:
        self._state = state
        self._tiered = tiered
        self._slot = EMPTY
        """The slot of the last timers of this run, not in the wheel yet."""
        self._far_reachable = True
        self._far_held = 0
        self._far_since: tuple[int, int] | None = None
        """Queue offset and log end before the first tiered timer that is not flushed."""

    @property
    def safe_progress(self) -> tuple[int, int]:
        """(queue offset, log end) that a checkpoint may name once the log is flushed."""
        return self._far_since or (self._state.queue_offset, self._state.log.end)

    @property
    def end(self) -> int:
        """The end of the timer topic, with what no reader sees yet."""
        return self._state.store.max_offset(TIMER_TOPIC, TIMER_QUEUE, committed=False)

    @property
    def behind_count(self) -> int:
        """Messages that were not enqueued yet."""
        return max(0, self.end - self._state.queue_offset)

    def run(self) -> bool:
        """Enqueue new messages; returns whether there are more. Raises DiskFull."""
        state = self._state
        store = state.store
        end = store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        begin = max(state.queue_offset, store.min_offset(TIMER_TOPIC, TIMER_QUEUE))
        if begin > state.queue_offset:
            _log.warning("timer topic: offset %d is gone, going on at %d", state.queue_offset, begin)
            state.queue_offset = begin
        if state.settings.stop_enqueue or begin >= end:
            return False
        stop = min(end, begin + ENQUEUE_BATCH)
        try:
            for offset, physical_offset, size in store.units_between(TIMER_TOPIC, TIMER_QUEUE, begin, stop):
                if not self._take(physical_offset, size):
                    return False
                state.queue_offset = offset + 1
        finally:
            self._put_slot()
        state.queue_offset = stop  # Offsets without a message are skipped.
        return stop < end

    def _take(self, physical_offset: int, size: int) -> bool:
        """Process one message; False when it must wait."""
        state = self._state
        record = state.store.deferred_at(TIMER_TOPIC, physical_offset, size)
        if record is not None and state.write_ms <= record.out_ms:
            topic = record.real_topic
            plain = TimerRecord(record.out_ms, bool(record.has & CANCELS), topic)
            if not self._is_far(plain) and (plain.is_delete or undeliverable(topic, "0") is None):
                return self._insert(plain, physical_offset, size)
        try:
            message = state.store.message_at(physical_offset, size)
            if message is None:
                raise CorruptRecord("it is gone from the commit log")
            timer = read_timer(message)
            if not timer.is_delete:  # Checked here: otherwise it would roll for years before it is skipped.
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
        if timer.is_delete or state.is_elsewhere(timer.deliver_ms, message.physical_offset):
            return True  # Its timer was delivered already.
        try:
            again = delivered(message, AT_ONCE_MS, state.clock.now_ms(), state.queue_for)
        except (CorruptRecord, IllegalMessage) as error:
            state.skip(f"queue offset {message.queue_offset}", error)
            return True
        unput = state.put([again])
        if unput.status is not None:
            _log.warning("timer at queue offset %d waits: %s", message.queue_offset, unput.status.name)
            return False
        state.counts.delivered += 0 if unput.never else 1
        return True

    def _insert(self, timer: TimerRecord, physical_offset: int, size: int) -> bool:
        state = self._state
        slot_ms, rolls = slot_for(timer.deliver_ms, state.write_ms, state.settings)
        if slot_ms >= state.read_ms + state.settings.wheel_slots * state.settings.precision_ms:
            return False  # That slot still holds timers of the previous rotation: they are delivered first.
        magic = MAGIC_DEFAULT | (MAGIC_ROLL if rolls else 0) | (MAGIC_DELETE if timer.is_delete else 0)
        if self._slot.time_ms != slot_ms:
            self._put_slot()
        slot = self._slot if self._slot.time_ms == slot_ms else state.wheel.slot(slot_ms)
        unit = TimerUnit(
            slot.last, magic, state.write_ms, slot_ms - state.write_ms, physical_offset, size, timer.topic_hash
        )
        encoded = encode_unit(unit)
        position = state.log.append_encoded(encoded)
        state.add_to_sum(unit_sum(position, encoded))
        first = position if slot.time_ms < 0 else slot.first
        self._slot = Slot(slot_ms, first, position, slot.timers + unit.weight)
        state.waiting += unit.weight
        state.metrics.add(timer.topic, unit.weight, state.clock.now_ms())
        state.counts.enqueued += 1
        return True

    def _put_slot(self) -> None:
        """Timers that come together are mostly due together: their slot is written once."""
        slot, self._slot = self._slot, EMPTY
        if slot.time_ms >= 0:
            self._state.wheel.put(slot)

    # Tiered timers

    def _is_far(self, timer: TimerRecord) -> bool:
        return (
            self._tiered is not None
            and self._far_reachable
            and timer.deliver_ms > self._state.clock.now_ms() + self._tiered.horizon_ms
        )

    def _give_away(self, message: StoredMessage, timer: TimerRecord) -> bool:
        assert self._tiered is not None
        if self._far_since is None:
            self._far_since = (self._state.queue_offset, self._state.log.end)
        self._tiered.add(TieredTimer(timer.deliver_ms, timer.is_delete, reencode(message)))
        self._state.counts.far += 1
        self._far_held += 1
        if self._far_held >= FAR_MAX:
            self.flush_far()
        return True

    def flush_far(self) -> None:
        """Flush the tiered timers. If that fails, new ones roll in the wheel."""
        if self._tiered is None or (self._far_since is None and self._far_reachable):
            return
        try:
            self._tiered.flush()
        except TierError as error:
            self._state.counts.far_errors += 1
            self._far_reachable = False
            _log.warning("tiered timers cannot be kept in the tier now, they roll in the wheel: %s", error)
            return
        self._far_reachable = True
        self._far_held = 0
        self._far_since = None


def slot_for(deliver_ms: int, write_ms: int, settings: TimerSettings) -> tuple[int, bool]:
    """The slot of a timer that is enqueued now, and whether it rolls there because it is beyond the window."""
    window = settings.roll_slots
    excess_ms = deliver_ms - write_ms - window * settings.precision_ms
    if excess_ms < 0:
        return deliver_ms, False
    # Close behind the window: half of it now leaves enough for the rest. Both ways leave `roll_rest_ms` at least.
    slots = window // 2 if excess_ms < settings.roll_rest_ms else window
    return write_ms + slots * settings.precision_ms, True
