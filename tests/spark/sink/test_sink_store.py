"""The store of a sink."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from small_store import SIZES
from spark.sink.sink_world import make_store, sink_options
from tiermq import LocalStore, Message
from tiermq.errors import BadOption, StoreLocked
from tiermq.spark.sink.sink_store import given_settings, open_sink_store, require_free, sizes_of


def test_a_store_is_opened_with_the_sizes_that_it_was_made_with(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "store", **SIZES) as store:
        assert store.put(Message("T", b"x")).ok
    assert sizes_of(str(tmp_path / "store")) == {
        "mapped_file_size_commit_log": SIZES["mapped_file_size_commit_log"],
        "mapped_file_size_consume_queue": SIZES["mapped_file_size_consume_queue"],
    }
    with open_sink_store(sink_options(tmp_path)) as store:
        assert store.max_offset("T", 0) == 1


def test_a_store_that_a_broker_has_open_is_refused_with_what_to_do(tmp_path: Path) -> None:
    make_store(tmp_path)
    program = (
        "import sys; from tiermq.files.store_lock import StoreLock\n"
        f"lock = StoreLock({str(tmp_path / 'store' / 'lock')!r}); print('held', flush=True); sys.stdin.read()\n"
    )
    broker = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "held\n"
        with pytest.raises(StoreLocked, match="one writer: stop that process"):
            require_free(str(tmp_path / "store"), wait_s=0)
        with pytest.raises(StoreLocked, match="one writer: stop that process"):
            open_sink_store(sink_options(tmp_path), wait_s=0)
    finally:
        broker.communicate("")
    require_free(str(tmp_path / "store"), wait_s=0)


def test_a_store_that_does_not_exist_yet_is_free(tmp_path: Path) -> None:
    require_free(str(tmp_path / "nothing"), wait_s=0)
    assert not (tmp_path / "nothing").exists()
    assert sizes_of(str(tmp_path / "nothing")) == {}


def test_settings_are_a_json_object(tmp_path: Path) -> None:
    assert given_settings(sink_options(tmp_path))["max_hash_slot_num"] == 64
    for text in ("[1]", "{"):
        with pytest.raises(BadOption, match="option storeSettings: expected"):
            given_settings(sink_options(tmp_path, storeSettings=text))
