"""A cluster from outside: routes, sends, pulls, and its topics as a history.

    from tiermq.client import Access, ClusterClient

May import `tiermq.remoting`, `tiermq.namesrv` (values) and `tiermq.history`. Must not depend on brokers' insides or
Spark. Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiermq.client.cluster_client import Access, BlockingCluster, ClusterClient
    from tiermq.client.member.transactions import Decision
    from tiermq.client.producer import Producer

__all__ = ["Access", "BlockingCluster", "ClusterClient", "Decision", "Producer"]

_HOMES = {
    "Access": "tiermq.client.cluster_client",
    "BlockingCluster": "tiermq.client.cluster_client",
    "ClusterClient": "tiermq.client.cluster_client",
    "Decision": "tiermq.client.member.transactions",
    "Producer": "tiermq.client.producer",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tiermq.client' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
