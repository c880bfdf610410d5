"""A stream into a store on a cluster, whose executors die while rows are staged and whose driver dies while it puts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from small_store import SIZES
from spark.cluster.driver_process import DriverDied, DriverProcess
from spark.source_world import SourceWorld
from tiermq import LocalStore

pytestmark = [pytest.mark.slow, pytest.mark.crash]


def test_rows_of_a_stream_are_put_once_wherever_driver_and_executors_die(driver: DriverProcess, tmp_path: Path) -> None:
    world = SourceWorld(tmp_path)
    try:
        for queue_id in range(3):
            world.put(120, "orders", queue_id)
        faults = tmp_path / "faults"
        faults.mkdir()
        given: dict[str, Any] = {
            "options": world.hot,
            "checkpoint": str(tmp_path / "checkpoint"),
            "folder": str(faults),
            "kinds": ["executor", "worker", "", "driver", "raise", "raise"],
            "store": str(tmp_path / "copy"),
            "settings": json.dumps(SIZES),
        }
        deaths = 0
        while True:
            try:
                driver.call("stream", **given)
                break
            except DriverDied:
                deaths += 1
        wanted = sorted(body for _, _, _, body in world.wanted())
    finally:
        world.bury()
    assert deaths == 4
    assert sorted(bodies(tmp_path / "copy")) == wanted
    left = [path.name for path in (tmp_path / "copy.staging").rglob("*") if path.is_file()]
    assert left == ["done.json"]


def bodies(path: Path) -> list[bytes]:
    found = []
    with LocalStore.open(path, background=False, **SIZES) as store:
        for queue_id in range(2):
            offset = store.min_offset("copy", queue_id)
            while offset < store.max_offset("copy", queue_id):
                page = store.get("copy", queue_id, offset)
                found += [bytes(message.body) for message in page.messages]
                offset = page.next_offset
    return found
