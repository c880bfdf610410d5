"""Where a message with a delivery time is stored first: in the timer topic. Pure.

    TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS (the first of them counts) ─► deliver time
        not after now      stored as it is; a cancellation is refused
        beyond the limit   refused, unless tiered timers are enabled
        otherwise          TIMER_OUT_MS, REAL_TOPIC, REAL_QID ─► rmq_sys_wheel_timer, queue 0

TIMER_OUT_MS is its slot: it is delivered when that slot has passed, so that a message is never early, and late by less
than the precision. A message that has TIMER_OUT_MS already was rewritten before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.message.properties import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    delete_property,
    get_property,
    with_property,
)
from tiermq.message.topic_name import TIMER_TOPIC
from tiermq.settings import LONG_MAX
from tiermq.status import PutStatus

TIMER_QUEUE = 0
DELETE_SEPARATOR = "+"
PRECISION_MS = 1_000
"""RocketMQ's default timerPrecisionMs, where a store's own is not known."""
_ASKING = tuple(name.encode() for name in (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS))


class TimerDestination(NamedTuple):
    """Where a timer waits, and with which properties."""

    topic: str
    queue_id: int
    properties: bytes


def asks_for_a_time(properties: bytes) -> bool:
    """Whether a message has a delivery time, and was not rewritten for it yet."""
    if b"TIMER_" not in properties or get_property(properties, TIMER_OUT_MS.encode()) is not None:
        return False
    return any(get_property(properties, name) is not None for name in _ASKING)


def without_timer(properties: bytes) -> bytes:
    """The properties without the delivery time, which a delay level overrides."""
    for name in _ASKING:
        properties = delete_property(properties, name)
    return properties


def deliver_time(properties: bytes, now_ms: int) -> int | None:
    """The delivery time of a message; None if it is invalid."""
    seconds = get_property(properties, TIMER_DELAY_SEC.encode())
    if seconds is not None:
        return _sum(_long(seconds), 1_000, now_ms)
    milliseconds = get_property(properties, TIMER_DELAY_MS.encode())
    if milliseconds is not None:
        return _sum(_long(milliseconds), 1, now_ms)
    return _long(get_property(properties, TIMER_DELIVER_MS.encode()) or b"")


def place_timer(
    topic: str,
    queue_id: int,
    properties: bytes,
    now_ms: int,
    settings: TimerSettings,
    *,
    has_limit: bool = True,
    count_at: Callable[[int], int] = lambda _time_ms: 0,
    chance: Callable[[], float] = random.random,
) -> TimerDestination | PutStatus | None:
    """Where a timer message is stored; None if it is due now; a status if it is refused."""
    deliver_ms = deliver_time(properties, now_ms)
    if deliver_ms is None:
        return PutStatus.WHEEL_TIMER_MSG_ILLEGAL
    if deliver_ms <= now_ms:
        is_delete = get_property(properties, TIMER_DEL_UNIQKEY.encode()) is not None
        return PutStatus.WHEEL_TIMER_MSG_ILLEGAL if is_delete else None
    if has_limit and deliver_ms - now_ms > settings.max_delay_s * 1_000:
        return PutStatus.WHEEL_TIMER_MSG_ILLEGAL
    out_ms = slot_of(deliver_ms, settings)
    if is_congested(count_at(out_ms), settings.congest_num_each_slot, chance):
        return PutStatus.WHEEL_TIMER_FLOW_CONTROL
    properties = with_property(properties, TIMER_OUT_MS, str(out_ms))
    properties = with_property(properties, REAL_TOPIC, topic)
    properties = with_property(properties, REAL_QID, str(queue_id))
    return TimerDestination(TIMER_TOPIC, TIMER_QUEUE, properties)


def slot_of(deliver_ms: int, settings: TimerSettings) -> int:
    """The slot whose end is the deliver time, or the slot that contains the deliver time."""
    floor_ms = settings.floor(deliver_ms)
    return floor_ms - settings.precision_ms if floor_ms == deliver_ms else floor_ms


def is_congested(count: int, limit: int, chance: Callable[[], float]) -> bool:
    """Whether a slot refuses a timer: never up to the limit, always from twice the limit on, in between at random.

    The probability grows with the count; in RocketMQ the comparison is reversed.
    """
    if count <= limit:
        return False
    return count >= 2 * limit or chance() < (count - limit) / limit


def delete_key(topic: str, unique_key: str) -> str:
    """The key by which a cancellation names its timer."""
    return f"{topic}{DELETE_SEPARATOR}{unique_key}"


def _long(text: bytes) -> int | None:
    """A Java long; None for anything else."""
    digits = text[1:] if text[:1] in (b"+", b"-") else text
    if not digits.isdigit() or len(digits) > 19:
        return None
    number = int(text)
    return number if -LONG_MAX - 1 <= number <= LONG_MAX else None


def _sum(number: int | None, factor: int, now_ms: int) -> int | None:
    """now + number x factor; None when a long does not hold it, where RocketMQ wraps around."""
    if number is None:
        return None
    deliver_ms = now_ms + number * factor
    return deliver_ms if -LONG_MAX <= deliver_ms <= LONG_MAX else None
