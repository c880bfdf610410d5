"""RocketMQ's mqadmin against our broker and the real one, both with the same topics, messages, groups and offsets.

What it prints must be the same, but for ids, addresses and times. In one order, since commands change what later ones
print; each command is asserted by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiermq
from broker.brokers import send_command
from broker.consuming import heartbeat
from cli.wire_commands import shell
from interop.mqadmin import Mqadmin, masked
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, Distribution
from interop.two_brokers import World, broker_config, name_server_config, send_alike, two_brokers
from tiermq.broker.broker import Broker
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.namesrv.name_server import NameServer
from tiermq.remoting.codes import RequestCode as Code
from tiermq.remoting.json_dialect import decode_body
from tiermq.remoting.permissions import AccessTable
from tiermq.remoting.tls import TlsMode, TlsSettings, trusting_client_context
from tiermq.testing import LocalBroker
from waiting import until

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def world(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with two_brokers(distribution, tmp_path_factory.mktemp("mqadmin")) as made:
        yield made


def test_topics_are_made_shown_and_deleted_alike(world: World) -> None:
    assert "success" in world.same("updateTopic", "-c", CLUSTER_NAME, "-t", "orders", "-r", "2", "-w", "2")
    world.same("updateTopic", "-b", "{address}", "-t", "fifo", "-r", "1", "-w", "1", "-a", "+message.type=FIFO")
    for wrong in ("+message.type=FAST", "+queue.type=BatchCQ", "+nope=1"):
        real, ours = world.run("updateTopic", "-b", "{address}", "-t", "fifo", "-a", wrong)
        assert ("CODE: 1" in ours) == ("CODE: 1" in real), wrong
    send_alike(world, "orders", 10)
    assert "fifo" in (listed := world.run("topicList"))[1]
    assert set(listed[0].splitlines()) == set(listed[1].splitlines())
    assert "readQueueNums" in world.same("topicRoute", "-t", "orders")
    assert "5" in world.same("topicStatus", "-t", "orders").split()
    assert world.same("updateTopicPerm", "-c", CLUSTER_NAME, "-t", "fifo", "-p", "4")
    assert "success" in world.same("deleteTopic", "-c", CLUSTER_NAME, "-t", "fifo")
    assert "fifo" not in world.run("topicList")[1]
    for command in ("cleanUnusedTopic", "cleanExpiredCQ", "deleteExpiredCommitLog"):
        world.same(command, "-c", CLUSTER_NAME)


def test_groups_and_their_progress_are_shown_and_reset_alike(world: World) -> None:
    world.same("updateTopic", "-c", CLUSTER_NAME, "-t", "progress", "-r", "2", "-w", "2")
    world.same("updateSubGroup", "-c", CLUSTER_NAME, "-g", "CG", "-r", "3", "-s", "true")
    answers = world.ask(Code.GET_SUBSCRIPTIONGROUP_CONFIG, group="CG")
    assert decode_body(answers[1].body) == decode_body(answers[0].body)
    send_alike(world, "progress", 10)
    beat = json.dumps(heartbeat("CG", "*", "client-1", topic="progress")).encode()
    assert [answer.code for answer in world.ask(Code.HEART_BEAT, beat)] == [0, 0]
    world.ask(Code.UPDATE_CONSUMER_OFFSET, consumerGroup="CG", topic="progress", queueId=1, commitOffset=3)
    assert "client-1" in world.same("consumerConnection", "-g", "CG")
    assert "client-1" in world.same("producerConnection", "-g", "P", "-t", "progress")
    assert "progress" in world.same("consumerProgress", "-g", "CG")
    assert "7" in world.same("consumerProgress", "-g", "CG", "-t", "progress").split()
    world.same("resetOffsetByTime", "-g", "CG", "-t", "progress", "-s", "-1")
    progress = world.ask(Code.QUERY_CONSUMER_OFFSET, consumerGroup="CG", topic="progress", queueId=1)
    assert [answer.ext["offset"] for answer in progress] == ["5", "5"]
    world.same("updateSubGroup", "-c", CLUSTER_NAME, "-g", "CH", "-r", "1", "-s", "true")
    world.same("cloneGroupOffset", "-s", "CG", "-d", "CH", "-t", "progress", "-o", "false")
    cloned = world.ask(Code.QUERY_CONSUMER_OFFSET, consumerGroup="CH", topic="progress", queueId=1)
    assert [answer.ext["offset"] for answer in cloned] == ["5", "5"]
    world.same("setConsumeMode", "-c", CLUSTER_NAME, "-t", "progress", "-g", "CG", "-m", "POP", "-q", "0")
    asked = {"topic": "progress", "consumerGroup": "CG", "clientId": "client-1", "strategyName": "AVG"}
    body = json.dumps({**asked, "messageModel": "CLUSTERING"}).encode()
    modes = [decode_body(answer.body)["messageQueueAssignments"] for answer in world.ask(Code.QUERY_ASSIGNMENT, body)]
    assert [{name: each[name] for name in ("messageQueue", "mode")} for each in modes[0]] == modes[1]
    world.same("deleteSubGroup", "-c", CLUSTER_NAME, "-g", "CG", "-r", "true")
    listed = [decode_body(answer.body)["subscriptionGroupTable"] for answer in world.ask(201)]
    assert listed[0].keys() == listed[1].keys()


def test_messages_are_found_alike(world: World) -> None:
    world.same("updateTopic", "-c", CLUSTER_NAME, "-t", "found", "-r", "2", "-w", "2")
    ids = send_alike(world, "found", 4)
    real, ours = (
        masked(side.mqadmin.run("queryMsgById", "-t", "found", "-i", message_id))
        for side, message_id in zip((world.real, world.ours), ids[3], strict=True)
    )
    for field in ("Topic", "Tags", "Keys", "Queue ID", "Queue Offset", "Reconsume Times", "System Flag", "Properties"):
        lines = [next(line for line in said.splitlines() if line.startswith(field)) for said in (real, ours)]
        assert lines[0] == lines[1]
    assert "<id>" in world.same("queryMsgByKey", "-t", "found", "-k", "key-2")
    by_offset = world.run("queryMsgByOffset", "-t", "found", "-b", BROKER_NAME, "-i", "1", "-o", "1")
    assert "Queue Offset: 1" in by_offset[1]
    assert "Queue Offset: 1" in by_offset[0]


def test_the_state_of_clusters_and_brokers_is_shown_alike(world: World) -> None:
    real, ours = world.run("clusterList")
    assert [line.split()[:4] for line in real.splitlines()] == [line.split()[:4] for line in ours.splitlines()]
    assert BROKER_NAME in ours
    names = [
        {line.partition(":")[0].strip() for line in said.splitlines() if ":" in line}
        for said in world.run("brokerStatus", "-b", "{address}")
    ]
    measured_otherwise = {
        "dispatchMaxBuffer", "getMessageEntireTimeMax", "remainTransientStoreBufferNumbs", "ackThreadPoolQueueCapacity",
        "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity", "litePullThreadPoolQueueCapacity",
    }  # fmt: skip
    at_a_path = {name for each in names for name in each if name.startswith("commitLogDiskRatio_")}
    missing = names[0] - names[1] - at_a_path - measured_otherwise
    assert {name for name in missing if not name.startswith("timer")} == set()


def test_settings_are_shown_and_changed_alike(world: World) -> None:
    world.same("updateBrokerConfig", "-b", "{address}", "-k", "autoCreateTopicEnable", "-v", "false")
    settings = [
        {
            name.strip(): value.strip()
            for name, is_set, value in (line.partition("=") for line in said.splitlines())
            if is_set
        }
        for said in world.run("getBrokerConfig", "-b", "{address}")
    ]
    real, ours = settings
    assert ours["autoCreateTopicEnable"] == real["autoCreateTopicEnable"] == "false"
    assert len(ours) > 60
    assert [code.code for code in world.ask(Code.GET_TOPIC_CONFIG, topic="not-made")] == [17, 17]
    for side in (world.real, world.ours):
        assert side.client.request(send_command("not-made"), 60).code == 17
    world.same("updateBrokerConfig", "-b", "{address}", "-k", "autoCreateTopicEnable", "-v", "true")
    same = {
        "brokerClusterName",
        "brokerName",
        "brokerPermission",
        "defaultTopicQueueNums",
        "flushDiskType",
        "deleteWhen",
    }
    assert {name: ours[name] for name in same} == {name: real[name] for name in same}


def test_a_topic_s_own_time_reaches_the_tier(distribution: Distribution, tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with (
        shell(tmp_path, tier=tier) as at,
        Mqadmin(distribution, tmp_path / "admin", at.broker.name_server) as mqadmin,
    ):
        tiered: Any = at.broker.broker.store
        at.run("topic", "create", "orders", "--queues", "1")
        at.broker.send("orders", b"x")

        def kept_after(change: str) -> tuple[str, list[tuple[str, int]]]:
            said = mqadmin.run(
                "updateTopic", "-b", at.broker.address, "-t", "orders", "-r", "1", "-w", "1", f"--attributes={change}"
            )
            assert "success" in said
            assert tiered.flush_to_tier()
            rows = at.json("tier", "stat", tier)["retention"]
            return at.lines("topic", "show", "orders")[-1], [(row["topic"], row["hours"]) for row in rows]

        assert kept_after("+reserve.time=48") == ("kept in the tier of broker-a: 2 d (its own)", [("orders", 48)])
        assert kept_after("+reserve.time=720") == ("kept in the tier of broker-a: 30 d (its own)", [("orders", 720)])
        assert kept_after("-reserve.time") == ("kept in the tier of broker-a: for ever (by default)", [])


def test_it_shows_what_the_python_client_traced(distribution: Distribution, tmp_path: Path) -> None:
    handled: list[bytes] = []
    with (
        LocalBroker(tmp_path / "store") as broker,
        Mqadmin(distribution, tmp_path / "admin", broker.name_server) as mqadmin,
    ):
        with tiermq.connect(broker.name_server) as cluster:
            with cluster.producer("shop", trace=True) as producer:
                receipt = producer.send(tiermq.Message("orders", b"tea", keys=["order-42"], tags="paid"))

            def handle(message: ReceivedMessage) -> None:
                handled.append(message.body)

            with cluster.consumer("audit", topic="orders", start="first", on_message=handle, trace=True):
                until(lambda: handled == [b"tea"])
        rows = [line.split() for line in mqadmin.run("queryMsgTraceById", "-i", receipt.unique_key).splitlines()]
    shown = {tuple(row[:2]) for row in rows if row and row[0] in ("Pub", "Sub")}
    assert shown == {("Pub", "shop"), ("Sub", "audit")}
    assert {row[-1] for row in rows if row and row[0] in ("Pub", "Sub")} <= {"success", "SUCCESS"}


ACCOUNTS = """
[[accounts]]
accessKey = "mqadmin"
secretKey = "its secret"
admin = true
"""


@pytest.mark.parametrize(("secret", "is_let_in"), [("its secret", True), ("another", False)])
def test_mqadmin_administers_through_tls_with_its_signature(
    distribution: Distribution, tmp_path: Path, secret: str, is_let_in: bool
) -> None:
    (tmp_path / "accounts.toml").write_text(ACCOUNTS)
    accounts = AccessTable.load(tmp_path / "accounts.toml")
    (tmp_path / "admin" / "conf").mkdir(parents=True)
    (tmp_path / "admin" / "conf" / "tools.yml").write_text(f"accessKey: mqadmin\nsecretKey: {secret}\n")
    tls = TlsSettings(TlsMode.ENFORCING)
    with NameServer(name_server_config(), tls=tls, acl=accounts) as name_server:
        config = broker_config(name_server)
        opened = Broker.open(
            tmp_path / "store",
            config=config,
            tls=tls,
            acl=accounts,
            credentials=accounts.administrator(),
            name_server_tls=trusting_client_context(),
        )
        names = f"127.0.0.1:{name_server.port}"
        with opened as broker, Mqadmin(distribution, tmp_path / "admin", names, "-Dtls.enable=true") as mqadmin:
            assert broker.registration is not None
            assert broker.registration.wait_registered(60)
            mqadmin.run("updateTopic", "-c", CLUSTER_NAME, "-t", "orders", "-r", "2", "-w", "2")
            assert (broker.parts.topics.get("orders") is not None) == is_let_in
            mqadmin.run("updateSubGroup", "-c", CLUSTER_NAME, "-g", "CG")
            assert (broker.parts.groups.get("CG") is not None) == is_let_in
            shown = mqadmin.run("brokerStatus", "-b", broker.address)
            assert ("bootTimestamp" in shown) == is_let_in
