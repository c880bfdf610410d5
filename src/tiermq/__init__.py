"""TierMQ: a message store that keeps RocketMQ's bytes."""

from tiermq.kernel import Message, PutResult, PutResults
from tiermq.status import GetStatus, PutStatus
from tiermq.store.local_store import LocalStore

__version__ = "0.1.0"
__all__ = ["GetStatus", "LocalStore", "Message", "PutResult", "PutResults", "PutStatus"]
