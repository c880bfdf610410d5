"""A slave's copy of the log: what it takes, what it reports, what it refuses."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from replication.streams import MasterSocket, fill, following, log_of, master_store, serving, slave_store, until
from small_store import LOG_BYTES
from tiermq import Message, PutStatus
from tiermq.clock import SystemClock
from tiermq.errors import ReplicationError
from tiermq.replication.ha_slave import HaSlave, HaSlaveSettings
from tiermq.settings import LONG_MAX
from tiermq.store.local_store import LocalStore


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Three files and a bit."""
    with master_store(tmp_path_factory.mktemp("master")) as store:
        fill(store, 150)
        return log_of(store)


def messages(store: LocalStore) -> list[bytes]:
    store.flush()
    store.dispatch_now()
    return [each.body for queue in range(4) for each in store.get("T", queue, 0, 1000, 1 << 30).messages]


def test_a_slave_of_a_tiermq_master_has_the_same_log_queues_and_index(tmp_path: Path) -> None:
    with master_store(tmp_path / "m") as store, serving(store) as master, slave_store(tmp_path / "s") as copy:
        fill(store, 100)
        with following(copy, f"127.0.0.1:{master.port}") as slave:
            fill(store, 100, topic="U")
            until(lambda: copy.max_physical_offset == store.max_physical_offset)
            assert (slave.problem, slave.is_connected) == ("", True)
        assert log_of(copy) == log_of(store)
        assert messages(copy) == messages(store)
        copy.dispatch_now()
        for topic in ("T", "U"):
            assert [each.body for each in copy.query(topic, "k7").messages] == [
                each.body for each in store.query(topic, "k7").messages
            ]


@pytest.mark.parametrize("size", [1, 7, 301, 4096])
def test_frames_may_cut_records_anywhere(tmp_path: Path, log: bytes, size: int) -> None:
    log = log[: 2 * LOG_BYTES + 100] if size > 100 else log[: 200 * size]
    with slave_store(tmp_path) as copy:
        at = 0
        while at < len(log):
            end = min(at + size, len(log), at - at % LOG_BYTES + LOG_BYTES)
            copy.append_data(at, memoryview(log)[at:end])
            copy.dispatch_now()
            at = end
        assert log_of(copy) == log
        assert copy.status()["queue_conflicts"] == 0
        whole = sum(1 for _ in messages(copy))
    with slave_store(tmp_path) as again:
        assert len(messages(again)) == whole
        assert log_of(again) == log[: again.max_physical_offset]


def test_a_slave_reports_its_end_first_and_after_each_frame(tmp_path: Path, log: bytes) -> None:
    with MasterSocket() as master, slave_store(tmp_path) as copy, following(copy, master.address):
        assert master.accept() == 0
        for at in range(0, 3000, 300):
            master.send(at, log[at : at + 300])
            assert master.report() == at + 300


def test_a_slave_says_hello_once_and_shows_what_its_master_has_committed(tmp_path: Path, log: bytes) -> None:
    with MasterSocket() as master, slave_store(tmp_path) as copy, following(copy, master.address) as slave:
        copy.require_replicas(lambda: slave.confirm_offset)
        assert (master.accept(), master.hello_count) == (0, 1)
        master.confirm(0)
        master.send(0, log[:3000])
        assert master.report() == 3000
        assert messages(copy) == []
        master.confirm(2000)
        until(lambda: slave.confirm_offset == 2000)
        some = messages(copy)
        assert copy.dispatched_where <= 2000 < copy.max_physical_offset
        assert some
        master.confirm(LONG_MAX)
        until(lambda: slave.confirm_offset == LONG_MAX)
        assert len(messages(copy)) > len(some)


def test_a_slave_of_a_master_that_confirms_nothing_shows_everything(tmp_path: Path, log: bytes) -> None:
    """As RocketMQ's does not."""
    with MasterSocket() as master, slave_store(tmp_path) as copy, following(copy, master.address) as slave:
        copy.require_replicas(lambda: slave.confirm_offset)
        master.accept()
        master.send(0, log[:3000])
        until(lambda: slave.confirm_offset == LONG_MAX)
        assert messages(copy)


def test_what_a_slave_has_shown_stays_when_its_master_begins_to_wait(tmp_path: Path, log: bytes) -> None:
    with MasterSocket() as master, slave_store(tmp_path) as copy, following(copy, master.address) as slave:
        master.accept()
        master.confirm(LONG_MAX)
        master.send(0, log[:3000])
        assert master.report() == 3000
        master.confirm(2000)
        until(lambda: slave.confirm_offset == 3000)


