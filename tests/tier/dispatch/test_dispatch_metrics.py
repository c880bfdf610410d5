"""The names and labels that RocketMQ's dashboards look for."""

from __future__ import annotations

from tiermq.metrics import Registry
from tiermq.tier.tier_metrics import DispatchMetrics


def test_the_lines_are_those_of_rocketmq() -> None:
    registry = Registry()
    metrics = DispatchMetrics(registry)
    metrics.watch_queue("T", 3, lambda: 7, lambda: 1.5)
    metrics.watch_engine({"tiermq_dispatch_test": ("for a test", lambda: 4.0)})
    metrics.dispatched("T", 3, 10, 1234)
    metrics.failed("unavailable")
    text = registry.render_prometheus()
    labels = 'storage_type="tiered",storage_medium="blob",topic="T",queue_id="3"'
    assert f'rocketmq_tiered_store_dispatch_behind{{{labels},file_type="consume_queue"}} 7' in text
    assert f'rocketmq_tiered_store_dispatch_latency{{{labels},file_type="consume_queue"}} 1.5' in text
    assert f'rocketmq_tiered_store_messages_dispatch_total{{{labels},file_type="commit_log"}} 10' in text
    assert "tiermq_dispatch_bytes_total 1234" in text
    assert 'tiermq_dispatch_failures_total{kind="unavailable"} 1' in text
    assert "tiermq_dispatch_test 4" in text
    assert metrics.failures("unavailable") == 1
