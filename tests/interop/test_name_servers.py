"""Our name server and RocketMQ's beside each other: one real broker and one registration of ours at both of them.

Whatever is asked must be answered alike, over the wire and by `mqadmin`. Remarks are in words of our own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interop.peer import Peer
from interop.rocketmq import BROKER_NAME, CLUSTER_NAME, SMALL_FILES, Cluster, Distribution
from tiermq.broker.topic.broker_registration import BrokerIdentity, BrokerRegistration, TopicSnapshot
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import DataVersion, TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode as Code
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_body
from tiermq.remoting.permissions import AccessTable
from tiermq.remoting.tls import TlsMode, TlsSettings

pytestmark = pytest.mark.interop

OUR_BROKER = "broker-of-ours"
OUR_TOPICS = {name: TopicConfig(name, 4, 2, perm) for name, perm in (("ours", 6), ("read-only", 4), (OUR_BROKER, 7))}


class OurTopics:
    def registration_snapshot(self) -> TopicSnapshot:
        return TopicSnapshot(OUR_TOPICS, DataVersion(1_700_000_000_000, 3))


class TwoNameServers(Cluster):
    """A real name server, a real broker, and our name server, where the broker registers too."""

    def __init__(self, distribution: Distribution, scratch: Path) -> None:
        kept = str(scratch / "kv-of-ours.json")
        self.ours = NameServer(NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=kept))
        self.ours.start()
        super().__init__(distribution, scratch / "store", scratch / "home", SMALL_FILES)

    def _broker_settings(self, store: Path) -> dict[str, object]:
        both = f"127.0.0.1:{self._name_server_port};127.0.0.1:{self.ours.port}"
        return {**super()._broker_settings(store), "namesrvAddr": both}

    @property
    def ports(self) -> tuple[int, int]:
        return self._name_server_port, self.ours.port

    def stop(self) -> None:
        super().stop()
        self.ours.stop()

    def crash(self) -> None:
        super().crash()
        self.ours.stop()


@dataclass(frozen=True, slots=True)
class World:
    distribution: Distribution
    cluster: TwoNameServers
    registration: BrokerRegistration
    scratch: Path

    def both(self, code: int, body: bytes = b"", **ext: str) -> tuple[RemotingCommand, RemotingCommand]:
        """What RocketMQ's name server answers, and what ours does.

        By new connections: both end one that is idle for two minutes, and mqadmin may take longer on a busy machine.
        """
        answers = []
        for port in self.cluster.ports:
            with BlockingClient("127.0.0.1", port, timeout_s=60) as client:
                answers.append(client.request(RemotingCommand(code, ext=ext, body=body), 60))
        real, ours = answers
        return real, ours

    def mqadmin(self, port: int, *words: str) -> str:
        """Without the lines of its log, and without the name server's own address."""
        tool = "org.apache.rocketmq.tools.command.MQAdminStartup"
        address = f"127.0.0.1:{port}"
        command = self.distribution.java(self.scratch, tool, *words, "-n", address, heap="256m")
        done = subprocess.run(command, cwd=self.scratch, capture_output=True, text=True, check=True)
        said = "\n".join(line for line in done.stdout.splitlines() if "|-" not in line)
        return said.replace(address, "<name server>").strip()

    def mqadmin_at_both(self, *words: str) -> tuple[str, str]:
        real, ours = (self.mqadmin(port, *words) for port in self.cluster.ports)
        return real, ours


