"""PopWaiting: pops and notifications that found nothing wait here, until something may be there or their time is over.

    held ─► a message arrives in one of its queues ─► asked again ─► answered, or held again for the rest of its time
         ├► its time is over, or a queue that was blocked is free ─► the same
         └► its connection closes ─► dropped

Arrivals come on the store's dispatch thread and are put on a board; one call to the loop takes the whole board.

Invariants: all but the board belongs to the loop's thread; at most `capacity` are held, and `queue_capacity` for one
group and topic; what they keep is weighed (`held_weight`); each that ends leaves nothing behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from tiermq.broker.held_weight import HeldWeight
from tiermq.clock import Clock
from tiermq.remoting.connection import Connection
from tiermq.remoting.server import RemotingServer
from tiermq.store.dispatch_request import DispatchRequest

ANY_QUEUE = -1
LOOK_MS = 250
"""How coarse times are."""
WatchKey = tuple[str, int]
"""Topic, and queue id or ANY_QUEUE."""


class Waiting(Protocol):
    """What can be held."""

    @property
    def connection(self) -> Connection: ...

    @property
    def owner(self) -> tuple[str, str]:
        """Group and topic."""

    @property
    def watched(self) -> tuple[WatchKey, ...]:
        """Where messages may come."""

    @property
    def deadline_ms(self) -> int:
        """When it is answered in any case."""

    @property
    def weight(self) -> int:
        """Bytes that it keeps, from when it is held."""


class PopWaiting:
    """See the module. `resume` asks again."""

    def __init__(
        self,
        server: RemotingServer,
        clock: Clock,
        capacity: int,
        queue_capacity: int,
        resume: Callable[[Waiting], None],
    ) -> None:
        self.capacity = capacity
        self.queue_capacity = queue_capacity
        self._server = server
        self._clock = clock
        self._resume = resume
        self.weight = HeldWeight()
        self._held: dict[Waiting, int] = {}
        self._watchers: dict[WatchKey, dict[Waiting, None]] = {}
        self._owners: dict[tuple[str, str], int] = {}
        self._connections: dict[Connection, dict[Waiting, None]] = {}
        self._board: set[WatchKey] = set()
        self._board_lock = threading.Lock()
        server.on_close.append(self.connection_closed)

    @property
    def held(self) -> int:
        return len(self._held)

    def hold(self, pop: Waiting, look_again_ms: int | None = None) -> bool:
        """Keep a pop, to be asked again at its deadline, or at `look_again_ms`. False when there is no room."""
        if pop.connection.closing:
            return True  # Nobody waits for it.
        if len(self._held) >= self.capacity or self._owners.get(pop.owner, 0) >= self.queue_capacity:
            return False
        if not self.weight.take(pop.connection, pop.weight):
            return False
        due_ms = pop.deadline_ms if look_again_ms is None else min(pop.deadline_ms, look_again_ms)
        self._held[pop] = due_ms
        for key in pop.watched:
            self._watchers.setdefault(key, {})[pop] = None
        self._owners[pop.owner] = self._owners.get(pop.owner, 0) + 1
        self._connections.setdefault(pop.connection, {})[pop] = None
        return True

    # Arrivals.

    def arrived(self, topic: str, queue_id: int, _next_offset: int, _request: DispatchRequest | None) -> None:
        """On the dispatch thread: a queue has got messages."""
        keys = [key for key in ((topic, queue_id), (topic, ANY_QUEUE)) if key in self._watchers]
        if not keys:
            return
        with self._board_lock:
            is_first = not self._board
            self._board.update(keys)
        if is_first:
            self._server.call_threadsafe(self._take_board)

    def uploaded(self, topic: str, queue_id: int, next_offset: int) -> None:
        """On a thread of the tier: it has more of a queue now, which is news to pops that only it may answer."""
        self.arrived(topic, queue_id, next_offset, None)

    def _take_board(self) -> None:
        with self._board_lock:
            board, self._board = self._board, set()
        for key in board:
            self.wake(key)

    def wake(self, key: WatchKey) -> None:
        """Ask those again that watch one place."""
        for pop in tuple(self._watchers.get(key, ())):
            self.wake_one(pop)

    def wake_one(self, pop: Waiting) -> None:
        """Ask one again, if it still waits."""
        if pop in self._held:
            self._end(pop)

    def end_overdue(self) -> int:
        """Ask those again whose time has come; says how many. Called several times a second."""
        now_ms = self._clock.now_ms()
        over = [pop for pop, due_ms in self._held.items() if due_ms <= now_ms]
        for pop in over:
            self.wake_one(pop)
        return len(over)

    def connection_closed(self, connection: Connection) -> None:
        for pop in tuple(self._connections.get(connection, ())):
            self._forget(pop)

    def _end(self, pop: Waiting) -> None:
        self._forget(pop)
        self._resume(pop)

    def _forget(self, pop: Waiting) -> None:
        del self._held[pop]
        self.weight.give(pop.connection, pop.weight)
        for key in pop.watched:
            _discard(self._watchers, key, pop)
        self._owners[pop.owner] -= 1
        if not self._owners[pop.owner]:
            del self._owners[pop.owner]
        watchers = self._connections[pop.connection]
        del watchers[pop]
        if not watchers:
            del self._connections[pop.connection]


def _discard(table: dict[WatchKey, dict[Waiting, None]], key: WatchKey, pop: Waiting) -> None:
    watchers = table[key]
    del watchers[pop]
    if not watchers:
        del table[key]
