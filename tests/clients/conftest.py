"""A served broker with topics that its operator made, since some clients make none, and the clients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.environments import CLIENTS, ForeignClient, Unavailable
from servers.serving import Serving
from tiermq.broker.topic.topic_table import FILE, encode_topics
from tiermq.namesrv.topic_config import NO_VERSION, TopicConfig

QUEUES = 4
TOPICS = 32
_next_topic = itertools.count()


def made_store(path: Path) -> Path:
    """A store directory that knows the topics."""
    table = {name: TopicConfig(name, QUEUES, QUEUES) for name in (f"Orders-{number}" for number in range(TOPICS))}
    (path / "store" / "config").mkdir(parents=True)
    (path / "store" / "config" / FILE).write_bytes(encode_topics(table, NO_VERSION.next(1)))
    return path / "store"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`tiermq serve` in a process of its own. Tests share it, and have a topic each."""
    with Serving(made_store(tmp_path_factory.mktemp("shared"))) as served:
        yield served


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Serving]:
    """One that a test may restart."""
    with Serving(made_store(tmp_path)) as served:
        yield served


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"Orders-{next(_next_topic) % TOPICS}"


def available(client: ForeignClient) -> ForeignClient:
    """The client, installed; where it cannot be had, the test is skipped with the reason."""
    try:
        client.prepare()
    except Unavailable as reason:
        pytest.skip(str(reason))
    return client


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> ForeignClient:
    """Each of them in turn."""
    chosen: ForeignClient = request.param
    return available(chosen)


@pytest.fixture
def cpp_client() -> ForeignClient:
    return available(CLIENTS[0])


@pytest.fixture
def js_client() -> ForeignClient:
    return available(CLIENTS[1])
