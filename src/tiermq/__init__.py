"""TierMQ: a message store that keeps RocketMQ's bytes.

Names are loaded when they are first used: a command that only prints its help need not map a store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiermq.client.member.async_cluster import aconnect
    from tiermq.client.member.cluster import connect
    from tiermq.client.member.handlers import RetryLater
    from tiermq.client.member.transactions import Decision
    from tiermq.kernel import Message, PutResult, PutResults
    from tiermq.status import GetStatus, PutStatus
    from tiermq.store.local_store import LocalStore
    from tiermq.tier.tiered_store import TieredStore

__version__ = "0.1.0"
__all__ = [
    "Decision",
    "GetStatus",
    "LocalStore",
    "Message",
    "PutResult",
    "PutResults",
    "PutStatus",
    "RetryLater",
    "TieredStore",
    "aconnect",
    "connect",
]

_HOMES = {
    "Decision": "tiermq.client.member.transactions",
    "GetStatus": "tiermq.status",
    "LocalStore": "tiermq.store.local_store",
    "Message": "tiermq.kernel",
    "PutResult": "tiermq.kernel",
    "PutResults": "tiermq.kernel",
    "PutStatus": "tiermq.status",
    "RetryLater": "tiermq.client.member.handlers",
    "TieredStore": "tiermq.tier.tiered_store",
    "aconnect": "tiermq.client.member.async_cluster",
    "connect": "tiermq.client.member.cluster",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tiermq' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
