"""HaMaster: the HA port of a master, from which slaves of TierMQ and RocketMQ copy the commit log.

    listener ─► _Slave   reports ─► ReplicaAcks ─► `state` ─► listeners: reput, waiting sends
                         frames  ◄─ LocalStore.log_bytes       mapped bytes, as they are in the file

Slaves of TierMQ are notified of what is committed, and observers get nothing else (`ha_stream`): an observer is no
replica. With `epochs` it speaks the auto-switch dialect (`auto_switch_stream`): a handshake, epochs, the confirm
offset. One thread with one loop serves all slaves; it owns everything here except `state`, which is immutable and read
by any thread. `wake` only sets a flag and a call.

Invariants: nothing is sent before the first report; bytes that a power cut could still take from a SYNC_FLUSH master
are not sent; a report beyond the end of this log is ignored, and a first one ends the connection, because that log is
no copy of this one; a connection that reports nothing for the housekeeping interval is closed. An address that is not
allowed, or with TLS a peer without a trusted certificate, is not served (`ha_channel`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tiermq.clock import Clock
from tiermq.errors import ReplicationError, TierMQError
from tiermq.files.mapped_file import SelectedBuffer
from tiermq.replication.auto_switch_stream import Answer, Handshake, decode_slave, transfer_header
from tiermq.replication.epoch_file import EpochFile, entry_at
from tiermq.replication.ha_channel import HaChannel, PlainChannel, TlsChannel
from tiermq.replication.ha_stream import (
    BODY_BYTES_MAX,
    CONFIRM_SIZE,
    HEADER,
    HELLO,
    OBSERVER_HELLOS,
    REPORT,
    REPORT_BYTES,
)
from tiermq.replication.replica_acks import Replica, ReplicaRules, ReplicaState, state_of
from tiermq.replication.sync_set import SyncSet
from tiermq.settings import LONG_MAX

_log = logging.getLogger(__name__)

WATCH_S = 1.0
GATHER_S = 0.005
"""Where no send waits for slaves, bursts follow each other at this distance, and reports are read at it: each costs
producers a turn.
"""
BURST_BYTES = 512 * 1024
FRAMES_MAX = 64
"""What one call sends: whole frames, so many and so many bytes at most, unless one frame is larger."""
CONFIRM_S = 0.01
"""Without bytes to send, slaves get what is committed at this distance."""
SLAVES_MAX = 64
"""Connections at once: each one copies the whole log."""


class ReplicatedLog(Protocol):
    """The master's log. The names are `LocalStore`'s."""

    @property
    def min_physical_offset(self) -> int: ...
    @property
    def max_physical_offset(self) -> int: ...
    @property
    def flushed_where(self) -> int: ...
    @property
    def confirm_offset(self) -> int: ...
    def log_bytes(self, offset: int, length_max: int) -> SelectedBuffer | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HaMasterSettings:
    """Intervals are seconds. `allowed`: addresses or networks of slaves; none: every one that reaches the port."""

    file_bytes: int
    only_flushed: bool = False
    batch_bytes: int = 32 * 1024
    heartbeat_s: float = 5.0
    housekeeping_s: float = 20.0
    from_last_file: bool = False
    allowed: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network] = ()
    tls: Callable[[], ssl.SSLContext] | None = None
    """Asked at each connection: of a server that requires a certificate of its peers. None: without TLS."""


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """One connected slave, for operators."""

    address: str
    ack: int
    sent_to: int
    bytes_per_second: int
    is_in_sync: bool
    is_replica: bool = True
    """False: an observer, which counts for nothing."""


class HaMaster:
    """See the module. `start` and `stop` are called by one thread."""

    def __init__(
        self,
        log: ReplicatedLog,
        rules: ReplicaRules,
        settings: HaMasterSettings,
        listening: socket.socket,
        clock: Clock,
        epochs: EpochFile | None = None,
        sync: SyncSet | None = None,
    ) -> None:
        """`listening` is a bound socket, and this object's from now on. `epochs`: of this log, whose last one is this
        master's; None for the default dialect. `sync`: the in-sync set of an elected master, with `rules.by_set`.
        """
        self.epochs = epochs
        self.sync = sync
        self.propose: Callable[[int, frozenset[int]], None] = lambda _number, _members: None
        """Called on the thread of the port with a number and the set to be recorded; `note_recorded` follows."""
        self.rules = rules
        self.settings = settings
        self.log = log
        self.clock = clock
        # All of it is committed, unless this master was opened again in its epoch: others of its set may lack a part.
        state = state_of(rules, log.max_physical_offset, (), log.max_physical_offset)
        self.state = state if sync is None or sync.is_alone else replace(state, confirmed=0)
        self.listeners: list[Callable[[ReplicaState], None]] = []
        """Called on the thread of the port when `state` has changed."""
        self.refused_count = 0
        self.has_idle_slave = False
        self._listening = listening
        self._slaves: list[_Slave] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._is_announcing = False

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def start(self) -> None:
        self._listening.listen()
        self._listening.setblocking(False)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="ha-master", daemon=True)
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Close the port and every connection. Twice does no harm."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and self._ending is not None:
            self._loop.call_soon_threadsafe(self._ending.set)
            thread.join()
        self._listening.close()

    # Any thread.

    def replicated_where(self) -> int:
        """Where the log ends that enough replicas have; everything, while none but the master is needed."""
        state = self.state
        is_alone = state.needed <= 1 and (self.sync is None or self.sync.is_alone)
        return LONG_MAX if is_alone else state.confirmed

    @property
    def is_not_awaited(self) -> bool:
        """Whether no send waits for what slaves report."""
        return self.sync is None and self.state.needed <= 1

    def note_recorded(self, members: frozenset[int], number: int) -> None:
        """The election has recorded this in-sync set, by the proposal of this number. Any thread may call."""
        if self._loop is not None and self.sync is not None:
            with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile: this master's time is over.
                self._loop.call_soon_threadsafe(self._note_recorded, self.sync, members, number)

    def _note_recorded(self, sync: SyncSet, members: frozenset[int], number: int) -> None:
        sync.note_recorded(members, number)
        self.update()

    def wake(self) -> None:
        """The log has grown."""
        if self.has_idle_slave and self._loop is not None:
            self.has_idle_slave = False
            with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile: there are no slaves to wake.
                self._loop.call_soon_threadsafe(self._wake_slaves)

    def slaves(self) -> list[SlaveStatus]:
        """Of a moment ago."""
        end, gap = self.log.max_physical_offset, self.rules.gap_bytes_max
        return [
            SlaveStatus(
                each.address,
                each.ack,
                each.position,
                each.rate,
                each.counts and 0 <= end - each.ack <= gap,
                not each.is_observer,
            )
            for each in tuple(self._slaves)
            if each.ack >= 0
        ]

    def replicas(self) -> list[SlaveStatus]:
        """Those that are no observers."""
        return [each for each in self.slaves() if each.is_replica]

    # The thread of the port.

    async def _run(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        self._started.set()
        tasks = {loop.create_task(self._accept()), loop.create_task(self._watch())}
        await self._ending.wait()
        self.propose = lambda _number, _members: None  # The replicas lose this master, and stay in sync without it.
        tasks |= {each.task for each in self._slaves if each.task is not None}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(self._listening)
            except OSError as error:  # No descriptor left, or the peer has gone: others are served.
                _log.warning("a slave could not be accepted: %s", error)
                await asyncio.sleep(WATCH_S)
                continue
            host = str(peer[0]).removeprefix("::ffff:")
            if not self._is_allowed(host) or not self._has_place():
                self.refused_count += 1
                _log.warning(
                    "HA port: %s was refused: %s", host, "too many slaves" if self._is_allowed(host) else "not allowed"
                )
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            kind = _Slave if self.epochs is None else _EpochSlave
            try:
                slave = kind(self, connection, host, f"{host}:{peer[1]}")
            except (OSError, TierMQError) as error:  # Certificates that were replaced by bad ones.
                _log.error("HA port: %s cannot be served: %s", host, error)
                connection.close()
                continue
            self._slaves.append(slave)
            slave.task = loop.create_task(self._serve(slave))

    def _has_place(self) -> bool:
        """Whether one more is served. The oldest peer that has not reported yet gives its place up: every peer that
        reaches the port can take places, and only a replica gets further, where certificates are required.
        """
        if len(self._slaves) < SLAVES_MAX:
            return True
        silent = next((each for each in self._slaves if each.ack < 0 and not each.is_ended), None)
        if silent is not None:
            silent.end()
        return silent is not None

    def _is_allowed(self, host: str) -> bool:
        allowed = self.settings.allowed
        return not allowed or any(ipaddress.ip_address(host.partition("%")[0]) in each for each in allowed)

    async def _serve(self, slave: _Slave) -> None:
        try:
            await slave.run()
        except (OSError, EOFError, ReplicationError) as error:
            if not slave.is_open:
                self.refused_count += 1
                _log.warning("HA port: %s was refused: %s", slave.address, error)
            else:
                _log.warning("slave %s: disconnected at %d: %s", slave.address, slave.ack, error)
        except Exception:  # noqa: BLE001 - the connection's outermost edge: other slaves go on
            _log.exception("slave %s: serving it failed", slave.address)
        finally:
            slave.connection.close()
            self._slaves.remove(slave)
            self.update()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            now_s = self.clock.monotonic()
            for slave in tuple(self._slaves):
                slave.take_rate()
                if slave.task is not None and now_s - slave.read_s > self.settings.housekeeping_s:
                    _log.warning(
                        "slave %s: closed, it has not reported for %g s", slave.address, self.settings.housekeeping_s
                    )
                    slave.task.cancel()
            if self.epochs is not None:
                self.epochs.drop_prefix(self.log.min_physical_offset)
            self.update()

    def _wake_slaves(self) -> None:
        for slave in self._slaves:
            slave.grown.set()

    def update(self) -> None:
        """Derive `state` from what the slaves have reported."""
        before, end = self.state, self.log.max_physical_offset
        slaves = [each for each in self._slaves if each.ack >= 0 and each.counts]
        if self.sync is not None:
            self.state = state = self._state_by_set(self.sync, slaves)
        else:
            confirmed = end if before.needed <= 1 else before.confirmed
            replicas = [Replica(each.name, each.ack) for each in slaves]
            self.state = state = state_of(self.rules, end, replicas, confirmed)
        if state != before:
            for listener in self.listeners:
                listener(state)
            if self.epochs is not None:
                self._wake_slaves()  # They show what is confirmed, and need not wait for the next bytes to hear of it.
            elif self.rules.waits and not self._is_announcing:
                self._is_announcing = True
                asyncio.get_running_loop().call_later(CONFIRM_S, self._announce)

    def _announce(self) -> None:
        self._is_announcing = False
        self._wake_slaves()

    def _state_by_set(self, sync: SyncSet, slaves: Sequence[_Slave]) -> ReplicaState:
        """Every member of the in-sync set has what is confirmed."""
        acks: dict[int, int] = {}
        for each in slaves:
            acks[each.replica_id] = max(each.ack, acks.get(each.replica_id, 0))
        log, needed = self.log, self.rules.in_sync_replicas
        in_sync, confirmed, wanted = sync.advance(
            acks, self.state.confirmed, lambda: log.max_physical_offset, self.clock.monotonic(), needed=needed
        )
        if wanted is not None:
            self.propose(sync.number, wanted)
        return ReplicaState(in_sync, needed, confirmed)

    def replace_connections(self, newest: _Slave) -> None:
        """End other connections of this replica: what one of them reported is not what the replica has now."""
        for each in self._slaves:
            if each is not newest and each.counts and each.replica_id == newest.replica_id:
                each.counts = False
                each.end()

    def readable_end(self) -> int:
        """Up to where slaves may have the log."""
        return self.log.flushed_where if self.settings.only_flushed else self.log.max_physical_offset


class _Slave:
    """One connection of a slave. Everything happens on the master's loop."""

    def __init__(self, master: HaMaster, connection: socket.socket, host: str, address: str) -> None:
        self.connection = connection
        tls = master.settings.tls
        self._channel: HaChannel = PlainChannel(connection) if tls is None else TlsChannel(connection, tls())
        self.is_open = self.is_ended = False
        """Whether it was let in, and whether it had to go."""
        self.name = host
        """What makes it a replica of its own."""
        self.replica_id = 0
        """The number that a handshake gave."""
        self.counts = True
        self.hello_count = 0
        """More than 0: of TierMQ; see `ha_stream`."""
        self.from_last_file = master.settings.from_last_file
        self.address = address
        self.ack = -1
        self.position = -1
        self.rate = 0
        self.grown = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.read_s = master.clock.monotonic()
        self._master = master
        self._sent_bytes = self._counted_bytes = 0
        self._sent_s = 0.0
        self._confirm_sent = -1
        self._has_warned = False

    @property
    def is_observer(self) -> bool:
        return self.hello_count >= OBSERVER_HELLOS

    def end(self) -> None:
        self.is_ended = True
        with contextlib.suppress(OSError):  # It is gone already.
            self.connection.shutdown(socket.SHUT_RDWR)

    async def run(self) -> None:
        """Serve it until one side ends. Raises OSError and EOFError."""
        await self._channel.open()
        self.is_open = True
        sending = asyncio.get_running_loop().create_task(self._send_log())
        try:
            await self._read_reports(sending)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def take_rate(self) -> None:
        self.rate, self._counted_bytes = self._sent_bytes - self._counted_bytes, self._sent_bytes

    async def _read_reports(self, sending: asyncio.Task[None]) -> None:
        rest = b""
        while True:
            data = await self._channel.receive()
            if not data:
                raise EOFError("it closed the connection")
            if sending.done():
                sending.result()  # Raises what ended it.
            self.read_s = self._master.clock.monotonic()
            rest = self._take(rest + data)
            if self._master.is_not_awaited:
                await asyncio.sleep(GATHER_S)  # Of several reports the last one counts.

    def _take(self, data: bytes) -> bytes:
        """Take what it has sent; the bytes of a report that is not whole yet are returned."""
        begin, whole = 0, len(data) - len(data) % REPORT_BYTES
        while self.position < 0 and begin < whole and REPORT.unpack_from(data, begin) == (HELLO,):
            begin += REPORT_BYTES
            self.hello_count += 1
            self.counts = not self.is_observer
        if begin < whole:
            (offset,) = REPORT.unpack_from(data, whole - REPORT_BYTES)  # The last of several counts.
            self._reported(offset)
        return data[whole:]

    def _reported(self, offset: int) -> None:
        end = self._master.log.max_physical_offset
        if not 0 <= offset <= end:
            if self.position < 0:
                raise EOFError(
                    f"its log ends at {offset} and this one at {end}: it is no copy of this log; compare them, and "
                    "empty the slave's store if this log is the right one"
                )
            if not self._has_warned and not self.is_observer:  # Which reports that it counts for nothing.
                self._has_warned = True
                _log.error("slave %s: its report of %d is ignored, this log ends at %d", self.address, offset, end)
            return
        if self.position < 0:
            self.position = self._start_of(offset)
            kind = "observer" if self.is_observer else "slave"
            _log.info("%s %s: has the log up to %d, sent from %d on", kind, self.address, offset, self.position)
            self.grown.set()
        if offset > self.ack:
            is_first, self.ack = self.ack < 0, offset
            if is_first or self._master.rules.waits:  # Otherwise once a second is enough.
                self._master.update()

    def _start_of(self, offset: int) -> int:
        """Where an empty slave begins, or one that has the log up to `offset`."""
        log, size = self._master.log, self._master.settings.file_bytes
        first, end = max(0, log.min_physical_offset), log.max_physical_offset
        if offset == 0:
            return max(first, end - end % size) if self.from_last_file else first
        if offset < first:
            raise EOFError(f"it asks for bytes from {offset} on, and this log begins at {first}: empty its store")
        return offset

    async def _send_log(self) -> None:
        await self._wait_for_report()
        await self._send_heartbeat()  # It knows that it is served.
        is_idle = False
        while True:
            self.grown.clear()
            if is_idle:
                self._master.has_idle_slave = True  # Before the look: what is put after it wakes this slave.
            sent = await self._send_burst()
            if sent:  # Others come between the bursts of a slave that is far behind.
                gathers = sent < BURST_BYTES and self._master.is_not_awaited
                await asyncio.sleep(GATHER_S if gathers else 0)
            elif is_idle:
                await self._send_heartbeat_when_due()
            is_idle = not sent and not is_idle

    async def _send_burst(self) -> int:
        """Send what there is, up to a limit; how many bytes of the log."""
        with contextlib.ExitStack() as held:
            buffers: list[bytes | memoryview] = [confirm] if (confirm := self._confirm_frame()) else []
            size = 0
            while size < BURST_BYTES and len(buffers) < 2 * FRAMES_MAX:
                length = self._length()
                selected = self._master.log.log_bytes(self.position, length) if length > 0 else None
                if selected is None:
                    break
                held.enter_context(selected)
                buffers += [self._header(selected.size), selected.data]
                self.position += selected.size
                size += selected.size
            if buffers:
                await self._channel.send_all(buffers)
                self._sent_bytes += size
                self._sent_s = asyncio.get_running_loop().time()
        return size

    def _confirm_frame(self) -> bytes:
        """Up to where a slave of TierMQ may show the log, if that has changed."""
        where = self._master.replicated_where()
        if self.hello_count == 0 or self.is_observer or where == self._confirm_sent:
            return b""
        self._confirm_sent = where
        return HEADER.pack(where, CONFIRM_SIZE)

    async def _wait_for_report(self) -> None:
        while self.position < 0:
            self.grown.clear()
            await self.grown.wait()

    def _length(self) -> int:
        """How many bytes the next frame may have."""
        batch = min(self._master.settings.batch_bytes, BODY_BYTES_MAX)
        end = self._master.readable_end()
        if self.is_observer:
            end = min(end, self._master.log.confirm_offset)
        return min(batch, end - self.position)

    def _header(self, size: int) -> bytes:
        return HEADER.pack(self.position, size)

    async def _send_heartbeat_when_due(self) -> None:
        """The store calls `wake` ten times a second, whether the log has grown or not."""
        try:
            async with asyncio.timeout_at(self._sent_s + self._master.settings.heartbeat_s):
                await self.grown.wait()
        except TimeoutError:
            await self._send_heartbeat()

    async def _send_heartbeat(self) -> None:
        await self._channel.send(self._header(0))
        self._sent_s = asyncio.get_running_loop().time()


