"""The local store's works: their rows, and that TierMQ's sides do what they count."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import workload
from benchmarks.compare import store_peer, store_works
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Goal, Place, by_name
from present import present
from tiermq.store.local_store import LocalStore

MIB = 1 << 20
RECORD_BYTES = 173


def test_the_works_of_the_store_have_the_goals_of_the_issue() -> None:
    works = by_name(store_works.WORKS)
    wanted = {
        "put_1_128_async": 1.5, "put_1_1024_async": 1.5, "put_16_128_async": 1.2, "put_16_1024_async": 1.2,
        "put_16_1024_sync": 1.2, "put_64_1024_sync": 1.2, "put_list_1000": 2, "dispatch_full": 3,
        "recover_crash": 3, "recover_crash_2g": 3, "index_put": 3, "get_32": 1.5,
    }  # fmt: skip
    assert {name: works[name].goal for name in wanted} == {name: Goal(ratio) for name, ratio in wanted.items()}


@pytest.mark.parametrize(("threads", "list_count"), [(3, 0), (1, 50)])
def test_a_round_of_puts_stores_as_many_messages_as_it_reports(tmp_path: Path, threads: int, list_count: int) -> None:
    side = store_peer.StorePut()
    shape = {"threads": str(threads), "list": str(list_count), "body": "100", "flush": "ASYNC_FLUSH", "dispatched": "1"}
    side.prepare({"dir": str(tmp_path / "store"), "log_size": str(8 * MIB), **shape})
    for _ in range(2):  # Each round has a store of its own.
        side.reset({})
        before = present(side._store).put_count
        messages, size = side.run({"count": "600"})
        assert (messages, size) == (600, 600 * (100 + RECORD_BYTES))
        assert present(side._store).put_count - before == 600
        assert present(side._store).dispatched_where == present(side._store).max_physical_offset
    side.close()
    assert not (tmp_path / "store").exists()


def test_dispatch_is_begun_from_zero_in_every_round(tmp_path: Path) -> None:
    records = store_works.fill(tmp_path, MIB, MIB, varied=True)
    side = store_peer.StoreDispatch()
    side.prepare({"dir": str(tmp_path), "log_size": str(MIB), "records": str(records)})
    for _ in range(2):
        side.reset({})
        assert side._store.max_offset(*workload.queue_of(0)) == 0
        assert side.run({})[0] == records
    side.close()


def test_a_crash_is_put_back_before_every_recovery(tmp_path: Path) -> None:
    ours, saved = tmp_path / "ours", tmp_path / "saved"
    records = store_works.fill(ours, MIB, MIB, varied=True)
    shutil.rmtree(ours / "index")  # Lost by the crash, as in the work; and long to copy.
    store_peer.copy_tree(ours, saved, without="commitlog")
    for name in ("tiermq.clean", "checkpoint"):
        (saved / name).unlink()
    (saved / "abort").write_bytes(b"1")
    side = store_peer.StoreRecover()
    side.prepare({"dir": str(ours), "saved": str(saved), "log_size": str(MIB), "records": str(records), "crashed": "1"})
    for _ in range(2):
        side.reset({})
        assert side.run({})[0] == records
        assert present(present(side._store).recovered).mode == "abnormal"
        assert present(present(side._store).recovered).records_dispatched == records
    side.close()


def test_a_copied_store_has_the_same_bytes(tmp_path: Path) -> None:
    store_works.fill(tmp_path / "one", MIB, MIB // 2, varied=True)
    store_peer.copy_tree(tmp_path / "one", tmp_path / "two")
    [name] = [path.name for path in (tmp_path / "one" / "commitlog").iterdir()]
    one, two = ((tmp_path / which / "commitlog" / name).read_bytes() for which in ("one", "two"))
    assert one == two
    with LocalStore.open(tmp_path / "two", mapped_file_size_commit_log=MIB) as store:
        assert present(store.recovered).mode == "marker"


def test_gets_and_keys_are_counted_by_message(tmp_path: Path) -> None:
    gets = store_peer.StoreGet()
    made = gets.prepare({"dir": str(tmp_path / "store"), "log_size": str(MIB), "size": str(MIB), "batch": "5"})
    assert made == {"records": (MIB - 8) // workload.RECORD_BYTES}
    gets.reset({"pulls": "20", "seed": "1"})
    assert gets.run({}) == (100, 100 * workload.RECORD_BYTES)
    gets.close()
    for query, done in (("0", 2500), ("1", 30)):
        index = store_peer.StoreIndex()
        index.prepare({"dir": str(tmp_path / "index"), "keys": "2500", "query": query})
        index.reset({"count": "30", "seed": "1"})
        assert index.run({}) == (done, 0)
        index.close()


@pytest.mark.interop
@pytest.mark.parametrize("name", ["put_4_1024_async", "put_4_1024_sync", "put_list_1000", "dispatch_full", "get_32",
                                  "index_put", "index_query", "recover_crash"])  # fmt: skip
def test_both_sides_of_a_store_work_do_the_same_amount(tmp_path: Path, name: str) -> None:
    work = by_name(store_works.WORKS)[name]
    directory, disk = tmp_path / "files", tmp_path / "disk"
    directory.mkdir()
    disk.mkdir()
    with ExitStack() as stack:
        sides = work.opener(Place(directory, disk, quick=True), stack)
        assert set(sides.rounds) == {TIERMQ, ROCKETMQ} | ({LIMIT} if work.limit else set())
        for _ in range(2):
            ours, theirs = sides.rounds[TIERMQ](), sides.rounds[ROCKETMQ]()
            assert ours.messages == theirs.messages > 0
            assert abs(ours.bytes - theirs.bytes) <= 0.01 * ours.bytes
