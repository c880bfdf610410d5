"""A broker's own figures, under RocketMQ's names where it has one; of sends and pulls their processors tell.

Everything is read when somebody asks, in the thread that asks: a figure costs nothing while nobody looks.
"""

from __future__ import annotations

from tiermq.broker.parts import BrokerParts

NODE = ("cluster", "node_type", "node_id")


def register_broker_metrics(parts: BrokerParts) -> None:
    """Once per registry."""
    config, registry, server = parts.config, parts.metrics, parts.server
    node = (config.broker_cluster_name, "broker", config.broker_name)
    gauges = {
        "rocketmq_broker_permission": ("4 read, 2 write", lambda: config.broker_permission),
        "rocketmq_topic_number": ("topics, the system's too", lambda: len(parts.topics)),
        "rocketmq_consumer_group_number": ("consumer groups", lambda: len(parts.groups)),
        "tiermq_connections": ("peers that are connected", lambda: len(server.connections)),
    }
    counters = {
        "tiermq_connections_refused_total": ("peers for whom there was no room", lambda: server.refused_connections),
        "tiermq_request_errors_total": ("requests that failed by a mistake of ours", lambda: server.handler_errors),
    }
    for name, (text, read) in gauges.items():
        registry.gauge(name, text, NODE).labels(*node).set_function(read)
    for name, (text, read) in counters.items():
        registry.counter(name, text, NODE).labels(*node).set_function(read)
