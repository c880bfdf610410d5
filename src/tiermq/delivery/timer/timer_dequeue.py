"""TimerDequeue: delivers the slots whose time has passed, one after the other.

    slot ─► its chain of units ─► cancellations first ─► other timers, oldest first:
                cancelled     dropped          rolls         put into the timer topic again
                unreadable    skipped          due           put to its topic

Invariants: the read time passes a slot only when all its timers were processed. A put that fails temporarily (full
disk, busy store) is retried until it succeeds; RocketMQ gives up after three tries. Memory holds the positions of one
slot's units, eight bytes each, and at most one batch of messages.
Threads: the timer service alone.
"""

from __future__ import annotations

import logging
from array import array

from tiermq.delivery.redeliver import FITTING_BYTES_MAX, undeliverable
from tiermq.delivery.timer.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, TimerLog, TimerUnit, decode_unit, unit_sum
from tiermq.delivery.timer.timer_record import cancel_key, delivered, own_key, read_timer, rolled, stamps
from tiermq.delivery.timer.timer_state import TimerState
from tiermq.delivery.timer.timer_wheel import Slot
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.kernel import Message
from tiermq.kernel.deferred_record import CANCELS, STAMPED
from tiermq.message.properties import REAL_TOPIC
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import TIMER_TOPIC

_log = logging.getLogger(__name__)

DEQUEUE_BATCH = 256
BATCHES_MAX = 16
"""Batches before new messages are enqueued."""


class _OpenSlot:
    """A slot that is being delivered."""

    def __init__(self, slot: Slot, positions: array[int], units_sum: int, cancelled: set[str]) -> None:
        self.slot = slot
        self.units_sum = units_sum
        self.positions = positions
        """Of its units, newest first; processed ones are removed from the end."""
        self.cancelled = cancelled
        self.pending: list[Message] = []
        """Messages that could not be put yet."""


