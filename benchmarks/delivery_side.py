"""Stores whose messages wait and are delivered, as `bench delivery` drives them, and plain puts beside them.

Every side has a store of its own (`store_side.open_store`: warm log, dispatch paused, no interval flush) and a clock
that goes on by itself and can be moved. What a round needs before its time counts is put and dispatched untimed; what
it delivered is counted afterwards, and a wrong count ends the program.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import store_side, workload
from benchmarks.harness import timed
from benchmarks.report import Round
from tiermq import Message
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.delivery.timer.timer_destination import TimerDestination
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.transactions.end_transaction import Ended, EndRequest, EndStatus, EndTransaction
from tiermq.delivery.transactions.half_messages import HALF_QUEUE, half_properties
from tiermq.delivery.transactions.op_messages import OpLog, Outcome
from tiermq.message.properties import (
    DELAY,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQ_KEY,
    with_property,
)
from tiermq.message.topic_name import HALF_TOPIC, SCHEDULE_TOPIC
from tiermq.store.local_store import LocalStore
from tiermq.testing.local_broker import MovableClock

DELIVERED_RECORD_BYTES = 1_200
"""What one delayed message takes of the log at most: as it waits, and as it is delivered."""
DUE_SLOTS = 60
LEVEL = 1
GROUP = "bench-producers"
HOUR_S = 3_600


class Delivering(ABC):
    """A store, its clock, and the messages of the workload, again and again."""

    def __init__(self, stack: ExitStack, directory: Path, log_size: int, count: int) -> None:
        self.clock = MovableClock()
        self.store = stack.enter_context(store_side.open_store(directory, log_size, clock=self.clock))
        self.count = count
        self._pool = store_side.message_pool()

    @abstractmethod
    def round(self) -> Round:
        """One timed round."""

    def messages(self) -> Iterable[Message]:
        """So many messages as a round has."""
        for number in range(self.count):
            yield self._pool[number % len(self._pool)]

    def put_all(self, messages: Iterable[Message]) -> None:
        """Untimed: stored and visible to the delivery."""
        put = self.store.put
        for message in messages:
            result = put(message)
            if not result.ok:
                raise RuntimeError(f"expected PUT_OK, found {result!r}: the benchmark's store refused a message")
        self.store.dispatch_now()
        gc.collect()

    def round_of(self, work: Callable[[], None]) -> Round:
        """One timed round after which every queue has its share of the messages; see the module."""
        before = stored_count(self.store)

        def counted() -> tuple[int, int]:
            work()
            return self.count, 0

        done = timed(counted)
        self.store.dispatch_now()
        delivered = stored_count(self.store) - before
        if delivered != self.count:
            raise RuntimeError(f"expected {self.count} delivered messages, found {delivered}")
        return done


def stored_count(store: LocalStore) -> int:
    """How many messages consumers of the workload's topics can see."""
    return sum(
        store.max_offset(topic, queue_id) for topic in workload.TOPICS for queue_id in range(workload.QUEUE_COUNT)
    )


class PlainPuts(Delivering):
    """`store.put` of the same messages, right to their topics."""

    def round(self) -> Round:
        """One timed round."""
        messages, put = list(self.messages()), self.store.put

        def work() -> None:
            for message in messages:
                put(message)

        gc.collect()
        return self.round_of(work)


class DelayedMessages(Delivering):
    """Messages of one delay level, from due to put."""

    def __init__(self, stack: ExitStack, directory: Path, log_size: int, count: int) -> None:
        super().__init__(stack, directory, log_size, count)
        self._delivery = DelayLevels(self.store, str(directory / "config"), self.clock)

    def round(self) -> Round:
        """One timed round."""
        self.put_all(self._waiting(message) for message in self.messages())
        self.clock.advance(HOUR_S)
        return self.round_of(self._deliver)

    def _waiting(self, message: Message) -> Message:
        properties = with_property(message.encoded_properties, DELAY, str(LEVEL))
        properties = with_property(properties, REAL_TOPIC, message.topic)
        properties = with_property(properties, REAL_QID, str(message.queue_id))
        return Message(SCHEDULE_TOPIC, message.body, LEVEL - 1, encoded_properties=properties)

    def _deliver(self) -> None:
        while self._delivery.waiting_count:
            self._delivery.run_once()


class Timers(Delivering):
    """Timers of the wheel, `DUE_SLOTS` seconds of them: taken in (`taken_in`), then delivered when all are due."""

    def __init__(self, stack: ExitStack, directory: Path, log_size: int, count: int) -> None:
        super().__init__(stack, directory, log_size, count)
        self._timers = TimerService(self.store, directory, self.clock)
        stack.callback(self._timers.close)
        self.taken_in: list[Round] = []

    def round(self) -> Round:
        """One timed round of deliveries; the round of taking in before it goes to `taken_in`."""
        first_ms = self.clock.now_ms() + HOUR_S * 1_000
        waiting = enumerate(self.messages())
        self.put_all(
            timer_message(self._timers, message, first_ms + number % DUE_SLOTS * 1_000) for number, message in waiting
        )
        self.taken_in.append(timed(self._take_in))
        self.clock.advance(2 * HOUR_S)
        gc.collect()
        return self.round_of(self._deliver)

    def _take_in(self) -> tuple[int, int]:
        while self._timers.behind_count:
            self._timers.run_once()
        if self._timers.waiting_count != self.count:
            raise RuntimeError(f"expected {self.count} timers in the wheel, found {self._timers.waiting_count}")
        return self.count, 0

    def _deliver(self) -> None:
        while self._timers.waiting_count:
            self._timers.run_once()


def timer_message(timers: TimerService, message: Message, due_ms: int) -> Message:
    """The message as a broker stores it that is asked to deliver it at a time."""
    properties = with_property(message.encoded_properties, TIMER_DELIVER_MS, str(due_ms))
    place = timers.place(message.topic, message.queue_id, properties)
    if not isinstance(place, TimerDestination):
        raise TypeError(f"expected a place in the timer topic, found {place!r}")
    return Message(place.topic, message.body, place.queue_id, encoded_properties=place.properties)


class Transactions(Delivering):
    """Transactions from the half message to the op that ends them, one after the other: what a broker stores."""

    def _as_sent(self, number: int, message: Message) -> tuple[Message, bytes]:
        properties = with_property(message.encoded_properties, TRAN_MSG, "true")
        properties = with_property(properties, PGROUP, GROUP)
        return message, with_property(properties, UNIQ_KEY, f"{number:032X}")

    def round(self) -> Round:
        """One timed round. Its op log is its own: no check asks here about what was left open in the one before."""
        ops = OpLog(self.store, self.clock)
        end = EndTransaction(self.store, ops, self.clock).end
        sent = [self._as_sent(number, message) for number, message in enumerate(self.messages())]
        gc.collect()

        def work() -> None:
            for message, properties in sent:
                self._one(message, properties, end)
            ops.write()

        return self.round_of(work)

    def _one(self, message: Message, properties: bytes, end: Callable[[EndRequest], Ended]) -> None:
        half = Message(
            HALF_TOPIC,
            message.body,
            HALF_QUEUE,
            encoded_properties=half_properties(properties, message.topic, message.queue_id),
        )
        put = self.store.put(half)
        ended = end(EndRequest(Outcome.COMMIT, GROUP, put.physical_offset, put.queue_offset))
        if ended.status is not EndStatus.DONE:
            raise RuntimeError(f"expected a committed transaction, found {ended}")
