"""LongPolling: pulls that found nothing wait here for a message, until their time is over or their peer is gone.

    held ─► a message beyond its offset arrives ─► asked again, answered           (within milliseconds)
         │  (one that only the tier may answer: is uploaded)
         ├► its time is over ──────────────────► asked again, answered
         └► its connection closes ─────────────► dropped

Arrivals come on the store's dispatch thread and are put on a board; one call to the loop takes the whole board, however
many messages a burst has. Nothing is lost between a look at the store and the hold: after holding, the queue's end is
looked at once more, and whatever is dispatched after that finds the pull held.

Invariants: all but the board belongs to the loop's thread; a pull is answered at most once; each pull that ends leaves
nothing behind, so what is kept is bounded by the pulls that are held now, which are counted and weighed
(`held_weight`). Where one message wakes many they are asked in turns, so that others are served in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from tiermq.broker.held_weight import HeldWeight, weight_of
from tiermq.broker.pull import Pull
from tiermq.clock import Clock
from tiermq.remoting.connection import Connection
from tiermq.remoting.limits import TURN_S
from tiermq.remoting.server import RemotingServer
from tiermq.store.dispatch_request import DispatchRequest

SLOT_MS = 250
"""How coarse timeouts are."""
HOLD_MS_MAX = 120_000
QueueKey = tuple[str, int, bool]
"""Topic, queue id, and whether it is the tier's part of the queue."""
K = TypeVar("K")


class LongPolling:
    """See the module. `resume` answers a pull without holding it again."""

    def __init__(self, server: RemotingServer, clock: Clock, capacity: int, resume: Callable[[Pull], None]) -> None:
        self.capacity = capacity
        self.woken = 0
        self.timed_out = 0
        self._server = server
        self._clock = clock
        self._resume = resume
        self._count = 0
        self.weight = HeldWeight()
        self._queues: dict[QueueKey, set[Pull]] = {}
        self._slots: dict[int, set[Pull]] = {}
        self._connections: dict[Connection, set[Pull]] = {}
        self._board: dict[QueueKey, tuple[int, int | None]] = {}
        self._board_lock = threading.Lock()
        server.on_close.append(self.connection_closed)

    @property
    def held(self) -> int:
        return self._count

    def hold(self, pull: Pull, timeout_ms: int, end_of: Callable[[str, int], int]) -> bool:
        """Keep a pull. False when there is no room for it. `end_of` says where a queue ends, in the store that the
        pull waits for.
        """
        if self._count >= self.capacity or pull.connection.closing:
            return False
        pull.weight = weight_of(pull.command, pull.message_filter)
        if not self.weight.take(pull.connection, pull.weight):
            return False
        timeout_ms = min(max(timeout_ms, 1), HOLD_MS_MAX)
        pull.slot = int(self._clock.monotonic() * 1000 + timeout_ms) // SLOT_MS + 1
        self._queues.setdefault(_key(pull), set()).add(pull)
        self._slots.setdefault(pull.slot, set()).add(pull)
        self._connections.setdefault(pull.connection, set()).add(pull)
        self._count += 1
        if end_of(pull.topic, pull.queue_id) > pull.offset:
            self._wake_one(pull)
        return True

    # Arrivals.

    def arrived(self, topic: str, queue_id: int, next_offset: int, request: DispatchRequest | None) -> None:
        """On the dispatch thread: a queue has got messages."""
        self._note((topic, queue_id, False), next_offset, None if request is None else request.tags_code)

    def uploaded(self, topic: str, queue_id: int, next_offset: int) -> None:
        """On a thread of the tier: it has more of a queue now."""
        self._note((topic, queue_id, True), next_offset, None)

    def _note(self, key: QueueKey, next_offset: int, tags_code: int | None) -> None:
        if key not in self._queues:
            return
        with self._board_lock:
            is_first = not self._board
            self._board[key] = (next_offset, None if key in self._board else tags_code)
        if is_first:
            self._server.call_threadsafe(self._take_board)

    def _take_board(self) -> None:
        with self._board_lock:
            board, self._board = self._board, {}
        for key, (next_offset, tags_code) in board.items():
            self._wake_all(
                [
                    pull
                    for pull in self._queues.get(key, ())
                    if next_offset > pull.offset
                    and (
                        tags_code is None
                        or pull.message_filter is None
                        or pull.message_filter.matches_unit(tags_code, None)
                    )
                ]
            )

    def _wake_all(self, pulls: list[Pull]) -> None:
        """Those that are still held, in turns."""
        until_s = self._server.loop.time() + TURN_S
        while pulls:
            pull = pulls.pop()
            if pull in self._connections.get(pull.connection, ()):
                self._wake_one(pull)
            if self._server.loop.time() >= until_s:
                break
        if pulls:
            self._server.loop.call_soon(self._wake_all, pulls)

    def _wake_one(self, pull: Pull) -> None:
        self.woken += 1
        self._forget(pull)
        self._resume(pull)

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Ask all pulls of a queue again, for another reason than a message."""
        for in_tier in (False, True):
            for pull in tuple(self._queues.get((topic, queue_id, in_tier), ())):
                self._wake_one(pull)

    # Endings.

    def end_overdue(self) -> int:
        """Ask those again whose time is over; says how many. Called several times a second."""
        now_slot = int(self._clock.monotonic() * 1000) // SLOT_MS
        count = 0
        for slot in [slot for slot in self._slots if slot <= now_slot]:
            for pull in tuple(self._slots.get(slot, ())):
                self._forget(pull)
                self._resume(pull)
                count += 1
        self.timed_out += count
        return count

    def connection_closed(self, connection: Connection) -> None:
        for pull in tuple(self._connections.get(connection, ())):
            self._forget(pull)

    def _forget(self, pull: Pull) -> None:
        _discard(self._queues, _key(pull), pull)
        _discard(self._slots, pull.slot, pull)
        _discard(self._connections, pull.connection, pull)
        self._count -= 1
        self.weight.give(pull.connection, pull.weight)


def _key(pull: Pull) -> QueueKey:
    return pull.topic, pull.queue_id, pull.waits_for_tier


def _discard(table: dict[K, set[Pull]], key: K, pull: Pull) -> None:
    pulls = table[key]
    pulls.remove(pull)
    if not pulls:
        del table[key]
