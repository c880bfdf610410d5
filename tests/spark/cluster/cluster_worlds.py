"""Stores and tiers for tests on a cluster, and what must be true of them after anything that happened."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.offload.offload_world import OffloadWorld, fill
from pipeline.offload.test_offload import assert_whole, by_engine

BACK_ENDS = ("files", "objects", "s3")


def world_on(back_end: str, path: Path, request: pytest.FixtureRequest, count: int = 300) -> OffloadWorld:
    """A filled store whose tier is a directory of files, a directory of objects, or a prefix of a real S3 server."""
    world = OffloadWorld(path, "?driver=object" if back_end == "objects" else "")
    if back_end == "s3":
        request.getfixturevalue("s3")
        world.tier = f"s3://history/{uuid.uuid4().hex}"
    fill(world.store, count)
    return world


def happened(faults: str | Path | list[str], kinds: Sequence[str]) -> bool:
    """Whether all faults came to pass, a task that was to fail twice did, and further attempts were made after them."""
    names = faults if isinstance(faults, list) else [path.name for path in Path(faults).iterdir()]
    attempts = sum(name.startswith("attempt-") for name in names)
    return attempts > len(kinds) and ("twice" not in kinds or any(name.startswith("again-") for name in names))


class Expectation:
    """What a store has, and the bytes that the embedded engine makes of it: nothing else may be in the tier later."""

    def __init__(self, world: OffloadWorld, path: Path) -> None:
        other = by_engine(world, path)
        self._messages: dict[Any, Any] = other.messages()
        self._segments = other.segments()

    def check(self, world: OffloadWorld) -> None:
        assert world.segments() == self._segments
        assert_whole(world, self._messages)
