"""PopReader: reads the messages of one pop from the queues of its topic and of its retry topics.

    a fifth of the pops: retries first, then the topic      the rest: the topic, then retries if there is space
    a topic with message.type=PRIORITY: its last queue first, down to queue 0, then retries

Each queue is taken from where the group's offset is. Without order, a check point is made and the offset moves beyond
what was taken; with order, the offset stays until the messages are acknowledged (`OrderInfos`).

A read gives way after every `QUEUES_A_STEP` queues, and ends there if it has messages: a topic has up to 65,536 queues.
Then the rest is that of the queues that were visited.

Invariants: nothing is taken from a queue that another pop of the group is taking from now; a queue whose messages are
in the tier is skipped unless it is allowed to wait. The result has all fields of the answer.
While `pop_ck_max_buffer_size` check points are open no more is delivered, except to orderly groups. A retried
message whose properties have no space for a receipt is not delivered: it is in the check point nevertheless, and
`PopRevive` makes it a dead letter.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeVar

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.pop.order_infos import OrderInfos
from tiermq.broker.pop.pop_acks import ORDERED_QUEUE, Receipt
from tiermq.broker.pop.pop_checkpoints import PoppedMessage
from tiermq.broker.pop.pop_log import PopLog
from tiermq.broker.pop.pop_topics import (
    MARK_NORMAL,
    MARK_RETRY,
    MARK_RETRY_V2,
    NotOfOthers,
    OwnRetries,
    Readable,
    is_of_pair,
    may_share_retry_topic,
    pop_retry_topics,
)
from tiermq.broker.pop.pop_waiting import Pop
from tiermq.broker.pull.pull_admission import ReadFailures
from tiermq.broker.topic.attributes import BY_PRIORITY, MESSAGE_TYPE
from tiermq.errors import RequestRefused, TierMQError
from tiermq.kernel import GetPage
from tiermq.message.message_filter import MessageFilter
from tiermq.message.record import decode_records, reencode
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import RETRY_PREFIX, is_light_queue
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.store.reader import FILTER_STEPS_MAX

RETRY_FIRST = 0.2
QUEUES_A_STEP = 64
"""A read that visits more gives way in between: to visit an empty queue takes some microseconds."""
PAGES_MAX = 16
"""Of one queue, when a filter lets nothing pass; a read gives way, or ends, after as many of several queues."""
STEPS_MAX = 2 * FILTER_STEPS_MAX
"""Comparisons of one pop, over all its queues; the next read continues."""
FILTER_UNITS = 800
"""Messages that a page with a filter looks at, if they are short and the filter is (`maxFilterMessageSize`)."""
BUSY_MS = 100
"""After this time a queue is read again that another pop was reading."""
FULL_MS = 1_000
"""After this time a pop is retried that came while too many check points were open."""
Found = TypeVar("Found")
Steps = Generator[None, None, Found]
"""A read that gives way between its steps."""
_SIZE = slice(0, 4)
_QUEUE_OFFSET = slice(20, 28)


@dataclass(slots=True)
class PopResult:
    """The result of a pop."""

    pop_ms: int
    revive_queue: int
    count: int = 0
    rest: int = 0
    data: list[bytes | memoryview] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    order_counts: list[str] = field(default_factory=list)
    met_cold: bool = False
    """Some queue was skipped because the tier has its messages."""
    look_again_ms: int | None = None
    """When a queue that is blocked now becomes free."""
    steps: int = 0
    """The cost of its filter, if measured."""
    pages: int = 0
    """Pages of which a filter let nothing pass."""

    def look_again(self, at_ms: int) -> None:
        self.look_again_ms = at_ms if self.look_again_ms is None else min(at_ms, self.look_again_ms)


class _Place(NamedTuple):
    topic: str
    queue_id: int
    mark: str


class PopReader:
    """See the module. Any thread may call."""

    def __init__(self, parts: BrokerContext, log: PopLog, orders: OrderInfos) -> None:
        self._parts = parts
        self._log = log
        self._orders = orders
        self._tiered = parts.tiered
        self._chance = random.Random()  # noqa: S311 - it spreads pops over queues
        self._lock = threading.Lock()
        self._taken: set[tuple[str, str, int]] = set()
        self._failures = ReadFailures(parts.clock)
        parts.metrics.counter(
            "tiermq_pops_failed_total", "pops that failed to read a queue", (), lambda: self._failures.count
        )

    def gather(self, pop: Pop, topic: TopicConfig, *, may_wait: bool) -> Steps[PopResult]:
        """Take messages. Raises RequestRefused when the store refuses check points, or when only queues that cannot be
        read have messages.
        """
        queue = ORDERED_QUEUE if pop.is_ordered else self._log.next_queue()
        found = PopResult(self._parts.clock.now_ms(), queue)
        refusal: RequestRefused | None = None
        pages = 0
        for visited, place in enumerate(self._places(pop, topic), 1):
            try:
                self._visit(pop, place, found, may_wait)
            except RequestRefused as error:  # Messages of other queues must reach the client.
                refusal = error
            if visited % QUEUES_A_STEP == 0 or found.pages - pages >= PAGES_MAX:
                if found.count:  # A read that is dropped between its steps drops no message with it.
                    break
                pages = found.pages
                yield
        if refusal is not None and not found.count and not found.met_cold:
            raise refusal
        return found

    def has_message(self, pop: Pop, topic: TopicConfig) -> Steps[bool]:
        """Whether a pop without a filter would find a message; nothing is taken."""
        pages = PAGES_MAX
        for visited, place in enumerate(self._places(pop, topic), 1):
            if visited % QUEUES_A_STEP == 0:
                yield
            if pop.is_ordered and self._blocked(pop, place) is not None:
                continue
            begin = self._begin(pop, place, peek=True)
            if self._parts.store.max_offset(place.topic, place.queue_id) <= begin:
                continue
            if not is_of_pair(pop.group, place.topic):
                return True
            own, pages = self._has_own(pop, place, begin, pages)
            if own:
                return True
        return False

    def _has_own(self, pop: Pop, place: _Place, offset: int, pages: int) -> tuple[bool, int]:
        """Whether some message from `offset` on is the group's, and how many of `pages` are left to look at; True if
        only the tier has it, or too many were looked at.
        """
        while pages > 0:
            pages -= 1
            page = self._page(pop, place, offset, 1, may_wait=False)
            if page is None or page.count:
                return True, pages
            if page.next_offset == offset:
                return False, pages
            offset = page.next_offset
        return True, 0

    def _places(self, pop: Pop, topic: TopicConfig) -> Iterator[_Place]:
        count, by_priority = topic.read_queues, topic.attributes.get(MESSAGE_TYPE) == BY_PRIORITY
        if pop.queue_id >= 0:
            own: Iterable[int] = (pop.queue_id,)
        elif by_priority:
            own = reversed(range(count))
        else:
            first = self._chance.randrange(max(1, count))
            own = chain(range(first, count), range(first))
        places = (_Place(topic.name, queue_id, MARK_NORMAL) for queue_id in own)
        if pop.is_ordered or pop.topic.startswith(RETRY_PREFIX):
            return places
        again: list[tuple[str, str, int]] = []
        for name, mark in zip(pop_retry_topics(pop.group, pop.topic), (MARK_RETRY, MARK_RETRY_V2), strict=True):
            retry = self._parts.topics.get(name)
            if retry is not None and retry.read_queues > 0:
                again.append((name, mark, retry.read_queues))
        if not again:
            return places
        retries = (_Place(name, queue_id, mark) for name, mark, queues in again for queue_id in range(queues))
        retry_first = not by_priority and self._chance.random() < RETRY_FIRST
        return chain(retries, places) if retry_first else chain(places, retries)

    # One queue.

    def _visit(self, pop: Pop, place: _Place, found: PopResult, may_wait: bool) -> None:
        key = (pop.group, place.topic, place.queue_id)
        with self._lock:
            if key in self._taken:
                found.look_again(found.pop_ms + BUSY_MS)
                return
            self._taken.add(key)
        try:
            after = self._take(pop, place, found, may_wait)
            found.rest += max(0, self._parts.store.max_offset(place.topic, place.queue_id) - after)
        finally:
            with self._lock:
                self._taken.discard(key)

    def _take(self, pop: Pop, place: _Place, found: PopResult, may_wait: bool) -> int:
        """Take what fits; returns the group's next offset."""
        offset = self._begin(pop, place)
        room = pop.max_messages - found.count
        if room <= 0 or offset == self._parts.store.max_offset(place.topic, place.queue_id):
            return offset
        if pop.is_ordered and (free_ms := self._blocked(pop, place)) is not None:
            found.look_again(free_ms)
            return offset
        if not pop.is_ordered and len(self._log.points) >= self._parts.config.pop_ck_max_buffer_size:
            found.look_again(found.pop_ms + FULL_MS)
            return offset
        steps = getattr(pop.message_filter, "steps", 0) if place.mark == MARK_NORMAL else 0
        for _ in range(PAGES_MAX):
            if found.steps >= STEPS_MAX:
                break
            page = self._page(pop, place, offset, room, may_wait)
            if page is None:
                found.met_cold = True
                return offset
            found.steps += _steps_of(page, steps, offset)
            if page.count:
                return self._give(pop, place, page, found, offset)
            if page.next_offset == offset:
                return offset
            found.pages += 1
            offset = page.next_offset  # Filtered out, deleted, or beyond an end that is elsewhere now.
            self._parts.offsets.commit(pop.group, place.topic, place.queue_id, offset)
        found.look_again(found.pop_ms)
        return offset

    def _page(self, pop: Pop, place: _Place, offset: int, room: int, may_wait: bool) -> GetPage | None:
        """A page from `offset` on; None when only the tier has it. Raises RequestRefused when it cannot be read."""
        topic, queue_id, chosen = place.topic, place.queue_id, self._filter(pop, place)
        try:
            if self._tiered is None or is_light_queue(topic):  # Light queues are not tiered, their messages are.
                return self._parts.local.get(topic, queue_id, offset, room, message_filter=chosen)
            if may_wait:
                return self._tiered.get(topic, queue_id, offset, room, message_filter=chosen, group=pop.group)
            return self._tiered.get_local(topic, queue_id, offset, room, message_filter=chosen)
        except TierMQError as error:
            raise self._failures.refusal(topic, queue_id, offset, error) from error

    def _filter(self, pop: Pop, place: _Place) -> MessageFilter | None:
        chosen = None
        if place.mark == MARK_NORMAL:
            chosen = Readable.of(pop.command.account, place.topic, pop.message_filter)
        if is_of_pair(pop.group, place.topic):
            return OwnRetries(self._parts, pop.group, place.topic, chosen)
        return NotOfOthers(pop.group, place.topic, chosen) if may_share_retry_topic(pop.group, place.topic) else chosen

    def _blocked(self, pop: Pop, place: _Place) -> int | None:
        return self._orders.blocked_until_ms((place.topic, pop.group, place.queue_id), pop.attempt_id)

    def _begin(self, pop: Pop, place: _Place, *, peek: bool = False) -> int:
        """The group's next offset: a reset, the committed offset, or the start of a new group."""
        offsets = self._parts.offsets
        if not peek and offsets.has_resets:
            reset = offsets.take_reset(pop.group, place.topic, place.queue_id)
            if reset is not None:
                self._orders.clear((place.topic, pop.group, place.queue_id))
                offsets.commit(pop.group, place.topic, place.queue_id, reset)
                return reset
        known = offsets.query(pop.group, place.topic, place.queue_id)
        if known >= 0:
            return known
        first = self._first(pop, place)
        if not peek:
            offsets.commit(pop.group, place.topic, place.queue_id, first)
        return first

    def _first(self, pop: Pop, place: _Place) -> int:
        """Of a new group: the beginning if it asked for that, or if the queue is young; else the last message."""
        store, local = self._parts.store, self._parts.local
        low, end = max(0, store.min_offset(place.topic, place.queue_id)), store.max_offset(place.topic, place.queue_id)
        if pop.starts_at_min or place.mark != MARK_NORMAL:
            return low
        physical = local.physical_offset_of(place.topic, place.queue_id, 0)
        if low == 0 and physical >= 0 and local.max_physical_offset - physical <= local.memory_window_bytes:
            return 0
        return max(low, end - 1, 0)

    # Giving.

    def _give(self, pop: Pop, place: _Place, page: GetPage, found: PopResult, begin: int) -> int:
        start = int.from_bytes(page.data[_QUEUE_OFFSET], "big")
        if is_light_queue(place.topic):  # Records have the offsets of their own topic.
            start = page.next_offset - page.count
        if start == page.next_offset - page.count:  # One record for each unit, none left out.
            offsets = tuple(range(start, page.next_offset))
        else:
            offsets = tuple(queue_offsets_of(page.data))
        given: Iterable[int] = offsets
        data: Iterable[bytes | memoryview] = (page.data,)
        if place.mark != MARK_NORMAL:
            records = {
                each.queue_offset: self._as_first_sent(pop, place, start, found, each)
                for each in decode_records(page.data)
            }
            fitting = {offset: record for offset, record in records.items() if record is not None}
            given, data = fitting.keys(), fitting.values()
        if pop.is_ordered:
            key = (place.topic, pop.group, place.queue_id)
            counts = self._orders.popped(key, offsets, found.pop_ms, pop.invisible_ms, pop.attempt_id)
            found.order_counts += _order_counts(place, offsets, counts)
            after = begin
        else:
            popped = PoppedMessage(pop.group, place.topic, place.queue_id, start, found.pop_ms)
            after = page.next_offset
            self._log.begin(found.revive_queue, popped, pop.invisible_ms, offsets, group_offset=after)
        if given_text := ",".join(map(str, given)):
            found.count += given_text.count(",") + 1
            found.starts.append(f"{place.mark} {place.queue_id} {start}")
            found.offsets.append(f"{place.mark} {place.queue_id} {given_text}")
            found.data += data
        return after if not pop.is_ordered else page.next_offset

    def _as_first_sent(
        self, pop: Pop, place: _Place, start: int, found: PopResult, message: StoredMessage
    ) -> bytes | None:
        """A retried message under the requested topic, with its receipt, which clients cannot build.

        None when no record can hold both.
        """
        receipt = Receipt(
            start,
            found.pop_ms,
            pop.invisible_ms,
            found.revive_queue,
            place.mark,
            self._parts.config.broker_name,
            place.queue_id,
            message.queue_offset,
        )
        properties = receipt.added_to(message.encoded_properties)
        return None if properties is None else reencode(message, topic=pop.topic, properties=properties)


