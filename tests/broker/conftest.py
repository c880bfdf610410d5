"""A running broker with a topic T, and a peer of it, for tests that need nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import Peer, running
from tiermq.broker.broker import Broker


@pytest.fixture
def broker_options() -> dict[str, Any]:
    """What `broker` is made with; a test module or folder that needs another one overrides this."""
    return {}


@pytest.fixture
def broker(tmp_path: Path, broker_options: dict[str, Any]) -> Iterator[Broker]:
    with running(tmp_path, **broker_options) as made:
        yield made


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    with Peer(broker) as made:
        yield made
