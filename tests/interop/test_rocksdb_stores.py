"""A store of which RocketMQ keeps metadata and queues in RocksDB: refused as it is, complete once it was converted."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from interop.conftest import StartBroker
from interop.rocketmq import SMALL_FILES, Distribution, python_names
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.errors import StoreDamaged
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import encode_body
from tiermq.store.local_store import LocalStore

pytestmark = pytest.mark.interop

TABLES = ("topics", "subscriptionGroups", "consumerOffsets")


def commit(address: tuple[str, int], group: str, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": "orders", "queueId": "0", "commitOffset": str(offset)}
    made = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body({"groupName": group}))
    with BlockingClient(*address, timeout_s=60) as client:
        assert client.request(made).code == 0
        assert client.request(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext=fields)).code == 0


def test_a_rocksdb_store_is_refused_and_complete_once_rocketmq_converted_it(
    tmp_path: Path, distribution: Distribution, start_broker: StartBroker
) -> None:
    store = tmp_path / "store"
    cluster = start_broker(store, {**SMALL_FILES, "storeType": "defaultRocksDB"})
    with closing(cluster.peer()) as peer:
        peer.create_topic("orders", 1)
        for number in range(5):
            peer.send({"topic": "orders", "queue": 0, "body": f"order {number}".encode()})
    host, _, port = cluster.broker_address.rpartition(":")
    commit((host, int(port)), "audit", 3)
    words = ("rocksDBConfigToJson", "-b", cluster.broker_address)
    mqadmin = distribution.java(tmp_path / "home", "org.apache.rocketmq.tools.command.MQAdminStartup", *words)
    subprocess.run(mqadmin, check=True, capture_output=True)
    cluster.stop()
    settings = python_names(SMALL_FILES)
    with pytest.raises(StoreDamaged, match="config/consumerOffsets"):
        LocalStore.open(store, **settings)
    for table in TABLES:
        (store / "config" / table).rename(tmp_path / table)
    (store / "consumequeue").rename(tmp_path / "consumequeue")
    (store / "abort").touch()
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0)
    with Broker.open(store, config=config, **settings) as broker:
        found = broker.store.get("orders", 0, 0).messages
        assert [message.body for message in found] == [f"order {number}".encode() for number in range(5)]
        assert broker.parts.offsets.query("audit", "orders", 0) == 3