class TimerDequeue:
    """See the module."""

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._open: _OpenSlot | None = None

    def run(self) -> bool:
        """Deliver due timers; whether more can be delivered now."""
        state = self._state
        if state.settings.stop_dequeue:
            return False
        for _ in range(BATCHES_MAX):
            if self._open is None and not self._open_next():
                return False
            if not self._deliver_batch():
                return False
        return True

    def forget_open(self) -> None:
        """After the clock was set back: the open slot will be found again."""
        self._open = None

    def _open_next(self) -> bool:
        """Open the next slot that is due and not empty; False if no slot is due."""
        state = self._state
        turn_ms = state.settings.wheel_slots * state.settings.precision_ms
        slot = None
        while slot is None and state.read_ms < state.write_ms:
            slot = next(state.wheel.slots_between(state.read_ms, state.write_ms), None)
            if slot is None:
                state.read_ms = min(state.write_ms, state.read_ms + turn_ms)
        if slot is None:
            return False
        state.read_ms = slot.time_ms
        cancellations: list[TimerUnit] = []
        sums: list[int] = []
        positions, is_whole = chain_of(state.log, slot, state.settings.precision_ms, cancellations, sums)
        if not is_whole:
            state.skip(f"slot {slot.time_ms}", f"its chain in the timer log ends after {len(positions)} units")
        self._open = _OpenSlot(slot, positions, sum(sums), self._cancelled_by(cancellations))
        return True

    def _deliver_batch(self) -> bool:
        """Deliver some of the open slot; False when nothing more can be put now."""
        state, opened = self._state, self._open
        assert opened is not None
        while opened.positions and len(opened.pending) < DEQUEUE_BATCH:
            message = self._prepared(opened, opened.positions.pop())
            if message is not None:
                opened.pending.append(message)
        unput = state.put(opened.pending)
        opened.pending = unput.waiting
        rolled_count = sum(message.topic == TIMER_TOPIC for message in unput.never)
        state.counts.rolled -= rolled_count
        state.counts.delivered -= len(unput.never) - rolled_count
        if unput.status is not None:
            if state.escape is not None:
                return False  # Which logs itself why timers wait.
            _log.warning("%d timers of %d wait: %s", len(opened.pending), opened.slot.time_ms, unput.status.name)
            return False
        if not opened.positions:
            self._close(opened)
        return True

    def _close(self, opened: _OpenSlot) -> None:
        state = self._state
        state.waiting -= opened.slot.timers
        state.add_to_sum(-opened.units_sum)
        state.read_ms = opened.slot.time_ms + state.settings.precision_ms
        self._open = None

    def _cancelled_by(self, cancellations: list[TimerUnit]) -> set[str]:
        messages = map(self._message, cancellations)
        keys = (cancel_key(message) for message in messages if message is not None)
        return {key for key in keys if key is not None}

    def _prepared(self, opened: _OpenSlot, position: int) -> Message | None:
        """The message to put for one unit; None when there is nothing to put."""
        state = self._state
        unit = state.log.read(position)
        if unit is not None and state.elsewhere and state.is_elsewhere(opened.slot.time_ms, unit.physical_offset):
            self._pass(unit)
            return None
        if unit is not None and unit.magic == MAGIC_DEFAULT and not opened.cancelled:
            plain = self._prepared_plain(opened, unit)
            if plain is not None:
                return plain
        message = None if unit is None else self._message(unit)
        if unit is None or message is None:
            state.skip(f"timer log position {position}", "it is gone, or damaged")
            return None
        now_ms = state.clock.now_ms()
        try:
            timer = read_timer(message)
            state.metrics.add(timer.topic, -unit.weight, now_ms)
            if unit.cancels:
                return None
            if not unit.rolls and state.settings.floor(timer.deliver_ms) != opened.slot.time_ms:
                raise CorruptRecord(f"another timer is stored there, due at {timer.deliver_ms}")
            if opened.cancelled and own_key(message) in opened.cancelled:
                state.counts.cancelled += 1
                return None
            if unit.rolls:
                state.counts.rolled += 1
                return rolled(message, unit.write_time_ms, now_ms)
            state.counts.delivered += 1
            return delivered(message, unit.write_time_ms, now_ms, state.queue_for)
        except (CorruptRecord, IllegalMessage) as error:
            state.skip(f"physical offset {unit.physical_offset}", error)
            return None

    def _pass(self, unit: TimerUnit) -> None:
        """A timer that a slave has delivered."""
        message = self._message(unit)
        if message is not None:
            self._state.metrics.add(message.get_property(REAL_TOPIC) or "", -unit.weight, self._state.clock.now_ms())

    def _prepared_plain(self, opened: _OpenSlot, unit: TimerUnit) -> Message | None:
        """The same of a timer that is simply due; None when the general way must look at it."""
        state = self._state
        record = state.store.deferred_at(TIMER_TOPIC, unit.physical_offset, unit.message_size)
        if record is None or record.has & (CANCELS | STAMPED):
            return None
        topic, now_ms = record.real_topic, state.clock.now_ms()
        if state.settings.floor(record.out_ms) != opened.slot.time_ms or undeliverable(topic, "0") is not None:
            return None
        added = stamps(unit.write_time_ms, now_ms)
        if record.properties_bytes + len(added) > FITTING_BYTES_MAX:
            return None
        state.metrics.add(topic, -unit.weight, now_ms)
        state.counts.delivered += 1
        return record.message(topic, state.queue_for(topic, record.real_queue), added, record.sys_flag)

    def _message(self, unit: TimerUnit) -> StoredMessage | None:
        try:
            return self._state.store.message_at(unit.physical_offset, unit.message_size)
        except CorruptRecord as error:
            _log.warning("timer at physical offset %d: %s", unit.physical_offset, error)
            return None


def chain_of(
    log: TimerLog,
    slot: Slot,
    precision_ms: int,
    cancellations: list[TimerUnit] | None = None,
    sums: list[int] | None = None,
) -> tuple[array[int], bool]:
    """Positions of the units of a slot, newest first, and whether they are all that the log should have.

    Units that cancel are added to `cancellations`, and `unit_sum` of each to `sums`, if given.
    """
    positions = array("q")
    position, begin = slot.last, log.begin
    key = slot.time_ms // precision_ms
    while position >= begin:
        encoded = log.read_encoded(position)
        unit = None if encoded is None else decode_unit(encoded)
        if encoded is None or unit is None or unit.previous >= position or unit.slot_ms // precision_ms != key:
            return positions, False
        positions.append(position)
        if sums is not None:
            sums.append(unit_sum(position, encoded))
        if cancellations is not None and unit.magic & MAGIC_DELETE and unit.cancels:
            cancellations.append(unit)
        position = unit.previous
    return positions, True
