"""Topic attributes that the store needs: whether a topic's queues are simple queues or batch queues.

RocketMQ keeps topic attributes in `config/topics.json`; a store that is opened without a broker reads them from there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tiermq.consumequeue.queue_table import QueueType
from tiermq.files.config_file import decode_lenient_json
from tiermq.files.file_access import FileAccess
from tiermq.store.table_journal import TableJournal, Version

ATTRIBUTE = "queue.type"


class TopicAttributes:
    """Queue types by topic. A topic without attributes has simple queues."""

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
        """From `config/topics.json`, or its backup, and the journal beside it; nothing when there is neither."""
        path = f"{root}/config/topics.json"
        found = access.read_config(path, _decoded)
        if found is None:
            return cls()
        types, names, version = found
        changes = TableJournal(path, access).read(version, names.__contains__)
        for name in changes.gone:
            types.pop(name, None)
        for name, config in changes.put.items():
            types.pop(name, None)
            types.update(_types_in({name: config}))
        return cls(types)


def _decoded(data: bytes) -> tuple[dict[str, QueueType], Collection[str], Version]:
    document: dict[str, Any] = decode_lenient_json(data, "topics.json")
    table: dict[str, dict[str, Any]] = document["topicConfigTable"]
    version = document.get("dataVersion") or {}
    numbers = (version.get("timestamp", 0), version.get("counter", 0), version.get("stateVersion", 0))
    return _types_in(table), table.keys(), numbers


def _types_in(table: Mapping[str, dict[str, Any]]) -> dict[str, QueueType]:
    found = {}
    for topic, config in table.items():
        value = (config.get("attributes") or {}).get(ATTRIBUTE)
        if value is not None:
            found[topic] = QueueType(value)
    return found
