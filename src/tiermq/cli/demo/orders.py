"""The messages of the demo: everything about one follows from its queue and its place there.

So a process that was killed, the one that reads what it left, Spark and a table can be compared without telling each
other anything: message `offset` of queue `queue_id` has the number `offset * QUEUES + queue_id`, and its body, key, tag
and amount are functions of the number. Each producer has queues of its own, so a queue is never ahead of itself.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tiermq.errors import StoreError

TOPIC = "orders"
QUEUES = 8
PRODUCERS = 4
LIST_MESSAGES = 64
RECORD_BYTES = 740  # About: what a message takes in a log.
assert QUEUES % PRODUCERS == 0

# Each body has a receipt that does not compress and a note that does, so that it shrinks about as much as real orders.
_NOTES = (
    b"Please leave it with the neighbours if nobody opens. Ring twice, the bell is quiet. Gift wrap, no invoice. "
    b"Call before delivery. The gate is open until six. Second floor, on the left. Fragile: this side up. "
) * 3
_NOTE_BYTES = 320
_NOTE_STARTS = len(_NOTES) - _NOTE_BYTES
_RECEIPT_BYTES = 64
_SHARES = (("paid", 128), ("shipped", 200), ("open", 240), ("void", 256))
TAGS = tuple(name for name, _ in _SHARES)
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

    A sum does not care for order, so whoever reads in whatever order can be compared.
    """

    count: int = 0
    checksum: int = 0
    by_tag: dict[str, tuple[int, int]] = field(default_factory=dict)  # Count and cents.

    def add(self, body: bytes | memoryview) -> None:
        """One body as it was read. What it says about itself is not believed here: tags are counted elsewhere."""
        self.count += 1
        self.checksum += zlib.crc32(body)

    def agrees(self, other: Tally) -> bool:
        return (self.count, self.checksum) == (other.count, other.checksum)

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        both = {
            tag: (here[0] + there[0], here[1] + there[1])
            for tag in {**self.by_tag, **other.by_tag}
            for here, there in [(self.by_tag.get(tag, (0, 0)), other.by_tag.get(tag, (0, 0)))]
        }
        return Tally(self.count + other.count, self.checksum + other.checksum, both)

    def __str__(self) -> str:
        return f"{self.count:,} messages with the checksum {self.checksum:x}"


def expected(held: Sequence[int], since: Sequence[int] | None = None) -> Tally:
    """What messages `since[q]` .. `held[q] - 1` of the queues must add up to; without `since`, from the first on."""
    tally = Tally()
    count = dict.fromkeys(TAGS, 0)
    cents = dict.fromkeys(TAGS, 0)
    for number in numbers(held, since):
        tally.add(body_of(number))
        tag = tag_of(number)
        count[tag] += 1
        cents[tag] += cents_of(number)
    tally.by_tag = {tag: (count[tag], cents[tag]) for tag in TAGS if count[tag]}
    return tally


def numbers(held: Sequence[int], since: Sequence[int] | None = None) -> Iterable[int]:
    for queue_id, end in enumerate(held):
        begin = 0 if since is None else since[queue_id]
        yield from range(number_of(queue_id, begin), number_of(queue_id, end), QUEUES)


def even(messages: int) -> list[int]:
    """How many messages each queue gets when there are to be about so many in all: whole lists, the same for each."""
    lists = max(1, round(messages / (QUEUES * LIST_MESSAGES)))
    return [lists * LIST_MESSAGES] * QUEUES
