"""WindowCache: windows in memory, weighed to the byte, shared between groups, evicted fairly.

* The sum of the weights never exceeds `max_bytes`.
* Each window belongs to the group it was fetched for; any group may read it. When room is needed, the group that would
  hold most gives, its own new window counted. So with n groups nobody who holds at most the n-th part loses anything,
  whatever the others fetch. A window for which only its own group could make room, and cannot, is not kept.
* A group gives what it has read before what still waits for it, and the least recently read first.
* Two TTLs: a window that nobody has read yet is kept longer than one that was read: it was fetched for somebody.
* A window that goes unread is reported to its owner's read-ahead (`on_unread`).

A reader may keep its `Kept` and go on reading without asking the cache again: it sets `fresh`, which counts as a read
when room is needed or time is over. A window that is dropped is taken out of its `Kept`, so that nobody holds it.

Threads: everything under one lock, held for dictionary work only. `on_unread` is called outside of it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable

from tiermq.clock import Clock
from tiermq.tier.fetch.window import Window

UNREAD_FACTOR = 12  # An unread window is kept this many times longer than one that was read.


class Kept:
    """A window's place in the cache. `window` is None once it was dropped."""

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
        """It was read: it goes to the end, from the unread ones if it was there."""
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

    @property
    def owner_count(self) -> int:
        return len(self._owners)

    def bytes_of(self, owner: str) -> int:
        """How much a group holds."""
        order = self._owners.get(owner)
        return 0 if order is None else order.bytes

    def share(self) -> int:
        """What one group may hold without being the first to give: all have the same."""
        return self.max_bytes // max(1, len(self._owners))

    def find(self, queue: Hashable, offset: int) -> Kept | None:
        """The place of the window that holds `offset`; it counts as read."""
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
        """Drop one window: everybody has read it."""
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

        A window that was read since it was last looked at goes to the end first: it may be the one being read.
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
