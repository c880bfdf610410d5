"""Which brokers a producer avoids, and for how long."""

from __future__ import annotations

import pytest

from tiermq.client.member.broker_health import BrokerHealth


@pytest.mark.parametrize(("took_s", "avoided_s"), [(0.5, 0), (0.55, 2), (1.8, 5), (3, 6), (5, 10), (10, 30), (15, 30)])
def test_a_slow_broker_is_avoided_as_long_as_in_rocketmq(took_s: float, avoided_s: float) -> None:
    health = BrokerHealth()
    health.answered("a", took_s, 100.0)
    assert health.is_avoided("a", 100.0) == (avoided_s > 0)
    assert not health.is_avoided("a", 100.0 + avoided_s)
    assert not health.is_avoided("b", 100.0)


def test_a_failure_counts_as_ten_seconds_and_a_quick_answer_ends_it() -> None:
    health = BrokerHealth()
    health.failed("a", 0.0)
    assert health.is_avoided("a", 29.0)
    health.answered("a", 0.01, 29.0)
    assert not health.is_avoided("a", 29.0)
