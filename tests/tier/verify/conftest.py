"""What the tests of verification share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tier.tier_world import TierWorld
from tier.verify_world import sound_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TierWorld]:
    """A sound tier, for a test to damage."""
    made = sound_world(tmp_path)
    yield made
    made.close()
