"""POP's tests move the clock, and their peers pop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.pop.pop_peer import PopPeer
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker


@pytest.fixture
def broker_options(manual_clock: ManualClock) -> dict[str, Any]:
    return {"clock": manual_clock}


@pytest.fixture
def peer(broker: Broker) -> Iterator[PopPeer]:
    with PopPeer(broker) as made:
        yield made