class _EpochSlave(_Slave):
    """A slave that speaks the auto-switch dialect; its handshake names the replica."""

    def __init__(self, master: HaMaster, connection: socket.socket, host: str, address: str) -> None:
        super().__init__(master, connection, host, address)
        self.counts = False  # Before the handshake it is no replica.
        self._unanswered = False

    def _take(self, data: bytes) -> bytes:
        found, rest = decode_slave(data)
        for each in found:
            if isinstance(each, Handshake):
                self._shake_hands(each)
            else:
                self._reported(each)
        return rest

    def _shake_hands(self, handshake: Handshake) -> None:
        if self.position >= 0:
            raise EOFError("it began a handshake in the middle of the log")
        self.name, self.replica_id = f"id {handshake.replica_id}", handshake.replica_id
        self.counts = not handshake.is_learner
        if self.counts:
            self._master.replace_connections(self)
        self.from_last_file = self.from_last_file or handshake.from_last_file
        self._unanswered = True
        self.grown.set()

    def _reported(self, offset: int) -> None:
        if self.position < 0 and not self.name.startswith("id "):
            raise EOFError("it reported without a handshake")
        super()._reported(offset)

    async def _wait_for_report(self) -> None:
        while self.position < 0:
            self.grown.clear()
            if self._unanswered:
                self._unanswered = False
                answer = Answer(self._master.log.max_physical_offset, self._epochs.entries)
                await self._channel.send(answer.encode())
            else:
                await self.grown.wait()

    @property
    def _epochs(self) -> EpochFile:
        assert self._master.epochs is not None
        return self._master.epochs

    def _length(self) -> int:
        found = entry_at(self._epochs.entries, self.position)
        return super()._length() if found is None else min(super()._length(), found[1] - self.position)

    def _header(self, size: int) -> bytes:
        found = entry_at(self._epochs.entries, self.position)
        if found is None:
            raise EOFError(f"no epoch is known of the bytes at {self.position}")
        self._confirm_sent = self._master.log.confirm_offset
        return transfer_header(self.position, size, found[0], self._confirm_sent)

    async def _send_heartbeat_when_due(self) -> None:
        if self._master.log.confirm_offset > self._confirm_sent:
            await self._send_heartbeat()
        else:
            await super()._send_heartbeat_when_due()
