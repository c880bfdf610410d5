"""SendCounts: how much producers sent to which topic, under RocketMQ's metric names.

Counting costs a send one dictionary look-up; metrics are brought up to date when somebody asks for them.
Belongs to the loop's thread; a rendering in another thread sees figures that are a moment old.
"""

from __future__ import annotations

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.topics import TopicTable
from tiermq.metrics import Registry

LABELS = ("cluster", "node_type", "node_id", "topic", "message_type", "is_system")


class SendCounts:
    """See the module."""

    def __init__(self, registry: Registry, config: BrokerConfig, topics: TopicTable) -> None:
        self.refused = 0
        self._config = config
        self._topics = topics
        self._by_topic: dict[str, list[int]] = {}
        self._told: dict[str, tuple[int, int]] = {}
        self._messages = registry.counter("rocketmq_messages_in_total", "messages that producers sent", LABELS)
        self._bytes = registry.counter("rocketmq_throughput_in_total", "bytes of records that they became", LABELS)
        registry.counter(
            "tiermq_sends_refused_total", "sends that the store refused or that found it busy", (), lambda: self.refused
        )
        registry.add_collector(self.collect)

    def entry(self, topic: str) -> list[int]:
        """Messages and bytes of a topic, for whoever counts often: add to both."""
        return self._by_topic.setdefault(topic, [0, 0])

    def add(self, topic: str, size_bytes: int, count: int = 1) -> None:
        found = self.entry(topic)
        found[0] += count
        found[1] += size_bytes

    def of(self, topic: str) -> tuple[int, int]:
        """Messages and bytes that were sent to a topic since the start."""
        messages, size_bytes = self._by_topic.get(topic, (0, 0))
        return messages, size_bytes

    def collect(self) -> None:
        for topic, (messages, size_bytes) in tuple(self._by_topic.items()):
            before_messages, before_bytes = self._told.get(topic, (0, 0))
            is_system = str(self._topics.is_system(topic)).lower()
            labels = (
                self._config.broker_cluster_name,
                "broker",
                self._config.broker_name,
                topic,
                "normal",
                is_system,
            )
            self._messages.labels(*labels).add(messages - before_messages)
            self._bytes.labels(*labels).add(size_bytes - before_bytes)
            self._told[topic] = (messages, size_bytes)
