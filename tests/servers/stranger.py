"""A broker that exists in a name server's table only, with a topic as a test wants it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tiermq.broker.topic.broker_registration import BrokerIdentity, BrokerRegistration, TopicSnapshot
from tiermq.namesrv.topic_config import DataVersion, TopicConfig
from tiermq.remoting.client import parse_name_servers

IDENTITY = BrokerIdentity(cluster="DefaultCluster", name="stranger", address="127.0.0.1:1")


class _Topics:
    def __init__(self, topic: TopicConfig) -> None:
        self._table = {topic.name: topic, "other": TopicConfig("other", 1, 1)}  # A lone one counts as a change.

    def registration_snapshot(self) -> TopicSnapshot:
        return TopicSnapshot(self._table, DataVersion(1, 1))


@contextmanager
def stranger_with(name_server: str, topic: str, queues: int, name: str = "stranger") -> Iterator[None]:
    """While it runs, the name server knows the topic with so many queues at a broker of that name."""
    source = _Topics(TopicConfig(topic, queues, queues))
    identity = replace(IDENTITY, name=name)
    registration = BrokerRegistration(identity, source, parse_name_servers(name_server))
    registration.start()
    try:
        assert registration.wait_registered(60)
        yield
    finally:
        registration.stop()
