"""A metadata store in a temporary directory, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tiermq.clock import ManualClock
from tiermq.tier.metadata.metadata_store import MetadataStore


@pytest.fixture
def store(tmp_path: Path, manual_clock: ManualClock) -> Iterator[MetadataStore]:
    with MetadataStore(tmp_path / "tier.db", clock=manual_clock) as opened:
        yield opened
