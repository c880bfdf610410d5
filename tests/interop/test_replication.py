"""Replication with RocketMQ's own brokers: they follow our master, and our slave follows theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from broker.brokers import send_command
from interop.mqadmin import Mqadmin
from interop.rocketmq import (
    BROKER_NAME,
    CLUSTER_NAME,
    SMALL_FILES,
    Cluster,
    Distribution,
    Server,
    python_names,
)
from interop.two_brokers import await_registered, name_server_config
from servers.loopback import free_ports
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.delivery.timer.timer_checkpoint import decode_progress
from tiermq.message.record import decode_records
from tiermq.message.topic_name import TABLE_LOG_TOPIC
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.json_dialect import decode_object
from tiermq.store.delay_offsets import decode_delay_offsets
from waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]  # Five real brokers, one after the other.
LOG_BYTES = int(str(SMALL_FILES["mappedFileSizeCommitLog"]))
COUNT = 3_000
QUEUES = 4
KEY = "UNIQ_KEY\x01{:032X}\x02KEYS\x01k{}\x02WAIT\x01true\x02"


class Client:
    """Connects again where the broker closed the connection, which was idle while a real broker started."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._open = partial(BlockingClient, host, int(port), timeout_s=60)
        self._client = self._open()

    def request(self, command: RemotingCommand) -> RemotingCommand:
        if not self._client.client.is_open:
            self._client.close()
            self._client = self._open()
        return self._client.request(command, 60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()


def ask(client: Client, code: int, body: bytes = b"", **ext: object) -> RemotingCommand:
    return client.request(RemotingCommand(code, ext={name: str(value) for name, value in ext.items()}, body=body))


def send_many(client: Client, count: int = COUNT, first: int = 0) -> None:
    for number in range(first, first + count):
        body = b"%06d" % number + b"." * 1000
        command = send_command("T", body, queue=number % QUEUES, properties=KEY.format(number, number))
        while client.request(command).code == ResponseCode.SYSTEM_BUSY:
            pass


def bodies_at(client: Client, queue_id: int, group: str, begin: int = 0) -> list[bytes]:
    """Every message of a queue from an offset on, pulled from that broker."""
    found: list[bytes] = []
    while True:
        answer = ask(
            client, RequestCode.PULL_MESSAGE, consumerGroup=group, topic="T", queueId=queue_id,
            queueOffset=begin + len(found), maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0,
            subVersion=0, subscription="*", expressionType="TAG",
        )  # fmt: skip
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += [each.body for each in decode_records(answer.body)]


def log_bytes(store: Path, end: int) -> bytes:
    files = sorted((store / "commitlog").glob("0*"))
    return b"".join(file.read_bytes() for file in files)[:end]


def queue_bytes(store: Path, queue_id: int, units: int, topic: str = "T") -> bytes:
    files = sorted((store / "consumequeue" / topic / str(queue_id)).glob("0*"))
    return b"".join(file.read_bytes() for file in files)[: units * 20]


@contextmanager
def our_master(path: Path, names: NameServer, **settings: Any) -> Iterator[Broker]:
    config = BrokerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        fast_listen_port="ON",  # type: ignore[arg-type]
        ha_listen_port=0,
        broker_name=BROKER_NAME,
        namesrv_addr=f"127.0.0.1:{names.port}",
        **settings,
    )
    role = {"broker_role": "SYNC_MASTER"} if "in_sync_replicas" in settings else {}
    sizes = {**python_names(SMALL_FILES), **role, "slave_timeout": 600_000}
    with Broker.open(path / "ours", config=config, **sizes) as broker:
        if broker.parts.topics.get("T") is None:
            broker.parts.topics.put(TopicConfig("T", QUEUES, QUEUES))
        yield broker


class JavaSlave:
    """A slave of RocketMQ, in a process of its own."""

    def __init__(self, distribution: Distribution, path: Path, name_server: int, **more: object) -> None:
        self.store, self._home = path / "theirs", path / "home"
        self._home.mkdir(parents=True, exist_ok=True)
        [self._port] = free_ports(1)
        self.address = f"127.0.0.1:{self._port}"
        settings = {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": BROKER_NAME,
            "brokerId": 1,
            "brokerRole": "SLAVE",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self._port,
            "haListenPort": self._port + 1,
            "namesrvAddr": f"127.0.0.1:{name_server}",
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            "timerWheelEnable": "false",
            "slaveReadEnable": "true",
            "registerNameServerPeriod": 10_000,
            **SMALL_FILES,
            **more,
        }
        text = "".join(
            f"{name}={str(value).lower() if isinstance(value, bool) else value}\n" for name, value in settings.items()
        )
        (self._home / "broker.conf").write_text(text)
        command = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(self._home / "broker.conf"))
        self._command = distribution.java(self._home, *command)
        self.server: Server | None = None

    def start(self) -> None:
        self.server = Server(self._command, self._home / "broker.out")
        self.server.await_boot()

    def stop(self, *, kill: bool = False) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.kill() if kill else server.stop()


