"""A million timers wait: their process needs little memory, is killed, and every one of them is delivered."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from delivery.timer.million_waiting import FIRST_S, SPREAD_S, STORE
from tiermq.store.local_store import LocalStore

COUNT = 1_000_000
OWN_BYTES_MAX = 50_000_000
"""The interpreter and the store take some twenty million: thirty bytes for each timer would show."""


def run(root: Path, ahead_s: int, *, kill_at: int | None = None) -> int:
    """One life of the process. Its memory; 0 when it was killed, as soon as it reported so many timers."""
    command = [sys.executable, "-m", "delivery.timer.million_waiting", str(root), str(COUNT), str(ahead_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        word, number = "", 0
        for line in process.stdout:
            word, number = line.split()[0], int(line.split()[1])
            if kill_at is not None and number >= kill_at:
                process.kill()
                break
    if kill_at is not None:
        assert process.returncode == -signal.SIGKILL
        assert word != "done"
        return 0
    assert (process.returncode, word) == (0, "done")
    return number


def count_delivered(root: Path) -> list[int]:
    """How often each number was delivered."""
    times = [0] * COUNT
    with LocalStore.open(root, **STORE) as store:
        store.dispatch_now()
        offset = 0
        while (page := store.get("T", 0, offset, 1_000)).count:
            for message in page.messages:
                times[int.from_bytes(message.body)] += 1
            offset = page.next_offset
    return times


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(3_600)
def test_a_million_waiting_timers_need_little_memory_and_all_are_delivered_over_kills(tmp_path: Path) -> None:
    root = tmp_path / "store"
    run(root, 0, kill_at=COUNT // 2)
    filling = run(root, 0)
    late_s = FIRST_S + SPREAD_S + 7_200
    run(root, late_s, kill_at=COUNT // 2)
    delivering = run(root, late_s)
    print(f"own memory: {filling / 1e6:.1f} MB while they came, {delivering / 1e6:.1f} MB while they went")
    times = count_delivered(root)
    assert times.count(0) == 0, "none is lost"
    assert sum(times) < COUNT * 5 // 4, "again comes what was delivered and not written down before the kill"
    assert max(filling, delivering) < OWN_BYTES_MAX
