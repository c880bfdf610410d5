"""The tables of a real RocketMQ broker: read over the wire and from its files, restored, and read by RocketMQ again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from interop.conftest import StartBroker
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, Cluster
from servers.serving import Serving
from tiermq.cli.main import cli
from tiermq.client.broker_state import read_broker_state
from tiermq.client.cluster_client import Access
from tiermq.errors import RemotingError
from tiermq.files.config_file import decode_lenient_json
from tiermq.tier.metadata.broker_state import DELAY_OFFSETS, GROUPS, OFFSETS, SETTINGS, TOPICS

pytestmark = pytest.mark.interop
ONE = ("--bodies", "--follow", "--max", "1")


def run(name_server: str, *words: str | Path) -> Result:
    result = CliRunner().invoke(cli, list(map(str, words)), env={"NAMESRV_ADDR": name_server})
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result


def wait_for_broker(name_server: str) -> None:
    """Until the name server knows the broker, which registers after its boot."""
    while True:
        try:
            Access(name_server).run(lambda cluster: cluster.masters())
        except RemotingError:
            continue
        return


def state_of(cluster: Cluster) -> dict[str, Any]:
    found = Access(cluster.name_server).run(lambda client: read_broker_state(client, cluster.broker_address))
    return {name: decode_lenient_json(text, name) for name, text in found.items()}


@pytest.mark.parametrize("over_the_wire", [False, True], ids=["directory", "wire"])
def test_a_consumer_of_rocketmq_continues_at_a_broker_restored_from_the_bucket(
    start_broker: StartBroker, tmp_path: Path, over_the_wire: bool
) -> None:
    cluster = start_broker(tmp_path / "theirs")
    at = cluster.name_server
    wait_for_broker(at)
    run(at, "topic", "create", "orders", "--queues", "3", "--attribute", "message.type=NORMAL")
    run(at, "group", "create", "audit", "--retries", "3")
    for number in range(4):
        run(at, "produce", "orders", f"zero-{number}", "--queue", "0")
    run(at, "consume", "orders", "--group", "audit", "--queue", "0", "--follow", "--max", "3", "--quiet")
    state = state_of(cluster)
    assert state[TOPICS.name][TOPICS.table]["orders"]["attributes"] == {"message.type": "NORMAL"}
    assert state[GROUPS.name][GROUPS.table]["audit"]["retryMaxTimes"] == 3
    assert state[OFFSETS.name][OFFSETS.table]["orders@audit"] == {"0": 3}
    assert DELAY_OFFSETS.table in state[DELAY_OFFSETS.name]
    assert state[SETTINGS.name][SETTINGS.table]["brokerName"] == BROKER_NAME
    assert not [name for name in state[SETTINGS.name][SETTINGS.table] if "password" in name.lower()]
    tier = (tmp_path / "tier").as_uri()
    if over_the_wire:
        run(at, "pipeline", "offload", "--tier", tier, "--master", "here", "--settle", "1s")
        cluster.stop()
    else:
        cluster.stop()
        place = f"{tmp_path / 'theirs'}={CLUSTER_NAME}/{BROKER_NAME}"
        run("", "pipeline", "offload", "--store", place, "--tier", tier)
    for name in ("ours", "again"):
        run("", "tier", "restore", tier, "--store", tmp_path / name)
    with Serving(tmp_path / "ours", "--tier", tier, broker_name=BROKER_NAME) as served:
        words = ("consume", "orders", "--group", "audit", "--queue", "0")
        assert run(served.name_server, *words, *ONE).stdout == "zero-3\n"
    # RocketMQ reads what was restored: the same topics and groups, and the offsets.
    again = state_of(start_broker(tmp_path / "again"))
    assert again[TOPICS.name][TOPICS.table]["orders"] == state[TOPICS.name][TOPICS.table]["orders"]
    assert again[GROUPS.name][GROUPS.table]["audit"] == state[GROUPS.name][GROUPS.table]["audit"]
    assert json.dumps(again[OFFSETS.name][OFFSETS.table]["orders@audit"]) == '{"0": 3}'
