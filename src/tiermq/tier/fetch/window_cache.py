"""WindowCache: windows in memory, weighed to the byte, shared between groups, evicted fairly.

* The sum of the weights never exceeds `max_bytes`.
* Each window belongs to the group it was fetched for; any group may read it. When space is needed, the group that would
  hold most loses windows, its own new window counted. So with n groups, a group that holds at most the n-th part loses
  nothing, whatever other groups fetch. A window for which its own group cannot make space is not kept.
* A group loses read windows before unread ones, and the least recently read first.
* Two TTLs: an unread window is kept longer than one that was read.
* A window that goes unread is reported to its owner's read-ahead (`on_unread`).

A reader may keep its `Kept` and continue reading without a cache lookup: it sets `fresh`, which counts as a read
on eviction and expiry. A dropped window is removed from its `Kept`, so that no reader holds it.

Threads: everything under one lock, held for dictionary work only. `on_unread` is called outside of it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator

from tiermq.clock import Clock
from tiermq.consumequeue.unit import UNIT_BYTES, is_ext_address
from tiermq.errors import CorruptSegment
from tiermq.kernel import WindowPages, check_window
from tiermq.message.message_filter import MessageFilter
from tiermq.tier.names import QueueName
from tiermq.tier.queue.records import split, store_time_at
from tiermq.tier.queue.units import Unit, iter_units, log_offset_at

OVERHEAD_BYTES = 1024  # Of the objects around the bytes: the window, two views, its entry in the cache.
UNIT_VALUE_BYTES = 232  # Of one decoded unit with the numbers in it.

Piece = tuple[bytes, int, int]
"""Part of a page: complete records, their number, and the next offset. A tuple, because every get makes one."""


class Window:
    """Consecutive messages of one queue as they came from the tier, checked once, served many times.

    In the tier a queue's records are contiguous, so a page of messages is one slice of the window's bytes.

        units   | u0 | u1 | u2 | ... |            20 bytes each, from queue offset `first_offset` on
        data    | record 0 | record 1 | ... |     from log offset `log_offset` on

    A window is *plain* when every unit is followed by exactly its record (the kernel checked offsets, sizes, numbers,
    owners and body CRCs); then nothing is done per message. Otherwise (a gap, an end mark of a sealed segment,
    damage) it keeps the list of the units whose records are good (`queue.records`), and of the queue offsets whose
    messages are damaged: pages end before them, and a page that would begin with one is an error. A gap is passed
    over: there was no message. Immutable after it is made. `pages` cuts pages out of a plain window, None of any
    other.
    """

    __slots__ = (
        "count",
        "damaged",
        "data",
        "end_offset",
        "first_offset",
        "good_units",
        "log_offset",
        "pages",
        "units",
    )  # fmt: skip

    def __init__(
        self,
        first_offset: int,
        units: bytes | memoryview,
        data: bytes | memoryview,
        log_offset: int,
        owner: QueueName | None = None,
    ) -> None:
        """`owner`: the expected topic and queue of the records; None: not checked."""
        self.first_offset = first_offset
        self.units = memoryview(units)
        self.data = memoryview(data)
        self.log_offset = log_offset
        self.count = len(units) // UNIT_BYTES
        self.end_offset = first_offset + self.count
        self.damaged: list[int] = []
        self.good_units: list[Unit] | None = None
        self.pages: WindowPages | None = None
        topic, queue_id = owner or ("", 0)
        if check_window(units, data, log_offset, first_offset, True, topic.encode(), queue_id) == self.count:
            self.pages = WindowPages(units, data, log_offset, first_offset)
        else:
            self.good_units, self.damaged = split(units, self.data, log_offset, first_offset, owner)

    @property
    def is_plain(self) -> bool:
        return self.good_units is None

    @property
    def corrupt_count(self) -> int:
        return len(self.damaged)

    @property
    def weight(self) -> int:
        """The bytes that keeping this window costs: of memory that its views keep, also what they do not show."""
        good_bytes = 0 if self.good_units is None else len(self.good_units) * UNIT_VALUE_BYTES
        return _held_bytes(self.units) + _held_bytes(self.data) + good_bytes + OVERHEAD_BYTES

    def take(self, offset: int, max_messages: int, max_bytes: int) -> Piece:
        """Messages from `offset` on, as many as the limits allow, the first one in any case."""
        if self.pages is not None:
            return self.pages.take(offset, max_messages, max_bytes)
        return self.take_matching(offset, max_messages, max_bytes, None)

    def _end_of(self, index: int) -> int:
        """Where the records of the first `index` units end in the data of a plain window."""
        if index >= self.count:
            return len(self.data)
        return log_offset_at(self.units, index) - self.log_offset

    def take_matching(self, offset: int, max_messages: int, max_bytes: int, chosen: MessageFilter | None) -> Piece:
        """The same with a filter: by the unit first, then by the record."""
        parts: list[memoryview] = []
        total = 0
        data, base = self.data, self.log_offset
        end = self._sound_end(offset)
        for queue_offset, log_offset, size, tags_code in self._units_from(offset):
            if queue_offset >= end:
                break
            if len(parts) >= max_messages:
                return b"".join(parts), len(parts), queue_offset
            record = data[log_offset - base : log_offset - base + size]
            if chosen is not None:
                # An ext address has no meaning here: ext units stay in the local store.
                code = None if is_ext_address(tags_code) else tags_code
                if not chosen.matches_unit(code, None) or not chosen.matches_record(record):
                    continue
            if parts and total + size > max_bytes:
                return b"".join(parts), len(parts), queue_offset
            parts.append(record)
            total += size
        return b"".join(parts), len(parts), end

    def _sound_end(self, offset: int) -> int:
        """Up to where the messages from `offset` on are good. Raises CorruptSegment when that one is damaged."""
        if not self.damaged:
            return self.end_offset
        index = bisect_left(self.damaged, offset)
        if index == len(self.damaged):
            return self.end_offset
        if self.damaged[index] == offset:
            raise CorruptSegment(
                f"the message at queue offset {offset} is damaged in the tier, and is not passed over; "
                "run `tiermq tier verify`, and `tiermq tier repair --store` where a local store still has it"
            )
        return self.damaged[index]

    def _units_from(self, offset: int) -> Iterator[Unit] | list[Unit]:
        if self.good_units is not None:
            return self.good_units[bisect_left(self.good_units, offset, key=_queue_offset) :]
        return iter_units(self.units[(offset - self.first_offset) * UNIT_BYTES :], offset)

    # Times

    def store_time_of(self, offset: int) -> int:
        """Store time of one message; -1 when it is not in the window or not good."""
        if not self.first_offset <= offset < self.end_offset:
            return -1
        for unit in self._units_from(offset):
            return self._time_of(unit) if unit.queue_offset == offset else -1
        return -1

    def first_stored_from(self, timestamp_ms: int) -> int:
        """The first good message that was stored at the time or later; the window's end without one.

        By halving: store times of a queue do not decrease.
        """
        if self.good_units is not None:
            at = bisect_left(self.good_units, timestamp_ms, key=self._time_of)
            return self.good_units[at].queue_offset if at < len(self.good_units) else self.end_offset
        index = bisect_left(
            range(self.count), timestamp_ms, key=lambda number: store_time_at(self.data, self._end_of(number))
        )
        return self.first_offset + index

    def last_stored_before(self, offset: int) -> tuple[int, int] | None:
        """(queue offset, store time) of the newest good message before `offset`; None when there is none."""
        if self.good_units is not None:
            at = bisect_left(self.good_units, offset, key=_queue_offset)
            unit = self.good_units[at - 1] if at else None
            return None if unit is None else (unit.queue_offset, self._time_of(unit))
        if offset <= self.first_offset:
            return None
        return offset - 1, store_time_at(self.data, self._end_of(offset - 1 - self.first_offset))

    def _time_of(self, unit: Unit) -> int:
        return store_time_at(self.data, unit.log_offset - self.log_offset)


def _held_bytes(view: memoryview) -> int:
    """The length of the memory that a view is a view of."""
    return memoryview(view.obj).nbytes


def _queue_offset(unit: Unit) -> int:
    return unit.queue_offset


UNREAD_FACTOR = 12  # An unread window is kept this many times longer than one that was read.


class Kept:
    """A window in the cache. `window` is None once it was dropped."""

    __slots__ = ("first_offset", "fresh", "owner", "queue", "read", "touched_ms", "weight", "window")

    def __init__(self, queue: Hashable, window: Window, owner: str, touched_ms: int, read: bool) -> None:
        self.queue = queue
        self.window: Window | None = window
        self.first_offset = window.first_offset
        self.weight = window.weight
        self.owner = owner
        self.touched_ms = touched_ms
        self.read = read
        self.fresh = False


class _Order:
    """Windows in the order of their last reading, the read ones and the unread ones apart."""

    __slots__ = ("bytes", "read", "unread")

    def __init__(self) -> None:
        self.bytes = 0
        self.read: OrderedDict[Kept, None] = OrderedDict()
        self.unread: OrderedDict[Kept, None] = OrderedDict()

    def add(self, kept: Kept) -> None:
        (self.read if kept.read else self.unread)[kept] = None
        self.bytes += kept.weight

    def remove(self, kept: Kept) -> None:
        del (self.read if kept.read else self.unread)[kept]
        self.bytes -= kept.weight

    def touch(self, kept: Kept) -> None:
        """Move it to the end of the read windows, also from the unread ones."""
        self.unread.pop(kept, None)
        self.read[kept] = None
        self.read.move_to_end(kept)


class WindowCache:
    """See the module."""

    def __init__(
        self,
        max_bytes: int,
        expire_ms: int,
        clock: Clock,
        on_unread: Callable[[str, Hashable], None] = lambda _owner, _queue: None,
    ) -> None:
        self.max_bytes = max_bytes
        self._expire_ms = expire_ms
        self._clock = clock
        self._on_unread = on_unread
        self._lock = threading.Lock()
        self._queues: dict[Hashable, list[Kept]] = {}
        self._all = _Order()
        self._owners: dict[str, _Order] = {}

    @property
    def bytes(self) -> int:
        return self._all.bytes

    @property
    def count(self) -> int:
        return len(self._all.read) + len(self._all.unread)

    def bytes_of(self, owner: str) -> int:
        """How much a group holds."""
        order = self._owners.get(owner)
        return 0 if order is None else order.bytes

    def share(self) -> int:
        """What one group may hold without being the first to give: all have the same."""
        return self.max_bytes // max(1, len(self._owners))

    def find(self, queue: Hashable, offset: int) -> Kept | None:
        """The entry of the window that holds `offset`; it counts as read."""
        unread: list[Kept] = []
        with self._lock:
            kept = self._covering(queue, offset)
            if kept is None:
                return None
            now_ms = self._clock.now_ms()
            if self._is_expired(kept, now_ms):
                unread = [] if kept.read else [kept]
                self._drop(kept)
            else:
                self._touch(kept, now_ms)
        self._report(unread)
        return None if kept.window is None else kept

    def covered_until(self, queue: Hashable, offset: int) -> int:
        """The first offset from `offset` on that is not kept. Not a read."""
        with self._lock:
            kept_here = self._queues.get(queue, [])
            at = max(0, bisect_right(kept_here, offset, key=_first_offset) - 1)
            for kept in kept_here[at:]:
                if kept.window is None or kept.first_offset > offset:
                    break
                offset = max(offset, kept.window.end_offset)
            return offset

    def peek(self, queue: Hashable, offset: int) -> Window | None:
        """The window that holds `offset`. Not a read."""
        with self._lock:
            kept = self._covering(queue, offset)
            return None if kept is None else kept.window

    def next_start(self, queue: Hashable, offset: int) -> int | None:
        """Where the first window behind `offset` begins: a fetch need not go further."""
        with self._lock:
            kept_here = self._queues.get(queue, [])
            at = bisect_right(kept_here, offset, key=_first_offset)
            return kept_here[at].first_offset if at < len(kept_here) else None

    def put(self, queue: Hashable, window: Window, owner: str, *, read: bool = False) -> Kept | None:
        """Keep a window that was fetched for `owner`; None when it is not kept. `read`: it is being served already."""
        weight = window.weight
        if weight > self.max_bytes or window.count == 0:
            return None
        with self._lock:
            now_ms = self._clock.now_ms()
            unread = self._expire(now_ms)
            kept: Kept | None = None
            if self._make_room(owner, weight, now_ms, unread):
                kept = Kept(queue, window, owner, now_ms, read)
                self._keep(kept, unread)
        self._report(unread)
        return kept

    def expire(self) -> int:
        """Drop what has been kept too long; how many windows went. Called now and then: idle memory is freed."""
        with self._lock:
            before = self.count
            unread = self._expire(self._clock.now_ms())
            dropped = before - self.count
        self._report(unread)
        return dropped

    def forget(self, queue: Hashable) -> None:
        """Drop everything of a queue: it was deleted or its beginning moved."""
        with self._lock:
            for kept in list(self._queues.get(queue, [])):
                self._drop(kept)

    def oldest_read(self, owner: str) -> Kept | None:
        """Of the windows that a group holds and that were read, the one whose last reading is longest ago."""
        with self._lock:
            order = self._owners.get(owner)
            return next(iter(order.read), None) if order is not None else None

    def release(self, kept: Kept) -> None:
        """Drop one window that all readers have read."""
        with self._lock:
            if kept.window is not None:
                self._drop(kept)

    # Everything below is called with the lock held, but for `_report`.

    def _covering(self, queue: Hashable, offset: int) -> Kept | None:
        kept_here = self._queues.get(queue)
        if not kept_here:
            return None
        at = bisect_right(kept_here, offset, key=_first_offset) - 1
        if at < 0:
            return None
        kept = kept_here[at]
        return kept if kept.window is not None and offset < kept.window.end_offset else None

    def _touch(self, kept: Kept, now_ms: int) -> None:
        kept.touched_ms = now_ms
        kept.fresh = False
        self._all.touch(kept)
        self._owners[kept.owner].touch(kept)
        kept.read = True

    def _is_expired(self, kept: Kept, now_ms: int) -> bool:
        patience_ms = self._expire_ms if kept.read else self._expire_ms * UNREAD_FACTOR
        return now_ms - kept.touched_ms >= patience_ms and not kept.fresh

    def _expire(self, now_ms: int) -> list[Kept]:
        """Drop expired windows; the unread ones among them. Both orders begin with the oldest."""
        gone: list[Kept] = []
        for order in (self._all.read, self._all.unread):
            while order:
                kept = next(iter(order))
                if kept.fresh:
                    self._touch(kept, now_ms)
                elif self._is_expired(kept, now_ms):
                    self._drop(kept)
                    gone.append(kept)
                else:
                    break
        return [kept for kept in gone if not kept.read]

    def _make_room(self, owner: str, weight: int, now_ms: int, unread: list[Kept]) -> bool:
        """Drop windows until `weight` more bytes fit; False when only the owner could give, and has nothing."""
        while self._all.bytes + weight > self.max_bytes:
            own = self._owners.get(owner)
            largest = max(self._owners, key=lambda name: self._owners[name].bytes)
            if (own.bytes if own else 0) + weight > self._owners[largest].bytes:
                largest = owner
            order = self._owners.get(largest)
            if order is None:
                return False
            victim = self._victim(order, now_ms)
            if not victim.read:
                unread.append(victim)
            self._drop(victim)
        return True

    def _victim(self, order: _Order, now_ms: int) -> Kept:
        """What a group gives first: what it has read; of what waits for it, what it would reach last.

        A window that was read since the last check is moved to the end first: it may be in use.
        """
        for _ in range(len(order.read)):
            kept = next(iter(order.read))
            if not kept.fresh:
                return kept
            self._touch(kept, now_ms)
        return next(reversed(order.unread)) if order.unread else next(iter(order.read))

    def _keep(self, kept: Kept, unread: list[Kept]) -> None:
        kept_here = self._queues.setdefault(kept.queue, [])
        at = bisect_left(kept_here, kept.first_offset, key=_first_offset)
        if at < len(kept_here) and kept_here[at].first_offset == kept.first_offset:
            unread += [] if kept_here[at].read else [kept_here[at]]
            self._drop(kept_here[at])
            kept_here = self._queues.setdefault(kept.queue, [])
        kept_here.insert(at, kept)
        self._all.add(kept)
        self._owners.setdefault(kept.owner, _Order()).add(kept)

    def _drop(self, kept: Kept) -> None:
        kept_here = self._queues[kept.queue]
        del kept_here[bisect_left(kept_here, kept.first_offset, key=_first_offset)]
        if not kept_here:
            del self._queues[kept.queue]
        self._all.remove(kept)
        order = self._owners[kept.owner]
        order.remove(kept)
        if not order.read and not order.unread:
            del self._owners[kept.owner]
        kept.window = None

    def _report(self, unread: Iterable[Kept]) -> None:
        for kept in unread:
            self._on_unread(kept.owner, kept.queue)


def _first_offset(kept: Kept) -> int:
    return kept.first_offset
