"""What the tests of jobs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.job_world import JobWorld


@pytest.fixture
def made(tmp_path: Path) -> Iterator[JobWorld]:
    """A tier with messages for a job to work on."""
    world = JobWorld.filled(tmp_path)
    yield world
    world.close()
