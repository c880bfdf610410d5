"""What README.md shows of the broker works as it is written: the Python client and the commands. Java: in interop."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.environments import ForeignClient
from clients.readme_broker import commands, piece
from servers.loopback import stop
from servers.serving import Serving
from tiermq.client.access import Access

pytestmark = pytest.mark.xdist_group("third-party-clients")


@pytest.fixture
def fresh_broker(tmp_path: Path) -> Iterator[Serving]:
    """As the page starts it: a store that nobody has used, topics made by whoever sends first."""
    with Serving(tmp_path / "store", "--tier", (tmp_path / "tier").as_uri()) as served:
        yield served


def test_the_python_client_of_the_readme_sends_and_receives(
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
    told = []
    with running.stdout, running.stderr:
        for line in running.stdout:
            told.append(line.strip())
            if told[-1] == "b'a tea'":
                break
        else:
            raise AssertionError(f"{told}\n{running.stderr.read()[-2000:]}")
        stop(running)  # It may wait for ever in an exit handler of C++.
    assert "OK" in told


def test_the_commands_of_the_readme_find_what_they_sent(fresh_broker: Serving) -> None:
    told = ""
    for command in commands():
        done = subprocess.run(
            [sys.executable, "-m", "tiermq.cli", *shlex.split(command)[1:]],
            env={**os.environ, "NAMESRV_ADDR": fresh_broker.name_server},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        told += done.stdout
        # The broker tells its name server of a new topic by a thread of its own; nobody types that fast.
        while Access(fresh_broker.name_server).run(lambda cluster: cluster.find_route("orders")) is None:
            continue
    assert len(commands()) == 4
    assert told.count("three cakes") == 2, "consumed, and found by its key"
    assert "order-44" in told
