"""LongPolling: pulls that found nothing wait here for a message, until their timeout or the end of their connection.

    held ─► a message beyond its offset arrives ─► asked again, answered           (within milliseconds)
         │  (one that only the tier may answer: is uploaded)
         ├► its time is over ──────────────────► asked again, answered
         └► its connection closes ─────────────► dropped

Arrivals come on the store's dispatch thread and are put on a board; one call to the loop takes the whole board, however
many messages a burst has. Nothing is lost between a look at the store and the hold: after holding, the queue's end is
checked again, and what is dispatched after that finds the pull held.

Invariants: all but the board belongs to the loop's thread; a pull is answered at most once; each pull that ends leaves
nothing behind, so what is kept is bounded by the pulls that are held now, which are counted and weighed
(`HeldWeight`). If one message wakes many, they are retried in steps, so that other requests are served in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from tiermq.broker.pull.pull_admission import Pull
from tiermq.broker.pull.sql_filter import bytes_of
from tiermq.clock import Clock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.message.message_filter import MessageFilter
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.limits import SLICE_S
from tiermq.remoting.server import RemotingServer

HELD_BYTES_PER_PEER_MAX = 16 * 1024 * 1024
"""The same of one connection: about ten thousand typical pulls."""

HELD_BYTES_MAX = 256 * 1024 * 1024
"""What pulls that wait keep, and as much what pops that wait keep."""

SLOT_MS = 250
"""How coarse timeouts are."""
HOLD_MS_MAX = 120_000
HeldKey = tuple[str, int, bool]
"""Topic, queue id, and whether it is the tier's part of the queue."""
K = TypeVar("K")
REQUEST_BYTES = 1_024
"""Of the objects of one request, with the tables that it is held in."""
FIELD_BYTES = 128


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
        self._queues: dict[HeldKey, set[Pull]] = {}
        self._slots: dict[int, set[Pull]] = {}
        self._connections: dict[Connection, set[Pull]] = {}
        self._board: dict[HeldKey, tuple[int, int | None]] = {}
        self._board_lock = threading.Lock()
        server.on_close.append(self.connection_closed)

    @property
    def held(self) -> int:
        return self._count

    def hold(self, pull: Pull, timeout_ms: int, end_of: Callable[[str, int], int]) -> bool:
        """Hold a pull. False if the table is full. `end_of` returns a queue's max offset, in the store that the
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

    def _note(self, key: HeldKey, next_offset: int, tags_code: int | None) -> None:
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
        """The pulls that are still held, in steps."""
        until_s = self._server.loop.time() + SLICE_S
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
        """Retry the pulls that timed out; returns their number. Called several times a second."""
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


def _key(pull: Pull) -> HeldKey:
    return pull.topic, pull.queue_id, pull.waits_for_tier


def _discard(table: dict[K, set[Pull]], key: K, pull: Pull) -> None:
    pulls = table[key]
    pulls.remove(pull)
    if not pulls:
        del table[key]


def weight_of(command: RemotingCommand, message_filter: MessageFilter | None) -> int:
    """Bytes that a request keeps while it waits."""
    texts = len("".join(command.ext)) + len("".join(command.ext.values()))
    fields = FIELD_BYTES * len(command.ext)
    return REQUEST_BYTES + fields + texts + len(command.body) + bytes_of(message_filter)


class HeldWeight:
    """What requests that wait keep in memory, of one peer and in all, as an estimate that is never far too low.

    A pull that waits has its header and its filter; some have a thousand tags. Filters that are shared count for each.
    Belongs to the loop's thread.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._peers: dict[Connection, int] = {}

    def take(self, connection: Connection, weight: int) -> bool:
        """Whether this weight fits; if so, it is counted."""
        here = self._peers.get(connection, 0) + weight
        if here > HELD_BYTES_PER_PEER_MAX or self.bytes + weight > HELD_BYTES_MAX:
            return False
        self._peers[connection] = here
        self.bytes += weight
        return True

    def give(self, connection: Connection, weight: int) -> None:
        """What was taken is no longer kept."""
        self.bytes -= weight
        self._peers[connection] -= weight
        if not self._peers[connection]:
            del self._peers[connection]
