"""Gathering: what one pop takes from the queues of its topic and of its retry topic.

    a fifth of the pops: retries first, then the topic      the others: the topic, then retries if there is room

Each queue is taken from where the group's offset is. Without order, a check point is made and the offset moves beyond
what was taken; with order, the offset stays until the messages are acknowledged (`pop_order`).

Invariants: nothing is taken from a queue that another pop of the group is taking from now; a queue whose messages are
in the tier is left alone unless it is allowed to wait. What is taken comes with everything that the answer says of it.
While `pop_ck_max_buffer_size` check points are open nothing more is given out, but to those who keep order.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tiermq.broker.parts import BrokerParts
from tiermq.broker.pop import Pop
from tiermq.broker.pop_checkpoints import Popped
from tiermq.broker.pop_log import PopLog
from tiermq.broker.pop_order import OrderInfos
from tiermq.broker.pop_receipts import ORDERED_QUEUE, Receipt
from tiermq.broker.pop_topics import (
    MARK_NORMAL,
    MARK_RETRY,
    MARK_RETRY_V2,
    OwnRetries,
    is_of_pair,
    pop_retry_topics,
)
from tiermq.message.message_filter import MessageFilter
from tiermq.message.properties import POP_CK, with_property
from tiermq.message.record import decode_records, reencode
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import RETRY_PREFIX
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.store.reading import FILTER_STEPS_MAX

if TYPE_CHECKING:
    from tiermq.tier.tiered_reading import Page

RETRY_FIRST = 0.2
PAGES_MAX = 16
"""Of one queue, when a filter lets nothing pass."""
STEPS_MAX = 2 * FILTER_STEPS_MAX
"""Comparisons of one pop, over all its queues; the next look goes on."""
BUSY_MS = 100
"""After which a queue is looked at again that another pop was taking from."""
FULL_MS = 1_000
"""After which a pop is asked again that came while too much was open."""
_SIZE = slice(0, 4)
_QUEUE_OFFSET = slice(20, 28)


@dataclass(slots=True)
class Gathered:
    """What a pop got."""

    pop_ms: int
    revive_queue: int
    count: int = 0
    rest: int = 0
    data: list[bytes | memoryview] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    order_counts: list[str] = field(default_factory=list)
    met_cold: bool = False
    """Some queue was left alone because the tier has its messages."""
    look_again_ms: int | None = None
    """When a queue is free that is not now."""
    steps: int = 0
    """What its filter has cost, where that says so."""
    end: int = 0
    """The sum of where queues ended before any was looked at: if they end elsewhere now, messages came meanwhile."""

    def look_again(self, at_ms: int) -> None:
        self.look_again_ms = at_ms if self.look_again_ms is None else min(at_ms, self.look_again_ms)


@dataclass(frozen=True, slots=True)
class _Place:
    topic: str
    queue_id: int
    mark: str


class Gathering:
    """See the module. Any thread may call."""

    def __init__(self, parts: BrokerParts, log: PopLog, orders: OrderInfos) -> None:
        self._parts = parts
        self._log = log
        self._orders = orders
        self._tiered = parts.tiered
        self._chance = random.Random()  # noqa: S311 - it spreads pops over queues
        self._lock = threading.Lock()
        self._taken: set[tuple[str, str, int]] = set()

    def gather(self, pop: Pop, topic: TopicConfig, *, may_wait: bool) -> Gathered:
        """Take messages. Raises RequestRefused when the store does not take check points, TierError if it may wait."""
        queue = ORDERED_QUEUE if pop.is_ordered else self._log.next_queue()
        found = Gathered(self._parts.clock.now_ms(), queue, end=self.end_of(pop, topic))
        for place in self._places(pop, topic):
            self._visit(pop, place, found, may_wait)
        return found

    def end_of(self, pop: Pop, topic: TopicConfig) -> int:
        """The sum of where the queues end that a pop looks at."""
        store = self._parts.store
        return sum(store.max_offset(place.topic, place.queue_id) for place in self._places(pop, topic))

    def has_message(self, pop: Pop, topic: TopicConfig) -> bool:
        """Whether a pop would find something, filters left aside; nothing is taken."""
        for place in self._places(pop, topic):
            if pop.is_ordered and self._blocked(pop, place) is not None:
                continue
            begin = self._begin(pop, place, peek=True)
            if self._parts.store.max_offset(place.topic, place.queue_id) > begin and (
                not is_of_pair(pop.group, place.topic) or self._has_own(pop, place, begin)
            ):
                return True
        return False

    def _has_own(self, pop: Pop, place: _Place, offset: int) -> bool:
        """Whether some message from `offset` on is the group's; what the tier must be asked for may be."""
        for _ in range(PAGES_MAX):
            page = self._page(pop, place, offset, 1, may_wait=False)
            if page is None or page.count:
                return True
            if page.next_offset == offset:
                return False
            offset = page.next_offset
        return True

    def _places(self, pop: Pop, topic: TopicConfig) -> Iterator[_Place]:
        own = [_Place(topic.name, pop.queue_id, MARK_NORMAL)] if pop.queue_id >= 0 else []
        if pop.queue_id < 0 and topic.read_queues > 0:
            first = self._chance.randrange(topic.read_queues)
            own = [_Place(topic.name, (first + at) % topic.read_queues, MARK_NORMAL) for at in range(topic.read_queues)]
        again: list[_Place] = []
        if not pop.is_ordered and not pop.topic.startswith(RETRY_PREFIX):
            for name, mark in zip(pop_retry_topics(pop.group, pop.topic), (MARK_RETRY, MARK_RETRY_V2), strict=True):
                retry = self._parts.topics.get(name)
                again += [_Place(name, queue_id, mark) for queue_id in range(retry.read_queues if retry else 0)]
        retry_first = bool(again) and self._chance.random() < RETRY_FIRST
        return iter(again + own if retry_first else own + again)

    # One queue.

    def _visit(self, pop: Pop, place: _Place, found: Gathered, may_wait: bool) -> None:
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

    def _take(self, pop: Pop, place: _Place, found: Gathered, may_wait: bool) -> int:
        """Take what there is room for; where the queue goes on for the group."""
        offset = self._begin(pop, place)
        room = pop.max_messages - found.count
        if room <= 0:
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
            found.steps += steps * max(0, page.next_offset - offset)
            if page.count:
                return self._give(pop, place, page, found, offset)
            if page.next_offset == offset:
                return offset
            offset = page.next_offset  # Filtered out, deleted, or beyond an end that is elsewhere now.
            self._parts.offsets.commit(pop.group, place.topic, place.queue_id, offset)
        found.look_again(found.pop_ms)
        return offset

    def _page(self, pop: Pop, place: _Place, offset: int, room: int, may_wait: bool) -> Page | None:
        chosen = self._filter(pop, place)
        if self._tiered is None:
            return self._parts.local.get(place.topic, place.queue_id, offset, room, message_filter=chosen)
        if may_wait:
            return self._tiered.get(place.topic, place.queue_id, offset, room, message_filter=chosen, group=pop.group)
        return self._tiered.hot_page(place.topic, place.queue_id, offset, room, message_filter=chosen)

    def _filter(self, pop: Pop, place: _Place) -> MessageFilter | None:
        chosen = pop.message_filter if place.mark == MARK_NORMAL else None
        return OwnRetries(self._parts, pop.group, place.topic, chosen) if is_of_pair(pop.group, place.topic) else chosen

    def _blocked(self, pop: Pop, place: _Place) -> int | None:
        return self._orders.blocked_until_ms((place.topic, pop.group, place.queue_id), pop.attempt_id)

    def _begin(self, pop: Pop, place: _Place, *, peek: bool = False) -> int:
        """Where the group goes on: where it was sent, where it is, or where a new group begins."""
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

    def _give(self, pop: Pop, place: _Place, page: Page, found: Gathered, begin: int) -> int:
        offsets = tuple(queue_offsets_of(page.data))
        start = offsets[0]
        if pop.is_ordered:
            key = (place.topic, pop.group, place.queue_id)
            counts = self._orders.popped(key, offsets, found.pop_ms, pop.invisible_ms, pop.attempt_id)
            found.order_counts += _order_counts(place, offsets, counts)
            after = begin
        else:
            popped = Popped(pop.group, place.topic, place.queue_id, start, found.pop_ms)
            after = page.next_offset
            self._log.begin(found.revive_queue, popped, pop.invisible_ms, offsets, group_offset=after)
        found.count += len(offsets)
        found.starts.append(f"{place.mark} {place.queue_id} {start}")
        found.offsets.append(f"{place.mark} {place.queue_id} {','.join(map(str, offsets))}")
        if place.mark == MARK_NORMAL:
            found.data.append(page.data)
        else:
            found.data += [self._as_first_sent(pop, place, start, found, each) for each in decode_records(page.data)]
        return after if not pop.is_ordered else page.next_offset

    def _as_first_sent(self, pop: Pop, place: _Place, start: int, found: Gathered, message: StoredMessage) -> bytes:
        """A retried message under the topic that was asked for, with its receipt: clients cannot make that one."""
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
        properties = with_property(message.encoded_properties, POP_CK, receipt.encode())
        return reencode(message, topic=pop.topic, properties=properties)


def queue_offsets_of(data: bytes | memoryview) -> Iterator[int]:
    """The queue offset of each record of a page, which has whole records only."""
    view, at = memoryview(data), 0
    while at < len(view):
        record = view[at:]
        yield int.from_bytes(record[_QUEUE_OFFSET], "big")
        at += int.from_bytes(record[_SIZE], "big")


def _order_counts(place: _Place, offsets: tuple[int, ...], counts: dict[int, int]) -> list[str]:
    """How often messages were given out before: one by one, and the least of the queue, which older clients read."""
    least = min(counts.values()) if counts and len(counts) == len(offsets) else 0
    told = [f"{place.mark} qo{place.queue_id}%{offset} {count}" for offset, count in counts.items()]
    return [*told, f"{place.mark} {place.queue_id} {least}"]
