"""What a producer makes of a message before it is sent (pure): properties of the protocol, a compressed body, receipts.

delay_level   one of the broker's levels (1 is 1 s … 18 is 2 h)
delay_s       this long after it was stored; deliver_at: at this time: timers, from RocketMQ 5.0 on
sharding_key  messages of one key go to one queue, in order
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.kernel import Message
from tiermq.message.compression import compress
from tiermq.message.properties import (
    DELAY,
    PROPERTY_SEPARATOR,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
    encode_properties,
    get_property,
)
from tiermq.message.system_flag import COMPRESSED, COMPRESSION_TYPE_SHIFT, CompressionType, is_compressed
from tiermq.message.topic_name import check_topic

DELAY_LEVEL_MAX = 18
TIMERS = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
_TIMER = b"TIMER_"


class Compression(enum.Enum):
    """How large bodies travel and are stored."""

    ZLIB = CompressionType.ZLIB
    LZ4 = CompressionType.LZ4
    ZSTD = CompressionType.ZSTD


class SendStatus(enum.Enum):
    """How durable a stored message is. Only the first is as durable as the broker was configured to make it."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Where a message was stored. `message_id` is the broker's, `unique_key` the producer's: retries keep it."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int
    message_id: str
    unique_key: str
    status: SendStatus = SendStatus.SEND_OK
    recall_handle: str | None = None


@dataclass(frozen=True, slots=True)
class Delay:
    """When consumers get a message; at once without any of these."""

    delay_level: int | None = None
    delay_s: float | None = None
    deliver_at: datetime | None = None

    def properties(self) -> dict[str, str]:
        """Raises IllegalMessage for what no broker takes."""
        given = [each for each in (self.delay_level, self.delay_s, self.deliver_at) if each is not None]
        if len(given) > 1:
            raise IllegalMessage(f"expected one of delay_level, delay_s and deliver_at, found {len(given)}")
        if self.delay_level is not None:
            if type(self.delay_level) is not int or not 1 <= self.delay_level <= DELAY_LEVEL_MAX:
                raise IllegalMessage(f"expected a delay level of 1 to {DELAY_LEVEL_MAX}, found {self.delay_level!r}")
            return {DELAY: str(self.delay_level)}
        if self.delay_s is not None:
            if not isinstance(self.delay_s, int | float) or not 0 < self.delay_s < math.inf:
                raise IllegalMessage(f"delay_s: expected a delay above 0 s, found {self.delay_s!r}")
            return {TIMER_DELAY_MS: str(round(self.delay_s * 1000))}
        if self.deliver_at is not None:
            if not isinstance(self.deliver_at, datetime) or self.deliver_at.tzinfo is None:
                raise IllegalMessage(
                    f"deliver_at: expected a datetime, a time with its time zone, found {self.deliver_at!r}"
                )
            return {TIMER_DELIVER_MS: str(round(self.deliver_at.timestamp() * 1000))}
        return {}


AT_ONCE = Delay()


class Outgoing:
    """A message on its way: the bytes that are sent, the same in each try."""

    __slots__ = ("body", "born_ms", "flag", "is_timer", "properties", "size", "sys_flag", "topic", "unique_key")

    def __init__(
        self, topic: str, body: bytes, properties: bytes, sys_flag: int, flag: int, unique_key: str, born_ms: int
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.sys_flag = sys_flag
        self.flag = flag
        self.unique_key = unique_key
        self.born_ms = born_ms
        self.size = len(body) + len(properties)
        self.is_timer = _TIMER in properties and any(get_property(properties, each.encode()) for each in TIMERS)


@dataclass(frozen=True, slots=True)
class Preparation:
    """How one producer's messages are prepared. Any thread may use it."""

    next_key: Callable[[], str]
    now_ms: Callable[[], int]
    compress_above: int | None
    compression: Compression

    def prepare(
        self,
        message: Message,
        *,
        delay: Delay = AT_ONCE,
        sharding_key: str | None = None,
        more: dict[str, str] | None = None,
        may_compress: bool = True,
        sys_flag: int = 0,
    ) -> Outgoing:
        """Raises IllegalMessage, before anything is sent, and TypeError for what is no message."""
        if type(message) is not Message:  # Not the call alone: each send comes here.
            require_message(message)
        _check_topic(message.topic)
        if message.queue_id:
            raise IllegalMessage(
                f"topic {message.topic}: the producer chooses the queue, found a message for queue {message.queue_id}: "
                "name one with send(…, queue=…), or give messages of one order the same sharding_key"
            )
        if not message.body:
            raise IllegalMessage(f"topic {message.topic}: expected a message with a body, found an empty one")
        properties = message.encoded_properties
        if properties and not properties.endswith(PROPERTY_SEPARATOR):
            properties += PROPERTY_SEPARATOR
        found = get_property(properties, b"UNIQ_KEY") if b"UNIQ_KEY" in properties else None
        if found is None:
            unique_key = self.next_key()
            properties += f"{UNIQ_KEY}\x01{unique_key}\x02{WAIT}\x01true\x02".encode()
        else:
            unique_key = found.decode("ascii", "replace")
        named = {**delay.properties(), **(more or {})} if delay is not AT_ONCE or more else {}
        if sharding_key is not None:
            require_sharding_key(sharding_key)
            named[SHARDING_KEY] = sharding_key
        if named:
            properties += encode_properties(named)
        body, flags = message.body, message.sys_flag | sys_flag
        above = self.compress_above
        if may_compress and above is not None and len(body) > above and not is_compressed(flags):
            smaller = compress(body, self.compression.value)
            if len(smaller) < len(body):
                body = smaller
                flags |= COMPRESSED | self.compression.value << COMPRESSION_TYPE_SHIFT
        born_ms = message.born_timestamp_ms or self.now_ms()
        return Outgoing(message.topic, body, properties, flags, message.flag, unique_key, born_ms)


def require_message(message: object) -> None:
    """Raises TypeError for what is no message."""
    if not isinstance(message, Message):
        raise TypeError(f"expected a tiermq.Message, such as Message(topic, body), found {message!r}")


def require_sharding_key(sharding_key: object) -> None:
    """Raises IllegalMessage for what is no text, or an empty one."""
    if not isinstance(sharding_key, str) or not sharding_key:
        raise IllegalMessage(f"sharding_key: expected a text that is not empty, found {sharding_key!r}")


_check_topic = lru_cache(1024)(check_topic)  # One that is wrong raises, and is not kept.


def batches_of(messages: list[Outgoing], bytes_max: int, count_max: int) -> list[list[int]]:
    """The numbers of the messages that travel together: of one topic, in their order, up to the limits."""
    made: list[list[int]] = []
    growing: dict[str, tuple[list[int], int]] = {}
    for number, message in enumerate(messages):
        batch, taken = growing.get(message.topic, ([], 0))
        if not batch or taken + message.size > bytes_max or len(batch) >= count_max:
            batch, taken = [], 0
            made.append(batch)
        batch.append(number)
        growing[message.topic] = (batch, taken + message.size)
    return made


def message_ids_of(text: str, count: int) -> list[str]:
    """The ids in the answer to a batch; the same for all where the broker gives one for the whole."""
    found = text.split(",")
    if len(found) == count:
        return found
    if len(found) == 1:
        return found * count
    raise CorruptRecord(f"expected {count} message ids in the answer to a batch, found {len(found)}")
