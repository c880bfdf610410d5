"""A closed store's log, cut where the new master's ends; its tail is kept aside."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.power_cut import CutLife, PowerCut
from simulation.simulated_files import SimulatedFileAccess
from small_store import LOG_BYTES, ROOT, SIZES, contents, killed, numbered, on_simulation, power_cut, put_all, read_all
from tiermq import PutResult
from tiermq.config import StoreConfig
from tiermq.errors import ReplicationError, StoreLocked
from tiermq.store.cut_log import cut_log
from tiermq.store.local_store import LocalStore

CONFIG = StoreConfig().with_settings(store_path_root_dir=ROOT, **SIZES)
COUNT = 250
BODY = 200


def filled(access: SimulatedFileAccess) -> list[PutResult]:
    """Five files, closed cleanly."""
    with on_simulation(access) as store:
        return put_all(store, COUNT, size=BODY, keys=["k"])


def reopened(access: SimulatedFileAccess, **settings: Any) -> LocalStore:
    return on_simulation(access, with_replication=True, **settings)


@pytest.fixture(scope="module")
def log() -> tuple[bytes, list[PutResult]]:
    access = SimulatedFileAccess()
    results = filled(access)
    return b"".join(data for _, data in sorted(contents(access, "commitlog").items())), results


def ends(results: list[PutResult]) -> list[int]:
    """Where records end: some, and those around the ends of files."""
    found = [result.end_offset for result in results]
    near = [end for end in found if end % LOG_BYTES > LOG_BYTES - 600 or end % LOG_BYTES < 600]
    return [0, *near, *range(LOG_BYTES, found[-1], LOG_BYTES), found[-1]]


def test_a_cut_store_has_what_was_before_the_cut_and_nothing_behind_it(log: tuple[bytes, list[PutResult]]) -> None:
    data, results = log
    end = results[-1].end_offset
    for offset in ends(results):
        access = SimulatedFileAccess()
        filled(access)
        path = cut_log(CONFIG, offset, 7, access)
        count = sum(result.end_offset <= offset for result in results)
        if offset == end:
            assert path == ""
        else:
            assert path == f"{ROOT}/cut-tails/7-{offset}-{end}.log"
            assert access.read_bytes(path) == data[offset:end]
        with reopened(access) as store:
            assert [each.body for each in read_all(store)] == numbered(count, size=BODY)
            assert len(store.query("T", "k", max_messages=COUNT).messages) == min(count, 64)
            assert store.max_offset("T", 0) == count
            [again] = put_all(store, 1, first=count, size=BODY)
            assert again.queue_offset == count
            assert store.status()["queue_conflicts"] == 0


def test_a_cut_slave_asks_its_master_from_the_cut_on_or_from_the_record_before(
    log: tuple[bytes, list[PutResult]],
) -> None:
    data, results = log
    offset, before = results[100].end_offset, results[100].physical_offset
    access = SimulatedFileAccess()
    filled(access)
    cut_log(CONFIG, offset, 1, access)
    with reopened(access, broker_role="SLAVE") as store:
        at = store.max_physical_offset
        assert at in (before, offset)
        end = at - at % LOG_BYTES + LOG_BYTES
        store.append_data(at, memoryview(data)[at:end])
        store.dispatch_now()
        count = sum(result.end_offset <= end for result in results)
        assert [each.body for each in read_all(store)] == numbered(count, size=BODY)


def test_a_log_is_not_cut_within_a_record_and_nothing_changes(log: tuple[bytes, list[PutResult]]) -> None:
    _, results = log
    access = SimulatedFileAccess()
    filled(access)
    before = contents(access)
    for offset in (1, results[10].end_offset - 1, results[10].end_offset + 90, LOG_BYTES - 1):
        with pytest.raises(ReplicationError, match="expected the end of a record"):
            cut_log(CONFIG, offset, 7, access)
    assert contents(access) == before


@pytest.mark.parametrize("offset", [-1, -(2**62), LOG_BYTES - 1, 0])
def test_a_log_is_not_cut_before_its_begin_and_nothing_changes(offset: int) -> None:
    """An answer of a master that was forged or wiped may name any offset."""
    access = SimulatedFileAccess()
    filled(access)
    access.remove(f"{ROOT}/commitlog/{0:020d}")
    before = contents(access, "commitlog")
    with pytest.raises(ReplicationError, match=f"begin at physical offset {LOG_BYTES}"):
        cut_log(CONFIG, offset, 7, access)
    assert contents(access, "commitlog") == before


def test_an_open_store_is_not_cut() -> None:
    access = SimulatedFileAccess()
    with on_simulation(access), pytest.raises(StoreLocked):
        cut_log(CONFIG, 0, 7, access)


class Cut(CutLife):
    """A store is cut at the end of message 100; the power may fail at each call."""

    offset = 0

    def live(self) -> None:
        cut_log(CONFIG, self.offset, 7, self.access)


@pytest.mark.crash
def test_the_power_may_fail_at_each_step_of_a_cut_and_the_cut_is_made_again(
    log: tuple[bytes, list[PutResult]],
) -> None:
    """No message before the cut is lost, the tail is in the log or aside, and no file is taken for damaged."""
    data, results = log
    offset, end = results[100].end_offset, results[-1].end_offset
    calls = 0
    while True:
        life = Cut(None)
        filled(life.access)
        life.offset, life.calls, life.calls_left = offset, 0, calls
        try:
            life.live()
            break
        except PowerCut:
            life.calls_left = None
        for after in (power_cut(life.access), killed(life.access)):
            with reopened(after) as store:
                found = [each.body for each in read_all(store)]
                assert found[:101] == numbered(101, size=BODY)
                assert found == numbered(len(found), size=BODY)
            if cut_log(CONFIG, offset, 7, after):
                with reopened(after) as store:
                    assert [each.body for each in read_all(store)] == numbered(101, size=BODY)
            tails = contents(after, "cut-tails").values()
            assert data[offset:end] in tails
        calls += 1
    assert calls > 10
