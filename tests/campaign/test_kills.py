"""Kills, in small: a broker that is killed keeps what it acknowledged, and a ledger reports what it misses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.soaking import Ledger
from campaign.environment import environment
from campaign.kills.brokers import Kill, Round, judged
from campaign.kills.processes import descendants, kill, kind_of
from campaign.part import Outcome

pytestmark = pytest.mark.crash


def test_a_broker_that_is_killed_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    outcome = Outcome()
    kills = [Kill(20, "broker", 0)]
    assert Round(tmp_path, {"flush_disk_type": "ASYNC_FLUSH"}, tiered=False).run(kills, outcome) == []
    assert outcome.counts["kills"] == 1
    assert outcome.counts["messages_checked"] >= outcome.counts["messages_acknowledged"] >= 20


def test_what_is_missing_moved_or_there_twice_is_reported() -> None:
    ledger = Ledger(acknowledged={b"a": (0, 0), b"b": (0, 1)}, seen={(0, 0): b"a", (0, 1): b"b"})
    ledger.deliveries.update(ledger.seen.keys())
    assert judged(ledger) == []
    ledger.seen[0, 1] = b"a"
    assert [promise for promise, _ in judged(ledger)] == [
        "An acknowledged message survives kill -9.",
        "What was sent once is stored once.",
    ]
    ledger.repeated.add(b"a")
    ledger.deliveries[0, 0] += 1
    assert [promise for promise, _ in judged(ledger)] == [
        "An acknowledged message survives kill -9.",
        "A consumer that lives gets no place twice.",
    ]


def test_only_processes_below_one_of_ours_are_found() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        [child] = descendants(parent.pid)
        assert child in descendants(os.getpid())
        assert kind_of(child) == ""
        assert kill(child)
    assert descendants(parent.pid) == []
    assert kind_of(child) == ""


def test_variables_are_as_before_afterwards() -> None:
    with environment({"TIERMQ_TEST_KILLS": "1"}):
        assert os.environ["TIERMQ_TEST_KILLS"] == "1"
    assert "TIERMQ_TEST_KILLS" not in os.environ
