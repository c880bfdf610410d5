"""A name server over the wire."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from tiermq.errors import RemotingError
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.namesrv.topic_config import DataVersion, TopicConfig, encode_register_body
from tiermq.remoting.client import BlockingClient, RemotingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType, RemotingCommand
from tiermq.remoting.frame import decode_frame

WHO = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}
TOPICS = [TopicConfig("TBW102", 8, 8, 7), TopicConfig("orders", 4, 4)]


def loopback(**settings: object) -> NameServerConfig:
    return NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="").with_settings(**settings)


def registration() -> RemotingCommand:
    body = encode_register_body(TOPICS, DataVersion(5, 1))
    return RemotingCommand(RequestCode.REGISTER_BROKER, ext=WHO, body=body)


def route_request(topic: str = "orders") -> RemotingCommand:
    return RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})


@pytest.fixture
def server(manual_clock: ManualClock) -> Iterator[NameServer]:
    with NameServer(loopback(), clock=manual_clock) as running:
        yield running


@pytest.mark.parametrize("header_type", list(HeaderType))
def test_a_broker_registers_and_a_client_finds_it_in_either_header(server: NameServer, header_type: HeaderType) -> None:
    with (
        BlockingClient("127.0.0.1", server.port, header_type=header_type, timeout_s=60) as broker,
        BlockingClient("127.0.0.1", server.port, header_type=header_type, timeout_s=60) as client,
    ):
        assert broker.request(registration()).code == 0
        answer = client.request(route_request())
        assert answer.code == 0
        assert json.loads(bytes(answer.body))["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
        assert client.request(RemotingCommand(11)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        refused = client.request(RemotingCommand(RequestCode.REGISTER_BROKER, ext=WHO, body=b"nonsense"))
        assert refused.code == ResponseCode.SYSTEM_ERROR


def test_a_broker_whose_connection_ends_is_gone_at_once(server: NameServer) -> None:
    gone = threading.Event()
    server.server.on_close.append(lambda _connection: gone.set())
    with BlockingClient("127.0.0.1", server.port, timeout_s=60) as client:
        broker = BlockingClient("127.0.0.1", server.port, timeout_s=60)
        broker.request(registration())
        assert client.request(route_request()).code == 0
        broker.close()
        assert gone.wait(60)
        assert client.request(route_request()).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_silent_broker_is_dropped_by_the_scan_and_its_connection_closed(manual_clock: ManualClock) -> None:
    config = loopback(scan_not_active_broker_interval=10)
    with (
        NameServer(config, clock=manual_clock) as server,
        BlockingClient("127.0.0.1", server.port, timeout_s=60) as broker,
    ):
        assert broker.request(registration()).code == 0
        manual_clock.advance_ms(120_001)
        broker._thread.run(broker.client.wait_closed())
        with BlockingClient("127.0.0.1", server.port, timeout_s=60) as client:
            assert client.request(route_request()).code == ResponseCode.TOPIC_NOT_EXIST


def test_key_value_settings_written_over_the_wire_outlive_the_server(tmp_path: Path) -> None:
    config = loopback(kv_config_path=str(tmp_path / "kv.json"))
    place = {"namespace": "n", "key": "k"}
    with NameServer(config) as server, BlockingClient("127.0.0.1", server.port, timeout_s=60) as client:
        put = RemotingCommand(RequestCode.PUT_KV_CONFIG, ext={**place, "value": "v"})
        assert client.request(put).code == 0
    with NameServer(config) as server, BlockingClient("127.0.0.1", server.port, timeout_s=60) as client:
        assert client.request(RemotingCommand(RequestCode.GET_KV_CONFIG, ext=place)).ext == {"value": "v"}


def test_it_runs_on_a_loop_that_runs_already_beside_others() -> None:
    async def story() -> int:
        server = NameServer(loopback())
        await server.open()
        client = await RemotingClient.connect("127.0.0.1", server.port, timeout_s=60)
        await client.request(registration(), timeout_s=60)
        answer = await client.request(route_request(), timeout_s=60)
        await client.close()
        await server.close()
        return answer.code

    assert asyncio.run(story()) == 0


def test_a_port_that_is_taken_is_said_and_a_second_start_refused(server: NameServer) -> None:
    with pytest.raises(OSError):
        NameServer(loopback(listen_port=server.port)).start()
    with pytest.raises(RemotingError):
        server.start()
    server.stop()
    server.stop()


def test_members_of_an_acting_set_are_notified_when_the_smallest_id_changes(manual_clock: ManualClock) -> None:
    config = loopback(notify_min_broker_id_changed=True)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        NameServer(config, clock=manual_clock) as server,
        BlockingClient("127.0.0.1", server.port, timeout_s=60) as master,
        BlockingClient("127.0.0.1", server.port, timeout_s=60) as slave,
    ):
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        for client, who in ((master, {}), (slave, {"brokerId": "1", "brokerAddr": address})):
            command = registration()
            command.ext = {**WHO, "enableActingMaster": "true", "haServerAddr": "10.0.0.1:10912", **who}
            assert client.request(command).code == 0
        master.close()
        connection, _ = listening.accept()
        with connection, connection.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4), "big")
            notice = decode_frame(size.to_bytes(4, "big") + stream.read(size))
        assert notice.code == RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
        assert notice.is_oneway
        assert notice.ext == {
            "minBrokerId": "1",
            "brokerName": WHO["brokerName"],
            "minBrokerAddr": address,
            "offlineBrokerAddr": WHO["brokerAddr"],
            "haBrokerAddr": "10.0.0.1:10912",
        }
