"""What the tests of repairs share: a sound tier, and a tier beside the local store that it was copied from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tier.repair.repair_world import RepairWorld
from tier.verify_world import sound_tier as sound_tier


@pytest.fixture
def made(tmp_path: Path) -> Iterator[RepairWorld]:
    """A tier and its local store, from which it can be repaired."""
    world = RepairWorld.make(tmp_path)
    yield world
    world.world.close()
