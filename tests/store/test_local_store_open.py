"""Opening and closing on the real disk: locks, read-only and foreign directories, descriptors, threads, abort file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulation.descriptor_limit import descriptors_below
from small_store import LOG_BYTES, SIZES, bodies, numbered, on_disk, on_simulation, pause_dispatch, put_all
from tiermq import Message
from tiermq.config import StoreConfig
from tiermq.errors import BadConfig, IllegalMessage, ReadOnlyStore, StoreDamaged, StoreLocked
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.topic_name import ROCKSDB_HALF_TOPIC
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.check import check_store
from tiermq.store.readonly.directory import ROCKSDB, ROCKSDB_TRANSACTIONS
from tiermq.store.readonly.stat import stat_store
from tiermq.store.readonly.store import ReadOnlyStore as OpenedReadOnly


def maps_below(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]


def store_threads(others: set[threading.Thread]) -> list[str]:
    """Threads of a store that were not there before."""
    names = {"reput", "flush-commitlog", "commit-commitlog", "flush-consumequeue", "allocate", "housekeeping"}
    return sorted(thread.name for thread in set(threading.enumerate()) - others if thread.name in names)


# Locks


def test_a_store_that_is_open_cannot_be_opened_again_in_the_same_process(tmp_path: Path) -> None:
    """Item 1."""
    with on_disk(tmp_path / "store") as store:
        put_all(store, 3)
        with pytest.raises(StoreLocked, match="lock"):
            on_disk(tmp_path / "store")
        put_all(store, 3, first=3)
        assert bodies(store) == numbered(6)
    with on_disk(tmp_path / "store") as store:
        assert bodies(store) == numbered(6)


def test_a_store_that_another_process_has_cannot_be_opened(tmp_path: Path) -> None:
    """Item 1."""
    code = f"""
import sys
from tiermq.store.local_store import LocalStore
from tiermq.errors import StoreLocked
try:
    LocalStore.open(sys.argv[1], **{SIZES!r})
except StoreLocked as error:
    print("locked:", error)
    sys.exit(7)