@pytest.fixture(scope="module")
def world(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    scratch = tmp_path_factory.mktemp("two-name-servers")
    with TwoNameServers(distribution, scratch) as cluster:
        addresses = [("127.0.0.1", port) for port in cluster.ports]
        identity = BrokerIdentity(
            cluster=CLUSTER_NAME, name=OUR_BROKER, address="127.0.0.1:1", ha_address="127.0.0.1:2"
        )
        registration = BrokerRegistration(identity, OurTopics(), addresses)
        registration.start()
        made = World(distribution, cluster, registration, scratch)
        for topic in ("ours", "SELF_TEST_TOPIC"):
            await_answer(made, topic, 0)
        yield made
        registration.stop()


def await_answer(world: World, topic: str, code: int) -> None:
    """Until both name servers answer so to a question for the topic's route."""
    while {answer.code for answer in world.both(Code.GET_ROUTEINFO_BY_TOPIC, topic=topic)} != {code}:
        pass


def comparable(answer: RemotingCommand) -> tuple[int, dict[str, str], Any]:
    """Code, fields and body; the order of topics in a list, and of a route's brokers, means nothing."""
    body: Any = decode_body(answer.body) if len(answer.body) else None
    if isinstance(body, dict):
        for name, value in body.items():
            if isinstance(value, list):
                body[name] = sorted(value, key=json.dumps)
        for name, value in body.get("clusterAddrTable", {}).items():
            body["clusterAddrTable"][name] = sorted(value)
    return int(answer.code), dict(answer.ext), json.loads(json.dumps(body))


QUESTIONS: list[tuple[Code, dict[str, Any]]] = [
    *((Code.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
      for topic in ("TBW102", "BenchmarkTest", "ours", "read-only", "no such topic", CLUSTER_NAME, OUR_BROKER)),
    (Code.GET_BROKER_CLUSTER_INFO, {}),
    (Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
    (Code.GET_TOPICS_BY_CLUSTER, {"cluster": CLUSTER_NAME}),
    (Code.GET_TOPICS_BY_CLUSTER, {"cluster": "no such cluster"}),
    (Code.GET_BROKER_MEMBER_GROUP, {"clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME}),
    (Code.GET_BROKER_MEMBER_GROUP, {"clusterName": CLUSTER_NAME, "brokerName": "no such broker"}),
    (Code.GET_KV_CONFIG, {"namespace": "n", "key": "k"}),
    (Code.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v ü"}),
    (Code.GET_KV_CONFIG, {"namespace": "n", "key": "k"}),
    (Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}),
    (Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "none"}),
    (Code.DELETE_KV_CONFIG, {"namespace": "n", "key": "k"}),
    (Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}),
    (Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": OUR_BROKER}),
    (Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "no such broker"}),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "ours"}),
    (Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": OUR_BROKER}),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "ours"}),
    (Code.QUERY_DATA_VERSION,
     {"clusterName": CLUSTER_NAME, "brokerName": OUR_BROKER, "brokerAddr": "127.0.0.1:1", "brokerId": "0"}),
    (Code.QUERY_DATA_VERSION,
     {"clusterName": CLUSTER_NAME, "brokerName": "none", "brokerAddr": "127.0.0.1:3", "brokerId": "0"}),
    (Code.BROKER_HEARTBEAT, {"clusterName": CLUSTER_NAME, "brokerName": OUR_BROKER, "brokerAddr": "127.0.0.1:1"}),
    (Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "read-only"}),
    (Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "read-only"}),
    (Code.GET_UNIT_TOPIC_LIST, {}),
    (Code.GET_HAS_UNIT_SUB_TOPIC_LIST, {}),
    (Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}),
    (Code.PULL_MESSAGE, {}),
]  # fmt: skip


