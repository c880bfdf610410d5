"""Offline tools beside a store that is open and being written."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tiermq import Message
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.check import check_store
from tiermq.store.readonly.dump import dump
from tiermq.store.readonly.stat import stat_store

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 20 * 64,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}


@pytest.mark.crash
def test_looking_into_an_open_store_leaves_it_locked_and_finds_no_problem(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, **SMALL) as store:
        for number in range(300):
            store.put(Message("orders", b"x" * 200, number % 3, keys=[f"key-{number}"], tags="t"))
        records = [row for row in dump(tmp_path) if row["kind"] == "record"]
        assert [row["kind"] for row in dump(tmp_path) if row["kind"] == "damage"] == []
        report = check_store(tmp_path)
        assert report.problems == []
        assert not report.ended_cleanly
        assert stat_store(tmp_path).log_max_offset > 0
        assert len(records) == 300
        code = f"from tiermq import LocalStore; LocalStore.open({str(tmp_path)!r}, **{SMALL!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "StoreLocked" in other.stderr
    report = check_store(tmp_path)
    assert (report.problems, report.notes, report.ended_cleanly) == ([], [], True)
    assert report.counts["records"] == report.counts["units"] == report.counts["index_entries"] == 300


def test_looking_on_while_a_producer_puts_finds_no_problem(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, **SMALL) as store:
        stop = threading.Event()

        def put() -> None:
            number = 0
            while not stop.is_set() and number < 5_000:
                store.put(Message("orders", b"y" * 100, number % 3, keys=[f"key-{number}"]))
                number += 1

        producer = threading.Thread(target=put)
        producer.start()
        try:
            reports = [check_store(tmp_path) for _ in range(3)]
        finally:
            stop.set()
            producer.join()
    assert [report.problems for report in reports] == [[], [], []]
    assert check_store(tmp_path).is_clean


def test_a_file_that_a_running_store_is_just_making_is_no_problem(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path, **SMALL) as store:
        store.put(Message("orders", b"x" * 200, keys=["k"]))
        store.dispatch_now()
        (tmp_path / "consumequeue/orders/0" / f"{1280:020d}").touch()
        assert check_store(tmp_path).problems == []
        (tmp_path / "consumequeue/orders/0" / f"{1280:020d}").unlink()
