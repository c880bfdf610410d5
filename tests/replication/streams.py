"""Both ends of an HA stream for tests: a socket that speaks as a slave, and one that speaks as a master."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import waiting
from small_store import LOG_BYTES, on_disk
from tiermq import Message
from tiermq.clock import Clock, SystemClock
from tiermq.replication.ha_master import HaMaster, HaMasterSettings
from tiermq.replication.ha_slave import HaSlave, HaSlaveSettings
from tiermq.replication.ha_stream import CONFIRM_SIZE, HEADER, HELLO, REPORT, REPORT_BYTES
from tiermq.replication.replica_acks import ReplicaRules
from tiermq.store.local_store import LocalStore

until = waiting.until


def bound() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


def master_store(path: Path, **settings: Any) -> LocalStore:
    return on_disk(path, with_replication=True, **settings)


def slave_store(path: Path, **settings: Any) -> LocalStore:
    return on_disk(path, with_replication=True, broker_role="SLAVE", **settings)


def fill(store: LocalStore, count: int, body_bytes: int = 300, topic: str = "T") -> None:
    for number in range(count):
        message = Message(topic, b"%05d" % number + b"." * body_bytes, number % 4, keys=[f"k{number}"])
        assert store.put(message).status.name == "PUT_OK"


def log_of(store: LocalStore, begin: int | None = None) -> bytes:
    """The log as bytes."""
    at, parts = store.min_physical_offset if begin is None else begin, []
    while (selected := store.log_bytes(at, LOG_BYTES)) is not None:
        with selected:
            parts.append(bytes(selected.data))
            at += selected.size
    return b"".join(parts)


@contextmanager
def serving(
    store: LocalStore, rules: ReplicaRules | None = None, clock: Clock | None = None, **settings: Any
) -> Iterator[HaMaster]:
    made = HaMaster(
        store,
        rules or ReplicaRules(),
        HaMasterSettings(**{"file_bytes": LOG_BYTES, **settings}),
        bound(),
        clock or SystemClock(),
    )
    store.add_growth_listener(made.wake)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def following(store: LocalStore, address: str, **settings: Any) -> Iterator[HaSlave]:
    slave = HaSlave(store, HaSlaveSettings(**settings), SystemClock())
    slave.set_master(address)
    slave.start()
    try:
        yield slave
    finally:
        slave.stop()


class SlaveSocket:
    """What a slave says and hears, byte by byte."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))

    def report(self, *offsets: int) -> None:
        self.socket.sendall(b"".join(map(REPORT.pack, offsets)))

    def frame(self) -> tuple[int, bytes]:
        """The next one that has bytes."""
        while True:
            offset, size = HEADER.unpack(self._exactly(HEADER.size))
            if size > 0:
                return offset, self._exactly(size)

    def confirm(self) -> int:
        """What the next confirm frame says."""
        while True:
            offset, size = HEADER.unpack(self._exactly(HEADER.size))
            if size == CONFIRM_SIZE:
                return int(offset)
            self._exactly(size)

    def heartbeat(self) -> int:
        offset, size = HEADER.unpack(self._exactly(HEADER.size))
        assert size == 0
        return int(offset)

    def is_closed(self) -> bool:
        """Waits for the end of the stream, whatever comes before."""
        try:
            while self.socket.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        return True

    def log(self, length: int) -> tuple[int, bytes]:
        """Where the frames begin, and the bytes of as many of them as make `length`."""
        begin, data = self.frame()
        while len(data) < length:
            offset, body = self.frame()
            assert offset == begin + len(data)
            data += body
        return begin, data

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, f"the stream ended, {size - len(data)} bytes early"
            data += more
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()


class MasterSocket:
    """A port at which one slave after the other is served by hand."""

    def __init__(self) -> None:
        self._listening = bound()
        self._listening.listen()
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.connection: socket.socket | None = None
        self.hello_count = 0

    def accept(self) -> int:
        """Wait for a slave; its first report."""
        self.connection, _ = self._listening.accept()
        self.hello_count = 0
        while (found := self.report()) == HELLO:
            self.hello_count += 1
        return found

    def confirm(self, offset: int) -> None:
        assert self.connection is not None
        self.connection.sendall(HEADER.pack(offset, CONFIRM_SIZE))

    def report(self) -> int:
        assert self.connection is not None
        data = b""
        while len(data) < REPORT_BYTES:
            more = self.connection.recv(REPORT_BYTES - len(data))
            assert more
            data += more
        return int(REPORT.unpack(data)[0])

    def send(self, offset: int, body: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(HEADER.pack(offset, len(body)) + body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._listening.close()
        if self.connection is not None:
            self.connection.close()
