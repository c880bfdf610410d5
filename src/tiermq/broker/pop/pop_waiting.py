"""PopWaiting: holds pops and notifications that found no message, until one may exist or their time is over.

    held ─► a message arrives in one of its queues ─► read again ─► answered, or held again for the rest of its time
         ├► its time is over, or a queue that was blocked is free ─► the same
         └► its connection closes ─► dropped

Arrivals come on the store's dispatch thread and are put on a board; one call to the loop takes the whole board. A pop
is watched while it is read, too: what arrives then, in a queue that was read already, wakes it once it is held.

Invariants: all but the board belongs to the loop's thread; at most `capacity` are held, and `queue_capacity` for one
group and topic; their memory is limited (`HeldWeight`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tiermq.broker.pop.pop_topics import pop_retry_topics
from tiermq.broker.pull.long_polling import HOLD_MS_MAX, HeldWeight
from tiermq.clock import Clock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.errors import RequestRefused
from tiermq.message.message_filter import MessageFilter
from tiermq.message.topic_name import RETRY_PREFIX
from tiermq.remoting.codes import ANY_QUEUE, RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, bool_field, int32_field, int_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.server import RemotingServer

MESSAGES_MAX = 32
FROM_MIN = 0
INVISIBLE_MS_MAX = 7 * 24 * 3_600_000
LOOK_MS = 250
"""Interval of the check for due pops."""
WatchKey = tuple[str, int]
"""Topic, and queue id or ANY_QUEUE."""


class Pop:
    """One POP_MESSAGE (200050) or NOTIFICATION (200054), read from its command.

    Invariants: the numbers are within their bounds; `message_filter` is set once it was admitted, None lets all pass.

    Belongs to the loop's thread, or to the thread that reads for it.
    """

    __slots__ = (
        "attempt_id",
        "began_s",
        "command",
        "connection",
        "deadline_ms",
        "group",
        "invisible_ms",
        "is_notification",
        "is_ordered",
        "max_messages",
        "message_filter",
        "owner",
        "queue_id",
        "starts_at_min",
        "topic",
        "was_held",
        "watched",
        "weight",
    )

    def __init__(self, connection: Connection, command: RemotingCommand, now_ms: int) -> None:
        """Raises RequestRefused for a request that lacks a field, or has one that is out of bounds."""
        self.began_s = time.perf_counter()
        self.connection = connection
        self.command = command
        self.group = text_field(command, "consumerGroup")
        self.topic = text_field(command, "topic")
        self.queue_id = int32_field(command, "queueId")
        self.is_notification = command.code == RequestCode.NOTIFICATION
        self.is_ordered = bool_field(command, "order", default=False)
        self.attempt_id = command.ext.get("attemptId") or ""
        self.max_messages = 1
        self.invisible_ms = 0
        self.starts_at_min = True
        if not self.is_notification:
            self.max_messages = _within(command, "maxMsgNums", 1, MESSAGES_MAX)
            self.invisible_ms = _within(command, "invisibleTime", 1, INVISIBLE_MS_MAX)
            self.starts_at_min = int32_field(command, "initMode") == FROM_MIN
        poll_ms = min(max(0, int_field(command, "pollTime")), HOLD_MS_MAX)
        self.deadline_ms = now_ms + poll_ms
        self.message_filter: MessageFilter | None = None
        self.owner = (self.group, self.topic)
        places: list[WatchKey] = [(self.topic, self.queue_id if self.queue_id >= 0 else ANY_QUEUE)]
        if not self.topic.startswith(RETRY_PREFIX) and not self.is_ordered:
            places += [(name, ANY_QUEUE) for name in pop_retry_topics(self.group, self.topic)]
        self.watched = tuple(places)
        self.weight = 0
        self.was_held = False


def _within(command: RemotingCommand, name: str, low: int, high: int) -> int:
    value = int_field(command, name)
    if not low <= value <= high:
        raise RequestRefused(
            f"{name}: expected a number within {low} and {high}, found {value}", ResponseCode.INVALID_PARAMETER
        )
    return value


class PopWaiting:
    """See the module. `resume` reads again for a pop."""

    def __init__(
        self,
        server: RemotingServer,
        clock: Clock,
        capacity: int,
        queue_capacity: int,
        resume: Callable[[Pop], None],
    ) -> None:
        self.capacity = capacity
        self.queue_capacity = queue_capacity
        self._server = server
        self._clock = clock
        self._resume = resume
        self.weight = HeldWeight()
        self._held: dict[Pop, int] = {}
        self._read: dict[Pop, bool] = {}
        """Pops that are being read, and whether something has arrived for them since."""
        self._watchers: dict[WatchKey, dict[Pop, None]] = {}
        self._owners: dict[tuple[str, str], int] = {}
        self._connections: dict[Connection, dict[Pop, None]] = {}
        self._board: set[WatchKey] = set()
        self._board_lock = threading.Lock()
        server.on_close.append(self.connection_closed)

    @property
    def held(self) -> int:
        return len(self._held)

    def watch(self, pop: Pop) -> None:
        """Before a pop is read. `unwatch` or `hold` ends it."""
        self._read[pop] = False
        for key in pop.watched:
            self._watchers.setdefault(key, {})[pop] = None

    def unwatch(self, pop: Pop) -> None:
        """It is answered, or its client is gone."""
        del self._read[pop]
        for key in pop.watched:
            _discard(self._watchers, key, pop)

    def hold(self, pop: Pop, look_again_ms: int | None = None) -> bool:
        """Hold a pop that was watched, to be retried at its deadline, or at `look_again_ms`. False if the table is
        full: then it is still watched.
        """
        if pop.connection.closing:
            self.unwatch(pop)  # The client has disconnected.
            return True
        if len(self._held) >= self.capacity or self._owners.get(pop.owner, 0) >= self.queue_capacity:
            return False
        if not self.weight.take(pop.connection, pop.weight):
            return False
        due_ms = pop.deadline_ms if look_again_ms is None else min(pop.deadline_ms, look_again_ms)
        self._held[pop] = due_ms
        pop.was_held = True
        self._owners[pop.owner] = self._owners.get(pop.owner, 0) + 1
        self._connections.setdefault(pop.connection, {})[pop] = None
        if self._read.pop(pop):
            self.wake_one(pop)
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
        """On a thread of the tier: it has more of a queue, for pops that read the tier only."""
        self.arrived(topic, queue_id, next_offset, None)

    def _take_board(self) -> None:
        with self._board_lock:
            board, self._board = self._board, set()
        for key in board:
            self.wake(key)

    def wake(self, key: WatchKey) -> None:
        """Retry the pops that wait on one queue."""
        for pop in tuple(self._watchers.get(key, ())):
            self.wake_one(pop)

    def wake_one(self, pop: Pop) -> None:
        """Retry one pop, if it is still held, and not before the caller is done: a burst of them is one of calls to
        the loop, which have a time slice.
        """
        if pop in self._held:
            self._forget(pop)
            self._server.call_threadsafe(self._resume, pop)
        elif pop in self._read:
            self._read[pop] = True

    def end_overdue(self) -> int:
        """Retry the pops that are due; returns their number. Called several times a second."""
        now_ms = self._clock.now_ms()
        over = [pop for pop, due_ms in self._held.items() if due_ms <= now_ms]
        for pop in over:
            self.wake_one(pop)
        return len(over)

    def connection_closed(self, connection: Connection) -> None:
        for pop in tuple(self._connections.get(connection, ())):
            self._forget(pop)

    def _forget(self, pop: Pop) -> None:
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


def _discard(table: dict[WatchKey, dict[Pop, None]], key: WatchKey, pop: Pop) -> None:
    watchers = table[key]
    del watchers[pop]
    if not watchers:
        del table[key]
