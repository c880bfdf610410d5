"""docs/clients.md and the README's quick start run as written: the Python client and the commands. Java: interop."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.clients_page import commands, piece, quick_start
from clients.environments import ForeignClient
from servers.loopback import stop
from servers.serving import Serving
from tiermq.client.cluster_client import Access

pytestmark = pytest.mark.xdist_group("third-party-clients")


@pytest.fixture
def fresh_broker(tmp_path: Path) -> Iterator[Serving]:
    """As the page starts it: a store that nobody has used, topics made by whoever sends first."""
    with Serving(tmp_path / "store", "--tier", (tmp_path / "tier").as_uri()) as served:
        yield served


def test_the_python_client_of_the_page_sends_and_receives(
    cpp_client: ForeignClient, fresh_broker: Serving, tmp_path: Path
) -> None:
    variables = {name: value.format(home=cpp_client.home) for name, value in cpp_client.variables.items()}
    running = subprocess.Popen(
        [sys.executable, "-u", "-c", piece("py", fresh_broker.name_server)],
        env={**os.environ, "HOME": str(tmp_path), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stderr is not None
    reported = []
    with running.stdout, running.stderr:
        for line in running.stdout:
            reported.append(line.strip())
            if reported[-1] == "b'a tea'":
                break
        else:
            raise AssertionError(f"{reported}\n{running.stderr.read()[-2000:]}")
        stop(running)  # It may wait for ever in an exit handler of C++.
    assert "OK" in reported


def run_all(lines: list[str], broker: Serving) -> str:
    """Type commands one after the other; what they print."""
    printed = ""
    for command in lines:
        done = subprocess.run(
            [sys.executable, "-m", "tiermq.cli", *shlex.split(command)[1:]],
            env={**os.environ, "NAMESRV_ADDR": broker.name_server},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        printed += done.stdout
        # The broker registers a new topic by a thread of its own; no reader types that fast.
        if command.startswith("tiermq produce"):
            while Access(broker.name_server).run(lambda cluster: cluster.find_route("orders")) is None:
                continue
    return printed


def test_the_commands_of_the_page_find_what_they_sent(fresh_broker: Serving) -> None:
    printed = run_all(commands(), fresh_broker)
    assert len(commands()) == 4
    assert printed.count("three cakes") == 2, "consumed, and found by its key"
    assert "order-44" in printed


def test_the_quick_start_of_the_readme_sends_consumes_queries_and_counts(fresh_broker: Serving, tmp_path: Path) -> None:
    install, serve, *others = quick_start()
    assert install.startswith("pip install '.[spark]'")
    assert serve == "tiermq serve ~/store --tier file://$HOME/tier", "what the fixture does"
    *messages, sql = others
    printed = run_all(messages, fresh_broker)
    assert printed.count("two coffees") == 2, "consumed, and found by its key"
    counted = run_all([sql.replace("$HOME", str(tmp_path)).replace("~", str(tmp_path))], fresh_broker)
    assert "orders" in counted
