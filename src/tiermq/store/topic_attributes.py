"""What the store must know about topics: whether their queues are simple ones or batch ones.

RocketMQ keeps topic attributes in `config/topics.json`; a store that is opened without a broker reads them from there.
"""

from __future__ import annotations

from typing import Any

from tiermq.consumequeue.queue_table import QueueType
from tiermq.files.file_access import FileAccess
from tiermq.store.lenient_json import decode_lenient_json

ATTRIBUTE = "queue.type"


class TopicAttributes:
    """Queue types by topic. A topic that nobody said anything about has simple queues."""

    def __init__(self, types: dict[str, QueueType] | None = None) -> None:
        self._types = dict(types or {})

    def queue_type_of(self, topic: str) -> QueueType:
        return self._types.get(topic, QueueType.SIMPLE)

    def is_batch_queue(self, topic: str) -> bool:
        return self.queue_type_of(topic) is QueueType.BATCH

    def set_queue_type(self, topic: str, queue_type: QueueType) -> None:
        """For a topic that has no queues yet: files of the other type would no longer load."""
        self._types[topic] = queue_type

    @classmethod
    def read(cls, access: FileAccess, root: str) -> TopicAttributes:
        """From `config/topics.json`, or its backup; nothing when there is neither."""
        return cls(access.read_config(f"{root}/config/topics.json", _types_in) or {})


def _types_in(data: bytes) -> dict[str, QueueType]:
    table: dict[str, dict[str, Any]] = decode_lenient_json(data, "topics.json")["topicConfigTable"]
    found = {}
    for topic, config in table.items():
        value = (config.get("attributes") or {}).get(ATTRIBUTE)
        if value is not None:
            found[topic] = QueueType(value)
    return found
