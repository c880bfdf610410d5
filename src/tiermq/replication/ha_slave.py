"""HaSlave: copies a master's commit log into this store, over the master's HA port.

    no address ─► connect ─► report the end of this log ─► frames: append, flush (SYNC_FLUSH), report ─► …
        ▲              ▲                                     │ lost, silent, or the logs do not fit
        └──────────────┴──────────── rest ◄──────────────────┘

A master of TierMQ sends what it has committed, and `confirm_offset` follows it; other masters do not, and everything
that they send counts as committed. With `epochs` it speaks the auto-switch dialect: a handshake before the first report
gives the point up to which both logs are the same. A tail behind that point is not cut here but by the owner of the
store, who has to close it first: `needs_cut`.

Invariants: what was reported is in this log, and under SYNC_FLUSH on its disk; bytes are appended only where this log
ends; a log that does not fit the master's is left as it is, and `problem` explains it; an epoch is on disk before its
bytes; `confirm_offset` never goes below what may have been read; with `identify`, nothing is copied from, cut by or
reported to another broker that has got the master's address. One thread does everything here; `set_master` and the
figures may be used by any.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tiermq.clock import Clock
from tiermq.errors import ReplicationError, TierMQError
from tiermq.replication.auto_switch_stream import REPORT as EPOCH_REPORT
from tiermq.replication.auto_switch_stream import TRANSFER_STATE, Answer, Handshake, MasterFrames, Transfer
from tiermq.replication.epoch_file import EpochEntry, EpochFile, consistent_end, other_terms
from tiermq.replication.ha_stream import HELLO, REPORT, FrameBuffer
from tiermq.settings import LONG_MAX

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


class MasterIdentity(NamedTuple):
    """What the master reports of its log at its client port: its epochs, and their terms as far as it has any."""

    entries: tuple[EpochEntry, ...]
    terms: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HaSlaveSettings:
    """Intervals are seconds. `source`: the address that connections come from; empty: the system's choice.

    With epochs: `replica_id` is this broker's, `epoch` the least that its master has, and `from_last_file` asks for the
    newest file only, with an empty log.
    """

    flushes: bool = False
    replica_id: int = 0
    epoch: int = 0
    from_last_file: bool = False
    heartbeat_s: float = 5.0
    housekeeping_s: float = 20.0
    source: str = ""
    tls: Callable[[], ssl.SSLContext] | None = None
    """Asked at each connection: of a client that shows a certificate, and checks the server's. None: without TLS."""


