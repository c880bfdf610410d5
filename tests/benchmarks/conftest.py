"""What tests of the benchmarks leave behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def as_loud_as_before() -> Iterator[None]:
    """A benchmark makes TierMQ quiet in its process, which here is that of other tests too."""
    logger = logging.getLogger("tiermq")
    level = logger.level
    yield
    logger.setLevel(level)
