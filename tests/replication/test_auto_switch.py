"""Masters and slaves that know epochs: handshake, frames of one epoch, logs that must be cut, what slaves show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replication.streams import SlaveSocket, bound, fill, following, log_of, master_store, serving, slave_store, until
from small_store import LOG_BYTES, SIZES
from tiermq.clock import SystemClock
from tiermq.config import StoreConfig
from tiermq.files.os_file_access import OsFileAccess
from tiermq.replication.auto_switch_stream import (
    REPORT,
    Answer,
    Handshake,
    MasterFrames,
    Transfer,
    transfer_header,
)
from tiermq.replication.epoch_file import FILE, EpochEntry, EpochFile
from tiermq.replication.ha_master import HaMaster, HaMasterSettings
from tiermq.replication.ha_slave import HaSlave, HaSlaveSettings
from tiermq.replication.replica_acks import ReplicaRules
from tiermq.store.cut_log import cut_log
from tiermq.store.local_store import LocalStore

NEVER = 1e6


def epochs_of(path: Path) -> EpochFile:
    return EpochFile(OsFileAccess(), str(path / FILE))


def begun(path: Path, store: LocalStore, epoch: int) -> EpochFile:
    """The epochs of a store that becomes the master."""
    epochs = epochs_of(path)
    epochs.begin(epoch, max(0, store.min_physical_offset), store.max_physical_offset)
    return epochs


@contextmanager
def leading(
    store: LocalStore, epochs: EpochFile, rules: ReplicaRules | None = None, **settings: Any
) -> Iterator[HaMaster]:
    fields = {"file_bytes": LOG_BYTES, **settings}
    master = HaMaster(store, rules or ReplicaRules(), HaMasterSettings(**fields), bound(), SystemClock(), epochs)
    if rules is not None:
        store.require_replicas(master.replicated_where)
        master.listeners.append(lambda _state: store.replicas_moved())
    store.add_growth_listener(master.wake)
    master.start()
    try:
        yield master
    finally:
        master.stop()


@contextmanager
def trailing(
    store: LocalStore, epochs: EpochFile, master: HaMaster, replica_id: int = 2, **settings: Any
) -> Iterator[HaSlave]:
    slave = HaSlave(store, HaSlaveSettings(replica_id=replica_id, **settings), SystemClock(), epochs)
    store.require_replicas(lambda: slave.confirm_offset)
    slave.confirm_listeners.append(store.replicas_moved)
    slave.set_master(f"127.0.0.1:{master.port}")
    slave.start()
    try:
        yield slave
    finally:
        slave.stop()


class Replica(SlaveSocket):
    """What a slave under a controller sends and hears, byte by byte."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._frames = MasterFrames()
        self._found: list[Answer | Transfer] = []

    def shake_hands(self, replica_id: int, *, is_learner: bool = False) -> Answer:
        self.socket.sendall(Handshake(False, is_learner, replica_id).encode())
        answer = self.next()
        assert isinstance(answer, Answer)
        return answer

    def report_end(self, end: int) -> None:
        self.socket.sendall(REPORT.pack(2, end))

    def next(self) -> Answer | Transfer:
        while not self._found:
            count = self.socket.recv_into(self._frames.free())
            assert count, "the stream ended"
            self._found += [
                each._replace(body=memoryview(bytes(each.body))) if isinstance(each, Transfer) else each
                for each in self._frames.received(count)
            ]
        return self._found.pop(0)

    def transfer(self) -> Transfer:
        """The next one with bytes."""
        while True:
            found = self.next()
            if isinstance(found, Transfer) and len(found.body):
                return found


def bodies(store: LocalStore) -> list[bytes]:
    store.dispatch_now()
    return [each.body for queue in range(4) for each in store.get("T", queue, 0, 1000, 1 << 30).messages]


def test_a_new_connection_of_a_replica_replaces_the_one_before(tmp_path: Path) -> None:
    with master_store(tmp_path) as store:
        epochs = begun(tmp_path, store, 1)
        fill(store, 1)
        part = store.max_physical_offset
        fill(store, 2)
        end = store.max_physical_offset
        with leading(store, epochs) as master, Replica(master.port) as first, Replica(master.port) as second:
            first.shake_hands(2)
            first.report_end(end)
            until(lambda: [each.ack for each in master.slaves()] == [end])
            second.shake_hands(2)
            second.report_end(part)
            until(lambda: [each.ack for each in master.slaves()] == [part])


