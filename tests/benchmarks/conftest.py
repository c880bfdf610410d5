"""The benchmarks are a package of the checkout, not of the installed TierMQ: put the checkout on the path."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)


@pytest.fixture(autouse=True)
def as_loud_as_before() -> Iterator[None]:
    """A benchmark makes TierMQ quiet in its process, which here is that of other tests too."""
    logger = logging.getLogger("tiermq")
    level = logger.level
    yield
    logger.setLevel(level)
