"""One broker for all tests of a module; each takes topics and groups of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import tiermq
from tiermq.client.member.cluster import Cluster
from tiermq.testing import LocalBroker

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    settings: dict[str, Any] = {"timer_wheel_enable": True, "enable_property_filter": True}
    with LocalBroker(tmp_path_factory.mktemp("store"), **settings) as running:
        yield running


@pytest.fixture
def cluster(broker: LocalBroker) -> Iterator[Cluster]:
    with tiermq.connect(broker.name_server) as made:
        yield made


@pytest.fixture
def topic(broker: LocalBroker) -> str:
    """One of four queues that no other test uses."""
    name = f"orders-{next(_numbers)}"
    broker.create_topic(name, queues=4)
    return name


@pytest.fixture
def group() -> str:
    return f"group-{next(_numbers)}"
