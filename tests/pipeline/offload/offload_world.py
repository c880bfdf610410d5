"""A store directory, a tier, and an offload between them, for tests: with and without Spark, with faults in between."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tiermq import Message
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.offload import task as offload_task
from tiermq.pipeline.offload.job import OffloadJob, OffloadOptions
from tiermq.pipeline.offload.plan import OffloadSettings, OffloadTask, TaskResult
from tiermq.pipeline.task_runner import LocalRunner, TaskRunner
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.tiered_store import TieredStore

STORE: dict[str, Any] = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 200,
    "max_hash_slot_num": 100,
    "max_index_num": 4_000,
}
TIER: dict[str, Any] = {
    "tiered_store_commit_log_max_size": 20_000,
    "tiered_store_consume_queue_max_size": 20 * 70,
    "tiered_store_index_file_max_hash_slot_num": 50,
    "tiered_store_index_file_max_index_num": 2_000,
}
SMALL = OffloadSettings(wave_bytes=60_000, wave_messages=300, task_bytes=10_000, chunk_bytes=9_000, chunk_messages=50)
QUEUES = [("orders", 0), ("orders", 1), ("payments", 0)]
NAMES = "c/b"
KILLED = 9


def fill(root: Path, count: int, seed: int = 1, *, first: int = 0) -> None:
    """Put `count` messages of all kinds into a closed store."""
    chance = random.Random(seed)
    with LocalStore.open(root, background=False, **STORE) as store:
        put(store, count, chance, first)


def put(store: LocalStore, count: int, chance: random.Random, first: int = 0) -> None:
    for number in range(first, first + count):
        topic, queue_id = chance.choice(QUEUES)
        body = chance.randbytes(chance.choice([0, 10, 200, 900]))
        keys = [f"key-{number}", f"all-{number % 7}"] if number % 3 else []
        store.put(Message(topic, body, queue_id, keys=keys, tags=chance.choice(["a", "b", ""])))
    store.dispatch_now()


class ByFunction(LocalRunner):
    """Hands the tasks of a job that copy to a function of the test."""

    def __init__(self, run: Callable[[Sequence[Any]], list[Any]]) -> None:
        self._run_all = run

    def run(self, function: Any, tasks: Sequence[Any], **options: Any) -> list[Any]:
        if function is not offload_task.run_offload_task:
            return super().run(function, tasks, **options)
        return self._run_all(tasks)


class OffloadWorld:
    """One store `s` and one tier `t` below a directory."""

    def __init__(self, root: Path, suffix: str = "") -> None:
        self.root = root
        self.store = root / "s"
        self.tier = (root / "t").as_uri() + suffix

    def place(self, names: str = NAMES) -> str:
        return f"{self.store}={names}"

    def job(
        self,
        *,
        run: Callable[[Sequence[OffloadTask]], list[TaskResult]] | None = None,
        runner: TaskRunner | None = None,
        **options: Any,
    ) -> OffloadJob:
        chosen = OffloadOptions(**{"settings": SMALL, "config": TIER, **options})
        return OffloadJob([self.place()], self.tier, chosen, runner if run is None else ByFunction(run))

    def offload(self, **options: Any) -> JobReport:
        return self.job(**options).run()

    def kill_at(self, step: str, times: int = 1, **options: Any) -> bool:
        """Run an offload in another process, killed when it takes that step for the `times`-th time; whether it did."""
        left = [times]

        def die(name: str) -> None:
            if name == step:
                left[0] -= 1
                if left[0] == 0:
                    os._exit(KILLED)

        child = os.fork()
        if child == 0:
            try:
                self.job(step=die, **options).run()
            finally:
                os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED

    def messages(self) -> dict[tuple[str, int], list[tuple[int, bytes, tuple[str, ...]]]]:
        """Everything that a reader gets, hot and cold together."""
        with self.tiered() as store:
            return {name: list(_all(store, *name)) for name in QUEUES}

    def tiered(self, **settings: Any) -> TieredStore:
        return TieredStore.open(
            self.store,
            tier=self.tier,
            background=False,
            broker_cluster_name="c",
            broker_name="b",
            **STORE,
            **TIER,
            **settings,
        )

    def segments(self) -> dict[str, bytes]:
        """The bytes of every segment of messages in the tier."""
        driver = open_driver(self.tier)
        found = {}
        for info in driver.list_segments():
            if info.key.type.name != "INDEX" and info.size:
                found[info.key.path.replace("/b/", "/B/")] = bytes(driver.read(info.key, 0, info.size))
        return found


def _all(store: TieredStore, topic: str, queue_id: int) -> Any:
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        page = store.get(topic, queue_id, offset, 32)
        assert page.messages, (topic, queue_id, offset, page.status)
        for message in page.messages:
            yield message.queue_offset, message.body, tuple(message.keys)
        offset = page.next_offset


def run_twice(tasks: Sequence[OffloadTask]) -> list[TaskResult]:
    """Every task by two twins; the results are the second one's."""
    LocalRunner().run(offload_task.run_offload_task, tasks)
    return LocalRunner().run(offload_task.run_offload_task, tasks)
