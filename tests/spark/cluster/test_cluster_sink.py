"""Batches and streams into a store on a cluster, whose executors die while rows are staged and driver while it puts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from small_store import SIZES
from spark.cluster.cluster_worlds import happened
from spark.cluster.driver_process import DriverDied, DriverProcess
from spark.source_world import SourceWorld
from tiermq.store.local_store import LocalStore

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(1_800)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SourceWorld]:
    made = SourceWorld(tmp_path)
    for queue_id in range(3):
        made.put(120, "orders", queue_id)
    (tmp_path / "faults").mkdir()
    yield made
    made.bury()


def given(world: SourceWorld, path: Path, *kinds: str, **more: str) -> dict[str, Any]:
    return {
        "options": world.hot,
        "folder": str(path / "faults"),
        "kinds": kinds,
        "store": str(path / "copy"),
        "settings": json.dumps(SIZES),
        **more,
    }


def no_task_dies(path: Path) -> None:
    (path / "commits").mkdir()
    (path / "commits" / "spared").touch()


def wanted(world: SourceWorld) -> list[bytes]:
    return sorted(body for _, _, _, body in world.wanted())


def bodies(path: Path) -> list[bytes]:
    """What the two queues of the copy have."""
    found = []
    with LocalStore.open(path / "copy", background=False, **SIZES) as store:
        for queue_id in range(2):
            offset = store.min_offset("copy", queue_id)
            while offset < store.max_offset("copy", queue_id):
                page = store.get("copy", queue_id, offset)
                found += [bytes(message.body) for message in page.messages]
                offset = page.next_offset
    return sorted(found)


def staged(path: Path) -> list[str]:
    return sorted(each.name for each in (path / "copy.staging").rglob("*") if each.is_file())


def test_rows_of_a_stream_are_put_once_wherever_driver_and_executors_die(
    driver: DriverProcess, world: SourceWorld, tmp_path: Path
) -> None:
    kinds = ["executor", "worker", "", "driver", "twice"]
    deaths = 0
    while True:
        try:
            driver.call("stream", **given(world, tmp_path, *kinds, checkpoint=str(tmp_path / "checkpoint")))
            break
        except DriverDied:
            deaths += 1
    assert deaths == 4
    assert bodies(tmp_path) == wanted(world)
    assert staged(tmp_path) == ["done.json"]


def test_rows_of_a_batch_with_a_name_are_put_once_wherever_driver_and_executors_die(
    driver: DriverProcess, world: SourceWorld, tmp_path: Path
) -> None:
    """Three batches; the driver dies in each of them, at another place, and each is written again."""
    for number, kinds in enumerate([["executor", "worker"], ["twice"], []], 1):
        here = given(world, tmp_path, *kinds, name=f"batch-{number}")
        here["folder"] = str(tmp_path / "faults" / str(number))
        Path(here["folder"]).mkdir()
        with pytest.raises(DriverDied):
            driver.call("write", **here)
        driver.call("write", **here)
        assert happened(here["folder"], kinds)
        assert bodies(tmp_path) == sorted(wanted(world) * number)
    assert staged(tmp_path) == ["done.json"] * 3


@pytest.mark.parametrize("way", ["write", "stream"])
def test_two_copies_of_a_task_that_stage_the_same_rows_put_them_once(
    driver: DriverProcess, world: SourceWorld, tmp_path: Path, way: str
) -> None:
    no_task_dies(tmp_path)
    more = {"name": "once"} if way == "write" else {"checkpoint": str(tmp_path / "checkpoint")}
    driver.call(way, **given(world, tmp_path, "slow", **more))
    assert (tmp_path / "faults" / "copy-1").exists()
    assert bodies(tmp_path) == wanted(world)
    assert staged(tmp_path) == ["done.json"]
