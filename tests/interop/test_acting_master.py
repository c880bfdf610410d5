"""Slave acting master with RocketMQ's own brokers and name server: ours acts for theirs, and theirs for ours."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import send_command
from interop.rocketmq import (
    BROKER_NAME,
    CLUSTER_NAME,
    SMALL_FILES,
    Cluster,
    Distribution,
    python_names,
)
from interop.test_replication import Client, JavaSlave, ask, bodies_at
from interop.two_brokers import await_registered
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.clock import SystemClock
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.json_dialect import decode_object
from tiermq.store.delay_offsets import decode_delay_offsets
from waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
ACTING = {"enableSlaveActingMaster": True, "enableRemoteEscape": True}
RETURNING = {
    "brokerIP2": "127.0.0.1",  # Where its slave connects to, and from: it looks for the slave by that address.
    **ACTING,
    "totalReplicas": 2,
}
"""Of a RocketMQ master: with one replica in all, its default, it asks no slave when it returns."""
LEVEL = 3
"""Ten seconds, in RocketMQ's default levels: long enough to be killed in between."""


def our_config(name_server: str, **settings: Any) -> BrokerConfig:
    reported: dict[str, Any] = {
        "bind_address": "127.0.0.1",
        "listen_port": 0,
        "fast_listen_port": "ON",
        "ha_listen_port": 0,
        "broker_cluster_name": CLUSTER_NAME,
        "namesrv_addr": name_server,
        "enable_slave_acting_master": True,
        "enable_remote_escape": True,
        "master_sync_interval": 100,
        "flush_delay_offset_interval": 100,
    }
    return BrokerConfig(**{**reported, **settings})


def send(client: Client, body: bytes, level: int = 0) -> None:
    delay = f"DELAY\x01{level}\x02" if level else ""
    command = send_command("T", body, properties=f"UNIQ_KEY\x01{body.hex()}\x02{delay}", queues=1)
    command.ext["g"] = str(SystemClock().now_ms())
    answer = client.request(command)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def route_of(client: Client) -> tuple[dict[int, str], int]:
    """Addresses and permission of the broker set in the route of T."""
    answer = ask(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T", acceptStandardJsonOnly="true")
    if answer.code != ResponseCode.SUCCESS:
        return {}, 0
    found = decode_object(answer.body)
    addresses = [each["brokerAddrs"] for each in found["brokerDatas"] if each["brokerName"] == BROKER_NAME]
    perms = [each["perm"] for each in found["queueDatas"] if each["brokerName"] == BROKER_NAME]
    return {int(key): value for each in addresses for key, value in each.items()}, sum(perms)


def test_our_slave_acts_for_a_rocketmq_master_which_takes_over_when_it_returns(
    release: Distribution, tmp_path: Path
) -> None:
    with ExitStack() as world:
        cluster = Cluster(release, tmp_path / "theirs", tmp_path / "home", {**SMALL_FILES, **RETURNING})
        with (tmp_path / "home" / "namesrv.conf").open("a") as file:
            file.write("supportActingMaster=true\nnotifyMinBrokerIdChanged=true\n")
        world.enter_context(cluster)
        await_registered("127.0.0.1", cluster._name_server_port)
        sizes = python_names(SMALL_FILES)
        config = our_config(cluster.name_server, broker_name="b")
        other = world.enter_context(Broker.open(tmp_path / "b", config=config, **sizes))
        other.parts.topics.put(TopicConfig("T", 1, 1))
        config = our_config(cluster.name_server, broker_name=BROKER_NAME, broker_id=1)
        slave = world.enter_context(Broker.open(tmp_path / "ours", config=config, broker_role="SLAVE", **sizes))
        names = world.enter_context(Client(cluster.name_server))
        with Client(cluster.broker_address) as client:
            send(client, b"first")
            send(client, b"delayed", LEVEL)
            local = slave.parts.local
            end = int(decode_object(ask(client, RequestCode.GET_BROKER_HA_STATUS).body)["masterCommitLogMaxOffset"])
        until(lambda: local.max_physical_offset >= end and slave.parts.topics.get("T") is not None)
        cluster.kill_broker()
        until(lambda: route_of(names) == ({0: slave.address}, 4))
        until(lambda: slave.replication.is_acting)
        until(lambda: other.parts.local.max_offset("T", 0) == 1)
        with Client(slave.address) as ours:
            assert bodies_at(ours, 0, "CG") == [b"first"]
            fields: dict[str, Any] = {"consumerGroup": "CG", "topic": "T", "queueId": 0, "commitOffset": 1}
            assert ask(ours, RequestCode.UPDATE_CONSUMER_OFFSET, **fields).code == ResponseCode.SUCCESS

        cluster.start_broker()
        until(lambda: route_of(names) == ({0: cluster.broker_address, 1: slave.address}, 6))
        until(lambda: not slave.replication.is_acting)
        with Client(cluster.broker_address) as client:
            answer = ask(client, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="CG", topic="T", queueId=0)
            assert answer.ext.get("offset") == "1"
            offsets, _ = decode_delay_offsets(bytes(ask(client, RequestCode.GET_ALL_DELAY_OFFSET).body))
            assert offsets[LEVEL] == 1
            send(client, b"later", 1)
            until(lambda: bodies_at(client, 0, "CG") == [b"first", b"later"])
        until(lambda: slave.replication.problem == "")
        assert [each.body for each in other.parts.local.get("T", 0, 0).messages] == [b"delayed"]


def test_a_rocketmq_slave_acts_for_our_master_which_takes_over_when_it_returns(
    release: Distribution, tmp_path: Path
) -> None:
    config = NameServerConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path="", support_acting_master=True,
        notify_min_broker_id_changed=True,
    )  # fmt: skip
    with ExitStack() as world:
        names = world.enter_context(NameServer(config))
        at = f"127.0.0.1:{names.port}"
        sizes = python_names(SMALL_FILES)
        other = world.enter_context(Broker.open(tmp_path / "b", config=our_config(at, broker_name="b"), **sizes))
        other.parts.topics.put(TopicConfig("T", 1, 1))
        asking = world.enter_context(Client(at))
        slave = JavaSlave(release, tmp_path, names.port, **ACTING)
        world.callback(slave.stop)
        ours = our_config(at, broker_name=BROKER_NAME)
        with Broker.open(tmp_path / "ours", config=ours, **sizes) as master:
            master.parts.topics.put(TopicConfig("T", 1, 1))
            with Client(master.address) as client:
                until(lambda: 0 in route_of(asking)[0])
                slave.start()
                until(lambda: len(route_of(asking)[0]) == 2)
                send(client, b"first")
                send(client, b"delayed", LEVEL)
            port = master.replication.master
            assert port is not None
            until(lambda: [each.ack for each in port.slaves()] == [master.parts.local.max_physical_offset])
            ours = our_config(at, broker_name=BROKER_NAME, listen_port=master.port)
        until(lambda: route_of(asking) == ({0: slave.address}, 4))
        until(lambda: other.parts.local.max_offset("T", 0) == 1)

        with Broker.open(tmp_path / "ours", config=ours, **sizes) as master:
            until(lambda: route_of(asking) == ({0: master.address, 1: slave.address}, 6))
            with Client(master.address) as client:
                send(client, b"later", 1)
                until(lambda: bodies_at(client, 0, "CG") == [b"first", b"later"])
        assert [each.body for each in other.parts.local.get("T", 0, 0).messages] == [b"delayed"]
