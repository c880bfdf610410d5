"""POP's tests move the clock, and their peers pop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.clocked import options_with_clock as options_with_clock
from broker.pop.pop_peer import PopPeer
from tiermq.broker.broker import Broker


@pytest.fixture
def peer(broker: Broker) -> Iterator[PopPeer]:
    with PopPeer(broker) as made:
        yield made