def test_an_idle_slave_reports_at_each_heartbeat(tmp_path: Path) -> None:
    with MasterSocket() as master, slave_store(tmp_path) as copy, following(copy, master.address, heartbeat_s=0.02):
        assert [master.accept(), master.report(), master.report()] == [0, 0, 0]


def test_a_sync_flush_slave_reports_what_is_on_its_disk(tmp_path: Path, log: bytes) -> None:
    with (
        MasterSocket() as master,
        slave_store(tmp_path, flush_disk_type="SYNC_FLUSH") as copy,
        following(copy, master.address, flushes=True),
    ):
        master.accept()
        for at in range(0, 3000, 300):
            master.send(at, log[at : at + 300])
            assert master.report() <= copy.flushed_where


def test_an_empty_slave_begins_where_the_masters_file_begins(tmp_path: Path, log: bytes) -> None:
    with MasterSocket() as master, slave_store(tmp_path) as copy, following(copy, master.address):
        assert master.accept() == 0
        master.send(LOG_BYTES, log[LOG_BYTES : LOG_BYTES + 2000])
        assert master.report() == LOG_BYTES + 2000
        assert copy.min_physical_offset == LOG_BYTES


def test_a_log_that_is_no_copy_is_left_as_it_is_and_explained(tmp_path: Path, log: bytes) -> None:
    with MasterSocket() as master, slave_store(tmp_path) as copy:
        copy.append_data(0, memoryview(log)[:1000])
        with following(copy, master.address) as slave:
            assert master.accept() == 1000
            master.send(900, log[900:1200])
            until(lambda: slave.problem)
            assert "this log is not a copy of it" in slave.problem
            assert not slave.is_connected
        assert log_of(copy) == log[:1000]


def test_a_master_with_files_of_another_size_is_explained(tmp_path: Path, log: bytes) -> None:
    with slave_store(tmp_path) as copy:
        with pytest.raises(ReplicationError, match="mappedFileSizeCommitLog is different"):
            copy.append_data(LOG_BYTES // 2, memoryview(log)[:10])
        with pytest.raises(ReplicationError, match="mappedFileSizeCommitLog is different"):
            copy.append_data(0, memoryview(log)[: LOG_BYTES + 1])
        assert copy.max_physical_offset == 0


def test_a_slave_refuses_puts_in_words(tmp_path: Path) -> None:
    with slave_store(tmp_path) as copy:
        assert copy.put(Message("T", b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "it is a slave, which copies its master" in copy.why_not_writeable


def test_a_topic_that_was_deleted_and_begun_again_on_the_master_begins_again_on_the_slave(tmp_path: Path) -> None:
    with master_store(tmp_path / "m") as store, serving(store) as master, slave_store(tmp_path / "s") as copy:
        fill(store, 8)
        store.delete_topics(["T"])
        store.put(Message("T", b"new"))
        with following(copy, f"127.0.0.1:{master.port}"):
            until(lambda: copy.max_physical_offset == store.max_physical_offset)
        copy.dispatch_now()
        assert [each.body for each in copy.get("T", 0, 0).messages] == [b"new"]


def test_a_slave_that_is_stopped_within_a_record_closes_cleanly_and_goes_on(tmp_path: Path, log: bytes) -> None:
    with slave_store(tmp_path) as copy:
        copy.append_data(0, memoryview(log)[:1000])
    with MasterSocket() as master, slave_store(tmp_path) as copy:
        assert copy.recovered is not None
        assert copy.recovered.mode == "marker", "it was closed cleanly"
        end = copy.max_physical_offset
        assert 0 < end < 1000
        with following(copy, master.address):
            assert master.accept() == end
            master.send(end, log[end:2000])
            assert master.report() == 2000
        assert log_of(copy) == log[:2000]


def test_a_slave_ends_at_once_although_its_master_does_not_answer_a_connection(tmp_path: Path) -> None:
    with slave_store(tmp_path) as copy, ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):  # It accepts none of them: as a machine without power, it answers no further one.
            full = stack.enter_context(socket.socket())
            full.setblocking(False)
            full.connect_ex(server.getsockname())
        slave = HaSlave(copy, HaSlaveSettings(), SystemClock())
        slave.set_master(f"127.0.0.1:{server.getsockname()[1]}")
        slave.start()
        until(lambda: slave._is_connecting)
        slave.stop()
        assert slave._thread.is_alive(), "it waits for the connection still, and nothing waits for it"
    slave._thread.join()
    assert slave.received_bytes == 0
