"""The HA port between brokers that check each other's certificates."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import Producer, broker_config, running, send_command, stored
from present import present
from servers.certificates import Certificates
from tiermq.broker.broker import Broker
from tiermq.broker.replication.replication import ha_socket
from tiermq.config import BrokerRole
from tiermq.errors import BadConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.tls import TlsMode, TlsSettings
from tiermq.replication.ha_stream import REPORT
from waiting import until


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates", "a", "b", strangers=("stranger",))


@contextmanager
def broker_of(path: Path, made: Certificates, name: str, **settings: Any) -> Iterator[Broker]:
    store = settings.pop("store", {})
    config = broker_config(**{"ha_listen_port": 0, "ha_tls_enable": True, "master_sync_interval": 50, **settings})
    peers = made.settings(name).client_context()
    with running(path / name, config=config, tls=made.settings(name), name_server_tls=peers, **store) as broker:
        yield broker


def places(of: Broker) -> dict[str, Any]:
    addresses = {"ha_master_address": of.replication.ha_address, "master_address": of.address}
    return {"broker_id": 1, "store": {"broker_role": "SLAVE"}, **addresses}


def send(to: Broker, made: Certificates, *bodies: bytes) -> None:
    with BlockingClient("127.0.0.1", to.port, tls=made.client("a").context(), timeout_s=30.0) as client:
        for body in bodies:
            assert client.request(send_command(body=body)).code == 0


def test_a_slave_copies_log_and_tables_of_a_master_by_tls(tmp_path: Path, made: Certificates) -> None:
    with broker_of(tmp_path, made, "a") as master:
        send(master, made, b"before", b"." * 100_000)
        with broker_of(tmp_path, made, "b", **places(master)) as slave:
            until(lambda: slave.parts.local.max_physical_offset == master.parts.local.max_physical_offset)
            send(master, made, b"after")
            until(lambda: [each.body for each in stored(slave)] == [b"before", b"." * 100_000, b"after"])
            until(lambda: slave.parts.topics.get("T") is not None)
            found = master.parts.local.max_physical_offset
            until(lambda: [each.ack for each in present(master.replication.master).slaves()] == [found])


def test_a_peer_without_tls_is_refused_in_words(
    tmp_path: Path, made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with broker_of(tmp_path, made, "a") as master, caplog.at_level(logging.WARNING):
        port = present(master.replication.master)
        with socket.create_connection(("127.0.0.1", port.port)) as peer:
            peer.sendall(REPORT.pack(0))  # As a slave of RocketMQ begins.
            assert peer.recv(100) == b"", "not a byte of the log"
        until(lambda: port.refused_count == 1)
        assert "expected TLS (haTlsEnable), found a peer that speaks without it" in caplog.text
        with running(
            tmp_path / "plain", config=broker_config(**_without_store(places(master))), broker_role="SLAVE"
        ) as slave:
            until(lambda: "closed the connection" in slave.replication.problem)


def _without_store(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "store"}


@pytest.mark.parametrize("who", ["stranger", "nobody"])
def test_a_slave_whose_certificate_is_not_trusted_gets_nothing(tmp_path: Path, made: Certificates, who: str) -> None:
    with broker_of(tmp_path, made, "a") as master:
        send(master, made, b"secret")
        context = made.client("a" if who == "nobody" else who).context()
        if who == "nobody":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(made.trusted)
        port = present(master.replication.master)
        received = b""
        with (
            contextlib.suppress(OSError),  # TLS may refuse it at the handshake, or close the connection after it.
            socket.create_connection(("127.0.0.1", port.port)) as plain,
            context.wrap_socket(plain) as peer,
        ):
            peer.sendall(REPORT.pack(0))
            received = peer.recv(100)
        assert received == b""
        until(lambda: port.refused_count == 1)
        assert port.slaves() == []


def test_a_slave_does_not_follow_a_master_that_it_does_not_trust(tmp_path: Path, made: Certificates) -> None:
    trusting = Certificates(tmp_path / "others", "b")
    with broker_of(tmp_path, made, "a") as master, broker_of(tmp_path, trusting, "b", **places(master)) as slave:
        until(lambda: "expected TLS and a certificate that is trusted here" in slave.replication.problem)
        assert slave.parts.local.max_physical_offset == 0


def test_a_slave_with_tls_names_the_setting_to_a_master_without(tmp_path: Path, made: Certificates) -> None:
    with running(tmp_path / "plain", config=broker_config(ha_listen_port=0)) as master, Producer(master) as producer:
        assert producer.send().code == 0
        with broker_of(tmp_path, made, "b", **places(master)) as slave:
            until(lambda: "haTlsEnable" in slave.replication.problem)
            assert slave.parts.local.max_physical_offset == 0


@pytest.mark.parametrize(
    "tls",
    [None, TlsSettings(TlsMode.ENFORCING), TlsSettings(TlsMode.PERMISSIVE)],
)
def test_tls_on_the_ha_port_needs_certificates_that_can_be_checked(tmp_path: Path, tls: TlsSettings | None) -> None:
    with pytest.raises(BadConfig, match="haTlsEnable: expected --tls enforcing, --tls-cert and --tls-trusted"):
        Broker.open(tmp_path / "store", config=broker_config(ha_tls_enable=True), tls=tls)


def test_a_guarded_broker_opens_its_ha_port_with_tls_only() -> None:
    closed = ha_socket(broker_config(listen_port=40_001), BrokerRole.ASYNC_MASTER, 40_001, is_guarded=True)
    assert closed.socket is None
    assert "set haTlsEnable" in closed.why_not
    config = broker_config(listen_port=40_001, ha_tls_enable=True)
    opened = ha_socket(config, BrokerRole.ASYNC_MASTER, 40_001, is_guarded=True)
    assert opened.socket is not None or "cannot listen" in opened.why_not
    if opened.socket is not None:
        opened.socket.close()


def test_certificates_that_were_replaced_are_used_by_the_next_connection(tmp_path: Path, made: Certificates) -> None:
    with broker_of(tmp_path, made, "a") as master, broker_of(tmp_path, made, "b", **places(master)) as slave:
        until(lambda: slave.replication.problem == "" and bool(present(master.replication.master).slaves()))
        Certificates(tmp_path / "certificates", "a", "b")  # New ones, under the same names.
        copy = present(slave.replication.slave)
        copy.set_master("")
        copy.set_master(master.replication.ha_address)
        send_bytes = master.parts.local.max_physical_offset
        until(lambda: copy.is_connected)
        assert slave.parts.local.max_physical_offset == send_bytes
