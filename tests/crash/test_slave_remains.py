"""What a slave that died leaves, and a master whose log was cut: both go on, and nothing is mixed up."""

from __future__ import annotations

from pathlib import Path

import pytest

from replication.streams import SlaveSocket, fill, following, log_of, master_store, serving, slave_store, until
from simulation.simulated_files import SimulatedFileAccess
from small_store import LOG_BYTES, killed, on_simulation
from tiermq.store.local_store import LocalStore

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file, its blank, and some of the next file."""
    with master_store(tmp_path_factory.mktemp("master")) as store:
        fill(store, 60)
        return log_of(store)


def slave_on(access: SimulatedFileAccess) -> LocalStore:
    return on_simulation(access, broker_role="SLAVE", with_replication=True)


def append(store: LocalStore, log: bytes, begin: int, end: int) -> None:
    """As frames that end with their file."""
    while begin < end:
        until_end = min(end, begin - begin % LOG_BYTES + LOG_BYTES)
        store.append_data(begin, memoryview(log)[begin:until_end])
        begin = until_end


def record_ends(log: bytes) -> list[int]:
    """Where records and blanks end."""
    ends, at = [0], 0
    while at + 8 <= len(log):
        at += int.from_bytes(log[at : at + 4], "big")
        ends.append(at)
    return [end for end in ends if end <= len(log)]


def test_a_slave_that_dies_at_any_byte_goes_on_and_has_the_masters_log(log: bytes) -> None:
    ends = record_ends(log)
    blank = ends[ends.index(LOG_BYTES) - 1]
    near = {end + step for end in (*ends[:4], blank, LOG_BYTES) for step in (-1, 0, 1, 3, 4, 7, 8, 9)}
    cuts = sorted({cut for cut in near | set(range(0, len(log), 977)) if 0 <= cut <= len(log)})
    for cut in cuts:
        access = SimulatedFileAccess()
        store = slave_on(access)
        append(store, log, 0, cut)
        store.dispatch_now()
        again = slave_on(killed(access))
        end = again.max_physical_offset
        assert end in ends, cut
        assert end <= cut or (end == LOG_BYTES and cut >= blank + 8), "only the blank of a file may be completed"
        assert not any(end < each <= cut for each in ends), "a whole record may be acknowledged, and stays"
        assert log_of(again) == log[:end], cut
        append(again, log, end, len(log))
        again.dispatch_now()
        assert log_of(again) == log, cut
        assert again.status()["queue_gaps"] == 0
        assert sum(again.max_offset("T", queue) for queue in range(4)) == 60
        again.close()


def test_a_master_whose_log_was_cut_serves_no_slave_that_has_more(tmp_path: Path) -> None:
    with master_store(tmp_path / "m") as store, slave_store(tmp_path / "s") as copy:
        fill(store, 5)
        shorter = store.max_physical_offset
        fill(store, 5)
        with serving(store) as master, following(copy, f"127.0.0.1:{master.port}"):
            until(lambda: copy.max_physical_offset == store.max_physical_offset)
        had = log_of(copy)
        with slave_store(tmp_path / "cut") as cut:
            cut.append_data(0, memoryview(had)[:shorter])
            with serving(cut) as master:
                with following(copy, f"127.0.0.1:{master.port}") as slave:
                    until(lambda: slave.problem)
                    assert not slave.is_connected
                with SlaveSocket(master.port) as right:
                    right.report(shorter)
                    assert right.heartbeat() == shorter
        assert log_of(copy) == had
