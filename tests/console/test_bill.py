"""The bill's requests against those that a broker is counted to make."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tier.request_costs import CountedBroker, busy_queues, quiet_hours
from tiermq.console.catalogue import run
from tiermq.console.sources import SourcePlace, Sources, Visit
from tiermq.history.open_history import OpenHistory

QUEUES, DAYS = 2, 10
LEASE_PUTS = 24 * 60 * 3


def lines_of(broker: CountedBroker) -> dict[str, dict[str, float]]:
    """The bill of its tier, by topic; the leases under an empty name."""
    with closing(Sources(SourcePlace(tier="memory://counted"), clock=broker.clock)) as sources:
        sources._history = OpenHistory(sources.history_place, driver=broker.store.tier.driver)
        found = run("tier.bill", Visit(sources))
        return {**{line["topic"]: line for line in found["topics"]}, "": found["leases"]}


def test_requests_of_quiet_queues_are_within_a_fifth_of_those_counted(tmp_path: Path) -> None:
    counted, broker = quiet_hours(tmp_path, QUEUES, 24 * DAYS, rest=24)
    found = lines_of(broker)
    line, leases = found["topic-0"], found[""]
    assert line["writesADay"] == pytest.approx((counted["put"] - DAYS * LEASE_PUTS) / DAYS, rel=0.2)
    assert leases["writesADay"] == LEASE_PUTS
    assert line["getsADay"] == pytest.approx((counted["get"] - DAYS * leases["getsADay"]) / DAYS, rel=0.2)
    assert line["listsADay"] == pytest.approx(counted["list"] / DAYS, rel=0.2)
    assert line["writes"] == pytest.approx((line["writesADay"] + line["listsADay"]) * 30.4 / 1000 * 0.005, rel=0.01)
    broker.store.close()


def test_puts_of_a_busy_topic_are_within_a_fifth_of_those_counted(tmp_path: Path) -> None:
    counted, broker = busy_queues(tmp_path, 50_000)
    line = lines_of(broker)["orders"]
    leases = 7  # Of two minutes and the start.
    hours = 1  # Its messages cover a second; rates are those of an hour at least.
    assert line["writesADay"] / 24 * hours == pytest.approx(counted["put"] - leases, rel=0.2)
    broker.store.close()
