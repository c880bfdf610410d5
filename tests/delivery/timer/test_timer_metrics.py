"""Counts by topic, in RocketMQ's JSON."""

from __future__ import annotations

import json

import pytest

from tiermq.delivery.timer.timer_metrics import TimerMetrics, decode_timer_metrics
from tiermq.errors import StoreDamaged


def test_counts_go_up_and_down_and_those_of_nothing_are_not_told() -> None:
    metrics = TimerMetrics()
    metrics.add("orders", 1, 5)
    metrics.add("orders", 1, 6)
    metrics.add("bills", 1, 7)
    metrics.add("bills", -1, 8)
    assert metrics.counts() == {"orders": 2}
    assert metrics.changed


def test_timer_metrics_are_written_as_rocketmq_writes_them() -> None:
    metrics = TimerMetrics()
    metrics.add("orders", 2, 5)
    assert json.loads(metrics.encode(9)) == {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 9},
        "timingCount": {"orders": {"count": 2, "timeStamp": 5}},
    }
    again = decode_timer_metrics(metrics.encode(9))
    again.add("orders", 1, 6)
    assert again.counts() == {"orders": 3}
    assert json.loads(again.encode(9))["dataVersion"]["counter"] == 2


@pytest.mark.parametrize(
    "wrong", [b"[]", b"{}", b'{"timingCount":[]}', b'{"timingCount":{"T":3}}', b'{"timingCount":{"T":{"count":"x"}}}']
)
def test_timer_metrics_that_are_none_are_damage(wrong: bytes) -> None:
    with pytest.raises(StoreDamaged):
        decode_timer_metrics(wrong)
