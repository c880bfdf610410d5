"""An observer copies a master's log, never counts as its replica, and refuses a log that is not the one it copied."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from replication.streams import SlaveSocket, bound, fill, log_of, master_store, serving, slave_store, until
from simulation.manual_clock import ManualClock
from small_store import LOG_BYTES
from tiermq.clock import SystemClock
from tiermq.replication.ha_master import HaMaster
from tiermq.replication.ha_observer import NOTHING, HaObserver, settled_offset
from tiermq.replication.ha_slave import HaSlaveSettings
from tiermq.replication.ha_stream import HEADER, HELLO, REPORT, REPORT_BYTES
from tiermq.replication.replica_acks import ReplicaRules
from tiermq.store.local_store import LocalStore

GUARD_MS = 10_000


@contextmanager
def observing(store: LocalStore, port: int, begin: int = 0, **settings: float) -> Iterator[HaObserver]:
    made = HaObserver(
        store,
        HaSlaveSettings(**{"heartbeat_s": 0.05, **settings}),  # type: ignore[arg-type]
        SystemClock(),
        file_bytes=LOG_BYTES,
        begin=lambda: begin,
    )
    made.guard_ms = GUARD_MS
    made.set_master(f"127.0.0.1:{port}")
    made.start()
    try:
        yield made
    finally:
        made.stop()


def copied(copy: LocalStore, of: LocalStore) -> None:
    until(lambda: copy.max_physical_offset == of.max_physical_offset)
    assert log_of(copy) == log_of(of, copy.min_physical_offset)


def test_an_observer_has_the_same_bytes_and_acknowledges_none(tmp_path: Path) -> None:
    rules = ReplicaRules(in_sync_replicas=2)
    with (
        master_store(tmp_path / "m") as master,
        slave_store(tmp_path / "s") as copy,
        serving(master, rules, heartbeat_s=0.05) as port,
        observing(copy, port.port) as observer,
    ):
        fill(master, 300)
        copied(copy, master)
        until(lambda: observer.is_connected)
        assert acks(port) == [0]
        assert port.replicated_where() == 0, "a master that waits for a replica has none"


def test_an_observer_counts_for_nothing_and_is_sent_what_is_committed(tmp_path: Path) -> None:
    rules = ReplicaRules(in_sync_replicas=2, min_in_sync_replicas=2, auto=True)
    with (
        master_store(tmp_path / "m") as master,
        slave_store(tmp_path / "s") as copy,
        serving(master, rules, heartbeat_s=0.05) as port,
        observing(copy, port.port) as observer,
    ):
        master.require_replicas(port.replicated_where)
        port.listeners.append(lambda _state: master.replicas_moved())
        until(lambda: observer.is_connected)
        fill(master, 3)
        half = master.max_physical_offset
        fill(master, 3)
        [shown] = port.slaves()
        assert (port.state.in_sync, shown.is_in_sync, shown.is_replica) == (1, False, False)
        assert port.replicas() == []
        with SlaveSocket(port.port, source="127.0.0.2") as replica:
            replica.report(0)
            until(lambda: port.state.in_sync == 2)
            replica.report(half)
            until(lambda: copy.max_physical_offset == half)
            assert log_of(copy) == log_of(master)[:half]
            replica.report(master.max_physical_offset)
            copied(copy, master)


def acks(port: HaMaster) -> list[int]:
    return [each.ack for each in port.slaves()]


def test_after_a_restart_it_reports_only_what_no_sender_waits_for(tmp_path: Path) -> None:
    clock = ManualClock()
    with master_store(tmp_path / "m", clock=clock) as master:
        fill(master, 20)
        clock.advance_ms(GUARD_MS)
        settled = master.max_physical_offset
        fill(master, 5)
        with slave_store(tmp_path / "s") as copy, serving(master) as port, observing(copy, port.port):
            copied(copy, master)
        with (
            slave_store(tmp_path / "s") as copy,
            serving(master, heartbeat_s=0.05) as port,
            observing(copy, port.port) as observer,
        ):
            until(lambda: observer.is_connected)
            fill(master, 40)
            copied(copy, master)
            assert acks(port) == [settled]


def test_what_is_settled_follows_from_the_log_alone(tmp_path: Path) -> None:
    clock = ManualClock()
    with master_store(tmp_path / "m", clock=clock) as store:
        fill(store, 3)
        assert settled_offset(store, LOG_BYTES, GUARD_MS) == 1, "a report of 0 would ask for the newest file"
        clock.advance_ms(GUARD_MS - 1)
        second = store.max_physical_offset
        fill(store, 1)
        assert settled_offset(store, LOG_BYTES, GUARD_MS) == 1
        clock.advance_ms(1)
        fill(store, 1)
        assert settled_offset(store, LOG_BYTES, GUARD_MS) == second
        clock.advance_ms(GUARD_MS)
        last = store.max_physical_offset
        fill(store, 1)
        assert settled_offset(store, LOG_BYTES, GUARD_MS) == last < store.max_physical_offset, "never the end"


def test_the_oldest_file_is_copied_although_a_report_of_0_means_the_newest(tmp_path: Path) -> None:
    with master_store(tmp_path / "m") as master, slave_store(tmp_path / "s") as copy:
        fill(master, 1000)
        assert master.max_physical_offset > 2 * LOG_BYTES
        with serving(master, from_last_file=True) as port, observing(copy, port.port, begin=1):
            copied(copy, master)
            assert copy.min_physical_offset == 0


class FakeMaster:
    """Sends what a test tells it."""

    def __init__(self) -> None:
        self.listening = bound()
        self.listening.listen()
        self.port: int = self.listening.getsockname()[1]
        self.open = [self.listening]

    def accept(self) -> tuple[socket.socket, int]:
        connection, _ = self.listening.accept()
        self.open.append(connection)
        found = [HELLO]
        while found[-1] == HELLO:
            found += REPORT.unpack(connection.recv(REPORT_BYTES, socket.MSG_WAITALL))
        assert found[1:-1] == [HELLO, HELLO], "it says that it is an observer, before anything else"
        return connection, found[-1]


@pytest.fixture
def fake() -> Iterator[FakeMaster]:
    made = FakeMaster()
    yield made
    for each in made.open:
        each.close()


def frame(offset: int, body: bytes = b"") -> bytes:
    return HEADER.pack(offset, len(body)) + body


def full(path: Path, count: int = 10) -> bytes:
    with master_store(path) as store:
        fill(store, count)
        return log_of(store)


def test_a_master_that_lost_its_tail_is_refused_and_nothing_is_appended(tmp_path: Path, fake: FakeMaster) -> None:
    data = full(tmp_path / "m")
    with slave_store(tmp_path / "s") as copy, observing(copy, fake.port) as observer:
        connection, _ = fake.accept()
        connection.sendall(frame(0, data))
        until(lambda: copy.max_physical_offset == len(data))
        connection.close()
        connection, asked = fake.accept()
        connection.sendall(frame(asked, data[asked : len(data) - 400]) + 2 * frame(len(data) - 400))
        until(lambda: f"found its end at {len(data) - 400}" in observer.problem)
        assert not observer.is_connected
        connection, asked = fake.accept()
        other = bytearray(data[asked:])
        other[-10] ^= 1
        connection.sendall(frame(asked, bytes(other)) + frame(len(data), b"more"))
        until(lambda: "expected the same bytes" in observer.problem)
        assert log_of(copy) == data
        assert "another tier" in observer.problem


def test_one_heartbeat_before_the_bytes_is_no_divergence(tmp_path: Path, fake: FakeMaster) -> None:
    """A master that was stopped for a while sends a heartbeat first."""
    data = full(tmp_path / "m")
    with slave_store(tmp_path / "s") as copy, observing(copy, fake.port) as observer:
        connection, _ = fake.accept()
        connection.sendall(frame(0, data))
        until(lambda: copy.max_physical_offset == len(data))
        connection.close()
        connection, asked = fake.accept()
        connection.sendall(frame(asked) + frame(asked, data[asked:]) + frame(len(data)))
        until(lambda: observer.is_connected and not observer.problem)


def test_once_it_is_served_it_reports_that_it_has_nothing(tmp_path: Path, fake: FakeMaster) -> None:
    """RocketMQ 5 takes a slave for in sync by its last report."""
    data = full(tmp_path / "m", 30)
    with slave_store(tmp_path / "s") as copy, observing(copy, fake.port):
        connection, first = fake.accept()
        seen = b""
        for at in range(0, len(data), 1000):
            connection.sendall(frame(at, data[at : at + 1000]))
            seen += connection.recv(REPORT_BYTES)
        until(lambda: copy.max_physical_offset == len(data))
        assert first == 0
        reports = [offset for (offset,) in REPORT.iter_unpack(seen[: len(seen) // 8 * 8])]
        assert set(reports) <= {0, NOTHING}, "it never has a byte"
        assert reports[-1] == NOTHING
        assert NOTHING not in reports[: reports.count(0)], "not before the master knows where to begin"


def test_the_master_is_asked_for_a_begin_until_it_sends(tmp_path: Path, fake: FakeMaster) -> None:
    with slave_store(tmp_path / "s") as copy, observing(copy, fake.port, begin=7):
        connection, first = fake.accept()
        again = [REPORT.unpack(connection.recv(REPORT_BYTES, socket.MSG_WAITALL)) for _ in range(3)]
        assert [first, *again] == [7, (7,), (7,), (7,)]


def test_files_stay_while_they_may_be_needed_to_ask_again(tmp_path: Path) -> None:
    clock = ManualClock()
    with slave_store(tmp_path / "s", clock=clock) as copy:
        data = full(tmp_path / "m", 30)
        observer = HaObserver(copy, HaSlaveSettings(), clock, file_bytes=LOG_BYTES)
        observer.guard_ms = GUARD_MS
        clock.advance_ms(2_000)
        observer.take(0, memoryview(data))
        assert observer.must_stay(0, 100)
        clock.advance_ms(GUARD_MS + 1)
        assert not observer.must_stay(0, 100)
        assert observer.must_stay(0, len(data) + 1)


def test_a_gap_is_refused(tmp_path: Path, fake: FakeMaster) -> None:
    data = full(tmp_path / "m")
    with slave_store(tmp_path / "s") as copy, observing(copy, fake.port) as observer:
        connection, _ = fake.accept()
        connection.sendall(frame(0, data) + frame(len(data) + 1, b"x"))
        until(lambda: "lost here" in observer.problem)
        assert log_of(copy) == data
