"""docs/backup.md keeps its word: its commands back up, restore and empty a broker, in their order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from interop.two_brokers import name_server_config
from servers.loopback import free_ports
from tiermq.namesrv.name_server import NameServer

PAGE = Path(__file__).resolve().parent.parent / "docs" / "backup.md"
FILLED = """
tiermq topic create orders --queues 2
tiermq topic create payments --queues 1
tiermq group create audit
for number in 1 2 3 4; do tiermq produce orders "order $number" --queue 0 --key "order-$number"; done
tiermq produce payments paid
tiermq consume orders --group audit --queue 0 --max 2 --quiet
"""


def script() -> str:
    """All commands of the page; behind the first fence, which starts a broker, it gets topics and messages."""
    fences = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    parts = [[line.removeprefix("$ ") for line in fence.splitlines()] for fence in fences]
    parts[0] = [line for line in parts[0] if not line.startswith("export ")]
    # A new broker has no topic yet, for which `start` waits: the first one is made beside it.
    early = "(until tiermq topic create orders --queues 2; do sleep 0.2; done) > early.log 2>&1 &"
    lines = [early, *parts[0], FILLED, *(line for part in parts[1:] for line in part)]
    return "\n".join(["set -e -o pipefail", "trap 'kill $BROKER 2>/dev/null || true' EXIT", "set -x", *lines])


def test_the_commands_back_up_restore_and_empty_a_broker(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with NameServer(name_server_config()) as names:
        (tmp_path / "broker.conf").write_text(
            f"brokerName=broker-a\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\nlistenPort={port}\n"
            f"namesrvAddr=127.0.0.1:{names.port}\nmappedFileSizeCommitLog=1048576\nmaxHashSlotNum=5000\n"
            "maxIndexNum=20000\nflushConsumerOffsetInterval=100\n"
        )
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        here = {"NAMESRV_ADDR": f"127.0.0.1:{names.port}", "TIER": (tmp_path / "tier").as_uri(), "PATH": path}
        done = subprocess.run(
            ["bash", "-c", script()], cwd=tmp_path, env={**os.environ, **here}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    log = (tmp_path / "broker.log").read_text()[-2_000:] if (tmp_path / "broker.log").exists() else ""
    assert done.returncode == 0, f"{done.stdout[-2_000:]}\n{done.stderr[-4_000:]}\n{log}"
    assert "broker-a: drained: " in done.stdout
    assert "group offsets (1) as of " in done.stdout
    assert not (tmp_path / "store").exists()
