"""Lists the timers of a wheel in the order of their slots.

Messages of delay levels are listed in the same form, with their level.
Cancelled timers and those without a message are left out. Memory holds only the keys of cancellations
and the positions of one slot, so that a million waiting timers can be listed as well as ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tiermq.delivery.redeliver import queue_number
from tiermq.delivery.timer.timer_dequeue import chain_of
from tiermq.delivery.timer.timer_log import MAGIC_DELETE, TimerLog
from tiermq.delivery.timer.timer_record import cancel_key, own_key, read_timer
from tiermq.delivery.timer.timer_wheel import TimerWheel
from tiermq.errors import CorruptRecord
from tiermq.message.properties import REAL_QID, REAL_TOPIC, TIMER_ROLL_TIMES
from tiermq.message.stored_message import StoredMessage

ReadMessage = Callable[[int, int], StoredMessage | None]
"""(physical offset, size) → the message there."""


@dataclass(frozen=True, slots=True)
class WaitingTimer:
    """One timer that waits. `deliver_ms` is when it is delivered at the earliest: the end of its slot."""

    deliver_ms: int
    topic: str
    queue_id: int
    unique_key: str | None
    keys: list[str]
    rolls: int
    store_timestamp_ms: int
    size: int
    level: int = 0
    """The delay level; 0 for a timer."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def waiting_timers(
    wheel: TimerWheel, log: TimerLog, read_message: ReadMessage, from_ms: int, precision_ms: int
) -> Iterator[WaitingTimer]:
    """See the module. A rolling timer is listed in its current slot, with its final delivery time."""
    cancelled = _cancelled_keys(wheel, log, read_message, from_ms)
    for slot in wheel.slots_between(from_ms):
        positions, _ = chain_of(log, slot, wheel.precision_ms)
        while positions:
            unit = log.read(positions.pop())
            if unit is None or unit.magic & MAGIC_DELETE:
                continue
            message = readable(read_message, unit.physical_offset, unit.message_size)
            if message is not None and own_key(message) not in cancelled:
                yield described(message, precision_ms)


def described(message: StoredMessage, precision_ms: int) -> WaitingTimer:
    """The fields of a message of the timer topic. Raises CorruptRecord when it is no timer."""
    timer = read_timer(message)
    queue_id, rolls = message.get_property(REAL_QID) or "", message.get_property(TIMER_ROLL_TIMES) or ""
    return WaitingTimer(
        deliver_ms=timer.deliver_ms + precision_ms,
        topic=timer.topic,
        queue_id=-1 if (number := queue_number(queue_id)) is None else number,
        unique_key=message.unique_key,
        keys=message.keys,
        rolls=queue_number(rolls) or 0,
        store_timestamp_ms=message.store_timestamp_ms,
        size=message.size,
    )


def described_level(message: StoredMessage, level: int, delay_ms: int) -> WaitingTimer:
    """The fields of a message of a delay level."""
    queue_id = message.get_property(REAL_QID) or ""
    return WaitingTimer(
        deliver_ms=message.store_timestamp_ms + delay_ms,
        topic=message.get_property(REAL_TOPIC) or "",
        queue_id=-1 if (number := queue_number(queue_id)) is None else number,
        unique_key=message.unique_key,
        keys=message.keys,
        rolls=0,
        store_timestamp_ms=message.store_timestamp_ms,
        size=message.size,
        level=level,
    )


def readable(read_message: ReadMessage, physical_offset: int, size: int) -> StoredMessage | None:
    """The timer there; None if it was deleted, is damaged, or is no timer."""
    try:
        message = read_message(physical_offset, size)
        if message is not None:
            read_timer(message)
    except CorruptRecord:
        return None
    return message


def _cancelled_keys(wheel: TimerWheel, log: TimerLog, read_message: ReadMessage, from_ms: int) -> set[str]:
    """What is named by cancellations anywhere in the wheel: one that rolls is not in the slot of its timer yet."""
    found: set[str] = set()
    for slot in wheel.slots_between(from_ms):
        positions, _ = chain_of(log, slot, wheel.precision_ms)
        for position in positions:
            unit = log.read(position)
            if unit is not None and unit.magic & MAGIC_DELETE:
                message = readable(read_message, unit.physical_offset, unit.message_size)
                key = None if message is None else cancel_key(message)
                if key is not None:
                    found.add(key)
    return found
