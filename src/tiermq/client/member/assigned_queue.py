"""AssignedQueue: one queue that a consumer has, from its pull position to the offset that may be committed.

    committed ──► first that is not done ──► … done and not … ──► last given ──► ready (pulled) ──► position

Messages are done in any order; the commit offset is that of the first one that is not. A queue that was revoked, or
whose position jumped (a reset), has a new `generation`: messages of an older one are neither given nor counted.

Pulls, readiness and revocation belong to the consumer's loop. `done` may be called by any thread: the offsets that wait
are guarded by the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from tiermq.client.member.message_queue import MessageQueue
from tiermq.client.member.received_message import ReceivedMessage


class Delivery:
    """What binds a message to its queue's progress."""

    __slots__ = ("generation", "offset", "queue")

    def __init__(self, queue: AssignedQueue, offset: int) -> None:
        self.queue = queue
        self.offset = offset
        self.generation = queue.generation

    @property
    def is_current(self) -> bool:
        """False once another member may have the message, or the queue's position was moved."""
        return self.generation == self.queue.generation

    def done(self) -> None:
        """The message need not come again."""
        self.queue.done(self)


class AssignedQueue:
    """See the module."""

    __slots__ = (
        "_done",
        "_lock",
        "_open",
        "broker_id",
        "committed",
        "failures",
        "generation",
        "idle_pulls",
        "is_dropped",
        "is_locked",
        "name",
        "position",
        "ready",
        "ready_bytes",
        "warn_again_s",
    )

    def __init__(self, name: MessageQueue, position: int) -> None:
        self.name = name
        self.position = position
        """Where the next pull begins."""
        self.committed = -1
        """What the broker has; -1: not known."""
        self.generation = 0
        self.is_dropped = False
        self.is_locked = False
        """Ordered consumers: the broker has granted this queue to this member."""
        self.broker_id = 0
        """Which of the broker's replicas is to be asked, as it suggested."""
        self.failures = 0
        self.idle_pulls = 0
        """Pulls in a row that were answered at once and got no further."""
        self.warn_again_s = 0.0
        self.ready: deque[ReceivedMessage] = deque()
        self.ready_bytes = 0
        self._lock = threading.Lock()
        self._open: deque[int] = deque()
        self._done: set[int] = set()

    def add(self, messages: Iterable[ReceivedMessage], next_position: int) -> int:
        """Pulled messages are ready; how many."""
        count = 0
        with self._lock:
            for message in messages:
                message.receipt = Delivery(self, message.offset)
                self.ready.append(message)
                self.ready_bytes += len(message.stored.body)
                self._open.append(message.offset)
                count += 1
        self.position = next_position
        return count

    def take(self) -> ReceivedMessage:
        """The next ready message."""
        message = self.ready.popleft()
        self.ready_bytes -= len(message.stored.body)
        return message

    def done(self, delivery: Delivery) -> None:
        """A message need not come again. One of an older generation changes nothing, and twice is as good as once."""
        with self._lock:
            if delivery.generation != self.generation:
                return
            waiting = self._open
            if waiting and waiting[0] == delivery.offset:
                waiting.popleft()
                while waiting and waiting[0] in self._done:
                    self._done.discard(waiting.popleft())
            elif waiting and delivery.offset > waiting[0]:
                self._done.add(delivery.offset)

    @property
    def commit_offset(self) -> int:
        """Below it every message is done."""
        with self._lock:
            return self._open[0] if self._open else self.position

    @property
    def open_count(self) -> int:
        """Messages that were pulled and are not done."""
        return len(self._open)

    @property
    def span(self) -> int:
        """How far the newest pulled offset is ahead of the first that is not done."""
        with self._lock:
            return self._open[-1] - self._open[0] if self._open else 0

    def stop_giving(self) -> None:
        """What is ready is left for the next owner; what was given may still be done."""
        if self.ready:
            self.position = self.ready[0].offset
            with self._lock:
                for _ in self.ready:
                    self._open.pop()
            self.ready.clear()
            self.ready_bytes = 0

    def drop(self) -> None:
        """Another member may have it from now on."""
        self.is_dropped = True
        self._forget()

    def move_to(self, position: int) -> None:
        """Continue elsewhere: a reset, or an offset that the broker does not have any more."""
        self._forget()
        self.position = position

    def _forget(self) -> None:
        with self._lock:
            self.generation += 1
            self._open.clear()
            self._done.clear()
        self.ready.clear()
        self.ready_bytes = 0

    def __repr__(self) -> str:
        return f"<queue {self.name.topic} {self.name.broker_name}:{self.name.queue_id} at {self.position}>"
