"""The messages of the demo: all fields are functions of queue id and queue offset.

So a killed process, its successor, Spark and a table can be compared without sharing
state: message `offset` of queue `queue_id` has the number `offset * QUEUES + queue_id`, and its body, key, tag
and amount are functions of the number. Each producer has queues of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiermq.errors import StoreError

TOPIC = "orders"
QUEUES = 8
PRODUCERS = 4
LIST_MESSAGES = 64
RECORD_BYTES = 740  # About: what a message takes in a log.
assert QUEUES % PRODUCERS == 0

# Each body has a receipt that does not compress and a note that does, so that it shrinks about as much as real orders.
_NOTES = (
    b"Please leave it with the neighbours if no one opens. Ring twice, the bell is quiet. Gift wrap, no invoice. "
    b"Call before delivery. The gate is open until six. Second floor, on the left. Fragile: this side up. "
) * 3
_NOTE_BYTES = 320
_NOTE_STARTS = len(_NOTES) - _NOTE_BYTES
_RECEIPT_BYTES = 64
_SHARES = (("paid", 128), ("shipped", 200), ("open", 240), ("void", 256))
ORDER_TAGS = tuple(name for name, _ in _SHARES)
_TAG_OF_BYTE = [next(name for name, end in _SHARES if byte < end) for byte in range(256)]


class DemoFailed(StoreError):
    """The demo found a broken promise."""


def number_of(queue_id: int, offset: int) -> int:
    return offset * QUEUES + queue_id


def queues_of(producer: int) -> range:
    return range(producer, QUEUES, PRODUCERS)


def tag_of(number: int) -> str:
    return _TAG_OF_BYTE[(number * 2_654_435_761 >> 16) & 255]


def cents_of(number: int) -> int:
    return 100 + (number * 40_503 >> 4) % 19_900


def key_of(number: int) -> str:
    return f"order-{number}"


def body_of(number: int) -> bytes:
    """An order as JSON, about 550 bytes."""
    note = number * 31 % _NOTE_STARTS
    receipt = hashlib.blake2b(b"%d" % number, digest_size=_RECEIPT_BYTES).hexdigest()
    return b'{"order":%d,"customer":%d,"cents":%d,"receipt":"%s","note":"%s"}' % (
        number,
        number * 7 % 9_973,
        cents_of(number),
        receipt.encode(),
        _NOTES[note : note + _NOTE_BYTES],
    )


@dataclass(slots=True)
class Tally:
    """Messages counted: how many, the sum of the CRC-32 of their bodies, and cents and count by tag.

    A sum does not depend on the order of reads.
    """

    count: int = 0
    checksum: int = 0
    by_tag: dict[str, tuple[int, int]] = field(default_factory=dict)  # Count and cents.

    def add(self, body: bytes | memoryview) -> None:
        """Add one body as it was read. Tags are counted elsewhere, not taken from the body."""
        self.count += 1
        self.checksum += zlib.crc32(body)

    def agrees(self, other: Tally) -> bool:
        return (self.count, self.checksum) == (other.count, other.checksum)

    def plus(self, other: Tally) -> Tally:
        """The sum of both."""
        both = {
            tag: (here[0] + there[0], here[1] + there[1])
            for tag in {**self.by_tag, **other.by_tag}
            for here, there in [(self.by_tag.get(tag, (0, 0)), other.by_tag.get(tag, (0, 0)))]
        }
        return Tally(self.count + other.count, self.checksum + other.checksum, both)

    def __str__(self) -> str:
        return f"{self.count:,} messages with the checksum {self.checksum:x}"


def expected(held: Sequence[int], since: Sequence[int] | None = None) -> Tally:
    """The expected totals of messages `since[q]` .. `held[q] - 1`; without `since`, from the first."""
    tally = Tally()
    count = dict.fromkeys(ORDER_TAGS, 0)
    cents = dict.fromkeys(ORDER_TAGS, 0)
    for number in numbers(held, since):
        tally.add(body_of(number))
        tag = tag_of(number)
        count[tag] += 1
        cents[tag] += cents_of(number)
    tally.by_tag = {tag: (count[tag], cents[tag]) for tag in ORDER_TAGS if count[tag]}
    return tally


def numbers(held: Sequence[int], since: Sequence[int] | None = None) -> Iterable[int]:
    for queue_id, end in enumerate(held):
        begin = 0 if since is None else since[queue_id]
        yield from range(number_of(queue_id, begin), number_of(queue_id, end), QUEUES)


def even(messages: int) -> list[int]:
    """Messages of each queue for about this total: whole batches, the same for each queue."""
    lists = max(1, round(messages / (QUEUES * LIST_MESSAGES)))
    return [lists * LIST_MESSAGES] * QUEUES


KEYS_TRIED = 200
TIMES_TRIED = 5  # In each queue.

Progress = Callable[[int], None]


class Found(Protocol):
    """The compared fields of a message."""

    @property
    def queue_offset(self) -> int: ...

    @property
    def body(self) -> bytes: ...

    @property
    def store_timestamp_ms(self) -> int: ...


class Orders(Protocol):
    """Read access to the topic; `OrdersClient` implements it."""

    async def pull(self, queue_id: int, offset: int, most: int = 32) -> Sequence[Found]: ...

    async def find(self, key: str) -> Sequence[Found]: ...

    async def offset_at(self, queue_id: int, moment_ms: int) -> int: ...


async def read_back(orders: Orders, progress: Progress) -> tuple[list[int], Tally]:
    """Read all queues concurrently from offset 0: messages of each queue, and the totals. Raises DemoFailed."""
    tally = Tally()

    async def read(queue_id: int) -> int:
        offset = 0
        while messages := await orders.pull(queue_id, offset):
            for expected_offset, message in enumerate(messages, offset):
                body = message.body
                if message.queue_offset != expected_offset or body != body_of(number_of(queue_id, expected_offset)):
                    raise DemoFailed(
                        f"queue {queue_id}: message {expected_offset} is not what was sent, found {message}"
                    )
                tally.add(body)
            progress(len(messages))
            offset += len(messages)
        return offset

    held = await asyncio.gather(*(read(queue_id) for queue_id in range(QUEUES)))
    return list(held), tally


def require_acknowledged(held: Sequence[int], acknowledged: Sequence[int]) -> None:
    """Raises DemoFailed when a queue ends before what was acknowledged."""
    for queue_id, (found, promised) in enumerate(zip(held, acknowledged, strict=True)):
        if found < promised:
            raise DemoFailed(
                f"queue {queue_id}: {promised:,} messages were acknowledged, but only {found:,} are there; "
                f"{key_of(number_of(queue_id, found))} is gone"
            )


async def look_up_keys(orders: Orders, held: Sequence[int]) -> int:
    """Find messages by their keys, evenly over the whole history; returns their number. Raises DemoFailed."""
    tried = 0
    each = max(1, KEYS_TRIED // QUEUES)
    for queue_id, count in enumerate(held):
        for offset in range(0, count, max(1, count // each)):
            number = number_of(queue_id, offset)
            found = await orders.find(key_of(number))
            if [message.body for message in found] != [body_of(number)]:
                raise DemoFailed(f"key {key_of(number)} was sent once, found {len(found)} messages with it")
            tried += 1
    return tried


async def look_up_times(orders: Orders, held: Sequence[int]) -> int:
    """Find the first message at or after a time, in each queue; returns the number of lookups. Raises DemoFailed."""

    async def stored_ms(queue_id: int, offset: int) -> int:
        if offset < 0:
            return -1
        [message] = await orders.pull(queue_id, offset, 1)
        return message.store_timestamp_ms

    tried = 0
    for queue_id, count in enumerate(held):
        for share in range(1, TIMES_TRIED + 1) if count else ():
            moment_ms = await stored_ms(queue_id, (count - 1) * share // (TIMES_TRIED + 1))
            found = await orders.offset_at(queue_id, moment_ms)
            here, before = await stored_ms(queue_id, found), await stored_ms(queue_id, found - 1)
            if not before < moment_ms <= here:
                raise DemoFailed(
                    f"queue {queue_id}: expected the first message at or after {moment_ms}, found {found}, stored at "
                    f"{here} and the one before it at {before}"
                )
            tried += 1
    return tried
