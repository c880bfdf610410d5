"""TierMQ: a message store that keeps RocketMQ's bytes.

Names are loaded when they are first used: a command that only prints its help need not map a store.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiermq import errors
    from tiermq.client.member.async_cluster import aconnect
    from tiermq.client.member.cluster import connect
    from tiermq.client.member.handlers import RetryLater
    from tiermq.client.member.transactions import Decision
    from tiermq.clock import Clock
    from tiermq.config import StoreConfig
    from tiermq.embedded.async_store import AsyncConsumer, AsyncStore, AsyncStream
    from tiermq.embedded.consumer import Consumer
    from tiermq.embedded.history_frame import HistoryFrame, read
    from tiermq.embedded.local_store import LocalStore
    from tiermq.embedded.message_stream import MessageStream
    from tiermq.embedded.tiered_store import TieredStore
    from tiermq.kernel import GetPage, Message, PutResult, PutResults
    from tiermq.message.message_filter import MessageFilter, TagFilter
    from tiermq.message.stored_message import StoredMessage
    from tiermq.metrics import Registry
    from tiermq.status import GetStatus, PutStatus
    from tiermq.store.clean_service import Cleaned
    from tiermq.store.reader import QueryPage
    from tiermq.tier.restore.restore_report import RestoreReport
    from tiermq.tier.retention.retention import RetentionReport
    from tiermq.tier.tier_config import TierConfig
    from tiermq.tier.tiered_store import NotUploaded


__version__ = "0.1.0"
_HOMES = {
    "AsyncConsumer": "tiermq.embedded.async_store",
    "AsyncStore": "tiermq.embedded.async_store",
    "AsyncStream": "tiermq.embedded.async_store",
    "Cleaned": "tiermq.store.clean_service",
    "Clock": "tiermq.clock",
    "Consumer": "tiermq.embedded.consumer",
    "Decision": "tiermq.client.member.transactions",
    "GetPage": "tiermq.kernel",
    "GetStatus": "tiermq.status",
    "HistoryFrame": "tiermq.embedded.history_frame",
    "LocalStore": "tiermq.embedded.local_store",
    "Message": "tiermq.kernel",
    "MessageFilter": "tiermq.message.message_filter",
    "MessageStream": "tiermq.embedded.message_stream",
    "NotUploaded": "tiermq.tier.tiered_store",
    "PutResult": "tiermq.kernel",
    "PutResults": "tiermq.kernel",
    "PutStatus": "tiermq.status",
    "QueryPage": "tiermq.store.reader",
    "Registry": "tiermq.metrics",
    "RestoreReport": "tiermq.tier.restore.restore_report",
    "RetentionReport": "tiermq.tier.retention.retention",
    "RetryLater": "tiermq.client.member.handlers",
    "StoreConfig": "tiermq.config",
    "StoredMessage": "tiermq.message.stored_message",
    "TagFilter": "tiermq.message.message_filter",
    "TierConfig": "tiermq.tier.tier_config",
    "TieredStore": "tiermq.embedded.tiered_store",
    "aconnect": "tiermq.client.member.async_cluster",
    "connect": "tiermq.client.member.cluster",
    "errors": "",
    "read": "tiermq.embedded.history_frame",
}
__all__ = [
    "AsyncConsumer",
    "AsyncStore",
    "AsyncStream",
    "Cleaned",
    "Clock",
    "Consumer",
    "Decision",
    "GetPage",
    "GetStatus",
    "HistoryFrame",
    "LocalStore",
    "Message",
    "MessageFilter",
    "MessageStream",
    "NotUploaded",
    "PutResult",
    "PutResults",
    "PutStatus",
    "QueryPage",
    "Registry",
    "RestoreReport",
    "RetentionReport",
    "RetryLater",
    "StoreConfig",
    "StoredMessage",
    "TagFilter",
    "TierConfig",
    "TieredStore",
    "aconnect",
    "connect",
    "errors",
    "read",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tiermq' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name) if home else importlib.import_module(f"tiermq.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
