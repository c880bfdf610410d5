"""Looking: what readers get of a store, compared with what the model says they should.

A tier that does not answer is an error and never "no message": where the weather may be to blame, `Unanswered` is
raised, and the reader goes on without an answer. A wrong answer is never excused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from campaign.simulation.model import SHARED_KEY, Model, Queue, QueueModel, Sent, broken
from tiermq.errors import TierError
from tiermq.status import GetStatus
from tiermq.tier.tiered_store import TieredStore

PAGE = 16


class Unanswered(Exception):
    """The tier gave no answer, and that may be."""


class Look:
    """One look at one store. `may_fail` says whether the tier may leave a question unanswered.

    Keys of messages that were stored before `kept_since_ms` need not be found any more: index files expire by
    themselves, and the messages at the next round of retention.
    """

    def __init__(
        self, store: TieredStore, model: Model, counts: Counter[str], *, may_fail: bool, kept_since_ms: int
    ) -> None:
        self._store = store
        self._model = model
        self._counts = counts
        self._may_fail = may_fail
        self._kept_since_ms = kept_since_ms

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except TierError as error:
            if not self._may_fail:
                raise
            self._counts["reads_unanswered"] += 1
            raise Unanswered from error

    # Offsets

    def bounds(self) -> None:
        """Every queue begins and ends where it should. Asks the tier nothing."""
        store = self._store
        for name, queue in self._model.queues.items():
            low, high = store.min_offset(*name), store.max_offset(*name)
            if not queue.visible <= high <= queue.high:
                broken(
                    "a queue ends behind its newest message",
                    f"{name} ends at {high}; readers were promised {queue.visible}, {queue.high} were put",
                )
            self._note_tier(queue)
            if high:
                self._model.note_low(name, low)
        strange = {(topic, queue_id) for topic, ids in store.topics().items() for queue_id in ids}
        strange -= self._model.queues.keys()
        if strange:
            broken("no queue is there that got no message", str(sorted(strange)))

    def _note_tier(self, queue: QueueModel) -> None:
        """What the tier says that it has, it is held to."""
        end = self._store.tier_end(*queue.name)
        if end > queue.high:
            broken("the tier has nothing that was never put", f"{queue.name}: the tier ends at {end} of {queue.high}")
        queue.tier_end = max(queue.tier_end, end)
        local_min = self._store.local.min_offset(*queue.name)
        if self._store.local.max_offset(*queue.name) > 0 and max(local_min, queue.low) > max(queue.tier_end, queue.low):
            broken(
                "local files go only once the tier has them",
                f"{queue.name} begins at {local_min} locally, and the tier ends at {queue.tier_end}",
            )

    # Messages

    def everything(self) -> None:
        """Every message of every queue."""
        for name, queue in self._model.queues.items():
            self.read(name, queue.low, self._store.max_offset(*name) - queue.low)

    def read(self, name: Queue, offset: int, count: int, group: str = "", page_size: int = PAGE) -> None:
        """`count` messages of a queue, page by page."""
        end = min(offset + count, self._store.max_offset(*name))
        while offset < end:
            with self._asking():
                page = self._store.get(*name, offset, min(page_size, end - offset), group=group)
            if page.status is not GetStatus.FOUND or not page.messages:
                broken(
                    "an acknowledged message can be read",
                    f"{name} message {offset} of {end}: {page.status.name}, next {page.next_offset}",
                )
            self._model.compare(name, offset, page.messages)
            self._counts["messages_checked"] += len(page.messages)
            if page.next_offset != offset + len(page.messages):
                broken(
                    "every message is read once and in order",
                    f"{name}: behind {offset} come {len(page.messages)} messages, and then {page.next_offset}",
                )
            offset = page.next_offset

    # Keys

    def keys(self, wanted: Iterable[Sent]) -> None:
        """Each of the messages is found by its key, once, and nothing else is."""
        for sent in wanted:
            with self._asking():
                page = self._store.query(sent.queue[0], sent.key)
            self._counts["keys_asked"] += 1
            if not page.messages and (not page.complete or sent.store_ms < self._kept_since_ms):
                self._counts["keys_incomplete" if not page.complete else "keys_expired"] += 1
                continue
            if [message.queue_offset for message in page.messages] != [sent.offset]:
                places = [(m.queue_id, m.queue_offset) for m in page.messages]
                broken("the index finds every message by its key", f"{sent}, {sent.key}: found {places}")
            self._model.compare_one(sent, page.messages[0])

    def shared_key(self, topic: str, count: int = 32) -> None:
        """A key that all messages of a topic have finds the newest of them, each once."""
        with self._asking():
            page = self._store.query(topic, SHARED_KEY, max_messages=count)
        places = [(m.queue_id, m.queue_offset) for m in page.messages]
        if len(set(places)) != len(places):
            broken("a query finds each message once", f"{topic}: found {places}")
        for message in page.messages:
            queue = self._model.queues.get((topic, message.queue_id))
            if queue is None or not message.queue_offset < queue.high:
                broken("no message is there that was never put", f"{topic}: found {places}")
            if message.queue_offset >= queue.low:
                self._model.compare_one(queue.at(message.queue_offset), message)
        kept = [
            sent
            for name, queue in self._model.queues.items()
            for sent in queue.sent[: max(0, self._store.max_offset(*name) - queue.low)]
            if name[0] == topic and sent.store_ms >= self._kept_since_ms
        ]
        if page.complete and len(places) < min(count, len(kept)):
            broken("the index finds every message by its key", f"{topic}: found {len(places)} of {len(kept)}")

    # Times

    def times(self, wanted: Iterable[Sent]) -> None:
        """The time of a message leads to the first, and to the last, that was stored then."""
        for sent in wanted:
            queue = self._model.queues[sent.queue]
            end = self._store.max_offset(*sent.queue)
            same = [each.offset for each in queue.sent if each.store_ms == sent.store_ms and each.offset < end]
            with self._asking():
                lower = self._store.offset_at(*sent.queue, sent.store_ms, "lower")
                upper = self._store.offset_at(*sent.queue, sent.store_ms, "upper")
                time_ms = self._store.store_time_of(*sent.queue, sent.offset)
            self._counts["times_asked"] += 1
            if (lower, upper) != (same[0], same[-1]):
                broken(
                    "a time leads to the messages that were stored then",
                    f"{sent} of {sent.store_ms}: expected {same[0]} and {same[-1]}, found {lower} and {upper}",
                )
            if time_ms != sent.store_ms:
                broken("a message's store time can be asked for", f"{sent} of {sent.store_ms}: found {time_ms}")
