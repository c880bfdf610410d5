"""Load balancers before the gRPC port: whose connection they pass on is believed of those that are trusted."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import broker_config, running
from broker.grpc.grpc_peer import DATE
from broker.grpc.test_http2 import RawPeer
from servers.certificate import loopback_certificate
from servers.loopback import free_ports
from servers.serving import Serving
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.listen_address import broker_sockets
from tiermq.errors import BadConfig
from tiermq.grpc.call import framed
from tiermq.grpc.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, SETTINGS
from tiermq.grpc.messages import SERVICE, Code, answer_class, request_class
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.permissions import AccessFile
from tiermq.remoting.proxy_protocol import SIGNATURE
from tiermq.remoting.tls import TlsMode, TlsSettings

BALANCERS = "10.0.0.0/8, 127.0.0.1"
TEXT = b"PROXY TCP4 203.0.113.7 198.51.100.1 4711 443\r\n"
ENDS = bytes((203, 0, 113, 7, 198, 51, 100, 1)) + (4711).to_bytes(2) + (443).to_bytes(2)
BINARY = SIGNATURE + bytes((0x21, 0x11, 0, 12)) + ENDS
LOCAL = SIGNATURE + bytes((0x20, 0, 0, 0))


@contextmanager
def served(path: Path, *, trusted: str = BALANCERS, **more: Any) -> Iterator[Broker]:
    [port] = free_ports(1)
    config = broker_config(grpc_server_port=port, grpc_proxy_protocol_peers=trusted)
    with running(path, config=config, **more) as broker:
        broker.parts.topics.put(TopicConfig("T", 1, 1))
        yield broker


def call(raw: RawPeer, method: str, request: Any, **headers: str) -> Any:
    raw.send(SETTINGS, 0, 0)
    raw.send(HEADERS, END_HEADERS, 1, raw.headers(**{":path": SERVICE + method, **headers}))
    raw.send(DATA, END_STREAM, 1, framed(request.SerializeToString()))
    return answer_class(method).FromString(raw.answer(1)[0][5:])


def send(raw: RawPeer, **headers: str) -> Code:
    message = {"topic": {"name": "T"}, "body": b"x", "system_properties": {"message_id": "m"}}
    return Code(call(raw, "SendMessage", request_class("SendMessage")(messages=[message]), **headers).status.code)


def born_at(broker: Broker) -> list[str]:
    broker.parts.local.dispatch_now()
    return [each.born_host for each in broker.parts.local.get("T", 0, 0).messages]


@pytest.mark.parametrize("header", [TEXT, BINARY], ids=["text", "binary"])
def test_a_message_is_born_where_the_load_balancer_says(tmp_path: Path, header: bytes) -> None:
    with served(tmp_path) as broker, RawPeer(broker.config.grpc_server_port, before=header) as raw:
        assert send(raw) == Code.OK
        assert born_at(broker) == ["203.0.113.7:4711"]
        [peer] = {each.peer for each in broker.parts.server.connections if each.peer[0] != "127.0.0.1"}
        assert peer == ("203.0.113.7", 4711)


def test_a_header_that_comes_byte_by_byte_is_waited_for(tmp_path: Path) -> None:
    with served(tmp_path) as broker, RawPeer(broker.config.grpc_server_port, b"") as raw:
        for at in range(len(TEXT)):
            raw.socket.sendall(TEXT[at : at + 1])
        raw.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert send(raw) == Code.OK
        assert born_at(broker) == ["203.0.113.7:4711"]


def test_a_load_balancer_that_looks_for_itself_keeps_its_own_address(tmp_path: Path) -> None:
    with served(tmp_path) as broker, RawPeer(broker.config.grpc_server_port, before=LOCAL) as raw:
        own = "{}:{}".format(*raw.socket.getsockname())
        assert send(raw) == Code.OK
        assert born_at(broker) == [own]


def test_a_route_without_addresses_has_the_one_that_the_client_connected_to(tmp_path: Path) -> None:
    with served(tmp_path) as broker, RawPeer(broker.config.grpc_server_port, before=TEXT) as raw:
        [queue] = call(raw, "QueryRoute", request_class("QueryRoute")(topic={"name": "T"})).message_queues
        assert [(each.host, each.port) for each in queue.broker.endpoints.addresses] == [("198.51.100.1", 443)]


def test_tls_is_behind_the_header(tmp_path: Path) -> None:
    certificate, key = loopback_certificate()
    (tmp_path / "server.pem").write_text(certificate + key)
    trusting = ssl.create_default_context(cadata=certificate)
    trusting.check_hostname = False
    trusting.set_alpn_protocols(["h2"])
    tls = TlsSettings(TlsMode.ENFORCING, tmp_path / "server.pem")
    with served(tmp_path, tls=tls) as broker:
        with RawPeer(broker.config.grpc_server_port, before=BINARY, tls=trusting) as raw:
            assert send(raw) == Code.OK
        assert born_at(broker) == ["203.0.113.7:4711"]
        with RawPeer(broker.config.grpc_server_port, before=BINARY) as raw:
            assert raw.goodbye() == (0, "")  # Plain behind it is refused as it is without it.
        assert len(born_at(broker)) == 1


@pytest.mark.parametrize("first", [b"", b"PROXY TCP4 nonsense\r\n"], ids=["none", "bad"])
def test_a_load_balancer_without_a_header_is_closed(tmp_path: Path, first: bytes) -> None:
    with served(tmp_path) as broker, RawPeer(broker.config.grpc_server_port, before=first) as raw:
        assert raw.goodbye()[1] == ""
        assert born_at(broker) == []


@pytest.mark.parametrize("trusted", ["", "10.0.0.0/8"], ids=["nobody", "others"])
@pytest.mark.parametrize("header", [TEXT, BINARY], ids=["text", "binary"])
def test_what_another_peer_says_is_not_believed(tmp_path: Path, trusted: str, header: bytes) -> None:
    with served(tmp_path, trusted=trusted) as broker:
        with RawPeer(broker.config.grpc_server_port, before=header) as raw:
            assert "expected HTTP/2" in raw.goodbye()[1]
        with RawPeer(broker.config.grpc_server_port) as raw:
            assert send(raw) == Code.OK


def test_a_white_list_compares_the_address_that_was_passed_on(tmp_path: Path) -> None:
    (tmp_path / "accounts.toml").write_text(
        '[[accounts]]\naccessKey = "user"\nsecretKey = "secret"\nwhiteRemoteAddress = "203.0.113.*"\n'
        'topicPerms = ["T=PUB"]\n'
    )
    unsigned = "MQv2-HMAC-SHA1 Credential=user/region, SignedHeaders=x-mq-date-time, Signature=00"
    headers = {"authorization": unsigned, "x-mq-date-time": DATE}
    with served(tmp_path, acl=AccessFile(tmp_path / "accounts.toml")) as broker:
        port = broker.config.grpc_server_port
        for header, code in ((TEXT, Code.OK), (LOCAL, Code.UNAUTHORIZED)):
            with RawPeer(port, before=header) as raw:
                assert send(raw, **headers) == code


def test_the_setting_is_read_from_a_settings_file(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with Serving(tmp_path / "store", grpc_server_port=port, grpcProxyProtocolPeers="127.0.0.1"):
        with RawPeer(port, before=TEXT) as raw:
            assert send(raw) == Code.OK
        with RawPeer(port) as raw:
            assert list(raw.frames()) == []


def test_a_setting_that_means_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="grpcProxyProtocolPeers: expected addresses and networks"):
        BrokerConfig(grpc_server_port=1, grpc_proxy_protocol_peers="balancer.example")
    with pytest.raises(BadConfig, match="expected grpcServerPort"):
        broker_sockets(broker_config(grpc_proxy_protocol_peers="10.0.0.1"))
