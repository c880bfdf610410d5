"""A replay whose process is killed, again and again: every message is there once, in its order."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tiermq import Message
from tiermq.store.local_store import LocalStore
from waiting import until

COUNT = 6_000
KILLS = 3


def lines_of(record: Path) -> int:
    path = record / "offsets.csv"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_lines(record: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    until(lambda: lines_of(record) >= count or process.poll() is not None)
    assert process.poll() is None


def bodies_of(store: LocalStore, queue_id: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < store.max_offset("again", queue_id):
        found += [message.body for message in store.get("again", queue_id, len(found), 32).messages]
    return found


@pytest.mark.crash
def test_a_replay_that_is_killed_puts_every_message_once(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path / "store", background=False, mapped_file_size_commit_log=1 << 22) as store:
        for number in range(COUNT):
            store.put(Message("orders", b"%d" % number, number % 2))
        store.dispatch_now()
    words = ["pipeline", "replay", "--store", "store", "--into", "into", "--record", "record", "--master", "here"]
    command = [sys.executable, "-m", "tiermq.cli", *words, "--to-topic", "again"]
    for _ in range(KILLS):
        before = lines_of(tmp_path / "record")
        # Slow enough that it cannot end before it is killed.
        process = subprocess.Popen([*command, "--rate", "1000"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        wait_for_lines(tmp_path / "record", before + 200, process)
        process.kill()
        process.wait()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with LocalStore.open(tmp_path / "into", background=False) as store:
        for queue_id in (0, 1):
            assert bodies_of(store, queue_id) == [b"%d" % number for number in range(queue_id, COUNT, 2)]
    with open(tmp_path / "record" / "offsets.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({(row["queueId"], row["queueOffset"]) for row in rows}) == len(rows) == COUNT
