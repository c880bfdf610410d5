"""What the tests of offloads share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.offload.offload_world import OffloadWorld, fill


@pytest.fixture
def world(tmp_path: Path) -> OffloadWorld:
    """A store with 400 messages, and a tier that has none of them."""
    made = OffloadWorld(tmp_path)
    fill(made.store, 400)
    return made
