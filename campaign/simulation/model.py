"""The model: what should be in a store, by what it has acknowledged, and what an end of a life may take away.

Per queue, a run of messages [low, high). `low` moves only where the tier was allowed to expire; `high` moves back only
when a life ends, and only over messages that were never promised to last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tiermq.message.stored_message import StoredMessage

Queue = tuple[str, int]
SHARED_KEY = "all"


class Broken(Exception):
    """A promise that did not hold."""

    def __init__(self, promise: str, found: str) -> None:
        super().__init__(f"{promise}: {found}")
        self.promise = promise
        self.found = found


def broken(promise: str, found: str) -> NoReturn:
    raise Broken(promise, found)


@dataclass(slots=True)
class Sent:
    """One message that was put."""

    number: int
    """The place in the order of all puts, which is that of the log."""
    queue: Queue
    offset: int
    body: bytes
    properties: bytes
    key: str
    store_ms: int
    is_acknowledged: bool = False
    is_durable: bool = False
    """Whether it was promised to survive a power cut."""

    def __str__(self) -> str:
        reported = "durable" if self.is_durable else "acknowledged" if self.is_acknowledged else "under way"
        return f"{self.queue[0]}-{self.queue[1]} message {self.offset} (put {self.number}, {reported})"


@dataclass(slots=True)
class QueueModel:
    name: Queue
    low: int = 0
    sent: list[Sent] = field(default_factory=list)
    visible: int = 0
    """Readers get at least everything below this offset."""
    tier_end: int = 0
    """The tier has said that it has everything below."""
    may_expire_to: int = 0
    """Everything below was once old enough to leave the tier."""
    expired: list[Sent] = field(default_factory=list)
    """What has left it: after a lost disk it may be there again, when its deletion was not through."""

    @property
    def high(self) -> int:
        return self.low + len(self.sent)

    def at(self, offset: int) -> Sent:
        return self.sent[offset - self.low]

    def drop_below(self, offset: int) -> None:
        self.expired += self.sent[: offset - self.low]
        del self.sent[: offset - self.low]
        self.low = offset
        self.visible = max(self.visible, offset)

    def take_back_from(self, offset: int) -> None:
        """A restore found what an interrupted expiry had only hidden; the next round of it goes on."""
        back = [sent for sent in self.expired if sent.offset >= offset]
        if back and back[0].offset == offset:
            self.expired = self.expired[: -len(back)]
            self.sent[:0] = back
            self.low = offset

    def drop_from(self, offset: int) -> None:
        del self.sent[offset - self.low :]
        self.visible = self.high
        self.tier_end = min(self.tier_end, self.high)


class Model:
    """All queues."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.queues = {name: QueueModel(name) for name in queues}
        self._number = 0

    def prepare(self, name: Queue, body_bytes: int, now_ms: int) -> Sent:
        """The next message of a queue, before it is put."""
        queue = self.queues[name]
        number = self._number
        self._number += 1
        body = f"{number}:".encode().ljust(body_bytes, b"abcdefgh"[number % 8 : number % 8 + 1])
        key = f"k{number}"
        properties = f"KEYS\x01{key} {SHARED_KEY}\x02TAGS\x01t{number % 3}\x02".encode()
        sent = Sent(number, name, queue.high, body, properties, key, now_ms)
        queue.sent.append(sent)
        return sent

    def refused(self, sent: Sent) -> None:
        """It got the answer that nothing was stored. Only the newest of a queue can be."""
        queue = self.queues[sent.queue]
        if queue.sent[-1] is not sent:
            broken("a refused message takes no number", f"{sent} was refused, and later ones of the queue were stored")
        queue.sent.pop()

    def all_durable(self) -> None:
        for queue in self.queues.values():
            for sent in queue.sent:
                sent.is_durable = sent.is_acknowledged = True

    def acknowledged_are_durable(self) -> None:
        """For the death of a process: what it got in the page cache stays."""
        for queue in self.queues.values():
            for sent in queue.sent:
                sent.is_durable = sent.is_durable or sent.is_acknowledged

    def all_visible(self) -> None:
        for queue in self.queues.values():
            queue.visible = queue.high

    def may_expire(self, before_ms: int) -> None:
        """The tier was asked to drop what is older than that."""
        for queue in self.queues.values():
            young = next((sent.offset for sent in queue.sent if sent.store_ms >= before_ms), queue.high)
            queue.may_expire_to = max(queue.may_expire_to, young)

    def note_low(self, name: Queue, low: int) -> None:
        """A queue begins at `low` now."""
        queue = self.queues[name]
        if low < queue.low:
            broken("minimum offsets never go back", f"{name} began at {queue.low}, now at {low}")
        if low > max(queue.low, min(queue.may_expire_to, queue.high)):
            broken(
                "only what is too old leaves the tier",
                f"{name} begins at {low}; it began at {queue.low}, and what is below {queue.may_expire_to} was old",
            )
        queue.drop_below(low)

    # After the end of a life

    def settle(self, ends: dict[Queue, int], *, lost_disk: bool, lows: dict[Queue, int] | None = None) -> int:
        """Compare with how far each queue reaches in the next life, and forget what was lost; how many were.

        `lows`: where queues begin after a lost disk.
        """
        lost: list[Sent] = []
        for name, queue in self.queues.items():
            end = ends[name]
            if lows is not None and 0 <= lows[name] < min(queue.low, end):
                queue.take_back_from(lows[name])
            if end > queue.high:
                broken("no message is there that was never put", f"{name} ends at {end}, and {queue.high} were put")
            if lost_disk and end < queue.tier_end:
                broken(
                    "what the tier has said it has survives the loss of the disk",
                    f"{name} ends at {end}, and the tier had it up to {queue.tier_end}",
                )
            if end < queue.low:
                broken("a queue never counts back", f"{name} ends at {end}, and it began at {queue.low} before")
            lost += queue.sent[end - queue.low :]
            queue.drop_from(end)
        if not lost_disk:
            self._check_lost(lost)
        self.all_durable()
        return len(lost)

    def _check_lost(self, lost: Sequence[Sent]) -> None:
        for sent in lost:
            if sent.is_durable:
                broken("what was promised to last survives", f"{sent} is gone")
        if not lost:
            return
        first = min(sent.number for sent in lost)
        for queue in self.queues.values():
            for sent in queue.sent:
                if sent.number > first:
                    broken("only a tail of the log is lost", f"{sent} survived, and put {first} before it did not")

    # Comparing

    def compare(self, name: Queue, offset: int, found: Sequence[StoredMessage]) -> None:
        """Messages that were read from `offset` on must be the ones that were put, each once and in order."""
        queue = self.queues[name]
        for number, message in enumerate(found, start=offset):
            if message.queue_offset != number:
                broken(
                    "every message is read once and in order",
                    f"{name}: expected message {number}, found {message.queue_offset}",
                )
            if number >= queue.high:
                broken("no message is there that was never put", f"{name}: found message {number} of {queue.high}")
            self.compare_one(queue.at(number), message)

    def compare_one(self, sent: Sent, message: StoredMessage) -> None:
        properties = message.encoded_properties.partition(b"__CRC32#")[0]
        place = (message.topic, message.queue_id, message.queue_offset)
        same = (place, message.body, properties) == ((*sent.queue, sent.offset), sent.body, sent.properties)
        if not same or message.store_timestamp_ms != sent.store_ms:
            broken(
                "a message reads as it was put",
                f"{sent}: found {place} {message.body[:40]!r} {properties!r} of {message.store_timestamp_ms}; "
                f"expected {sent.body[:40]!r} {sent.properties!r} of {sent.store_ms}",
            )