def slave_end(broker: Broker) -> int:
    """The end of the only slave's log."""
    assert broker.replication.master is not None
    return max((each.ack for each in broker.replication.master.slaves()), default=-1)


def test_a_rocketmq_slave_follows_our_master_and_has_the_same_bytes(release: Distribution, tmp_path: Path) -> None:
    with ExitStack() as world:
        names = world.enter_context(NameServer(name_server_config()))
        master = world.enter_context(our_master(tmp_path, names))
        client = world.enter_context(Client(master.address))
        send_many(client, COUNT // 2)
        slave = JavaSlave(release, tmp_path, names.port)
        world.callback(slave.stop)
        slave.start()
        until(lambda: slave_end(master) == master.parts.local.max_physical_offset)
        slave.stop(kill=True)
        send_many(client, COUNT // 2, first=COUNT // 2)
        master.parts.offsets.commit("CG", "T", 1, 42)
        slave.start()
        until(lambda: slave_end(master) >= 0)
        change_tables(client)
        assert master.table_log is not None
        master.table_log.note()  # From now on nothing changes.
        until(lambda: slave_end(master) == master.parts.local.max_physical_offset)
        assert master.parts.local.max_offset(TABLE_LOG_TOPIC, 0) > 3
        end = master.parts.local.max_physical_offset
        assert end > 3 * LOG_BYTES
        status = decode_object(ask(client, RequestCode.GET_BROKER_HA_STATUS).body)
        assert [(each["diff"], each["inSync"]) for each in status["haConnectionInfo"]] == [(0, True)]
        with Mqadmin(release, tmp_path / "admin", f"127.0.0.1:{names.port}") as mqadmin:
            shown = mqadmin.run("haStatus", "-b", master.address)
            assert "#InSyncSlaveNum\t1" in shown
            assert str(end) in shown
        with Client(slave.address) as theirs:
            # A slave of RocketMQ asks for tables a minute after its start.
            until(lambda: _offset_at(theirs, "CG", 1) == 42)
            until(lambda: sum(len(bodies_at(theirs, queue, "CG")) for queue in range(QUEUES)) == COUNT)
            for queue in range(QUEUES):
                assert bodies_at(theirs, queue, "CG") == bodies_at(client, queue, "CG")
        slave.stop()
        assert log_bytes(slave.store, end) == log_bytes(tmp_path / "ours", end)
        for queue in range(QUEUES):
            units = master.parts.local.max_offset("T", queue)
            assert queue_bytes(slave.store, queue, units) == queue_bytes(tmp_path / "ours", queue, units)
        units = master.parts.local.max_offset(TABLE_LOG_TOPIC, 0)
        of_tables = [queue_bytes(store, 0, units, TABLE_LOG_TOPIC) for store in (slave.store, tmp_path / "ours")]
        assert of_tables[0] == of_tables[1], "it copies the table log like every topic"


def change_tables(client: Client) -> None:
    """What a master writes into its log, for replicas of TierMQ."""
    topic: dict[str, Any] = {"topic": "U", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    assert ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, **topic).code == ResponseCode.SUCCESS
    group = json.dumps({"groupName": "CG2"}).encode()
    assert ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group).code == ResponseCode.SUCCESS
    assert ask(client, RequestCode.DELETE_TOPIC_IN_BROKER, topic="U").code == ResponseCode.SUCCESS


def _offset_at(client: Client, group: str, queue_id: int) -> int:
    answer = ask(client, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic="T", queueId=queue_id)
    return int(answer.ext.get("offset", -1)) if answer.code == ResponseCode.SUCCESS else -1


def test_a_rocketmq_slave_confirms_the_sends_of_our_sync_master(release: Distribution, tmp_path: Path) -> None:
    with ExitStack() as world:
        names = world.enter_context(NameServer(name_server_config()))
        master = world.enter_context(our_master(tmp_path, names, in_sync_replicas=2))
        client = world.enter_context(Client(master.address))
        assert client.request(send_command("T")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        slave = JavaSlave(release, tmp_path, names.port)
        world.callback(slave.stop)
        slave.start()
        port = master.replication.master
        assert port is not None
        until(lambda: port.state.in_sync == 2)
        for number in range(50):
            answer = client.request(send_command("T", b"%d" % number))
            assert answer.code == ResponseCode.SUCCESS
            assert slave_end(master) == master.parts.local.max_physical_offset
        slave.stop(kill=True)
        until(lambda: port.state.in_sync == 1)
        assert client.request(send_command("T")).code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_our_slave_follows_a_rocketmq_master_and_has_the_same_bytes_and_tables(
    release: Distribution, tmp_path: Path
) -> None:
    with ExitStack() as world:
        cluster = world.enter_context(Cluster(release, tmp_path / "theirs", tmp_path / "home"))
        await_registered("127.0.0.1", cluster._name_server_port)
        client = world.enter_context(Client(cluster.broker_address))
        topic: dict[str, Any] = {
            "topic": "T",
            "defaultTopic": "TBW102",
            "readQueueNums": QUEUES,
            "writeQueueNums": QUEUES,
            "perm": 6,
        }
        topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        assert ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, **topic).code == ResponseCode.SUCCESS
        send_many(client)
        config = BrokerConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            broker_id=1,
            broker_name=BROKER_NAME,
            namesrv_addr=cluster.name_server,
            master_sync_interval=100,
            slave_read_enable=True,
        )
        sizes = {**python_names(SMALL_FILES), "broker_role": "SLAVE"}
        group = {"groupName": "CG", "retryMaxTimes": 5}
        assert ask(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps(group).encode()).code == 0
        fields: dict[str, Any] = {"consumerGroup": "CG", "topic": "T", "queueId": 2, "commitOffset": 17}
        assert ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, **fields).code == 0
        runtime = decode_object(ask(client, RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
        with Broker.open(tmp_path / "ours", config=config, **sizes) as slave:
            local = slave.parts.local
            until(lambda: local.max_physical_offset >= int(runtime["commitLogMaxOffset"]))
            send_many(client, 200, first=COUNT)
            end = int(decode_object(ask(client, RequestCode.GET_BROKER_HA_STATUS).body)["masterCommitLogMaxOffset"])
            until(lambda: local.max_physical_offset == end)
            until(lambda: slave.parts.offsets.query("CG", "T", 2) == 17)
            group_here = slave.parts.groups.get("CG")
            assert group_here is not None
            assert group_here.retry_max_times == 5
            assert slave.parts.topics.get("T") is not None
            status = decode_object(ask(client, RequestCode.GET_BROKER_HA_STATUS).body)
            [shown] = status["haConnectionInfo"]
            until(lambda: slave.replication.problem == "")
            assert (status["inSyncSlaveNums"], shown["inSync"]) == (1, True)
            local.flush()
            local.dispatch_now()
            begin = local.min_physical_offset
            with Client(slave.address) as ours:
                for queue in range(QUEUES):
                    newest = bodies_at(ours, queue, "CG", local.min_offset("T", queue))
                    assert newest[-50:] == bodies_at(client, queue, "CG")[-50:]
            assert local.verify_log() > 0
        assert begin == 0 or begin % LOG_BYTES == 0
        theirs = log_bytes(tmp_path / "theirs", end)
        assert log_bytes(tmp_path / "ours", end - begin) == theirs[begin:end]


def test_our_slave_knows_deliveries_modes_and_the_timer_check_point_of_a_rocketmq_master(
    release: Distribution, tmp_path: Path
) -> None:
    quick = {"flushDelayOffsetInterval": 200, "timerWheelEnable": True, "timerFlushIntervalMs": 200}
    with Cluster(release, tmp_path / "theirs", tmp_path / "home", {**SMALL_FILES, **quick}) as cluster:
        await_registered("127.0.0.1", cluster._name_server_port)
        config = BrokerConfig(
            bind_address="127.0.0.1", listen_port=0, broker_id=1, broker_name=BROKER_NAME,
            namesrv_addr=cluster.name_server, master_sync_interval=100,
        )  # fmt: skip
        sizes = {**python_names(SMALL_FILES), "broker_role": "SLAVE"}
        with Client(cluster.broker_address) as client, Broker.open(tmp_path / "ours", config=config, **sizes) as slave:
            delayed = send_command("T", b"later", properties=KEY.format(1, 1) + "DELAY\x011\x02")
            assert client.request(delayed).code == ResponseCode.SUCCESS
            mode = {"topic": "T", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 2}
            assert ask(client, RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps(mode).encode()).code == 0
            local = slave.parts.local
            until(lambda: local.max_offset("T", 0) == 1)  # It is delivered, and copied.
            kept = tmp_path / "ours" / "config"
            delays, check = kept / "delayOffset.json", kept / "timercheck"
            until(lambda: delays.exists() and decode_delay_offsets(delays.read_bytes())[0].get(1) == 1)
            until(lambda: check.exists() and decode_progress(check.read_bytes()).read_time_ms > 0)
            with Client(slave.address) as ours:
                assert mode_at(client) == ("POP", 2)
                until(lambda: mode_at(ours) == ("POP", 2))


def mode_at(client: Client) -> tuple[str, int] | None:
    """Of group CG and topic T."""
    table = decode_object(ask(client, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).body)["messageRequestModeMap"]
    found = table.get("T", {}).get("CG")
    return None if found is None else (found["mode"], found["popShareQueueNum"])