def test_every_question_is_answered_alike(world: World) -> None:
    """In one test, since some of the questions change what later ones ask for."""
    for code, ext in QUESTIONS:
        real, ours = world.both(code, **ext)
        assert comparable(ours) == comparable(real), (code.name, ext)
    system = world.both(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    lists = [set(decode_body(answer.body)["topicList"]) for answer in system]
    assert lists[0] == lists[1] == {CLUSTER_NAME, BROKER_NAME, OUR_BROKER}


def test_a_topic_made_at_the_real_broker_is_found_through_our_name_server_and_used(world: World) -> None:
    address = (f"127.0.0.1:{world.cluster.ours.port}", CLUSTER_NAME, BROKER_NAME, world.cluster.broker_address)
    peer = Peer(world.distribution.java(world.scratch, "Peer", *address, heap="256m"), world.scratch / "peer.err")
    try:
        peer.create_topic("made-here", 3)
        sent = peer.send({"topic": "made-here", "queue": 2, "body": b"hello"})
        assert [message["body"] for message in peer.read("made-here", sent["queue"])] == [b"hello"]
    finally:
        peer.close()
    real, ours = world.both(Code.GET_ROUTEINFO_BY_TOPIC, topic="made-here")
    assert comparable(ours) == comparable(real)
    assert decode_body(ours.body)["queueDatas"][0]["writeQueueNums"] == 3


def test_mqadmin_prints_the_same_of_clusters_routes_and_topics(world: World) -> None:
    assert "TBW102" in (listed := world.mqadmin_at_both("topicList"))[1]
    assert sorted(listed[0].splitlines()) == sorted(listed[1].splitlines())
    real, ours = world.mqadmin_at_both("topicRoute", "-t", "ours")
    assert OUR_BROKER in ours
    assert ours == real
    # Rates and ages of the broker change from call to call; the broker's own columns come first.
    real, ours = (
        "\n".join(" ".join(line.split()[:4]) for line in said.splitlines() if BROKER_NAME in line)
        for said in world.mqadmin_at_both("clusterList")
    )
    assert world.cluster.broker_address in ours
    assert ours == real


def test_mqadmin_changes_settings_alike(world: World) -> None:
    real, ours = world.mqadmin_at_both("updateKvConfig", "-s", "ns", "-k", "key", "-v", "value")
    assert ours == real
    real_value, our_value = world.both(Code.GET_KV_CONFIG, namespace="ns", key="key")
    assert our_value.ext == real_value.ext == {"value": "value"}
    real, ours = world.mqadmin_at_both("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert ours == real
    settings = [
        dict(line.split(" = ", 1) for line in said.replace("  =  ", " = ").splitlines() if " = " in line)
        for said in world.mqadmin_at_both("getNamesrvConfig")
    ]
    real_settings, our_settings = ({name.strip(): value.strip() for name, value in each.items()} for each in settings)
    assert our_settings["orderMessageEnable"] == "true"
    differ = {"listenPort", "kvConfigPath"}
    assert {name: real_settings[name] for name in our_settings.keys() - differ} == {
        name: value for name, value in our_settings.items() if name not in differ
    }
    assert our_settings["listenPort"] == str(world.cluster.ours.port)


ACCOUNTS = """
[[accounts]]
accessKey = "mqadmin"
secretKey = "its secret"
admin = true
"""


@pytest.mark.parametrize(("secret", "is_let_in"), [("its secret", True), ("another", False)])
def test_java_s_tls_and_signatures_are_understood(
    distribution: Distribution, tmp_path: Path, secret: str, is_let_in: bool
) -> None:
    (tmp_path / "accounts.toml").write_text(ACCOUNTS)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text(f"accessKey: mqadmin\nsecretKey: {secret}\n")
    config = NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="")
    accounts = AccessTable.load(tmp_path / "accounts.toml")
    with NameServer(config, tls=TlsSettings(TlsMode.ENFORCING), acl=accounts) as server:
        tool = "org.apache.rocketmq.tools.command.MQAdminStartup"
        words = ("updateKvConfig", "-s", "ns", "-k", "key", "-v", "value", "-n", f"127.0.0.1:{server.port}")
        subprocess.run(
            distribution.java(tmp_path, tool, *words, heap="256m"),
            cwd=tmp_path,
            capture_output=True,
            check=True,
            env={**os.environ, "JAVA_TOOL_OPTIONS": "-Dtls.enable=true"},
        )
        assert server.kv.get("ns", "key") == ("value" if is_let_in else None)


def test_a_broker_that_ends_is_gone_from_both(world: World) -> None:
    identity = BrokerIdentity(cluster=CLUSTER_NAME, name="short", address="127.0.0.1:9")

    class Short:
        def registration_snapshot(self) -> TopicSnapshot:
            return TopicSnapshot({name: TopicConfig(name) for name in ("short-1", "short-2")}, DataVersion(1, 1))

    short = BrokerRegistration(identity, Short(), [("127.0.0.1", port) for port in world.cluster.ports])
    short.start()
    await_answer(world, "short-1", 0)
    short.stop()
    await_answer(world, "short-1", ResponseCode.TOPIC_NOT_EXIST)
