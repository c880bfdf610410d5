"""What the tier's tests share: a metadata store, and a world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scenarios.broker_world import BrokerWorld
from simulation.manual_clock import ManualClock
from tiermq.tier.metadata.metadata_store import MetadataStore


@pytest.fixture
def store(tmp_path: Path, manual_clock: ManualClock) -> Iterator[MetadataStore]:
    with MetadataStore(tmp_path / "tier.db", clock=manual_clock) as opened:
        yield opened


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BrokerWorld]:
    """A store that is not opened yet, with a tier in memory whose calls can be made to fail."""
    made = BrokerWorld(tmp_path)
    yield made
    made.driver.plan = None
    made.bury()