def whole(steps: Steps[Found]) -> Found:
    """What a read finds: for a thread that may take its time, and for a single queue."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Found = done.value
            return found


def queue_offsets_of(data: bytes | memoryview) -> Iterator[int]:
    """The queue offset of each record of a page, which has whole records only."""
    view, at = memoryview(data), 0
    while at < len(view):
        record = view[at:]
        yield int.from_bytes(record[_QUEUE_OFFSET], "big")
        at += int.from_bytes(record[_SIZE], "big")


def _order_counts(place: _Place, offsets: tuple[int, ...], counts: dict[int, int]) -> list[str]:
    """How often messages were delivered before: one by one, and the least of the queue, which older clients read."""
    least = min(counts.values()) if counts and len(counts) == len(offsets) else 0
    listed = [f"{place.mark} qo{place.queue_id}%{offset} {count}" for offset, count in counts.items()]
    return [*listed, f"{place.mark} {place.queue_id} {least}"]


def _steps_of(page: GetPage, steps: int, offset: int) -> int:
    """The comparisons that a page cost. One that ended early had long records, and cost as much as a page may."""
    looked_at = max(0, page.next_offset - offset)
    counted = steps * looked_at
    is_cut = not page.count and page.next_offset < page.max_offset and looked_at < FILTER_UNITS
    return FILTER_STEPS_MAX if is_cut and 0 < counted < FILTER_STEPS_MAX - steps else counted
