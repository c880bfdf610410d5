"""Queues as keys of a table: RocketMQ writes the queue itself as the key, and it is read back as that object's text."""

from __future__ import annotations

import json

from tiermq.errors import RequestRefused
from tiermq.remoting.json_dialect import as_int


def queue_of_key(key: str) -> tuple[str, int, str]:
    """Topic, queue id, broker name. Raises RequestRefused for a key that is no queue."""
    try:
        found = json.loads(key)
        return str(found["topic"]), as_int(found["queueId"]), str(found["brokerName"])
    except (ValueError, KeyError, TypeError) as error:
        raise RequestRefused(f"expected a queue as the key of a table, found {key[:80]!r}") from error
