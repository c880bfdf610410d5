"""TLS and plain peers on one port, and who is let in."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from remoting.peers import BIG, ECHO, RawPeer, make_server, serving
from tiermq.errors import BadConfig, PeerGone, RemotingError
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.self_signed import make_self_signed
from tiermq.remoting.tls import TlsMode, TlsSettings, trusting_client_context

BODY = bytes(range(256)) * 4096


def written(directory: Path, name: str) -> tuple[Path, Path]:
    made = make_self_signed(name)
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    certificate.write_text(made.certificate)
    key.write_text(made.key)
    return certificate, key


def test_tls_and_plain_peers_share_a_port() -> None:
    with serving(make_server(tls=TlsSettings())) as running:
        for tls in (None, trusting_client_context()):
            with BlockingClient("127.0.0.1", running.port, tls=tls, timeout_s=60) as client:
                assert client.request(RemotingCommand(ECHO, body=BODY)).body == BODY
                assert len(client.request(RemotingCommand(BIG, ext={"bytes": str(3 << 20)})).body) == 3 << 20


def test_a_server_that_enforces_tls_closes_plain_peers() -> None:
    with serving(make_server(tls=TlsSettings(TlsMode.ENFORCING))) as running:
        with RawPeer(running.port) as peer:
            peer.send(RemotingCommand(ECHO))
            assert peer.is_closed_by_server()
        with BlockingClient("127.0.0.1", running.port, tls=trusting_client_context(), timeout_s=60) as client:
            assert client.request(RemotingCommand(ECHO)).code == 0


@pytest.mark.parametrize("tls", [None, TlsSettings(TlsMode.DISABLED)])
def test_a_server_without_tls_closes_tls_peers(tls: TlsSettings | None) -> None:
    with serving(make_server(tls=tls)) as running:
        with pytest.raises(PeerGone):
            BlockingClient("127.0.0.1", running.port, tls=trusting_client_context(), timeout_s=60)
        with BlockingClient("127.0.0.1", running.port, timeout_s=60) as client:
            assert client.request(RemotingCommand(ECHO)).code == 0


def test_what_is_no_handshake_is_closed_and_others_go_on() -> None:
    with serving(make_server(tls=TlsSettings())) as running:
        with RawPeer(running.port) as peer:
            peer.socket.sendall(b"\x16\x03\x01\x00\x05nonsense, and more of it")
            while peer.socket.recv(1000):
                pass  # An alert may come before the end.
        with BlockingClient("127.0.0.1", running.port, tls=trusting_client_context(), timeout_s=60) as client:
            assert client.request(RemotingCommand(ECHO)).code == 0


def test_given_files_are_used_and_clients_can_check_them(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, "broker")
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = False
    with serving(make_server(tls=TlsSettings(certificate_path=certificate, key_path=key))) as running:
        with BlockingClient("127.0.0.1", running.port, tls=context, timeout_s=60) as client:
            assert client.request(RemotingCommand(ECHO)).code == 0
        other = ssl.create_default_context()
        with pytest.raises(PeerGone, match="CERTIFICATE_VERIFY_FAILED"):
            BlockingClient("127.0.0.1", running.port, tls=other, timeout_s=60)


def test_a_client_without_a_certificate_is_refused_where_one_is_asked_for(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, "broker")
    client_certificate, client_key = written(tmp_path, "client")
    settings = TlsSettings(
        TlsMode.ENFORCING, certificate, key, trusted_path=client_certificate, client_must_authenticate=True
    )
    with serving(make_server(tls=settings)) as running:
        with (
            pytest.raises(RemotingError),
            BlockingClient("127.0.0.1", running.port, tls=trusting_client_context(), timeout_s=60) as client,
        ):
            client.request(RemotingCommand(ECHO))
        known = trusting_client_context()
        known.load_cert_chain(client_certificate, client_key)
        with BlockingClient("127.0.0.1", running.port, tls=known, timeout_s=60) as client:
            assert client.request(RemotingCommand(ECHO)).code == 0


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("nothing")
    with pytest.raises(BadConfig, match="certificate"):
        TlsSettings(certificate_path=tmp_path / "a", key_path=tmp_path / "a").server_context()
    with pytest.raises(BadConfig, match="certificate"):
        TlsSettings(certificate_path=tmp_path / "missing").server_context()


@pytest.mark.parametrize("wants_tls", [True, False])
def test_what_a_server_says_before_it_knows_its_peer_is_sent_as_the_peer_wants_it(wants_tls: bool) -> None:
    server = make_server(tls=TlsSettings())
    server.on_open.append(lambda connection: connection.oneway(RemotingCommand(40)))
    with serving(server) as running, RawPeer(running.port) as peer:
        if wants_tls:
            peer.socket = trusting_client_context().wrap_socket(peer.socket)
        else:
            peer.send(RemotingCommand(ECHO, opaque=7))
        said = [peer.read().code] if wants_tls else sorted(int(peer.read().code) for _ in range(2))
        assert said == ([40] if wants_tls else [0, 40])