def test_each_frame_is_of_one_epoch_and_one_file_and_is_labelled_with_its_own(tmp_path: Path) -> None:
    """RocketMQ 5.3.3 labels the last bytes of an epoch with the next one."""
    with master_store(tmp_path) as store:
        epochs = begun(tmp_path, store, 1)
        for epoch in (2, 5):
            fill(store, 70)
            epochs.begin(epoch, 0, store.max_physical_offset)
        fill(store, 70)
        end, log = store.max_physical_offset, log_of(store)
        with leading(store, epochs) as master, Replica(master.port) as replica:
            assert replica.shake_hands(2) == Answer(end, epochs.entries)
            replica.report_end(0)
            at, labels = 0, []
            while at < end:
                frame = replica.transfer()
                assert frame.offset == at
                assert frame.body == log[at : at + len(frame.body)]
                limit = next((each.start for each in epochs.entries if each.start > at), end)
                assert at + len(frame.body) <= min(limit, at - at % LOG_BYTES + LOG_BYTES)
                assert (frame.epoch, frame.epoch_start) == max(each for each in epochs.entries if each.start <= at)
                labels.append(frame.epoch)
                at += len(frame.body)
            assert set(labels) == {1, 2, 5}
            assert frame.confirm == end


def test_a_slave_of_a_master_with_epochs_has_the_same_log_and_the_same_epoch_file(tmp_path: Path) -> None:
    with master_store(tmp_path / "m") as store, slave_store(tmp_path / "s") as copy:
        epochs = begun(tmp_path / "m", store, 1)
        fill(store, 60)
        epochs.begin(3, 0, store.max_physical_offset)
        copied = epochs_of(tmp_path / "s")
        with leading(store, epochs) as master, trailing(copy, copied, master) as slave:
            fill(store, 60)
            until(lambda: copy.max_physical_offset == store.max_physical_offset and slave.is_connected)
            until(lambda: slave.confirm_offset == store.max_physical_offset)
        assert log_of(copy) == log_of(store)
        assert (tmp_path / "s" / FILE).read_bytes() == (tmp_path / "m" / FILE).read_bytes()
        assert bodies(copy) == bodies(store)


def test_replicas_are_distinguished_by_id_and_learners_do_not_count(tmp_path: Path) -> None:
    rules = ReplicaRules(in_sync_replicas=3)
    with master_store(tmp_path) as store, leading(store, begun(tmp_path, store, 1), rules) as master:
        fill(store, 3)
        end = store.max_physical_offset
        with Replica(master.port) as two, Replica(master.port) as twice, Replica(master.port) as three:
            for each, replica_id in ((two, 2), (twice, 2)):
                each.shake_hands(replica_id)
                each.report_end(end)
                each.next()
            until(lambda: len(master.slaves()) == 1)  # The second connection of replica 2 replaced the first.
            until(lambda: master.state.in_sync == 2)
            three.shake_hands(3, is_learner=True)
            three.report_end(end)
            until(lambda: len(master.slaves()) == 2)
            assert (master.state.in_sync, master.state.confirmed) == (2, 0)
            with Replica(master.port) as other:
                other.shake_hands(4)
                other.report_end(end)
                until(lambda: master.state.confirmed == end)


def test_what_is_not_confirmed_by_the_master_is_not_shown_by_a_slave(tmp_path: Path) -> None:
    """The master needs three replicas and has two: nothing becomes visible, on either."""
    rules = ReplicaRules(in_sync_replicas=3)
    with master_store(tmp_path / "m") as store, slave_store(tmp_path / "s") as copy:
        epochs = begun(tmp_path / "m", store, 1)
        with (
            leading(store, epochs, rules, heartbeat_s=NEVER) as master,
            trailing(copy, epochs_of(tmp_path / "s"), master) as slave,
        ):
            fill(store, 5)
            end = store.max_physical_offset
            until(lambda: [each.ack for each in master.slaves()] == [end])
            assert slave.confirm_offset == 0
            assert bodies(copy) == bodies(store) == []
            with Replica(master.port) as third:
                third.shake_hands(3)
                third.report_end(end)
                until(lambda: slave.confirm_offset == end)
                assert len(bodies(copy)) == len(bodies(store)) == 5


