"""docs/rocketmq_to_sql.md keeps its word: its commands take a real RocketMQ broker's messages to SQL, on a cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from interop.official import Official, with_programs
from interop.rocketmq import SMALL_FILES, Cluster, Unavailable, fetch
from servers.seaweedfs import SeaweedFS
from servers.seaweedfs import missing as missing_server
from spark.cluster.standalone import StandaloneCluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1_800)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rocketmq_to_sql.md"
MESSAGES = 400


def script() -> str:
    """All commands and the Python of the page, in their order, without the names of machines that it begins with."""
    lines = []
    for language, fence in re.findall(r"^```(console|python)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        if language == "python":
            lines.append(f"python3 - <<'END'\n{fence}END")
        else:
            commands = [line.removeprefix("$ ") for line in fence.splitlines()]
            lines += [command for command in commands if not command.startswith("export ")]
    return "\n".join(["set -ex", "trap 'kill $(jobs -p) || true' EXIT", *lines])


def test_the_commands_take_an_operator_from_a_broker_to_sql(tmp_path: Path) -> None:
    if reason := missing_server():
        pytest.skip(reason)
    try:
        distribution = with_programs(fetch())
    except Unavailable as reason:
        pytest.skip(f"no RocketMQ here: {reason}")
    brokers = tmp_path / "brokers"
    brokers.mkdir()
    with (
        SeaweedFS(tmp_path / "s3") as s3,
        Cluster(distribution, brokers / "store", brokers / "home", SMALL_FILES) as rocketmq,
        StandaloneCluster(tmp_path / "spark", s3.environment, hidden=brokers if not os.geteuid() else None) as spark,
    ):
        s3.create_bucket("history")
        rocketmq.peer().create_topic("orders", 4)
        with Official(distribution, rocketmq.name_server, tmp_path) as official:
            reported = official.run("Producer", "-t", "orders", "-w", 4, "-s", 100, "-k", "true", messages=MESSAGES)
        here = {"NAMESRV_ADDR": rocketmq.name_server, "TIER": "s3://history", "MASTER": spark.master}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "-c", script()],
            cwd=tmp_path,
            env={**os.environ, **s3.environment, **here, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (found,) = re.findall(r"count\(1\)\|\n\+-+\+\n\|\s*(\d+)\|", done.stdout)
    assert reported.messages <= int(found) <= MESSAGES
