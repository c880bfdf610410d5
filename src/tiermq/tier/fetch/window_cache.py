"""WindowCache: windows in memory, weighed to the byte, shared between groups, evicted fairly.

* The sum of the weights never exceeds `max_bytes` (a window that is larger than that is served and not kept).
* Two TTLs: a window nobody has read yet is kept longer than one that was read, for it was fetched for somebody.
* Each window belongs to the group it was fetched for. When room is needed, the group with the largest share gives
  first, its least recently read window; so a slow group that keeps much cannot push out what a fast one just fetched.
* A window that goes unread is reported to its owner's read-ahead (`on_unread`).

Threads: everything under one lock, held for dictionary work only.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tiermq.clock import Clock
from tiermq.tier.fetch.window import Window

QueueName = tuple[str, int]

UNREAD_FACTOR = 12  # An unread window is kept this many times longer than one that was read.


@dataclass(slots=True)
class Kept:
    """A window with what the cache knows about it."""

    queue: QueueName
    window: Window
    owner: str
    touched_ms: int
    read: bool = False


class WindowCache:
    """See the module."""

    def __init__(
        self,
        max_bytes: int,
        expire_ms: int,
        clock: Clock,
        on_unread: Callable[[str, QueueName], None] = lambda _owner, _queue: None,
    ) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hit_bytes = 0
        self.miss_bytes = 0
        self.access_count = 0
        self.hit_count = 0
        self._expire_ms = expire_ms
        self._clock = clock
        self._on_unread = on_unread
        self._lock = threading.Lock()
        self._first_offsets: dict[QueueName, list[int]] = {}
        self._kept: dict[tuple[QueueName, int], Kept] = {}
        self._by_owner: dict[str, OrderedDict[tuple[QueueName, int], None]] = {}
        self._owner_bytes: dict[str, int] = {}

    @property
    def count(self) -> int:
        return len(self._kept)

    def find(self, queue: QueueName, offset: int) -> Window | None:
        """The window that holds `offset`; it counts as read."""
        self.access_count += 1
        with self._lock:
            kept = self._covering(queue, offset)
            if kept is None:
                return None
            now_ms = self._clock.now_ms()
            if self._is_expired(kept, now_ms):
                self._drop(kept)
                return None
            kept.read = True
            kept.touched_ms = now_ms
            self._by_owner[kept.owner].move_to_end((queue, kept.window.first_offset))
            self.hit_count += 1
            return kept.window

    def holds(self, queue: QueueName, offset: int) -> bool:
        """Whether a get at `offset` would hit. Not a read."""
        with self._lock:
            return self._covering(queue, offset) is not None

    def next_start(self, queue: QueueName, offset: int) -> int | None:
        """Where the first window behind `offset` begins: a fetch need not go further."""
        with self._lock:
            firsts = self._first_offsets.get(queue, [])
            at = bisect_right(firsts, offset)
            return firsts[at] if at < len(firsts) else None

    def put(self, queue: QueueName, window: Window, owner: str) -> None:
        """Keep a window that was fetched for `owner`; make room first."""
        if window.weight > self.max_bytes or window.count == 0:
            return
        unread: list[Kept] = []
        with self._lock:
            now_ms = self._clock.now_ms()
            if (queue, window.first_offset) in self._kept:
                self._drop(self._kept[(queue, window.first_offset)])
            unread += self._expire(now_ms)
            while self.bytes + window.weight > self.max_bytes:
                victim = self._victim()
                if not victim.read:
                    unread.append(victim)
                self._drop(victim)
            self._keep(Kept(queue, window, owner, now_ms))
        for kept in unread:
            self._on_unread(kept.owner, kept.queue)

    def expire(self) -> int:
        """Drop what has been kept too long; how many windows went. Called now and then: idle memory is freed."""
        with self._lock:
            before = len(self._kept)
            unread = self._expire(self._clock.now_ms())
            dropped = before - len(self._kept)
        for kept in unread:
            self._on_unread(kept.owner, kept.queue)
        return dropped

    def forget(self, queue: QueueName) -> None:
        """Drop everything of a queue: it was deleted or its beginning moved."""
        with self._lock:
            for first in list(self._first_offsets.get(queue, [])):
                self._drop(self._kept[(queue, first)])

    def _covering(self, queue: QueueName, offset: int) -> Kept | None:
        firsts = self._first_offsets.get(queue)
        if not firsts:
            return None
        at = bisect_right(firsts, offset) - 1
        if at < 0:
            return None
        kept = self._kept[(queue, firsts[at])]
        return kept if offset < kept.window.end_offset else None

    def _is_expired(self, kept: Kept, now_ms: int) -> bool:
        patience_ms = self._expire_ms if kept.read else self._expire_ms * UNREAD_FACTOR
        return now_ms - kept.touched_ms >= patience_ms

    def _expire(self, now_ms: int) -> list[Kept]:
        """Drop expired windows; the unread ones among them."""
        gone = [kept for kept in self._kept.values() if self._is_expired(kept, now_ms)]
        for kept in gone:
            self._drop(kept)
        return [kept for kept in gone if not kept.read]

    def _victim(self) -> Kept:
        """The least recently read window of the group that holds most."""
        owner = max(self._owner_bytes, key=lambda name: self._owner_bytes[name])
        return self._kept[next(iter(self._by_owner[owner]))]

    def _keep(self, kept: Kept) -> None:
        name = (kept.queue, kept.window.first_offset)
        self._kept[name] = kept
        insort(self._first_offsets.setdefault(kept.queue, []), kept.window.first_offset)
        self._by_owner.setdefault(kept.owner, OrderedDict())[name] = None
        self._owner_bytes[kept.owner] = self._owner_bytes.get(kept.owner, 0) + kept.window.weight
        self.bytes += kept.window.weight

    def _drop(self, kept: Kept) -> None:
        name = (kept.queue, kept.window.first_offset)
        del self._kept[name]
        firsts = self._first_offsets[kept.queue]
        firsts.remove(kept.window.first_offset)
        if not firsts:
            del self._first_offsets[kept.queue]
        owned = self._by_owner[kept.owner]
        del owned[name]
        self._owner_bytes[kept.owner] -= kept.window.weight
        if not owned:
            del self._by_owner[kept.owner], self._owner_bytes[kept.owner]
        self.bytes -= kept.window.weight