def test_a_replaced_masters_tail_is_reported_cut_by_the_owner_and_then_it_follows(tmp_path: Path) -> None:
    """A writes in epoch 1, B has less and is elected with epoch 2: A must lose exactly what B did not have."""
    a, b = tmp_path / "a", tmp_path / "b"
    with master_store(a) as old:
        fill(old, 100)
        begun(a, old, 1)
        common = old.max_physical_offset
        with slave_store(b) as copy, leading(old, epochs_of(a)) as master:
            epochs = epochs_of(b)
            with trailing(copy, epochs, master):
                until(lambda: copy.max_physical_offset == common)
        fill(old, 80, body_bytes=250)
        end, tail = old.max_physical_offset, log_of(old)[common:]
    with master_store(b) as new:
        epochs = begun(b, new, 2)
        fill(new, 200, body_bytes=100)
        with leading(new, epochs) as master:
            with slave_store(a) as returning, trailing(returning, epochs_of(a), master) as slave:
                asked: list[int] = []
                slave.needs_cut = asked.append
                until(lambda: asked)
                until(lambda: slave.problem)
                assert set(asked) == {common}
                assert f"the same up to physical offset {common} and this one up to {end}" in slave.problem
                assert not slave.is_connected
                assert returning.max_physical_offset == end, "nothing is cut while the store is open"
            config = StoreConfig().with_settings(store_path_root_dir=str(a), **SIZES)
            kept = cut_log(config, common, 1)
            assert Path(kept).read_bytes() == tail
            with slave_store(a) as returning, trailing(returning, epochs_of(a), master):
                until(lambda: returning.max_physical_offset == new.max_physical_offset)
                assert log_of(returning) == log_of(new)
                until(lambda: bodies(returning) == bodies(new))
        assert (a / FILE).read_bytes() == (b / FILE).read_bytes()


def test_a_log_without_an_epoch_in_common_is_left_as_it_is_and_explained(tmp_path: Path) -> None:
    with master_store(tmp_path / "m") as store, master_store(tmp_path / "s") as other:
        fill(other, 5)
        begun(tmp_path / "s", other, 7)
        other.close()
        with slave_store(tmp_path / "s") as copy, leading(store, begun(tmp_path / "m", store, 1)) as master:
            before = log_of(copy)
            with trailing(copy, epochs_of(tmp_path / "s"), master) as slave:
                until(lambda: slave.problem)
            assert "found 7 from 0 on here and 1 from 0 on there" in slave.problem
            assert log_of(copy) == before


def test_a_master_of_an_earlier_epoch_than_this_log_cuts_nothing(tmp_path: Path) -> None:
    """An older state of the election was restored: its master has epoch 1 in common, and this log has a newer one."""
    with master_store(tmp_path / "m") as store, master_store(tmp_path / "s") as newer:
        for each in (store, newer):
            fill(each, 5)
        begun(tmp_path / "s", newer, 1).begin(2, 0, newer.max_physical_offset)
        fill(newer, 5)
        newer.close()
        with slave_store(tmp_path / "s") as copy, leading(store, begun(tmp_path / "m", store, 1)) as master:
            asked: list[int] = []
            with trailing(copy, epochs_of(tmp_path / "s"), master) as slave:
                slave.needs_cut = asked.append
                until(lambda: slave.problem)
            assert "expected a master of epoch 2, which this log has" in slave.problem
            assert asked == []


def test_a_frame_that_is_labelled_with_the_next_epoch_is_taken_as_rocketmq_sends_it(tmp_path: Path) -> None:
    with master_store(tmp_path / "m") as store:
        fill(store, 6)
        log = log_of(store)
    listening = bound()
    listening.listen()
    with slave_store(tmp_path / "s") as copy:
        epochs = epochs_of(tmp_path / "s")
        slave = HaSlave(copy, HaSlaveSettings(replica_id=2), SystemClock(), epochs)
        slave.set_master(f"127.0.0.1:{listening.getsockname()[1]}")
        slave.start()
        connection, _ = listening.accept()
        with listening, connection:
            assert connection.recv(100) == Handshake(False, False, 2).encode()
            entries = (EpochEntry(1, 0), EpochEntry(2, 700))
            connection.sendall(Answer(len(log), entries).encode())
            assert connection.recv(100) == REPORT.pack(2, 0)
            for begin, end in ((0, 400), (400, 700), (700, 1000)):
                label = entries[0] if begin == 0 else entries[1]
                connection.sendall(transfer_header(begin, end - begin, label, 500) + log[begin:end])
                assert connection.recv(100) == REPORT.pack(2, end)
            slave.stop()
        assert epochs.entries == entries
        assert slave.confirm_offset == 500
        assert log_of(copy) == log[:1000]


def test_the_two_dialects_explain_each_other(tmp_path: Path) -> None:
    with master_store(tmp_path / "m") as store, slave_store(tmp_path / "s") as copy:
        fill(store, 2)
        with serving(store) as plain, trailing(copy, epochs_of(tmp_path / "s"), plain) as slave:
            until(lambda: slave.problem)
        with (
            leading(store, begun(tmp_path / "m", store, 1)) as master,
            following(copy, f"127.0.0.1:{master.port}", heartbeat_s=0.01) as other,
        ):
            until(lambda: other.problem)
        assert copy.max_physical_offset == 0