"""
    with on_disk(tmp_path / "store"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout.startswith("locked:")) == (7, True), done.stderr
    later = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, check=False)
    assert later.returncode == 0


# What cannot be opened


def test_a_directory_that_cannot_be_written_is_read_only(tmp_path: Path) -> None:
    root = tmp_path / "mount"
    root.mkdir()
    with on_disk(root / "store") as store:
        put_all(store, 3)
    frozen = root / "store"
    if os.geteuid() == 0:
        done = subprocess.run(["mount", "--bind", "-o", "ro", str(root), str(root)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("needs a read-only bind mount, which this machine does not allow")
        subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], capture_output=True, check=False)
    else:
        frozen.chmod(0o500)
        (frozen / "lock").chmod(0o400)
    try:
        try:
            (frozen / "probe").touch()
        except OSError:
            pass
        else:
            pytest.skip("the directory could not be made read-only here")
        with pytest.raises(ReadOnlyStore):
            on_disk(frozen)
        assert descriptors_below(root) == []
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(root)], capture_output=True, check=False)
        else:
            frozen.chmod(0o700)
            (frozen / "lock").chmod(0o600)
    with on_disk(frozen) as store:
        assert bodies(store) == numbered(3)


@pytest.mark.parametrize(
    "name",
    [
        "commitlog/notes.txt",
        "commitlog/123",
        f"commitlog/{LOG_BYTES * 7:020d}",
        "consumequeue/T/0/notes.txt",
        "consumequeue/T/0/00000000000000009999",
    ],
)
def test_a_foreign_file_is_refused_and_once_it_is_gone_the_store_opens(tmp_path: Path, name: str) -> None:
    root = tmp_path / "store"
    with on_disk(root) as store:
        put_all(store, 3)
    foreign = root / name
    foreign.write_bytes(b"x" * (LOG_BYTES if "commitlog" in name else 1000))
    others = set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=foreign.name):
            on_disk(root)
    assert descriptors_below(root) == []
    assert maps_below(root) == []
    assert store_threads(others) == []
    foreign.unlink()
    with on_disk(root) as store:
        assert bodies(store) == numbered(3)


@pytest.mark.parametrize(
    "setting", ["mapped_file_size_commit_log", "mapped_file_size_consume_queue", "max_index_num", "max_hash_slot_num"]
)
def test_a_store_of_other_file_sizes_is_refused_and_unharmed(tmp_path: Path, setting: str) -> None:
    root = tmp_path / "store"
    with on_disk(root) as store:
        put_all(store, 100, keys="k")
    with pytest.raises(StoreDamaged, match="bytes"):
        on_disk(root, **{setting: SIZES[setting] * 2})
    assert descriptors_below(root) == []
    with on_disk(root) as store:
        assert bodies(store) == numbered(100)
        assert len(store.query("T", "k").messages) == 32


def test_a_checkpoint_of_a_wrong_size_is_refused_and_leaves_nothing_open(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with on_disk(root) as store:
        put_all(store, 3)
    good = (root / "checkpoint").read_bytes()
    (root / "checkpoint").write_bytes(good[:100])
    with pytest.raises(StoreDamaged, match="checkpoint"):
        on_disk(root)
    assert descriptors_below(root) == []
    (root / "checkpoint").write_bytes(good)
    with on_disk(root) as store:
        assert bodies(store) == numbered(3)


def test_a_hole_between_log_files_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with on_disk(root) as store:
        put_all(store, 400)
    files = sorted((root / "commitlog").iterdir())
    moved = tmp_path / files[1].name
    shutil.move(files[1], moved)
    with pytest.raises(StoreDamaged, match="missing"):
        on_disk(root)
    shutil.move(moved, files[1])
    with on_disk(root) as store:
        assert bodies(store) == numbered(400)


def test_a_file_where_the_directory_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a directory")
    with pytest.raises(StoreDamaged):
        on_disk(tmp_path / "store")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"no_such_setting": 1}, BadConfig),
        ({"flush_disk_type": "SOMETIMES"}, BadConfig),
        ({"store_host": "nowhere"}, IllegalMessage),
        ({"batch_topics": 5}, TypeError),
    ],
)
def test_a_bad_setting_leaves_no_lock_behind(tmp_path: Path, settings: dict[str, object], error: type) -> None:
    with pytest.raises(error):
        on_disk(tmp_path / "store", **settings)
    assert descriptors_below(tmp_path) == []
    on_disk(tmp_path / "store").close()


def test_a_store_that_was_refused_does_not_keep_its_transient_pool(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with on_disk(root) as store:
        put_all(store, 3)
    (root / "commitlog" / "notes.txt").write_text("x")
    before = len(maps_below(Path("/")))
    for _ in range(3):
        with pytest.raises(StoreDamaged):
            on_disk(root, transient_store_pool_enable=True)
    assert len(maps_below(Path("/"))) <= before + 1


# Opening and closing


def test_a_new_store_has_its_directories_at_once(tmp_path: Path) -> None:
    """Item 14."""
    with on_disk(tmp_path / "deep" / "store"):
        names = {path.name for path in (tmp_path / "deep" / "store").iterdir()}
        assert {"commitlog", "consumequeue", "index", "checkpoint", "abort", "lock"} <= names
        assert (tmp_path / "deep" / "store" / "lock").read_bytes() == b"lock"
        assert (tmp_path / "deep" / "store" / "abort").read_text() == str(os.getpid())


def test_closing_gives_back_every_descriptor_map_and_thread(tmp_path: Path) -> None:
    root = tmp_path / "store"
    others = set(threading.enumerate())
    for settings in ({}, {"flush_disk_type": "SYNC_FLUSH"}, {"transient_store_pool_enable": True}):
        store = on_disk(root, **settings)
        put_all(store, 300, keys="k")
        store.get("T", 0, 0)
        assert descriptors_below(root)
        assert store_threads(others)
        store.close()
        assert descriptors_below(root) == []
        assert maps_below(root) == []
        assert store_threads(others) == []


def test_closing_again_changes_nothing(tmp_path: Path) -> None:
    store = on_disk(tmp_path / "store")
    store.close()
    store.close()
    assert not store.running
    with store:
        pass


def test_a_store_of_several_paths_spreads_its_files_and_finds_them_again(tmp_path: Path) -> None:
    """Item 38."""
    paths = [str(tmp_path / name) for name in ("b", "a")]
    with on_disk(tmp_path / "store", store_path_commit_log=",".join(paths)) as store:
        put_all(store, 500)
    counts = [len(os.listdir(path)) for path in paths]
    assert min(counts) >= 2
    with on_disk(tmp_path / "store", store_path_commit_log=",".join(paths)) as store:
        assert bodies(store) == numbered(500)
    with on_disk(
        tmp_path / "store", store_path_commit_log=paths[0], read_only_commit_log_store_paths=paths[1]
    ) as store:
        put_all(store, 500, first=500)
        assert bodies(store) == numbered(1000)
    assert len(os.listdir(paths[1])) == counts[1]


def test_a_config_object_and_settings_can_be_combined(tmp_path: Path) -> None:
    config = StoreConfig(store_path_root_dir=str(tmp_path / "store"), **SIZES)
    with LocalStore.open(config=config, max_message_size=100) as store:
        assert store.config.max_message_size == 100
        assert store.config.root_path == tmp_path / "store"
        assert store.running


def test_a_close_with_dispatch_behind_keeps_the_abort_file_and_the_next_start_checks_everything() -> None:
    """Item 18."""
    store = on_simulation()
    access = store._parts.access
    pause_dispatch(store)
    for number in range(10):
        store.put(Message("T", numbered(1, number)[0]))
    store.close()
    assert access.exists("/store/abort")
    assert not access.exists("/store/tiermq.clean")
    with on_simulation(access) as again:
        assert again.recovered is not None
        assert again.recovered.mode == "abnormal"
        assert bodies(again) == numbered(10)


def test_a_close_while_others_put_loses_nothing_that_was_answered_ok(tmp_path: Path) -> None:
    for _ in range(3):
        root = tmp_path / "store"
        store = on_disk(root, mapped_file_size_commit_log=4096)
        begun = threading.Barrier(4)
        stored: list[bytes] = []

        def produce(
            thread: int, store: LocalStore = store, stored: list[bytes] = stored, begun: threading.Barrier = begun
        ) -> None:
            begun.wait()
            number = 0
            while store.put(Message("T", body := f"{thread}-{number}".encode())).ok:
                stored.append(body)
                number += 1

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        begun.wait()
        while len(stored) < 200:
            pass
        store.close()
        for thread in threads:
            thread.join()
        assert not (root / "abort").exists()
        with on_disk(root, mapped_file_size_commit_log=4096) as again:
            assert sorted(bodies(again)) == sorted(stored)
        shutil.rmtree(root)


def test_trap_53_names_of_files_are_twenty_ascii_digits(tmp_path: Path) -> None:
    """Trap 53."""
    with on_disk(tmp_path / "store") as store:
        put_all(store, 400)
    names = [path.name for path in (tmp_path / "store").rglob("0*")]
    assert names
    assert all(len(name) == 20 and name.isascii() and name.isdigit() for name in names if len(name) > 1)


def test_trap_50_an_unused_file_made_in_advance_is_gone_after_a_close(tmp_path: Path) -> None:
    """Trap 50: never infer the end of the log from file names."""
    root = tmp_path / "store"
    with on_disk(root) as store:
        results = put_all(store, 200)
    assert len(list((root / "commitlog").iterdir())) == results[-1].physical_offset // LOG_BYTES + 1


def test_a_store_can_be_given_any_file_access(tmp_path: Path) -> None:
    opened: list[str] = []

    class Watching(OsFileAccess):
        def create(self, path: str, size: int):  # type: ignore[no-untyped-def]
            opened.append(Path(path).name)
            return super().create(path, size)

    with on_disk(tmp_path / "store", access=Watching()) as store:
        put_all(store, 1)
    assert "checkpoint" in opened
    assert f"{0:020d}" in opened


def test_the_status_reports_what_an_operator_asks_first() -> None:
    with on_simulation() as store:
        results = put_all(store, 3)
        assert store.status() == {
            "running": True,
            "writeable": True,
            "flags": [],
            "min_physical_offset": 0,
            "max_physical_offset": results[-1].end_offset,
            "flushed_where": 0,
            "dispatch_behind_bytes": 0,
            "queue_gaps": 0,
            "queue_conflicts": 0,
            "service_errors": {},
        }
    assert store.status()["running"] is False
    assert store.status()["writeable"] is False


# Settings and stores that are of another kind


@pytest.mark.parametrize(
    "setting", [{"broker_role": "SYNC_MASTER"}, {"broker_role": "SLAVE"}, {"duplication_enable": True}]
)
def test_settings_that_ask_for_a_replica_are_refused_unless_less_is_accepted(
    tmp_path: Path, setting: dict[str, Any]
) -> None:
    with pytest.raises(BadConfig, match="(?s)(has no replication|do not keep the offsets).*accept_weaker"):
        LocalStore.open(tmp_path / "store", **SIZES, **setting)
    assert not (tmp_path / "store").exists()
    with LocalStore.open(tmp_path / "store", accept_weaker=True, **SIZES, **setting) as store:
        expected = "SERVICE_NOT_AVAILABLE" if "SLAVE" in setting.values() else "PUT_OK"
        assert store.put(Message("T", b"x")).status.name == expected
        (results,) = store.put_many([Message("T", b"x")])
        assert results.status.name == expected


@pytest.mark.parametrize("name", ROCKSDB)
def test_a_store_with_a_part_in_rocksdb_is_refused_by_every_opener(tmp_path: Path, name: str) -> None:
    with on_disk(tmp_path / "store") as store:
        put_all(store, 3)
    (tmp_path / "store" / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "store" / name / "CURRENT").write_text("MANIFEST-000005\n")
    opens: list[Callable[[Path], object]] = [on_disk, OpenedReadOnly.open, stat_store, check_store]
    for opened in opens:
        with pytest.raises(StoreDamaged, match=rf"RocksDB of RocketMQ in {name} .*rocksDBConfigToJson"):
            opened(tmp_path / "store")
    assert not (tmp_path / "store" / "abort").exists()


def test_open_transactions_in_rocksdb_are_not_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with on_disk(root) as store:
        put_all(store, 3)
    (root / ROCKSDB_TRANSACTIONS).mkdir()
    (root / ROCKSDB_TRANSACTIONS / "CURRENT").write_text("MANIFEST-000005\n")
    with on_disk(root):  # RocketMQ 5.5.0 makes it always.
        pass
    (root / "consumequeue" / ROCKSDB_HALF_TOPIC / "0").mkdir(parents=True)
    with pytest.raises(StoreDamaged, match="rocksdbstore .open transactions"):
        on_disk(root)
    (root / ROCKSDB_TRANSACTIONS).rename(tmp_path / "aside")
    with on_disk(root):
        pass


@pytest.mark.parametrize("topic", ["CURRENT", ROCKSDB_HALF_TOPIC, "abort", "lock", "checkpoint", "config", "commitlog"])
def test_no_topic_s_name_keeps_a_store_from_opening(tmp_path: Path, topic: str) -> None:
    root = tmp_path / "store"
    with on_disk(root) as store:
        assert store.put(Message(topic, b"x")).status.name == "PUT_OK"
    with on_disk(root) as store:
        assert [each.body for each in store.get(topic, 0, 0).messages] == [b"x"]
    stat_store(root)
    assert check_store(root).is_clean
    with OpenedReadOnly.open(root) as view:
        assert view.queues() == [(topic, 0)]
