"""Brokers whose clock the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.manual_clock import ManualClock


@pytest.fixture(name="broker_options")
def options_with_clock(manual_clock: ManualClock) -> dict[str, Any]:
    """What `broker` is made with, in the modules and folders that import it."""
    return {"clock": manual_clock}
