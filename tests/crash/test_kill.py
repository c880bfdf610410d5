"""A process is killed in the middle of its work, and its store has everything that it acknowledged.

`TIERMQ_CRASH_ROUNDS` sets how many times a store is killed in the slow lane (200 by default).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crash import child
from crash.child import NUMBERS_PER_THREAD, SMALL, THREADS, body_of, key_of
from tiermq.status import GetStatus
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.check import check_store

ROUNDS = 3
SLOW_ROUNDS = int(os.environ.get("TIERMQ_CRASH_ROUNDS", "200"))

pytestmark = pytest.mark.crash


class Victim:
    """A store directory, the processes that were killed over it, and everything that they said."""

    def __init__(self, root: Path, seed: int, settings: dict[str, Any]) -> None:
        print(f"seed {seed}")
        self.root = root
        self.random = random.Random(seed)
        self.settings = settings
        self.sent: set[int] = set()
        self.acknowledged: dict[int, tuple[str, int, int, int]] = {}
        self.rounds = 0
        self.min_physical = 0

    def start(self, mode: str, calls: int = 0) -> subprocess.Popen[bytes]:
        self.rounds += 1
        order = {
            "root": str(self.root),
            "mode": mode,
            "seed": self.random.randrange(2**32),
            "first_number": self.rounds * THREADS * NUMBERS_PER_THREAD,
            "calls": calls,
            "settings": self.settings,
        }
        command = [sys.executable, child.__file__, json.dumps(order)]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    def listen(self, process: subprocess.Popen[bytes], acknowledgements: int | None = None) -> None:
        """Take down what a child says, until it is dead or has acknowledged so many messages."""
        assert process.stdout is not None
        for line in process.stdout:
            word, number, topic, queue_id, *rest = line.decode().split()
            if not line.endswith(b"\n"):
                break  # Cut short by the kill: it was not said.
            if word == "S":
                self.sent.add(int(number))
                continue
            offset, physical = map(int, rest)
            self.acknowledged[int(number)] = (topic, int(queue_id), offset, physical)
            if acknowledgements is not None:
                acknowledgements -= 1
                if acknowledgements <= 0:
                    return

    def kill_while_producing(self) -> None:
        with self.start("produce") as process:
            self.listen(process, self.random.randrange(1, 1500))
            process.send_signal(signal.SIGKILL)
            self.listen(process)
        assert process.returncode == -signal.SIGKILL

    def die_at_a_call(self, mode: str, calls: int) -> bool:
        """False when the child was through before its n-th call."""
        with self.start(mode, calls) as process:
            self.listen(process)
        assert process.returncode in (0, -signal.SIGKILL)
        return process.returncode != 0

    # What must be there

    def opened(self) -> LocalStore:
        return LocalStore.open(self.root, **{**SMALL, **self.settings})

    def check(self) -> None:
        with self.opened() as store:
            found = self.read_everything(store)
            lowest = max(0, store.min_physical_offset)  # A victim that died before its first file leaves none.
            assert lowest >= self.min_physical
            self.min_physical = lowest
            for number, (topic, queue_id, offset, physical) in list(self.acknowledged.items()):
                if physical < self.min_physical:
                    del self.acknowledged[number]
                    continue
                assert found.get(number) == (topic, queue_id, offset), f"acknowledged and lost or moved: {number}"
            self.query_some(store)
            assert store.status()["queue_gaps"] == store.status()["queue_conflicts"] == 0
            assert store.verify_log() == len(found)
        report = check_store(self.root)
        assert report.problem_count == 0, report.problems

    def read_everything(self, store: LocalStore) -> dict[int, tuple[str, int, int]]:
        found: dict[int, tuple[str, int, int]] = {}
        for topic, queue_ids in store.topics().items():
            for queue_id in queue_ids:
                offset = store.min_offset(topic, queue_id)
                while offset < store.max_offset(topic, queue_id):
                    page = store.get(topic, queue_id, offset)
                    assert page.status is GetStatus.FOUND
                    for message in page.messages:
                        number = int(message.body.split()[1])
                        assert message.queue_offset == offset, "queue offsets are unbroken"
                        assert message.body == body_of(number)
                        assert message.keys == [key_of(number)]
                        assert number in self.sent, f"a message that was never sent: {message}"
                        assert number not in found, f"twice: {message}"
                        found[number] = (topic, queue_id, offset)
                        offset += 1
        return found

    def query_some(self, store: LocalStore) -> None:
        numbers = sorted(self.acknowledged)
        for number in {*numbers[:20], *numbers[-200:], *self.random.sample(numbers, min(200, len(numbers)))}:
            topic, queue_id, offset, _ = self.acknowledged[number]
            hits = [(m.queue_id, m.queue_offset) for m in store.query(topic, key_of(number)).messages]
            assert hits == [(queue_id, offset)], f"key of {number}: {hits}"


def new_seed() -> int:
    return random.SystemRandom().randrange(2**32)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_everything_acknowledged_is_there_after_a_kill(tmp_path: Path, flush: str) -> None:
    victim = Victim(tmp_path / "store", new_seed(), {"flush_disk_type": flush})
    for _ in range(ROUNDS):
        victim.kill_while_producing()
        victim.check()


def test_with_the_transient_pool_everything_acknowledged_by_sync_flush_is_there_after_a_kill(tmp_path: Path) -> None:
    settings = {"flush_disk_type": "SYNC_FLUSH", "transient_store_pool_enable": True, "transient_store_pool_size": 2}
    victim = Victim(tmp_path / "store", new_seed(), settings)
    for _ in range(2):
        victim.kill_while_producing()
        victim.check()


def test_a_kill_during_recovery_loses_nothing(tmp_path: Path) -> None:
    victim = Victim(tmp_path / "store", new_seed(), {"flush_disk_type": "ASYNC_FLUSH"})
    victim.kill_while_producing()
    for _ in range(ROUNDS):
        victim.die_at_a_call("open", victim.random.randrange(0, 40))
    victim.check()


def test_a_kill_during_cleaning_loses_only_what_was_to_be_deleted(tmp_path: Path) -> None:
    victim = Victim(tmp_path / "store", new_seed(), {"flush_disk_type": "ASYNC_FLUSH"})
    for _ in range(ROUNDS):
        assert victim.die_at_a_call("clean", victim.random.randrange(60, 160))
        victim.check()
    assert victim.min_physical > 0


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_hundreds_of_kills_in_one_directory_lose_nothing(tmp_path: Path, flush: str) -> None:
    victim = Victim(tmp_path / "store", new_seed(), {"flush_disk_type": flush})
    for _ in range(SLOW_ROUNDS):
        kind = victim.random.choice(["produce", "produce", "open", "clean"])
        if kind == "produce":
            victim.kill_while_producing()
        else:
            victim.die_at_a_call(kind, victim.random.randrange(0, 160))
            if kind == "open":
                continue
        victim.check()
