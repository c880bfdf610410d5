"""A broker with orders in it, for those who ask it over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiermq.client.cluster_client import Access, BlockingCluster
from tiermq.kernel import Message
from tiermq.testing import LocalBroker

QUEUES = 2
EACH = 150


def fill(broker: LocalBroker, topic: str = "orders", each: int = EACH, first: int = 0) -> None:
    """`each` messages in each of two queues; the tag tells odd from even."""
    for number in range(first, first + each):
        for queue_id in range(QUEUES):
            tag = "odd" if number % 2 else "even"
            body = b"%d/%d" % (queue_id, number)
            message = Message(topic, body, queue_id, keys=[f"key-{queue_id}-{number}"], tags=tag)
            assert broker.broker.parts.local.put(message).ok
    broker.broker.parts.local.dispatch_now()


@contextmanager
def filled(directory: Path, tier: str | None = None) -> Iterator[tuple[LocalBroker, BlockingCluster]]:
    """A broker with 300 orders, and a cluster that knows it."""
    with LocalBroker(directory, tier=tier) as broker:
        broker.create_topic("orders", queues=QUEUES)
        fill(broker)
        with BlockingCluster(Access(broker.name_server)) as cluster:
            yield broker, cluster
