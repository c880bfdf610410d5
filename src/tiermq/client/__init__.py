"""The client of a cluster: what `tiermq.connect` and `tiermq.aconnect` return, hand out and take, for type hints.

    from tiermq.client import ReceivedMessage

    def handle(message: ReceivedMessage) -> None: ...

Below it: routes, sends and pulls of our tools, and a cluster's topics as a history. May import `tiermq.remoting`,
`tiermq.namesrv` (values) and `tiermq.history`. Must not depend on brokers' insides or Spark. Names are loaded when they
are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiermq.client.cluster_client import QueuePlace
    from tiermq.client.member.async_cluster import AsyncCluster
    from tiermq.client.member.async_consumer import AsyncConsumer
    from tiermq.client.member.async_producer import AsyncProducer
    from tiermq.client.member.cluster import Cluster, Consumer, Producer, SimpleConsumer, Transaction
    from tiermq.client.member.message_queue import MessageQueue
    from tiermq.client.member.outgoing import SendReceipt, SendStatus
    from tiermq.client.member.pop_consumer import AsyncSimpleConsumer
    from tiermq.client.member.received_message import ReceivedMessage
    from tiermq.client.member.transactions import AsyncTransaction
    from tiermq.remoting.tls import ClientTls

__all__ = [
    "AsyncCluster",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncSimpleConsumer",
    "AsyncTransaction",
    "ClientTls",
    "Cluster",
    "Consumer",
    "MessageQueue",
    "Producer",
    "QueuePlace",
    "ReceivedMessage",
    "SendReceipt",
    "SendStatus",
    "SimpleConsumer",
    "Transaction",
]

_HOMES = {
    "AsyncCluster": "tiermq.client.member.async_cluster",
    "AsyncConsumer": "tiermq.client.member.async_consumer",
    "AsyncProducer": "tiermq.client.member.async_producer",
    "AsyncSimpleConsumer": "tiermq.client.member.pop_consumer",
    "AsyncTransaction": "tiermq.client.member.transactions",
    "ClientTls": "tiermq.remoting.tls",
    "Cluster": "tiermq.client.member.cluster",
    "Consumer": "tiermq.client.member.cluster",
    "MessageQueue": "tiermq.client.member.message_queue",
    "Producer": "tiermq.client.member.cluster",
    "QueuePlace": "tiermq.client.cluster_client",
    "ReceivedMessage": "tiermq.client.member.received_message",
    "SendReceipt": "tiermq.client.member.outgoing",
    "SendStatus": "tiermq.client.member.outgoing",
    "SimpleConsumer": "tiermq.client.member.cluster",
    "Transaction": "tiermq.client.member.cluster",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tiermq.client' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
