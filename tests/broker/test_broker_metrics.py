"""A broker's figures are right when they are asked for."""

from __future__ import annotations

from pathlib import Path

from broker.brokers import Producer, running
from tiermq.broker.broker import Broker
from tiermq.broker.groups import SubscriptionGroup

NODE = 'cluster="DefaultCluster",node_type="broker",node_id="b1"'


def figure(broker: Broker, name: str) -> float:
    wanted = f"{name}{{{NODE}}} "
    (line,) = [line for line in broker.render_metrics().splitlines() if line.startswith(wanted)]
    return float(line.removeprefix(wanted))


def test_figures_follow_what_happens(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        topics, groups = figure(broker, "rocketmq_topic_number"), figure(broker, "rocketmq_consumer_group_number")
        assert figure(broker, "rocketmq_broker_permission") == 6
        assert figure(broker, "tiermq_connections") == 0
        with Producer(broker) as producer:
            producer.send()
            broker.parts.groups.put(SubscriptionGroup("CG"))
            assert figure(broker, "rocketmq_topic_number") == topics + 1
            assert figure(broker, "rocketmq_consumer_group_number") == groups + 1
            assert figure(broker, "tiermq_connections") == 1
        for name in ("tiermq_connections_refused_total", "tiermq_request_errors_total"):
            assert figure(broker, name) == 0
