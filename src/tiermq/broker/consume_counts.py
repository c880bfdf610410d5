"""ConsumeCounts: what consumers were given, what they lack and who is connected, under RocketMQ's metric names.

    rocketmq_messages_out_total, rocketmq_throughput_out_total      by group and topic
    rocketmq_consumer_lag_messages, rocketmq_consumer_inflight_messages
    rocketmq_consumer_connections, rocketmq_producer_connections

Counting costs a pull two additions; everything else is looked up when somebody asks for it. What is gone (a group, a
connection) is told as 0 from then on. Lag is messages behind the end of queues that the group has an offset of; in
flight is what was given out and not committed yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tiermq.broker.parts import BrokerParts
from tiermq.broker.pull_admission import PullAdmission
from tiermq.broker.subscriptions import ConsumeType
from tiermq.message.topic_name import RETRY_PREFIX
from tiermq.metrics import GaugeChild, Metric
from tiermq.remoting.codes import language_of

OWNER = ("cluster", "node_type", "node_id")
GIVEN = (*OWNER, "topic", "consumer_group", "is_retry", "is_system")
BEHIND = (*OWNER, "topic", "consumer_group", "is_retry")
CONSUMING = (*OWNER, "consumer_group", "language", "version", "consume_mode")
PRODUCING = (*OWNER, "language", "version")
_MODES = {ConsumeType.CONSUME_ACTIVELY: "pull", ConsumeType.CONSUME_PASSIVELY: "push", ConsumeType.CONSUME_POP: "pop"}
Labels = tuple[str, ...]


class ConsumeCounts:
    """See the module. `collect` may run in any thread, one at a time."""

    def __init__(self, parts: BrokerParts, admission: PullAdmission) -> None:
        self._parts = parts
        self._admission = admission
        self._owner = (parts.config.broker_cluster_name, "broker", parts.config.broker_name)
        self._told: dict[tuple[str, str], tuple[int, int]] = {}
        self._shown: dict[str, set[Labels]] = {}
        registry = parts.metrics
        self._messages = registry.counter("rocketmq_messages_out_total", "messages that consumers were given", GIVEN)
        self._bytes = registry.counter("rocketmq_throughput_out_total", "bytes of records that they were", GIVEN)
        self._lag = registry.gauge("rocketmq_consumer_lag_messages", "messages that a group has not consumed", BEHIND)
        self._inflight = registry.gauge(
            "rocketmq_consumer_inflight_messages", "messages that a group was given and has not consumed", BEHIND
        )
        self._consumers = registry.gauge("rocketmq_consumer_connections", "consumers that are connected", CONSUMING)
        self._producers = registry.gauge("rocketmq_producer_connections", "producers that are connected", PRODUCING)
        registry.add_collector(self.collect)

    def collect(self) -> None:
        self._collect_given()
        self._collect_behind()
        self._collect_connections()

    def _collect_given(self) -> None:
        topics = self._parts.topics
        for (group, topic), admitted in tuple(self._admission.remembered.items()):
            now = admitted.message_count, admitted.byte_count
            before = self._told.get((group, topic), (0, 0))
            if now[0] < before[0]:
                before = (0, 0)  # It was forgotten meanwhile, and counts anew.
            labels = (*self._owner, topic, group, _text(_is_retry(topic)), _text(topics.is_system(topic)))
            self._messages.labels(*labels).add(now[0] - before[0])
            self._bytes.labels(*labels).add(now[1] - before[1])
            self._told[group, topic] = now

    def _collect_behind(self) -> None:
        parts = self._parts
        lag: dict[Labels, float] = {}
        inflight: dict[Labels, float] = {}
        for key, queues in parts.offsets.snapshot().items():
            topic, _, group = key.partition("@")
            if parts.topics.get(topic) is None:
                continue
            labels = (*self._owner, topic, group, _text(_is_retry(topic)))
            for queue_id, offset in queues.items():
                behind = parts.store.max_offset(topic, queue_id) - offset
                given = parts.offsets.query_pulled(group, topic, queue_id) - offset
                lag[labels] = lag.get(labels, 0) + max(0, behind)
                inflight[labels] = inflight.get(labels, 0) + max(0, given)
        self._show("lag", self._lag, lag)
        self._show("inflight", self._inflight, inflight)

    def _collect_connections(self) -> None:
        clients = self._parts.clients
        consuming: Counter[Labels] = Counter()
        for name in clients.consumer_groups:
            group = clients.consumers(name)
            for client in () if group is None else tuple(group.clients.values()):
                mode = "push" if group is None else _MODES[group.consume_type]
                told = (language_of(client.language).name, str(client.version))
                consuming[(*self._owner, name, *told, mode)] += 1
        producing: Counter[Labels] = Counter()
        for name in clients.producer_groups:
            senders = clients.producers(name)
            for client in () if senders is None else tuple(senders.clients.values()):
                producing[(*self._owner, language_of(client.language).name, str(client.version))] += 1
        self._show("consumers", self._consumers, consuming)
        self._show("producers", self._producers, producing)

    def _show(self, name: str, metric: Metric[GaugeChild], values: Mapping[Labels, float]) -> None:
        """These values, and 0 for what was shown before and is gone."""
        shown = self._shown.setdefault(name, set())
        for labels in shown - values.keys():
            metric.labels(*labels).set(0)
        for labels, value in values.items():
            metric.labels(*labels).set(value)
        shown.update(values)


def _is_retry(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def _text(value: bool) -> str:
    return "true" if value else "false"
