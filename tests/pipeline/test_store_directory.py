"""Store directories that a job is given: names, how they were made, recovery, opening them to write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import STORE, OffloadWorld, fill
from small_store import SIZES
from tiermq import Message
from tiermq.errors import BadConfig, StoreLocked
from tiermq.history.scan_values import StorePlace
from tiermq.pipeline.store_directory import (
    open_store,
    parse_place,
    place_of,
    recover_store,
    require_unlocked,
    store_settings,
)
from tiermq.store.local_store import LocalStore


def test_a_place_is_a_directory_and_perhaps_two_names(tmp_path: Path) -> None:
    there = tmp_path / "day=1"
    there.mkdir()
    assert parse_place(str(there)) == (str(there), None, None)
    assert parse_place("/a/b") == ("/a/b", None, None)
    assert parse_place("/a/b=c/d") == ("/a/b", "c", "d")
    for text in ("", "/a=", "/a=b", "/a=b/", "/a=/c", "/a=b/c/d", "=b/c"):
        with pytest.raises(BadConfig, match="DIR=cluster/broker"):
            parse_place(text)


def test_a_directory_that_was_tiered_knows_its_names(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    fill(world.store, 5)
    with pytest.raises(BadConfig, match="expected the names of its broker"):
        place_of(str(world.store))
    world.offload()
    assert place_of(str(world.store)) == StorePlace(str(world.store), "c", "b")
    with pytest.raises(BadConfig, match="a second time"):
        place_of(f"{world.store}=c/x")


def test_the_sizes_of_a_store_are_known_from_its_files_so_that_it_can_be_recovered(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**STORE, "enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 4_096}
    with LocalStore.open(tmp_path, background=False, **settings) as store:
        for number in range(50):
            store.put(Message("T", b"x", tags="a", keys=[f"k{number}"], properties={"p": "v"}))
        store.dispatch_now()
    found = store_settings(tmp_path)
    assert {name: found[name] for name in settings if name in found} == {
        name: value for name, value in settings.items() if name in found
    }
    assert found["mapped_file_size_commit_log"] == STORE["mapped_file_size_commit_log"]
    assert not recover_store(str(tmp_path))
    (tmp_path / "abort").write_bytes(b"1")
    assert recover_store(str(tmp_path))
    assert not (tmp_path / "abort").exists()
    with LocalStore.open(tmp_path, background=False, **settings) as store:
        assert store.max_offset("T", 0) == 50
        assert len(store.query("T", "k7").messages) == 1


def test_a_store_is_opened_with_the_sizes_that_it_was_made_with(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "store", **SIZES) as store:
        assert store.put(Message("T", b"x")).ok
    found = store_settings(tmp_path / "store")
    for name in ("mapped_file_size_commit_log", "mapped_file_size_consume_queue"):
        assert found[name] == SIZES[name]
    with open_store(str(tmp_path / "store")) as store:
        assert store.max_offset("T", 0) == 1


def test_a_store_that_a_broker_has_open_is_refused_with_what_to_do(tmp_path: Path) -> None:
    LocalStore.open(tmp_path / "store", **SIZES).close()
    program = (
        "import sys; from tiermq.files.store_lock import StoreLock\n"
        f"lock = StoreLock({str(tmp_path / 'store' / 'lock')!r}); print('held', flush=True); sys.stdin.read()\n"
    )
    broker = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked, match="one writer: stop that process"):
            require_unlocked(str(tmp_path / "store"), wait_s=0)
        with pytest.raises(StoreLocked, match="one writer: stop that process"):
            open_store(str(tmp_path / "store"), wait_s=0)
    finally:
        broker.communicate("")
    require_unlocked(str(tmp_path / "store"), wait_s=0)


def test_a_store_that_does_not_exist_yet_is_free(tmp_path: Path) -> None:
    require_unlocked(str(tmp_path / "nothing"), wait_s=0)
    assert not (tmp_path / "nothing").exists()
    assert store_settings(tmp_path / "nothing") == {}
