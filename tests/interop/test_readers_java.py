"""RocketMQ's Java consumers read the history that a read-only broker serves from a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.test_serve_read_only import COUNT, as_reader, send
from interop.java_client import JavaClient, bodies
from interop.rocketmq import Distribution
from servers.seaweedfs import SeaweedFS
from servers.serving import Serving

pytestmark = pytest.mark.interop


def test_a_java_consumer_reads_the_history_from_a_reader(
    distribution: Distribution, tmp_path: Path, seaweedfs: SeaweedFS, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Serving(tmp_path / "writer", "--tier", url) as writer:
        send(writer.address, 0, COUNT)
    as_reader(seaweedfs, monkeypatch)
    with Serving(tmp_path / "reader", "--read-only", "--tier", url) as reader:
        got = JavaClient(distribution, reader.name_server, tmp_path).run(topic="T", group="JG", receive=COUNT)
        assert sorted(map(int, bodies(got))) == list(range(COUNT))