class HaSlave:
    """See the module. `start` and `stop` are called by one thread."""

    hello_count = 1
    """How often HELLO goes before the first report of a connection, in the default dialect."""

    def __init__(self, log: SlaveLog, settings: HaSlaveSettings, clock: Clock, epochs: EpochFile | None = None) -> None:
        """`epochs`: of this log; None for the default dialect."""
        self.master = ""
        """The master's HA address, `host:port`; empty while it is not known."""
        self.is_connected = False
        self.problem = ""
        """Why nothing is copied, as text; empty while all is well."""
        self.epochs = epochs
        self.epoch_min = settings.epoch
        """With epochs: a master of an earlier one is not followed."""
        self.needs_cut: Callable[[int], None] = lambda _offset: None
        """Called with the physical offset at which this log must be cut before it can follow its master. On this
        slave's thread, at each try: it must not stop the slave there.
        """
        self.why_not: Callable[[], str] = lambda: ""
        """Asked before each report: why this log is of no use as a copy, as text; empty while it is."""
        self.identify: Callable[[], MasterIdentity] | None = None
        """With epochs: asks the master's client port who it is, since a handshake names no broker. Called on this
        slave's thread, between the handshake and the first byte. Raises ReplicationError for another broker.
        """
        self.confirm_offset = log.max_physical_offset
        """What the master has committed of this log; it may be beyond the end. What was there at the start counts as
        committed.
        """
        self.master_confirm = 0
        """With epochs: what masters have reported as committed since the start."""
        self.confirm_listeners: list[Callable[[], None]] = []
        """Called on this slave's thread when `confirm_offset` has risen."""
        self.received_bytes = 0
        self._rate = (0, 0, 0)
        self.last_read_ms = self.last_write_ms = 0
        self._log = log
        self.settings = settings
        self._clock = clock
        self._changed = threading.Condition()
        self._stopping = False
        self._is_over = True  # Whether the thread does not run.
        self._is_connecting = False
        self._socket: socket.socket | None = None
        self._rest_s = REST_FIRST_S
        self._thread = threading.Thread(target=self._run, name="ha-slave", daemon=True)

    def start(self) -> None:
        self._is_over = False
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what was received is in the log. Twice does no harm.

        A thread that waits for a connection is left to its time limit, and does nothing more: a role changes because
        the master's machine is gone, and must not wait for it.
        """
        with self._changed:
            self._stopping = True
            self._disconnect()
            self._changed.wait_for(lambda: self._is_over or self._is_connecting)

    def set_master(self, address: str, epoch: int = 0) -> None:
        """Follow the master at this HA address from now on; none with an empty text. Any thread may call.

        With epochs: it is the master of `epoch`.
        """
        with self._changed:
            if address == self.master and epoch <= self.epoch_min:
                return
            self.master, self.epoch_min = address, max(epoch, self.epoch_min)
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
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # Not TLS's own: this is another thread.
        self._changed.notify_all()

    # The thread.

    def _run(self) -> None:
        try:
            self._follow_masters()
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _follow_masters(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self.master)
                if self._stopping:
                    return
                master = self.master
            try:
                self._follow(master)
            except (OSError, EOFError, TierMQError, ValueError) as error:
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
        source = (self.settings.source, 0) if self.settings.source else None
        with self._changed:
            self._is_connecting = not self._stopping
            self._changed.notify_all()
        try:
            connected = self._secured(socket.create_connection((host.strip("[]"), int(port)), CONNECT_S, source))
        finally:
            with self._changed:
                self._is_connecting = False
        with connected as connection:
            with self._changed:
                if self._stopping or self.master != master:
                    return
                self._socket = connection
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(self.settings.heartbeat_s)
                self._copy(connection)
            finally:
                with self._changed:
                    self._socket = None

    def _secured(self, connection: socket.socket) -> socket.socket:
        """The connection, by TLS if the settings require it. Raises ReplicationError, OSError and BadConfig."""
        if self.settings.tls is None:
            return connection
        try:
            return self.settings.tls().wrap_socket(connection)
        except (ssl.SSLError, ConnectionError) as error:
            connection.close()
            raise ReplicationError(
                f"expected TLS and a certificate that is trusted here (haTlsEnable), found: {error}. Both brokers need "
                "haTlsEnable=true and certificates that the other one trusts"
            ) from error
        except BaseException:
            connection.close()
            raise

    def _copy(self, connection: socket.socket) -> None:
        """Until the connection ends: raises OSError, EOFError, StoreError."""
        stream = _DefaultStream(self) if self.epochs is None else _EpochStream(self, self.epochs)
        log, settings = self._log, self.settings
        if settings.flushes:
            log.flush()
        reported = self._report(connection, stream)
        read_s = reported_s = self._clock.monotonic()
        while not self._stopping:
            try:
                count = connection.recv_into(stream.frames.free())
            except TimeoutError:
                count = -1
            now_s = self._clock.monotonic()
            was_ready = stream.is_ready
            if count == 0:
                raise EOFError("it closed the connection; its log has the reason, if this one is no copy of it")
            if count > 0:
                read_s = now_s
                self.last_read_ms = self._clock.now_ms()
                stream.take(count)
            elif now_s - read_s > settings.housekeeping_s:
                raise EOFError(f"it has sent nothing for {settings.housekeeping_s:g} s")
            if log.max_physical_offset > reported:
                if settings.flushes:
                    log.flush()
            elif stream.is_ready == was_ready and now_s - reported_s < settings.heartbeat_s:
                continue
            reported, reported_s = self._report(connection, stream), now_s

    def _report(self, connection: socket.socket, stream: Stream) -> int:
        """Report the end of this log, and return it. Raises ReplicationError for one that is of no use."""
        if reason := self.why_not():
            raise ReplicationError(f"expected a copy of its log that can be read, found: {reason}")
        end = self._log.max_physical_offset
        connection.sendall(stream.report(end))
        self.last_write_ms = self._clock.now_ms()
        return end

    def take(self, offset: int, body: memoryview) -> None:
        """Append bytes of the master's log; a heartbeat has none."""
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

    def fit(self, answer: Answer, epochs: EpochFile) -> None:
        """Compare this log with the master's, by epoch. Raises ReplicationError when they cannot go on together."""
        end = self._log.max_physical_offset
        newest = answer.entries[-1].epoch if answer.entries else 0
        if newest < self.epoch_min:
            raise ReplicationError(
                f"expected a master of epoch {self.epoch_min} or later, found one of {newest}: it was replaced, and "
                "nothing is reported to it"
            )
        terms = self._terms_of_master(answer)
        others = other_terms(epochs.terms, terms)
        common = consistent_end(epochs.entries, end, answer.entries, answer.log_end, others)
        if common is None:
            raise ReplicationError(
                f"expected an epoch in common with its log, found {_words(epochs.entries)} here and "
                f"{_words(answer.entries)} there{_other_words(others)}: this log is not a copy of it. Compare both; if "
                "the master's is the right one, start with an empty store"
            )
        if end and newest < epochs.last_epoch:
            raise ReplicationError(
                f"expected a master of epoch {epochs.last_epoch}, which this log has, or later, found one of {newest}: "
                "the state of the election was lost, or an older one restored. Compare both logs; if the master's is "
                "the right one, start with an empty store"
            )
        if common < end:
            self.needs_cut(common)
            raise ReplicationError(
                f"expected a log that is its log up to the end, found it the same up to physical offset {common} and "
                f"this one up to {end}: bytes of a master that was replaced must be cut there"
            )
        epochs.cut(end)  # The log was cut, and the file not yet.
        for entry in answer.entries:
            # Also one without bytes: the next elected master shares it with a master that has written in it since.
            if entry.start <= end:
                epochs.append(*entry)
        epochs.learn(terms)

    def _terms_of_master(self, answer: Answer) -> Mapping[int, str]:
        if self.identify is None:
            return {}
        found = self.identify()
        if found.entries[-1:] != answer.entries[-1:]:
            raise ReplicationError(
                f"expected one master at its HA and its client port, found epochs {_words(answer.entries[-1:])} and "
                f"{_words(found.entries[-1:])}: another process has one of the ports, or its role changes now"
            )
        return found.terms

    def take_epoch(self, frame: Transfer, epochs: EpochFile) -> None:
        """Append a frame of an epoch. Raises StoreError."""
        if len(frame.body) or frame.epoch > epochs.last_epoch:
            if frame.epoch < epochs.last_epoch:
                raise ReplicationError(f"expected bytes of epoch {epochs.last_epoch} or later, found {frame.epoch}")
            if frame.epoch > 0:
                epochs.append(frame.epoch, frame.epoch_start)
        self.take(frame.offset, frame.body)
        self.master_confirm = max(self.master_confirm, frame.confirm)
        self.take_confirm(max(self.confirm_offset, min(frame.confirm, self._log.max_physical_offset)))

    def take_confirm(self, offset: int) -> None:
        """The master has committed its log up to `offset`; what may have been read here remains."""
        before = self.confirm_offset
        self.confirm_offset = max(offset, min(before, self._log.max_physical_offset))
        if self.confirm_offset > before:
            for listener in self.confirm_listeners:
                listener()


