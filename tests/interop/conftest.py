"""What the tests against the real RocketMQ share: its jars, and clusters that end when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from interop.rocketmq import SMALL_FILES, Cluster, Distribution, Unavailable, fetch
from servers.serving import Serving
from tiermq.broker.topic.topic_table import FILE, encode_topics
from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig

StartBroker = Callable[..., Cluster]


def fetched(*version: str) -> Distribution:
    try:
        return fetch(*version)
    except Unavailable as reason:
        pytest.skip(f"no real RocketMQ here: {reason}")


@pytest.fixture(scope="session")
def distribution() -> Distribution:
    """RocketMQ's jars; where they cannot be had, the tests that ask for them are skipped with the reason."""
    return fetched()


@pytest.fixture(scope="module", params=["5.3.3", "5.5.0"])
def release(request: pytest.FixtureRequest) -> Distribution:
    """The jars of each release that masters and slaves are tried with."""
    return fetched(request.param)


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`tiermq serve` with the topics that the module lists in `TOPICS`."""
    store = tmp_path_factory.mktemp("served") / "store"
    (store / "config").mkdir(parents=True)
    table = {name: TopicConfig(name, 4, 4) for name in request.module.TOPICS}
    (store / "config" / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))
    with Serving(store) as served:
        yield served


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
