"""How much was sent to which topic."""

from __future__ import annotations

from pathlib import Path

from broker.brokers import broker_config
from tiermq.broker.send_counts import SendCounts
from tiermq.broker.topics import TopicTable
from tiermq.clock import ManualClock
from tiermq.metrics import Registry


def test_counts_are_told_under_rocketmq_s_names_and_only_grow(tmp_path: Path) -> None:
    registry, config = Registry(), broker_config()
    counts = SendCounts(registry, config, TopicTable(str(tmp_path), config, ManualClock()))
    counts.add("T", 100)
    counts.add("T", 60, 3)
    labels = (
        'cluster="DefaultCluster",node_type="broker",node_id="b1",topic="T",message_type="normal",is_system="false"'
    )
    for more in (0, 5):
        counts.add("T", 10 * more, more)
        text = registry.render_prometheus()
        assert f"rocketmq_messages_in_total{{{labels}}} {4 + more}\n" in text
        assert f"rocketmq_throughput_in_total{{{labels}}} {160 + 10 * more}\n" in text
    counts.add("BenchmarkTest", 1)
    assert 'topic="BenchmarkTest",message_type="normal",is_system="true"} 1' in registry.render_prometheus()
    assert (counts.of("T"), counts.of("nobody")) == ((9, 210), (0, 0))


def test_refused_sends_are_counted(tmp_path: Path) -> None:
    registry, config = Registry(), broker_config()
    counts = SendCounts(registry, config, TopicTable(str(tmp_path), config, ManualClock()))
    counts.refused += 2
    assert "tiermq_sends_refused_total 2\n" in registry.render_prometheus()
