"""The Java program that docs/clients.md shows compiles and runs as it is written, with RocketMQ's own client."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clients.clients_page import piece
from interop.rocketmq import Distribution
from servers.serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("java-clients")]


def test_the_java_client_of_the_readme_sends_and_receives(distribution: Distribution, tmp_path: Path) -> None:
    with Serving(tmp_path / "store", "--tier", (tmp_path / "tier").as_uri()) as broker:
        source = tmp_path / "Hello.java"
        source.write_text(piece("java", broker.name_server))
        command = distribution.java(tmp_path, str(source), heap="256m")
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sent, received = done.stdout.splitlines()[-2:]
    assert "sendStatus=SEND_OK" in sent
    assert received == "two coffees"
