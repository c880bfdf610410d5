"""A world for each test of the source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.source_world import SourceWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SourceWorld]:
    """A broker with two topics, nothing in them yet."""
    made = SourceWorld(tmp_path)
    yield made
    made.bury()


@pytest.fixture
def filled(world: SourceWorld) -> SourceWorld:
    """Messages that are only cold, cold and hot, and only hot."""
    for queue_id in range(3):
        world.put(120, "orders", queue_id)
    world.put(40, "returns", 0)
    world.flush_to_tier()
    world.upload_index()
    world.evict_all()
    world.put(30, "orders", 0)
    world.put(5, "orders", 3)
    return world
