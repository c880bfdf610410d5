"""Topics, groups and offsets of a master that is killed: the replica that takes over has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker.brokers import send_command
from cli.standbys import ask_master, replicas
from interop.controller_set import ControlledBroker, ControllerProcess, sync_state
from interop.two_brokers import name_server_config
from tiermq.broker.group.consumer_offsets import decode_offsets
from tiermq.cli.main import cli
from tiermq.namesrv.name_server import NameServer
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from waiting import until

SELDOM_MS = 600_000
"""Between two copies of all tables: after the first one, changes come by the log."""


def ask(address: str, code: int, body: bytes = b"", **ext: object) -> RemotingCommand:
    fields: dict[str, Any] = {name: str(value) for name, value in ext.items()}
    return ask_master(address, RemotingCommand(code, ext=fields, body=body))


def send(address: str, body: bytes) -> None:
    answer = ask_master(address, send_command("kept", body, queue=0))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def change(address: str, code: int, body: bytes = b"", **ext: object) -> None:
    answer = ask(address, code, body, **ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def topic(address: str, name: str, **ext: object) -> None:
    fields: dict[str, Any] = {
        "readQueueNums": 2,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        **ext,
    }
    change(address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic=name, **fields)


def group(address: str, name: str, **settings: object) -> None:
    change(
        address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps({"groupName": name, **settings}).encode()
    )


def offset_of(address: str) -> int:
    found = ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
    return decode_offsets(bytes(found.body))[0].get("kept@kept-group", {}).get(0, -1) if found.body else -1


def make_changes(master: str, slave: str) -> None:
    """The last ones are answered a moment before the master is killed."""
    for name in ("kept", "altered", "gone"):
        topic(master, name)
        group(master, f"{name}-group")
    for number in range(10):
        send(master, b"%d" % number)
    fields: dict[str, Any] = {"consumerGroup": "kept-group", "topic": "kept", "queueId": 0}
    change(master, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=6, **fields)
    until(lambda: offset_of(slave) == 6)
    topic(master, "altered", attributes="+message.type=FIFO")
    group(master, "altered-group", retryMaxTimes=3)
    change(master, RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="gone-group")
    change(master, RequestCode.DELETE_TOPIC_IN_BROKER, topic="gone")
    reset: dict[str, Any] = {
        "topic": "kept",
        "group": "kept-group",
        "timestamp": 0,
        "isForce": "true",
        "queueId": 0,
        "offset": 4,
    }
    change(master, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
    topic(master, "last")
    group(master, "last-group")


def check_changes(master: str) -> None:
    topics = decode_object(ask(master, RequestCode.GET_ALL_TOPIC_CONFIG).body)["topicConfigTable"]
    assert {"kept", "altered", "last"} <= topics.keys()
    assert "gone" not in topics
    assert topics["altered"]["attributes"] == {"message.type": "FIFO"}
    groups = decode_object(ask(master, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)["subscriptionGroupTable"]
    assert {"kept-group", "altered-group", "last-group"} <= groups.keys()
    assert "gone-group" not in groups
    assert groups["altered-group"]["retryMaxTimes"] == 3
    assert offset_of(master) == 4


def test_a_killed_standby_master_takes_no_change_of_its_tables_with_it(tmp_path: Path) -> None:
    with replicas(tmp_path, "--lease", f"file://{tmp_path}/lease", master_sync_interval=SELDOM_MS) as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        until(lambda: cluster.in_sync(a) == [1, 2])
        make_changes(a.address, b.address)
        a.kill()
        until(partial(cluster.is_master, b))
        check_changes(b.address)
        a.start()
        until(lambda: cluster.in_sync(b) == [1, 2])
        topic(b.address, "of-the-second")
        b.kill()
        until(partial(cluster.is_master, a))
        check_changes(a.address)
        assert ask(a.address, RequestCode.GET_TOPIC_CONFIG, topic="of-the-second").code == ResponseCode.SUCCESS


@contextmanager
def controlled(path: Path) -> Iterator[tuple[ControllerProcess, list[ControlledBroker]]]:
    with ExitStack() as world:
        names = world.enter_context(NameServer(name_server_config()))
        controller = ControllerProcess(f"file://{path}/state")
        world.callback(controller.stop)
        brokers = [
            ControlledBroker(path / name, names.port, controller.address, masterSyncInterval=SELDOM_MS)
            for name in ("first", "second")
        ]
        for number, broker in enumerate(brokers, 1):
            world.callback(broker.stop)
            broker.start()
            until(partial(_is_in_sync, controller.address, number))
        yield controller, brokers


def _is_in_sync(controller: str, number: int) -> bool:
    return number in sync_state(controller)["in_sync"]


def test_a_killed_master_of_a_controller_takes_no_change_of_its_tables_with_it(tmp_path: Path) -> None:
    with controlled(tmp_path) as (controller, (first, second)):
        make_changes(first.address, second.address)
        first.stop(kill=True)
        until(lambda: sync_state(controller.address)["master"] == 2)
        until(lambda: CliRunner().invoke(cli, ["broker", "status", second.address]).exit_code == 0)
        check_changes(second.address)


@pytest.mark.parametrize("how", ["demote", "terminate"])
def test_a_master_that_hands_over_loses_no_committed_offset(tmp_path: Path, how: str) -> None:
    with replicas(tmp_path, "--lease", f"file://{tmp_path}/lease", master_sync_interval=SELDOM_MS) as cluster:
        a, b = cluster.start("a"), cluster.start("b")
        until(lambda: cluster.in_sync(a) == [1, 2])
        topic(a.address, "kept")
        group(a.address, "kept-group")
        fields: dict[str, Any] = {"consumerGroup": "kept-group", "topic": "kept", "queueId": 0}
        change(a.address, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=0, **fields)
        for number in range(5):
            send(a.address, b"%d" % number)
        change(a.address, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=5, **fields)
        if how == "demote":
            cluster.run("broker", "demote", "b1")
        else:
            a.terminate()
        until(partial(cluster.is_master, b))
        assert offset_of(b.address) == 5
