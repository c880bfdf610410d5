"""DurableAnswers: answers to sends that wait until what was sent is on disk (SYNC_FLUSH).

    add ─► line ─► one flush is asked for at a time ─► everything that is durable then ─► answered, in order
                     ▲                                        │ more came meanwhile
                     └────────────────────────────────────────┘

Invariants: nothing is answered SUCCESS before it is durable; each is answered once; nobody waits longer than the
flush timeout, after which the answer is FLUSH_DISK_TIMEOUT and the client knows that its message may or may not
survive a power cut. All state belongs to the loop's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tiermq.clock import Clock
from tiermq.remoting.connection import Connection
from tiermq.remoting.server import RemotingServer
from tiermq.status import PutStatus
from tiermq.store.local_store import LocalStore

LOOK_S = 0.5


@dataclass(slots=True)
class _Waiting:
    end_offset: int
    since_s: float
    connection: Connection
    answer: bytes
    late: Callable[[], bytes]
    sends: int


class DurableAnswers:
    """See the module."""

    def __init__(self, local: LocalStore, server: RemotingServer, clock: Clock) -> None:
        self.timed_out = 0
        self._local = local
        self._server = server
        self._clock = clock
        self._timeout_s = local.config.sync_flush_timeout / 1000
        self._line: deque[_Waiting] = deque()
        self._waiting = 0
        self._asked_to = -1
        self._newest_end = -1

    @property
    def waiting(self) -> int:
        """Sends that are not answered yet."""
        return self._waiting

    def add(
        self, end_offset: int, connection: Connection, answer: bytes, late: Callable[[], bytes], sends: int = 1
    ) -> None:
        """Answer so many sends of a connection by `answer` once everything below `end_offset` is durable, or by what
        `late` gives if that takes too long.
        """
        self._line.append(_Waiting(end_offset, self._clock.monotonic(), connection, answer, late, sends))
        self._waiting += sends
        self.flush_soon(end_offset)

    def flush_soon(self, end_offset: int) -> None:
        """Make everything below `end_offset` durable; nobody waits for it."""
        self._newest_end = max(self._newest_end, end_offset)
        if self._asked_to < 0:
            self._ask()

    def _ask(self) -> None:
        self._asked_to = end = self._newest_end
        self._local.when_durable(end, lambda status: self._server.call_threadsafe(self._flushed, end, status))

    def _flushed(self, end_offset: int, status: PutStatus) -> None:
        self._asked_to = -1
        if status is PutStatus.PUT_OK:  # A flush takes along what was stored after it was asked for.
            end_offset = max(end_offset, self._local.flushed_where)
        line = self._line
        # The log is appended in order, and so is the line: whoever is behind the first that waits, waits too.
        while line and line[0].end_offset <= end_offset:
            self._answer(line.popleft(), status)
        if self._newest_end > end_offset:
            self._ask()

    def answer_late(self) -> int:
        """Answer FLUSH_DISK_TIMEOUT to those who wait for too long; says how many. Called now and then."""
        oldest_s = self._clock.monotonic() - self._timeout_s
        count = 0
        while self._line and self._line[0].since_s < oldest_s:
            count += self._line[0].sends
            self._answer(self._line.popleft(), PutStatus.FLUSH_DISK_TIMEOUT)
        return count

    def _answer(self, waiting: _Waiting, status: PutStatus) -> None:
        self._waiting -= waiting.sends
        if status is PutStatus.PUT_OK:
            waiting.connection.send_bytes(waiting.answer)
        else:
            self.timed_out += waiting.sends
            waiting.connection.send_bytes(waiting.late())
