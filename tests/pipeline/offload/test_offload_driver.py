"""What the driver of an offload does for each queue: it has 100,000 of them, so that each thing counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import QUEUES
from pipeline.offload.wire_world import WireWorld, fill, wire_world
from tiermq import Message
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.flat.flat_message_file import FlatMessageFile


def one_more_in_each_queue(world: WireWorld) -> None:
    local = world.broker.broker.parts.local
    for topic, queue_id in QUEUES:
        assert local.put(Message(topic, b"one more", queue_id)).ok
    local.dispatch_now()
    local.flush()


def test_a_job_that_starts_reads_each_manifest_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    get_object = PosixDriver.get_object

    def counted(driver: PosixDriver, name: str) -> Any:
        read[name.split("/", 2)[2]] += 1
        return get_object(driver, name)

    with wire_world(tmp_path) as world:
        fill(world.broker, 50)
        assert world.offload().problems == []
        monkeypatch.setattr(PosixDriver, "get_object", counted)
        assert world.offload().problems == []
    assert {name: read[name] for name in read if name.endswith("/manifest.tiermq.json")} == {
        "rmq_sys_INDEX/0/manifest.tiermq.json": read["rmq_sys_INDEX/0/manifest.tiermq.json"],
        **{f"{topic}/{queue_id}/manifest.tiermq.json": 1 for topic, queue_id in QUEUES},
    }


def test_a_queue_with_something_to_copy_is_opened_once_by_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Counter[tuple[str, int]] = Counter()
    with wire_world(tmp_path) as world:
        fill(world.broker, 50)
        assert world.offload().problems == []
        one_more_in_each_queue(world)
        init = FlatMessageFile.__init__

        def counted(file: FlatMessageFile, driver: Any, metadata: Any, queue: Any, clock: Any, **sizes: Any) -> None:
            opened[queue.name] += 1
            init(file, driver, metadata, queue, clock, **sizes)

        class Elsewhere:
            """Tasks open files, too: they run in processes of their own."""

            master, parallelism = "elsewhere", 1

            def run(self, function: Any, tasks: Any, **_options: Any) -> list[Any]:
                monkeypatch.setattr(FlatMessageFile, "__init__", init)
                try:
                    return [function(task) for task in tasks]
                finally:
                    monkeypatch.setattr(FlatMessageFile, "__init__", counted)

        monkeypatch.setattr(FlatMessageFile, "__init__", counted)
        report = world.offload(runner=Elsewhere())
    assert (report.problems, report.done["messages"]) == ([], len(QUEUES))
    assert opened == dict.fromkeys(QUEUES, 1)
