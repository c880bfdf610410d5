"""History: what a test sent to a store, and what must therefore be found in it after a crash.

Offsets are predicted before each put (one thread puts), so a message whose put never returned has its place too: it may
be found there or not. Rules that `check` holds a recovered store to:

* every message that was acknowledged as durable is there, with its body, properties and queue offset, exactly once;
* what was lost is a tail of the log: nothing that came after a lost message survives it;
* queue offsets are unbroken, and nothing is there that was not sent;
* every surviving message is found by its key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tiermq import Message
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.message.stored_message import StoredMessage
from tiermq.status import GetStatus
from tiermq.store.local_store import LocalStore

QueueKey = tuple[str, int]


@dataclass
class Sent:
    """One message and what is known about its fate."""

    number: int
    queue: QueueKey
    queue_offset: int
    body: bytes
    key: str
    encoded_properties: bytes
    physical_offset: int = -1
    durable: bool = False

    def message(self) -> Message:
        return Message(self.queue[0], self.body, self.queue[1], encoded_properties=self.encoded_properties)

    def element(self) -> BatchElement:
        return BatchElement(0, self.body, self.encoded_properties)


class History:
    """See the module."""

    def __init__(self) -> None:
        self.messages: list[Sent] = []
        self._next_offset: dict[QueueKey, int] = defaultdict(int)
        self._cleaned_to: dict[QueueKey, int] = defaultdict(int)
        self._number = 0
        self.cleaning = False
        self._min_physical = 0

    def prepare(self, queue: QueueKey, body_bytes: int, padding_bytes: int = 0) -> Sent:
        """The next message to a queue: a body that no other has, a key of its own, properties of a chosen length."""
        number = self._number
        self._number += 1
        body = (f"body-{number}-".encode() * (body_bytes // 7 + 1))[: max(body_bytes, 12)]
        key = f"key-{number}"
        properties = f"KEYS\x01{key}\x02TAGS\x01t{number % 3}\x02PAD\x01{'p' * padding_bytes}\x02".encode()
        sent = Sent(number, queue, self._next_offset[queue], body, key, properties)
        self._next_offset[queue] += 1
        self.messages.append(sent)
        return sent

    def refused(self, sent: list[Sent]) -> None:
        """Nothing was written: the messages never were."""
        self.messages = [message for message in self.messages if message not in sent]
        for message in sent:
            self._next_offset[message.queue] -= 1

    def acknowledged(self, sent: Sent, queue_offset: int, physical_offset: int, durable: bool) -> None:
        assert queue_offset == sent.queue_offset, f"{sent} was given queue offset {queue_offset}"
        sent.physical_offset = physical_offset
        sent.durable = sent.durable or durable

    def all_durable(self) -> None:
        for sent in self.messages:
            sent.durable = True

    # Checking

    def settle(self, store: LocalStore) -> int:
        """Compare with a recovered store and forget what it lost; how many messages survived."""
        store.dispatch_now()
        found = {message.physical_offset: message for message in self._everything(store)}
        min_physical = max(0, store.min_physical_offset)
        assert min_physical == self._min_physical or (self.cleaning and min_physical > self._min_physical)
        self._min_physical = min_physical
        lost_number: int | None = None
        survivors = []
        places = {(m.topic, m.queue_id, m.queue_offset): m for m in found.values()}
        for sent in self.messages:
            if 0 <= sent.physical_offset < min_physical:
                self._cleaned_to[sent.queue] = sent.queue_offset + 1
                continue
            stored = places.pop((*sent.queue, sent.queue_offset), None)
            if stored is None:
                assert not sent.durable, f"acknowledged and lost: {sent}"
                lost_number = sent.number
                continue
            assert lost_number is None, f"{sent} survived, message {lost_number} before it did not"
            self._compare(sent, stored)
            survivors.append(sent)
        assert not places, f"never sent: {places}"
        self._check_ends(store, survivors)
        self.messages = survivors
        return len(survivors)

    def _compare(self, sent: Sent, stored: StoredMessage) -> None:
        assert stored.body == sent.body, sent
        # A store that is set to appends a checksum of the whole record as the last property.
        properties = stored.encoded_properties.partition(b"__CRC32#")[0]
        assert properties == sent.encoded_properties, (sent, properties)
        assert sent.physical_offset in (-1, stored.physical_offset), (sent, stored)
        sent.physical_offset = stored.physical_offset

    def _everything(self, store: LocalStore) -> Iterator[StoredMessage]:
        """Every message of every queue, in order; asserts that no queue has a hole."""
        topics = {queue[0] for queue in self._next_offset}
        assert set(store.topics()) <= topics, f"topics that got no message: {set(store.topics()) - topics}"
        for topic, queue_ids in store.topics().items():
            for queue_id in queue_ids:
                offset = store.min_offset(topic, queue_id)
                while offset < store.max_offset(topic, queue_id):
                    page = store.get(topic, queue_id, offset)
                    assert page.status is GetStatus.FOUND, (topic, queue_id, offset, page)
                    assert [m.queue_offset for m in page.messages] == list(range(offset, page.next_offset))
                    assert page.next_offset > offset
                    yield from page.messages
                    offset = page.next_offset

    def _check_ends(self, store: LocalStore, survivors: list[Sent]) -> None:
        """The next offset of each queue follows its last survivor, or the last one that was cleaned away."""
        ends: dict[QueueKey, int] = {}
        for sent in survivors:
            ends[sent.queue] = sent.queue_offset + 1
        for queue in self._next_offset:
            expected = ends.get(queue)
            if expected is None:
                expected = self._cleaned_to[queue]
            assert store.max_offset(*queue) == expected, (queue, expected, store.max_offset(*queue))
            self._next_offset[queue] = expected

    def check_keys(self, store: LocalStore) -> None:
        for sent in self.messages:
            hits = [(m.queue_offset, m.body) for m in store.query(sent.queue[0], sent.key).messages]
            assert hits == [(sent.queue_offset, sent.body)], (sent, hits)


def put_one(store: LocalStore, history: History, sent: Sent, durable: bool) -> None:
    result = store.put(sent.message())
    assert result.ok, result
    history.acknowledged(sent, result.queue_offset, result.physical_offset, durable)


def put_many(store: LocalStore, history: History, sent: list[Sent], durable: bool) -> None:
    results = store.put_many([each.message() for each in sent])
    assert results.all_ok, results
    for each, result in zip(sent, results, strict=True):
        history.acknowledged(each, result.queue_offset, result.physical_offset, durable)


def put_batch(store: LocalStore, history: History, sent: list[Sent], durable: bool) -> None:
    """All of one queue."""
    topic, queue_id = sent[0].queue
    results = store.put_batch(Message(topic, encode_client_batch([each.element() for each in sent]), queue_id))
    assert results.all_ok, list(results)
    for each, result in zip(sent, results, strict=True):
        history.acknowledged(each, result.queue_offset, result.physical_offset, durable)