def _other_words(others: Iterable[int]) -> str:
    listed = ", ".join(map(str, sorted(others)))
    return f", and of epoch {listed} another master's bytes (the state of the election was lost)" if listed else ""


def _words(entries: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{epoch} from {start} on" for epoch, start in entries) or "none"


class _DefaultStream:
    """A connection in the default dialect."""

    is_ready = True
    """Whether the master knows where to send from."""

    def __init__(self, slave: HaSlave) -> None:
        self.frames = FrameBuffer()
        self._slave = slave
        self._hello = REPORT.pack(HELLO) * slave.hello_count
        self._has_confirm = False

    def take(self, count: int) -> None:
        for offset, body in self.frames.received(count):
            if body is None:
                self._has_confirm = True
                self._slave.take_confirm(offset)
                continue
            self._slave.take(offset, body)
            if len(body) and not self._has_confirm:
                self._has_confirm = True
                self._slave.take_confirm(LONG_MAX)  # It reports no end of what is committed, and never will.

    def report(self, end: int) -> bytes:
        hello, self._hello = self._hello, b""
        return hello + REPORT.pack(end)


class _EpochStream:
    """A connection in the auto-switch dialect. It reports by handshakes until one was answered."""

    def __init__(self, slave: HaSlave, epochs: EpochFile) -> None:
        self.frames = MasterFrames()
        self.is_ready = False
        self._slave = slave
        self._epochs = epochs

    def take(self, count: int) -> None:
        for frame in self.frames.received(count):
            if isinstance(frame, Transfer) and self.is_ready:
                self._slave.take_epoch(frame, self._epochs)
            elif isinstance(frame, Answer) and not self.is_ready:
                self._slave.fit(frame, self._epochs)
                self.is_ready = True
            elif isinstance(frame, Transfer):
                raise ReplicationError("expected the answer to a handshake, found bytes of its log")

    def report(self, end: int) -> bytes:
        if self.is_ready:
            return EPOCH_REPORT.pack(TRANSFER_STATE, end)
        settings = self._slave.settings
        return Handshake(settings.from_last_file, False, settings.replica_id).encode()


Stream = _DefaultStream | _EpochStream
