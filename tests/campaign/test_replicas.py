"""Replicas in network namespaces, in small: a killed master loses nothing, and a wrong history is found."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from campaign.replicas.cluster import Plan
from campaign.replicas.ledger import Ledger
from campaign.replicas.namespaces import HUB, Machine, apart, make_hub, missing
from campaign.replicas.part import ReplicaFaults, Step, planned
from servers.seaweedfs import missing as missing_server
from waiting import until

pytestmark = pytest.mark.crash
needs_namespaces = pytest.mark.skipif(bool(missing()), reason=missing() or "they can be had")


@needs_namespaces
def test_a_killed_master_in_a_network_of_its_own_loses_nothing(tmp_path: Path) -> None:
    plan = Plan("directory", "ASYNC_FLUSH", 1)
    runs = [[Step(0.0, 0.5, "kill", None, 0)], [Step(0.0, 1.0, "unplug", None, 0)]]
    outcome = ReplicaFaults().run(1, tmp_path, plan, runs)
    assert outcome.findings == []
    assert outcome.counts["runs"] == 2
    assert outcome.counts["messages_checked"] >= outcome.counts["acknowledged"] >= 40


@needs_namespaces
@pytest.mark.skipif(bool(missing_server()), reason=missing_server() or "there is one")
def test_replicas_that_clean_while_uploads_lag_lose_nothing(tmp_path: Path) -> None:
    plan = Plan("tier", "ASYNC_FLUSH", 1, cleans=True, lags=True, slave_reads=True)
    runs = [[Step(4.0, 0.1, "clean", 0, 0), Step(6.0, 6.0, "kill", None, 0)]]
    outcome = ReplicaFaults().run(1, tmp_path, plan, runs)
    assert outcome.findings == []
    assert outcome.counts["clean"] == 1


def can_connect(machine: Machine, port: int) -> bool:
    program = f"import socket; socket.create_connection(({HUB!r}, {port}), 0.3).close()"
    command = [*machine.inside, sys.executable, "-S", "-c", program]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


@needs_namespaces
def test_a_machine_that_is_cut_off_reaches_no_other_until_it_is_healed() -> None:
    def live() -> list[bool]:
        make_hub()
        machine = Machine(1)
        found = []
        with socket.create_server((HUB, 0)) as server:
            port = server.getsockname()[1]
            for cut in (machine.unplug, lambda: machine.lose(HUB)):
                until(lambda: can_connect(machine, port))
                cut()
                found.append(can_connect(machine, port))
                machine.heal()
            until(lambda: can_connect(machine, port))
        machine.close()
        return found

    assert apart(live) == [False, False]


def test_a_seed_stands_for_one_schedule() -> None:
    assert planned(7) == planned(7)
    assert planned(7) != planned(8)


def test_a_message_that_moved_came_twice_or_is_gone_is_found() -> None:
    ledger = Ledger()
    ledger.note((0, 0), b"a", "acknowledged")
    ledger.note((0, 1), b"b", "read")
    ledger.check_all({(0, 0): b"a", (0, 1): b"b", (1, 0): b"c"}, "the master")
    assert ledger.problems == []
    ledger.note((0, 0), b"x", "read")
    ledger.note((0, 5), b"b", "read")
    assert len(ledger.problems) == 2
    ledger.check_all({(0, 0): b"a", (0, 2): b"a"}, "the master")
    assert "1 of 3 are gone" in ledger.problems[2] or "2 of 3 are gone" in ledger.problems[2]
    assert "is not unbroken" in ledger.problems[3]
    assert "stored twice: 1" in ledger.problems[4]
