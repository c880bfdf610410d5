"""What the tests against the real RocketMQ share: its jars, and clusters that end when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.rocketmq import SMALL_FILES, Cluster, Distribution, Unavailable, fetch

StartBroker = Callable[..., Cluster]


@pytest.fixture(scope="session")
def distribution() -> Distribution:
    """RocketMQ's jars; where they cannot be had, the tests that ask for them are skipped with the reason."""
    try:
        return fetch()
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")


@pytest.fixture
def start_broker(distribution: Distribution, tmp_path: Path) -> Iterator[StartBroker]:
    """`start_broker(store)` runs a broker over a store directory; `stop()` or `crash()` it, or the test's end does."""
    count = 0
    with ExitStack() as clusters:

        def start(store: Path, settings: Mapping[str, object] = SMALL_FILES) -> Cluster:
            nonlocal count
            count += 1
            return clusters.enter_context(Cluster(distribution, store, tmp_path / f"broker-{count}", settings))

        yield start
