"""Where a delayed message goes first: to the queue of its level in SCHEDULE_TOPIC_XXXX.

The message keeps its DELAY, and remembers its topic and queue in REAL_TOPIC and REAL_QID; whoever delivers it, reads
them. Level n lies in queue n - 1; levels beyond the last are the last one, as in RocketMQ. A wish for a time of its own
is dropped: the level counts.
"""

from __future__ import annotations

from typing import NamedTuple

from tiermq.delivery.timer.timer_place import without_timer
from tiermq.errors import RequestRefused
from tiermq.message.properties import DELAY, REAL_QID, REAL_TOPIC, get_property, with_property
from tiermq.message.topic_name import SCHEDULE_TOPIC
from tiermq.remoting.codes import ResponseCode


class Place(NamedTuple):
    """Where a message is stored, and with which properties."""

    topic: str
    queue_id: int
    properties: bytes


def delay_level(properties: bytes) -> int:
    """The level that a message asks for; 0 is none. Raises RequestRefused when it is no number."""
    value = get_property(properties, DELAY.encode())
    if value is None:
        return 0
    if not value.lstrip(b"+-").isdigit() or len(value) > 10:
        raise RequestRefused(
            f"expected a delay level in the property {DELAY}, found {value[:40]!r}", ResponseCode.MESSAGE_ILLEGAL
        )
    return int(value)


def delayed(place: Place, level: int, levels: int) -> Place:
    """Where `place` is stored until a delay of `level` (1 or more, of `levels` that there are) is over."""
    level = min(level, levels)
    properties = with_property(without_timer(place.properties), DELAY, str(level))
    properties = with_property(properties, REAL_TOPIC, place.topic)
    properties = with_property(properties, REAL_QID, str(place.queue_id))
    return Place(SCHEDULE_TOPIC, level - 1, properties)
