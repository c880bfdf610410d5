"""The HA port of a master, as a slave sees it on the wire."""

from __future__ import annotations

import ipaddress
import threading
from contextlib import ExitStack
from pathlib import Path

from replication.streams import SlaveSocket, fill, log_of, master_store, serving, until
from simulation.manual_clock import ManualClock
from small_store import LOG_BYTES
from tiermq import Message
from tiermq.replication.ha_master import SLAVES_MAX
from tiermq.replication.ha_stream import HEADER, HELLO
from tiermq.replication.replica_acks import ReplicaRules
from tiermq.store.local_store import LocalStore


def test_an_empty_slave_gets_the_whole_log_byte_by_byte_with_the_blanks(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store) as master, SlaveSocket(master.port) as slave:
        fill(store, 200)
        end = store.max_physical_offset
        assert end > 4 * LOG_BYTES
        slave.report(0)
        assert slave.log(end) == (0, log_of(store))


def test_only_the_newest_file_is_sent_where_the_setting_says_so(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store, from_last_file=True) as master:
        fill(store, 200)
        end = store.max_physical_offset
        first = end - end % LOG_BYTES
        with SlaveSocket(master.port) as slave:
            slave.report(0)
            assert slave.log(end - first) == (first, log_of(store, first))


def test_a_slave_is_sent_what_follows_its_report_and_the_last_of_several_counts(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store) as master, SlaveSocket(master.port) as slave:
        fill(store, 20)
        end = store.max_physical_offset
        slave.report(0, 1, 777)
        assert slave.log(end - 777) == (777, log_of(store)[777:])


def test_frames_are_limited_and_end_with_their_file(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store, batch_bytes=1000) as master:
        fill(store, 120)
        with SlaveSocket(master.port) as slave:
            slave.report(0)
            at = 0
            while at < store.max_physical_offset:
                offset, body = slave.frame()
                assert (offset, len(body) <= 1000) == (at, True)
                assert offset // LOG_BYTES == (offset + len(body) - 1) // LOG_BYTES
                at += len(body)


def test_what_is_put_later_is_sent_without_being_asked_for(tmp_path: Path) -> None:
    with (
        master_store(tmp_path) as store,
        serving(store, heartbeat_s=1e6) as master,
        SlaveSocket(master.port) as slave,
    ):
        slave.report(0)
        assert slave.heartbeat() == 0
        for number in range(50):
            result = store.put(Message("T", b"%d" % number))
            offset, body = slave.frame()
            assert (offset, len(body)) == (result.physical_offset, result.size)


def test_an_idle_master_sends_heartbeats_with_the_next_offset(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store, heartbeat_s=0.01) as master:
        fill(store, 1)
        with SlaveSocket(master.port) as slave:
            slave.report(store.max_physical_offset)
            for _ in range(3):
                assert slave.heartbeat() == store.max_physical_offset


def test_a_master_that_is_woken_all_the_time_sends_heartbeats(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store, heartbeat_s=0.4) as master:
        fill(store, 1)
        with SlaveSocket(master.port) as slave:
            slave.report(store.max_physical_offset)
            assert slave.heartbeat() == store.max_physical_offset
            over = threading.Event()

            def wake() -> None:
                while not over.wait(0.05):  # As the store does.
                    master.wake()

            waking = threading.Thread(target=wake)
            waking.start()
            try:
                assert slave.heartbeat() == store.max_physical_offset
            finally:
                over.set()
                waking.join()


def test_nothing_is_sent_before_the_first_report(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store, heartbeat_s=0.01) as master:
        fill(store, 5)
        with SlaveSocket(master.port) as silent, SlaveSocket(master.port) as other:
            other.report(0)
            other.frame()
            silent.socket.setblocking(False)
            try:
                data = silent.socket.recv(1)
            except BlockingIOError:
                data = b""
            assert data == b""


def test_a_report_beyond_the_end_of_the_log_is_ignored(tmp_path: Path) -> None:
    rules = ReplicaRules(in_sync_replicas=2)
    with master_store(tmp_path) as store, serving(store, rules) as master, SlaveSocket(master.port) as slave:
        slave.report(0)
        until(lambda: master.state.in_sync == 2)
        fill(store, 1)
        end = store.max_physical_offset
        slave.report(end + 1_000_000)
        slave.report(end - 1)
        until(lambda: master.slaves()[0].ack == end - 1)
        assert master.replicated_where() == end - 1


def test_a_slave_whose_log_is_longer_than_the_masters_is_not_served(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store) as master:
        fill(store, 2)
        with SlaveSocket(master.port) as slave:
            slave.report(store.max_physical_offset + 1)
            assert slave.is_closed()
        until(lambda: not master.slaves())


def test_a_slave_that_asks_for_deleted_files_is_not_served(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store) as master:
        fill(store, 200)
        store._parts.log.files.delete_expired_by_time(0, 0, 0, True, 1)
        assert store.min_physical_offset == LOG_BYTES
        with SlaveSocket(master.port) as slave:
            slave.report(10)
            assert slave.is_closed()
        with SlaveSocket(master.port) as empty:
            empty.report(0)
            assert empty.frame()[0] == LOG_BYTES


def test_an_address_that_is_not_allowed_is_not_served(tmp_path: Path) -> None:
    allowed = [ipaddress.ip_network("127.0.0.2/32")]
    with master_store(tmp_path) as store, serving(store, allowed=allowed) as master:
        fill(store, 1)
        with SlaveSocket(master.port) as stranger:
            stranger.report(0)
            assert stranger.is_closed()
        assert master.refused_count == 1
        with SlaveSocket(master.port, source="127.0.0.2") as slave:
            slave.report(0)
            assert slave.frame()[0] == 0


