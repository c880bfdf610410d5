"""HaObserver: copies a master's log over its HA port without ever counting as a replica.

A master of TierMQ is notified that this is an observer (`ha_stream`): it counts it for nothing, and sends only what is
committed. RocketMQ's masters take each report as an acknowledgement of all bytes before it. RocketMQ 4 releases the
senders that wait for a slave by the largest report of all connections, RocketMQ 5 counts the connections whose report
is large enough. So the reports of an observer must not reach an offset for which a sender may still wait:

    log   ……………… settled ┤ last seconds of the log ├ end
                     ▲ the report until the master sends ("send from here"); then NOTHING

RocketMQ 5 takes a slave for in sync whose last report is less than `haMaxGapNotInSync` behind its log, so never one
that reports NOTHING.
Before the master sends, a negative report would not tell it where to begin.

A sender waits `slaveTimeout` at most after its message was stored. The log itself shows which messages are older than
that by the master's own clock, at the moment when the master stored the newest one (`settled_offset`). The master sends
from there on, although this log goes further: the bytes in between are compared, and only what is behind is appended.
There is always something to compare, the last record at least. A master that has lost its tail, or whose log is another
one, is found by that, also when it has grown since.

Invariants: those of `HaSlave`; no report is larger than the first one of its connection, which is settled, or the begin
of an empty log's copy: the master's oldest byte, or 0 for its newest file.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tiermq.clock import Clock
from tiermq.errors import ReplicationError
from tiermq.files.mapped_file import SelectedBuffer
from tiermq.message.record_head import HeadKind, read_head
from tiermq.replication.ha_slave import HaSlave, HaSlaveSettings, SlaveLog, Stream
from tiermq.replication.ha_stream import OBSERVER_HELLOS

GUARD_MS = 30_000
"""How much older than the newest record a settled one is, unless the master waits longer for slaves."""
NOTHING = -(1 << 40)
"""The report of a copy that no message is in; a terabyte behind an empty log."""
SAMPLE_S = 1.0
SHORT_MAX = 2


class ObservedLog(SlaveLog, Protocol):
    """The observer's log. The names are `LocalStore`'s."""

    @property
    def min_physical_offset(self) -> int: ...
    def log_bytes(self, offset: int, length_max: int) -> SelectedBuffer | None: ...


def settled_offset(log: ObservedLog, file_bytes: int, guard_ms: int = GUARD_MS) -> int:
    """Where the first record begins that is not `guard_ms` older than the newest one, in the last two files of a log
    that is not empty; at least 1, as a report of 0 asks for something else.
    """
    last = (log.max_physical_offset - 1) // file_bytes * file_bytes
    low = max(0, log.min_physical_offset)
    times: list[tuple[int, int]] = []
    for base in (last, last - file_bytes):
        times[:0] = _times(log, max(base, low), file_bytes) if base + file_bytes > low else []
        newest_ms = max((time_ms for _, time_ms in times), default=0)
        recent = [begin for begin, time_ms in times if time_ms > newest_ms - guard_ms]
        if recent and recent[0] > times[0][0]:
            break  # What is before is settled, and so is the file before this one.
    return max(1, recent[0] if recent else low)


def _times(log: ObservedLog, at: int, file_bytes: int) -> list[tuple[int, int]]:
    """Begin and store time of each whole record of a file, from `at` on."""
    found: list[tuple[int, int]] = []
    selected = log.log_bytes(at, file_bytes)
    if selected is None:
        return found
    with selected:
        position = 0
        while position < selected.size:
            head = read_head(selected.data, position)
            if head.kind is not HeadKind.OK:
                break  # The rest of the file is empty, or the record is not complete yet.
            found.append((at + position, head.store_timestamp_ms))
            position += head.size
    return found


class HaObserver(HaSlave):
    """See the module. `begin` returns from where an empty log is copied; it is called on this observer's thread, and
    may raise OSError or ReplicationError.
    """

    hello_count = OBSERVER_HELLOS

    def __init__(
        self,
        log: ObservedLog,
        settings: HaSlaveSettings,
        clock: Clock,
        *,
        file_bytes: int,
        begin: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__(log, settings, clock)
        self.begin = begin
        self.guard_ms = GUARD_MS
        self._observed = log
        self._file_bytes = file_bytes
        self._connection: socket.socket | None = None
        self._first = 0
        self._is_served = self._has_said_nothing = False
        self._sent_s = 0.0
        self._short = 0
        self._ends: deque[tuple[float, int]] = deque([(clock.monotonic(), log.max_physical_offset)])

    def must_stay(self, _first: int, end: int) -> bool:
        """Whether a file of the log, which ends at `end`, may be needed to ask for what is settled."""
        now_s = self._clock.monotonic()
        while len(self._ends) > 1 and now_s - self._ends[1][0] > self.guard_ms / 1000:
            self._ends.popleft()
        at_s, settled = self._ends[0]
        return end > settled or now_s - at_s < self.guard_ms / 1000

    def _report(self, connection: socket.socket, stream: Stream) -> int:
        now_s = self._clock.monotonic()
        if connection is not self._connection:
            is_empty = self._observed.max_physical_offset == 0
            self._first = self.begin() if is_empty else self._settled()
            self._connection, self._short = connection, 0
            self._is_served = self._has_said_nothing = False
        elif now_s - self._sent_s < self.settings.heartbeat_s and (self._has_said_nothing or not self._is_served):
            return self._observed.max_physical_offset
        self._sent_s, self._has_said_nothing = now_s, self._is_served
        connection.sendall(stream.report(NOTHING if self._is_served else self._first))
        self.last_write_ms = self._clock.now_ms()
        return self._observed.max_physical_offset

    def _settled(self) -> int:
        return settled_offset(self._observed, self._file_bytes, self.guard_ms)

    def take(self, offset: int, body: memoryview) -> None:
        """Append what is new of the master's log; the rest must be the same. Raises ReplicationError."""
        log = self._observed
        end = log.max_physical_offset
        self._is_served = True
        if end == 0:
            # A record is smaller than 16 MiB, so the first byte of the log, the highest of a size, is 0.
            data = memoryview(b"\0" + bytes(body)) if offset == 1 and len(body) else body
            super().take(offset - (len(data) - len(body)), data)
        elif offset > end:
            raise ReplicationError(
                f"expected its log from physical offset {end} on, where this copy ends, found it from {offset} on: "
                "what is in between was lost here"
            )
        elif len(body):
            self._short = 0
            same = min(end - offset, len(body))
            self._compare(offset, body[:same])
            if offset + len(body) >= end:  # Before that it is not known whether this is the log that was copied.
                super().take(end, body[same:])
        else:
            self._short = self._short + 1 if offset < end else 0
            if self._short >= SHORT_MAX:
                raise self._differs(
                    f"expected a log that reaches physical offset {end}, as this copy does, found its end at {offset}"
                )
            self.is_connected, self.problem = self._short == 0, self.problem if self._short else ""
        now_s = self._clock.monotonic()
        if now_s - self._ends[-1][0] >= SAMPLE_S:
            self._ends.append((now_s, log.max_physical_offset))

    def _compare(self, offset: int, body: memoryview) -> None:
        at = 0
        while at < len(body):
            selected = self._observed.log_bytes(offset + at, len(body) - at)
            if selected is None:
                raise ReplicationError(f"expected this copy's bytes from physical offset {offset + at} on, found none")
            with selected:
                if selected.data != body[at : at + selected.size]:
                    raise self._differs(f"expected the same bytes from physical offset {offset + at} on, found others")
            at += selected.size

    def _differs(self, found: str) -> ReplicationError:
        return ReplicationError(
            f"{found}: its log is not the one that was copied, as after a power cut under ASYNC_FLUSH. Nothing more is "
            "copied. What was copied stays in this directory and its tier; to follow this log, give an empty directory "
            "and another tier"
        )
