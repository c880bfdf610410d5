"""PosixDriver keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from tier.driver.conformance import DriverConformance, Place

from tiermq.tier.driver.posix import PosixDriver


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(lambda: PosixDriver(tmp_path / "tier"))


class TestPosixDriver(DriverConformance):
    pass
