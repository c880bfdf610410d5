"""The benchmark of replication: its ratios, and the lag that it sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import broker_side, failover_side, replication_side
from benchmarks.broker_side import Loaded
from benchmarks.failover_side import Failovers, Takeovers
from benchmarks.replication_side import Lag, Pair
from benchmarks.report import TARGETS, Report
from broker.brokers import running, send_command
from tiermq.remoting.client import BlockingClient


def test_the_longest_time_without_a_master_is_compared_with_what_is_allowed() -> None:
    made = Report("replication")
    failover_side.add_failover_to(made, Failovers([9.0, 24.0, 10.0], [0.5, 1.0, 0.4]))
    failover_side.add_takeover_to(made, Takeovers([2.0, 2.5], [0.7, 0.5], 10, 20, 30))
    assert made.ratios == {
        "failover_allowed_vs_longest": 0.5,
        "promotion_allowed_vs_longest": 2.0,
        "takeover_allowed_vs_longest": 2.0,
    }
    assert made.rates["failover_p50_s"] == 10.0
    assert all(TARGETS[name].required for name in made.ratios)


def test_a_quantile_of_lags_is_one_of_them() -> None:
    lag = Lag(10.0, [float(number) for number in range(100)])
    assert [lag.quantile(share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 99.0]


@pytest.mark.bench
def test_a_broker_that_is_its_own_slave_is_hardly_behind(tmp_path: Path) -> None:
    with running(tmp_path) as broker, BlockingClient("127.0.0.1", broker.port) as client:
        client.request(send_command(broker_side.TOPIC, queues=broker_side.QUEUES))
        pair = Pair(Loaded("tiermq", dict, 0, "", broker.port), 0, broker.port)
        lag = replication_side.measure_lag(pair, 500.0, 0.3)
    assert lag.rate == pytest.approx(500.0)
    assert len(lag.values_ms) == 150
    assert min(lag.values_ms) >= 0.0
