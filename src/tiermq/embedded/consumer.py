"""Consumer: a consumer group's reader of one topic of an embedded store, without a broker.

    with store.consumer("orders", group="audit") as consumer:
        for message in consumer:                  # at least once each, in the order of its queue
            try:
                check(message)
            except Late:
                consumer.retry(message)           # again after 10 s, 30 s, 1 min, …; at last a dead letter

The loop takes a message as consumed when it asks for the next one, and when the `with` block ends without an error. One
that was given when an error left the block is given again. Offsets are RocketMQ's (`config/consumerOffset.json`): they
are written every five seconds, by `commit` and by `close`, so after a crash some messages come
again, and none is skipped.

Retries are stored in `%RETRY%group` (meanwhile in RocketMQ's delay levels), dead letters in `%DLQ%group`.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tiermq.broker.send.send_checks import FIRST_LEVEL, Destination, delayed
from tiermq.embedded.locations import Moment, checked_count, checked_wait, moment_ms
from tiermq.embedded.message_stream import MessageStream, QueueReader
from tiermq.errors import BadConfig, StoreClosed, StoreError
from tiermq.kernel import Message
from tiermq.message.hosts import encode_host
from tiermq.message.message_filter import TagFilter
from tiermq.message.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, with_property, without_light_queues
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import DEAD_LETTER_PREFIX, RETRY_PREFIX, QueueName

if TYPE_CHECKING:
    from tiermq.embedded.message_store import MessageStore

_log = logging.getLogger(__name__)


class Consumer:
    """A consumer group's reader of one topic: gives each message at least once, in the order of its queue. Asking for
    more means that what was given before is consumed. Belongs to one thread; `close` may come from any. Made by
    `store.consumer`.
    """

    def __init__(
        self,
        store: MessageStore,
        topic: str,
        group: str,
        *,
        start: Moment = "first",
        tags: str = "*",
        wait_s: float = 0.0,
        max_retries: int = 16,
    ) -> None:
        self.topic = topic
        self.group = group
        self.retry_topic = RETRY_PREFIX + group
        self.dead_letter_topic = DEAD_LETTER_PREFIX + group
        self._store = store
        self._state = store._groups
        self._offsets = self._state.offsets
        self._wait_s = wait_s
        self._max_retries = max_retries
        self._chosen = TagFilter(tags)
        self._start_ms = None if start in ("first", "last") else moment_ms(start, store._clock.now_ms())
        self._from_last = start == "last"
        self._given: list[tuple[StoredMessage, QueueName, int]] = []
        self._given_back: deque[tuple[StoredMessage, QueueName, int]] = deque()
        self._put_off: list[StoredMessage] = []
        """Of those that were given: what has a retry, or is a dead letter."""
        self._closed = False
        self._is_begun = False
        self._state.begin(group, topic)
        try:
            self._stream = self._new_stream()
        except BaseException:
            self._state.end(group, topic)
            raise
        self._is_begun = True
        self._from_last, self._start_ms = False, None  # A queue that comes later is read from its beginning.

    def _new_stream(self) -> MessageStream:
        return MessageStream(
            self._store,
            self._queues,
            self._reader_of,
            wait_s=self._wait_s,
            text=f"{self.topic!r}, group={self.group!r}",
        )

    def _queues(self) -> list[QueueName]:
        self._store._see_all()
        topics = self._store._engine.topics()
        return [(topic, each) for topic in (self.topic, self.retry_topic) for each in topics.get(topic, ())]

    def _reader_of(self, topic: str, queue_id: int) -> QueueReader:
        engine = self._store._engine
        begin = self._offsets.query(self.group, topic, queue_id)
        if begin < 0:
            begin = max(0, engine.min_offset(topic, queue_id))
            if topic == self.topic and self._from_last:
                begin = engine.max_offset(topic, queue_id)
            elif topic == self.topic and self._start_ms is not None:
                begin = engine.offset_at(topic, queue_id, self._start_ms)
                if engine.store_time_of(topic, queue_id, begin) < self._start_ms:
                    begin = engine.max_offset(topic, queue_id)
            self._offsets.commit(self.group, topic, queue_id, begin)
        elif begin > (end := max(0, engine.max_offset(topic, queue_id))):
            if self._is_begun:  # The queue had no message before: all that it has came after the consumer.
                end = max(0, engine.min_offset(topic, queue_id))
            begin = self._within(topic, queue_id, begin, end)
            self._offsets.commit(self.group, topic, queue_id, begin)
        is_plain = self._chosen.expression == "*" or topic == self.retry_topic
        return QueueReader(self._store, topic, queue_id, begin, None, None if is_plain else self._chosen)

    def _within(self, topic: str, queue_id: int, offset: int, end: int) -> int:
        """An offset of the queue, at most `end`: above it, messages that come later would count as consumed."""
        if offset <= end:
            return offset
        _log.warning(
            "group %s: offset %d is beyond the end of queue %d of %s: it continues at %d",
            self.group, offset, queue_id, topic, end,
        )  # fmt: skip
        return end

    # Messages

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredMessage:
        message = self.receive(self._wait_s)
        if message is None:
            raise StopIteration
        return message

    def receive(self, wait_s: float = 0.0) -> StoredMessage | None:
        """The next message, or None when none comes within `wait_s`. What was given before counts as consumed."""
        found = self.take(1, wait_s)
        return found[0] if found else None

    def take(self, max_messages: int = 32, wait_s: float = 0.0) -> list[StoredMessage]:
        """Up to `max_messages`, [] when none comes within `wait_s`. What was given before counts as consumed.

        When this raises, none of its messages is lost: the next call gives them.
        """
        checked_wait(wait_s)
        max_messages = checked_count("max_messages", max_messages, 1)
        self._require_open()
        self._finish()
        try:
            first = self._next(wait_s)
            taken = [] if first is None else [first]
            while taken and len(taken) < max_messages and (more := self._next(0.0)) is not None:
                taken.append(more)
            self._state.flush_in_time()
        except BaseException:
            self._give_back()
            raise
        return taken

    def _next(self, wait_s: float) -> StoredMessage | None:
        store = self._store
        if wait_s:
            arrivals, deadline = store._arrivals, store._monotonic() + wait_s
        while True:
            if self._given_back:
                self._given.append(self._given_back.popleft())
                return self._given[-1][0]
            seen = arrivals.count if wait_s else 0
            found = self._stream.next_with_queue()
            if found is not None:
                message, name = found
                self._given.append((message, name, message.queue_offset + 1))
                return message
            if not self._given:
                self._pass_by()
            if not wait_s or self._closed or not arrivals.wait(seen, deadline - store._monotonic()):
                return None

    def commit(self) -> None:
        """Everything that was given is consumed; on return that is durable. Raises OSError, StoreError."""
        self._require_open()
        self._finish()
        self._state.flush()

    def _finish(self) -> None:
        for _, (topic, queue_id), offset in self._given:
            self._offsets.commit(self.group, topic, queue_id, offset)
        self._given.clear()
        self._put_off.clear()

    def _give_back(self) -> None:
        """Of a call whose caller did not get what it has taken: the next call gives it."""
        self._given_back.extendleft(reversed(self._given))
        self._given.clear()

    def _pass_by(self) -> None:
        """With nothing given, and nothing there: messages without the tags are passed for good."""
        for (topic, queue_id), position in self._stream.positions.items():
            if position > self._offsets.query(self.group, topic, queue_id):
                self._offsets.commit(self.group, topic, queue_id, position)

    # Failures

    def retry(self, message: StoredMessage, after_s: float | None = None) -> bool:
        """Have a message that was given consumed again later; False when it became a dead letter instead, since it was
        tried `max_retries` times.

        after_s: about how long later, the next of RocketMQ's delay levels (1 s … 2 h); None: 10 s at first, then longer
        each time; 0: at once. The retry is stored when this returns. Raises what `put` raises, BadConfig for what is no
        time, StoreError for a message that has a retry already, or is a dead letter.
        """
        self._require_given(message)
        if after_s is not None and not (isinstance(after_s, int | float) and 0 <= after_s < math.inf):
            raise BadConfig(f"after_s: expected seconds, 0 or more, or None, found {after_s!r}")
        if message.reconsume_times >= self._max_retries:
            self.dead_letter(message)
            return False
        destination = Destination(self.retry_topic, 0, self._properties(message))
        delays_ms = self._store._local.config.delay_levels_ms
        level = FIRST_LEVEL + message.reconsume_times
        if after_s is not None:
            level = next((n for n, each in enumerate(delays_ms, 1) if each >= after_s * 1000), len(delays_ms))
        if after_s != 0 and delays_ms:
            destination = delayed(destination, level, len(delays_ms))
        self._store.put(_again(message, destination))
        self._put_off.append(message)
        return True

    def dead_letter(self, message: StoredMessage) -> None:
        """Give a message that was given up: it is stored in `%DLQ%group`. Raises what `put` raises, and StoreError for
        one that has a retry already, or is a dead letter.
        """
        self._require_given(message)
        self._store.put(_again(message, Destination(self.dead_letter_topic, 0, self._properties(message))))
        self._put_off.append(message)
        _log.warning("group %s: message %s of %s is a dead letter", self.group, message.queue_offset, message.topic)

    def _properties(self, message: StoredMessage) -> bytes:
        encoded = message.encoded_properties
        if message.get_property(RETRY_TOPIC) is None:
            encoded = with_property(encoded, RETRY_TOPIC, message.topic)
        if message.get_property(ORIGIN_MESSAGE_ID) is None and message.physical_offset >= 0:
            encoded = with_property(encoded, ORIGIN_MESSAGE_ID, message.message_id)
        return encoded

    def _require_given(self, message: StoredMessage) -> None:
        self._require_open()
        if not any(message is each for each, _, _ in self._given):
            raise StoreError(
                "expected a message that this consumer has given and not yet counted as consumed, found another one"
            )
        if any(message is each for each in self._put_off):
            raise StoreError(
                f"expected a message that was not put off yet, found one that has a retry or is a dead letter: offset "
                f"{message.queue_offset} of {message.topic}"
            )

    # Position

    @property
    def positions(self) -> dict[int, int]:
        """Queue id → offset of the next message that the group has not consumed."""
        return self._offsets.queues(self.group, self.topic)

    @property
    def lag(self) -> int:
        """How many messages of the topic, and retries that are due, the group has not consumed."""
        engine = self._store._engine
        names = self._queues()
        known = (max(0, self._offsets.query(self.group, *name)) for name in names)
        return sum(max(0, engine.max_offset(*name) - at) for name, at in zip(names, known, strict=True))

    def seek(self, to: Moment | dict[int, int]) -> None:
        """Continue elsewhere: "first", "last", a moment as in `store.read`, or offsets by queue id. Durable then.

        An offset beyond the end of its queue means the end. Raises BadConfig for what is none of these, and for a queue
        that the topic does not have: then nothing was moved.
        """
        self._require_open()
        engine = self._store._engine
        since_ms = 0 if isinstance(to, dict) or to in ("first", "last") else moment_ms(to, self._store._clock.now_ms())
        self._store._see_all()
        queue_ids = engine.topics().get(self.topic, ())
        if isinstance(to, dict):
            for queue_id, offset in to.items():
                if queue_id not in queue_ids:
                    raise BadConfig(f"expected a queue of {self.topic}, one of {list(queue_ids)}, found {queue_id!r}")
                if type(offset) is not int or offset < 0:
                    raise BadConfig(f"an offset is a whole number of 0 or more, found {offset!r}")
            queue_ids = list(to)
        for queue_id in queue_ids:
            if isinstance(to, dict):
                offset = self._within(self.topic, queue_id, to[queue_id], engine.max_offset(self.topic, queue_id))
            elif to == "first":
                offset = max(0, engine.min_offset(self.topic, queue_id))
            elif to == "last":
                offset = engine.max_offset(self.topic, queue_id)
            else:
                offset = engine.offset_at(self.topic, queue_id, since_ms)
            self._offsets.commit(self.group, self.topic, queue_id, offset)
        self._given.clear()
        self._put_off.clear()
        self._given_back.clear()
        self._stream = self._new_stream()
        self._state.flush()

    # Life

    def close(self) -> None:
        """Write the offsets and let another consumer of the group begin. What was given last is not consumed by that.
        Twice does no harm.
        """
        if self._closed:
            return
        self._closed = True
        self._stream.close()
        self._state.end(self.group, self.topic)
        if self._store.is_open:
            self._state.flush()

    def _require_open(self) -> None:
        if self._closed or not self._store.is_open:
            raise StoreClosed(f"the consumer of {self.topic} of group {self.group} is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._closed:
            self._finish()
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"positions={self.positions}"
        return f"Consumer({self.topic!r}, group={self.group!r}, {state})"


def _again(message: StoredMessage, destination: Destination) -> Message:
    return Message(
        destination.topic,
        message.body,
        destination.queue_id,
        encoded_properties=without_light_queues(destination.properties),
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=encode_host(message.born_host),
        reconsume_times=message.reconsume_times + 1,
    )
