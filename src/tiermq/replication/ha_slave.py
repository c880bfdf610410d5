"""HaSlave: copies a master's commit log into this store, over the master's HA port.

    no address ─► connect ─► report the end of this log ─► frames: append, flush (SYNC_FLUSH), report ─► …
        ▲              ▲                                     │ lost, silent, or the logs do not fit
        └──────────────┴──────────── rest ◄──────────────────┘

Invariants: what was reported is in this log, and under SYNC_FLUSH on its disk; bytes are appended only where this log
ends; a log that does not fit the master's is left as it is, and `problem` explains it. One thread does everything here;
`set_master` and the figures may be used by any.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from dataclasses import dataclass
from typing import Protocol

from tiermq.clock import Clock
from tiermq.errors import ReplicationError, StoreError
from tiermq.replication.ha_stream import REPORT, FrameBuffer

_log = logging.getLogger(__name__)

REST_FIRST_S = 0.5
REST_MAX_S = 5.0
CONNECT_S = 5.0


class SlaveLog(Protocol):
    """The slave's log. The names are `LocalStore`'s."""

    @property
    def max_physical_offset(self) -> int: ...
    def append_data(self, offset: int, data: memoryview) -> None: ...
    def flush(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HaSlaveSettings:
    """Intervals are seconds. `source`: the address that connections come from; empty: the system's choice."""

    flushes: bool = False
    heartbeat_s: float = 5.0
    housekeeping_s: float = 20.0
    source: str = ""


class HaSlave:
    """See the module. `start` and `stop` are called by one thread."""

    def __init__(self, log: SlaveLog, settings: HaSlaveSettings, clock: Clock) -> None:
        self.master = ""
        """The master's HA address, `host:port`; empty while it is not known."""
        self.is_connected = False
        self.problem = ""
        """Why nothing is copied, as text; empty while all is well."""
        self.received_bytes = 0
        self._rate = (0, 0, 0)
        self.last_read_ms = self.last_write_ms = 0
        self._log = log
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()
        self._stopping = False
        self._socket: socket.socket | None = None
        self._rest_s = REST_FIRST_S
        self._thread = threading.Thread(target=self._run, name="ha-slave", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what was received is in the log. Twice does no harm."""
        with self._changed:
            self._stopping = True
            self._disconnect()
        if self._thread.is_alive():
            self._thread.join()

    def set_master(self, address: str) -> None:
        """Follow the master at this HA address from now on; none with an empty text. Any thread may call."""
        with self._changed:
            if address == self.master:
                return
            self.master = address
            self._rest_s = REST_FIRST_S
            self._disconnect()

    def bytes_per_second(self) -> int:
        """Received since the last full second, or in the one before."""
        second, bytes_before, rate = self._rate
        now = int(self._clock.monotonic())
        if now > second:
            rate = (self.received_bytes - bytes_before) // max(1, now - second) if second else 0
            self._rate = (now, self.received_bytes, rate)
        return rate

    def _disconnect(self) -> None:
        """The caller holds the lock."""
        if self._socket is not None:
            with contextlib.suppress(OSError):  # It was never connected, or the peer has closed it.
                self._socket.shutdown(socket.SHUT_RDWR)
        self._changed.notify_all()

    # The thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self.master)
                if self._stopping:
                    return
                master = self.master
            try:
                self._follow(master)
            except (OSError, EOFError, StoreError, ValueError) as error:
                self._note(master, error)
            except Exception as error:  # noqa: BLE001 - the thread's outermost edge
                _log.exception("replication from %s failed, trying again", master)
                self._note(master, error)
            finally:
                self.is_connected = False
            self._rest(master)

    def _rest(self, master: str) -> None:
        """Until the next try, or until there is another master."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self.master != master, self._rest_s)
            self._rest_s = min(2 * self._rest_s, REST_MAX_S)

    def _note(self, master: str, error: Exception) -> None:
        if self._stopping:
            return
        words = f"master {master}: {error}"
        if words != self.problem:  # Not at every try.
            _log.log(logging.ERROR if isinstance(error, ReplicationError) else logging.WARNING, "%s", words)
        self.problem = words

    def _follow(self, master: str) -> None:
        host, _, port = master.rpartition(":")
        source = (self._settings.source, 0) if self._settings.source else None
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S, source) as connection:
            with self._changed:
                if self._stopping or self.master != master:
                    return
                self._socket = connection
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(self._settings.heartbeat_s)
                self._copy(connection)
            finally:
                with self._changed:
                    self._socket = None

    def _copy(self, connection: socket.socket) -> None:
        """Until the connection ends: raises OSError, EOFError, StoreError."""
        frames, log, settings = FrameBuffer(), self._log, self._settings
        if settings.flushes:
            log.flush()
        reported = self._report(connection)
        read_s = reported_s = self._clock.monotonic()
        while not self._stopping:
            try:
                count = connection.recv_into(frames.free())
            except TimeoutError:
                count = -1
            now_s = self._clock.monotonic()
            if count == 0:
                raise EOFError("it closed the connection; its log says why, if this one is no copy of it")
            if count > 0:
                read_s = now_s
                self.last_read_ms = self._clock.now_ms()
                for offset, body in frames.received(count):
                    self._take(offset, body)
            elif now_s - read_s > settings.housekeeping_s:
                raise EOFError(f"it has sent nothing for {settings.housekeeping_s:g} s")
            if log.max_physical_offset > reported:
                if settings.flushes:
                    log.flush()
            elif now_s - reported_s < settings.heartbeat_s:
                continue
            reported, reported_s = self._report(connection), now_s

    def _report(self, connection: socket.socket) -> int:
        """Report the end of this log, and return it."""
        end = self._log.max_physical_offset
        connection.sendall(REPORT.pack(end))
        self.last_write_ms = self._clock.now_ms()
        return end

    def _take(self, offset: int, body: memoryview) -> None:
        end = self._log.max_physical_offset
        if end not in (0, offset):
            raise ReplicationError(
                f"expected its log from physical offset {end} on, where this one ends, found it from {offset} on: this "
                "log is not a copy of it. Compare both; if the master's is the right one, start with an empty store"
            )
        if len(body):
            self._log.append_data(offset, body)
            self.received_bytes += len(body)
        self.is_connected = True
        self.problem = ""
        self._rest_s = REST_FIRST_S
