"""QueueLocks: which client of a group may consume a queue in order.

Invariants: a queue of a group has at most one holder; a lock that was not renewed for `max_lock_live_time` is
anybody's; only the holder lets go before that. Locks live in memory: after a restart clients lock anew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from tiermq.clock import Clock


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue as clients name it."""

    topic: str
    broker: str
    queue_id: int


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int


class QueueLocks:
    """See the module. Any thread may call."""

    def __init__(self, live_ms: int, clock: Clock) -> None:
        self.live_ms = live_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._groups: dict[str, dict[QueueName, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[QueueName]) -> list[QueueName]:
        """Take or renew what is free, expired or this client's already; says which of `queues` it holds now."""
        held = []
        now_ms = self._clock.now_ms()
        with self._lock:
            locks = self._groups.setdefault(group, {})
            for queue in queues:
                found = locks.get(queue)
                if found is None or found.client_id == client_id or self._is_over(found, now_ms):
                    locks[queue] = _Lock(client_id, now_ms)
                    held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueName]) -> None:
        """Let go of those that this client holds."""
        with self._lock:
            locks = self._groups.get(group, {})
            for queue in queues:
                found = locks.get(queue)
                if found is not None and found.client_id == client_id:
                    del locks[queue]
            if not locks:
                self._groups.pop(group, None)

    def holds_any(self, group: str) -> bool:
        """Whether a client of the group holds a lock that is not over: then the group consumes in order."""
        now_ms = self._clock.now_ms()
        with self._lock:
            return any(not self._is_over(each, now_ms) for each in self._groups.get(group, {}).values())

    def drop_expired(self) -> int:
        """Forget locks that are over; says how many."""
        now_ms = self._clock.now_ms()
        count = 0
        with self._lock:
            for group, locks in list(self._groups.items()):
                over = [queue for queue, each in locks.items() if self._is_over(each, now_ms)]
                for queue in over:
                    del locks[queue]
                count += len(over)
                if not locks:
                    del self._groups[group]
        return count

    def _is_over(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self.live_ms