def test_peers_that_report_nothing_keep_no_slave_out(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store) as master, ExitStack() as peers:
        for _ in range(SLAVES_MAX):
            peers.enter_context(SlaveSocket(master.port))
        fill(store, 1)
        for count in (1, 2):
            slave = peers.enter_context(SlaveSocket(master.port))
            slave.report(0)
            assert slave.frame()[0] == 0
            assert len(master.slaves()) == count


def test_a_sync_flush_master_sends_only_what_is_on_its_disk(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store, only_flushed=True, heartbeat_s=0.01) as master:
        fill(store, 3)
        store.flush()
        flushed = store.flushed_where
        lock = store._parts.flusher._flush_lock
        with lock, SlaveSocket(master.port) as slave:
            fill(store, 3)
            slave.report(0)
            assert slave.log(flushed) == (0, log_of(store)[:flushed])
            assert HEADER.unpack(slave._exactly(HEADER.size)) == (flushed, 0), "a heartbeat, no bytes"


def test_a_slave_that_reports_nothing_is_closed_after_the_housekeeping_interval(tmp_path: Path) -> None:
    clock = ManualClock()
    with master_store(tmp_path) as store, serving(store, clock=clock) as master, SlaveSocket(master.port) as slave:
        slave.report(0)
        until(master.slaves)
        clock.advance_ms(20_001)
        assert slave.is_closed()


def test_two_connections_of_one_slave_confirm_nothing_that_needs_two_slaves(tmp_path: Path) -> None:
    rules = ReplicaRules(in_sync_replicas=3)
    with (
        master_store(tmp_path) as store,
        serving(store, rules) as master,
        SlaveSocket(master.port) as one,
        SlaveSocket(master.port) as same,
    ):
        fill(store, 1)
        end = store.max_physical_offset
        for each in (one, same):
            each.report(end)
        until(lambda: len(master.slaves()) == 2)
        assert (master.state.in_sync, master.replicated_where()) == (2, 0)
        with SlaveSocket(master.port, source="127.0.0.2") as other:
            other.report(end)
            until(lambda: master.replicated_where() == end)


def test_a_slave_that_has_half_of_a_record_confirms_what_is_before_it(tmp_path: Path) -> None:
    rules = ReplicaRules(in_sync_replicas=2)
    with master_store(tmp_path) as store, serving(store, rules=rules) as master:
        store.require_replicas(master.replicated_where)
        master.listeners.append(lambda _state: store.replicas_moved())
        first = store.put(Message("T", b"first"))
        second = store.put(Message("T", b"." * 1000))
        with SlaveSocket(master.port) as slave:
            slave.report(second.end_offset - 100)
            until(lambda: master.state.confirmed == second.end_offset - 100)
            until(lambda: store.max_offset("T", 0) == 1)
            store.dispatch_now()
            assert store.dispatched_where == first.end_offset
            assert store.writeable, "nothing is damaged"
            slave.report(second.end_offset)
            until(lambda: store.max_offset("T", 0) == 2)


def test_unconfirmed_messages_are_stored_and_not_visible(tmp_path: Path) -> None:
    with master_store(tmp_path) as store, serving(store, ReplicaRules(in_sync_replicas=2)) as master:
        master.listeners.append(lambda _state: store.replicas_moved())
        store.require_replicas(master.replicated_where)
        with SlaveSocket(master.port) as slave:
            slave.report(0)
            until(lambda: master.state.in_sync == 2)
            first = store.put(Message("T", b"first", keys=["k"]))
            second = store.put(Message("T", b"second", keys=["k"]))
            store.flush()
            store.dispatch_now()
            assert seen(store) == 0
            slave.report(first.end_offset)
            until(lambda: seen(store) == 1)
            assert [each.body for each in store.query("T", "k").messages] == [b"first"]
            assert store.stored_at(second.physical_offset) is None
            slave.report(second.end_offset)
            until(lambda: seen(store) == 2)


def test_a_slave_of_tiermq_gets_what_is_committed_before_any_byte_that_is_not(tmp_path: Path) -> None:
    rules = ReplicaRules(in_sync_replicas=3)
    with (
        master_store(tmp_path) as store,
        serving(store, rules) as master,
        SlaveSocket(master.port) as slave,
        SlaveSocket(master.port, source="127.0.0.2") as other,
    ):
        slave.report(HELLO, 0)
        assert slave.heartbeat() == 0
        assert slave.confirm() == 0
        fill(store, 1)
        end = store.max_physical_offset
        assert slave.log(end) == (0, log_of(store))
        other.report(end)
        until(lambda: len(master.slaves()) == 2)
        slave.report(end)
        assert slave.confirm() == end, "also while there is nothing else to send"


def test_a_slave_of_rocketmq_gets_no_confirm_frames(tmp_path: Path) -> None:
    rules = ReplicaRules(in_sync_replicas=2)
    with master_store(tmp_path) as store, serving(store, rules) as master, SlaveSocket(master.port) as slave:
        slave.report(0)
        assert slave.heartbeat() == 0
        fill(store, 1)
        first = store.max_physical_offset
        assert HEADER.unpack(slave._exactly(HEADER.size)) == (0, first)
        slave._exactly(first)
        slave.report(first)
        until(lambda: master.state.confirmed == first)
        fill(store, 1)
        assert HEADER.unpack(slave._exactly(HEADER.size)) == (first, store.max_physical_offset - first)


def seen(store: LocalStore) -> int:
    return store.max_offset("T", 0)
