"""TLS and plain peers on one port, and who is let in."""

from __future__ import annotations

import datetime as dt
import ssl
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from remoting.peers import BIG, ECHO, ECHO_BLOCKING, RawPeer, make_server, serving
from tiermq.errors import BadConfig, PeerGone, RemotingError
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.tls import SelfSigned, TlsMode, TlsSettings, make_self_signed, trusting_client_context

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
                assert client.request(RemotingCommand(ECHO_BLOCKING, body=BODY)).body == BODY
                assert len(client.request(RemotingCommand(BIG, ext={"bytes": str(3 << 20)})).body) == 3 << 20


def test_a_certificate_of_its_own_is_made_for_the_first_peer_that_speaks_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(name: str) -> SelfSigned:
        made.append(name)
        return make_self_signed(name)

    monkeypatch.setattr("tiermq.remoting.tls.make_self_signed", make)
    with serving(make_server(tls=TlsSettings())) as running:
        for tls, expected in ((None, 0), (trusting_client_context(), 1), (trusting_client_context(), 1)):
            with BlockingClient("127.0.0.1", running.port, tls=tls, timeout_s=60) as client:
                assert client.request(RemotingCommand(ECHO)).code == 0
            assert len(made) == expected


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


def signed(directory: Path, name: str, issuer: tuple[Path, Path] | None = None) -> tuple[Path, Path]:
    """A certificate that another one signed, or a CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer, signing_key = subject, key
    if issuer is not None:
        signer = x509.load_pem_x509_certificate(issuer[0].read_bytes()).subject
        loaded = serialization.load_pem_private_key(issuer[1].read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signing_key = loaded
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(signer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    certificate_path, key_path = directory / f"{name}.crt", directory / f"{name}.key"
    certificate_path.write_bytes(builder.sign(signing_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return certificate_path, key_path


def test_clients_of_the_authority_that_signed_the_server_are_strangers_unless_it_is_trusted(tmp_path: Path) -> None:
    public, private = signed(tmp_path, "public-ca"), signed(tmp_path, "private-ca")
    certificate, key = signed(tmp_path, "broker", public)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(certificate.read_bytes() + public[0].read_bytes())
    settings = TlsSettings(TlsMode.ENFORCING, chain, key, trusted_path=private[0], client_must_authenticate=True)

    def is_served(certificate_and_key: tuple[Path, Path]) -> bool:
        context = trusting_client_context()
        context.load_cert_chain(*certificate_and_key)
        try:
            with BlockingClient("127.0.0.1", running.port, tls=context, timeout_s=60) as client:
                return client.request(RemotingCommand(ECHO)).code == 0
        except RemotingError:
            return False

    with serving(make_server(tls=settings)) as running:
        assert is_served(signed(tmp_path, "friend", private))
        assert is_served((certificate, key))  # The server's own: so a broker asks the name server beside it.
        assert not is_served(signed(tmp_path, "stranger", public))


def test_a_certificate_that_was_replaced_is_used_after_a_reload_and_a_bad_one_is_not(tmp_path: Path) -> None:
    certificate, key = written(tmp_path, "broker")
    server = make_server(tls=TlsSettings(TlsMode.ENFORCING, certificate, key))

    def shown() -> str:
        return ssl.get_server_certificate(("127.0.0.1", running.port))

    with serving(server) as running:
        assert shown() == certificate.read_text()
        made = make_self_signed("later")
        certificate.write_text(made.certificate)
        key.write_text(made.key)
        server.reload_tls()
        assert shown() == made.certificate
        key.write_text("nothing")
        with pytest.raises(BadConfig):
            server.reload_tls()
        assert shown() == made.certificate


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("nothing")
    with pytest.raises(BadConfig, match="certificate"):
        TlsSettings(certificate_path=tmp_path / "a", key_path=tmp_path / "a").server_context()
    with pytest.raises(BadConfig, match="certificate"):
        TlsSettings(certificate_path=tmp_path / "missing").server_context()


@pytest.mark.parametrize("wants_tls", [True, False])
def test_what_a_server_reports_before_it_knows_its_peer_is_sent_as_the_peer_wants_it(wants_tls: bool) -> None:
    server = make_server(tls=TlsSettings())
    server.on_open.append(lambda connection: connection.oneway(RemotingCommand(40)))
    with serving(server) as running, RawPeer(running.port) as peer:
        if wants_tls:
            peer.socket = trusting_client_context().wrap_socket(peer.socket)
        else:
            peer.send(RemotingCommand(ECHO, opaque=7))
        said = [peer.read().code] if wants_tls else sorted(int(peer.read().code) for _ in range(2))
        assert said == ([40] if wants_tls else [0, 40])


def test_openssl_takes_the_key_and_the_certificate_and_trusts_its_own_signature() -> None:
    made = make_self_signed("a name", now_s=1_700_000_000)
    made.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=made.certificate)
    (found,) = client.get_ca_certs()
    assert found["subject"] == ((("commonName", "a name"),),)
    assert found["notBefore"] == "Nov 13 22:13:20 2023 GMT"
    assert found["notAfter"] == "Nov 10 22:13:20 2033 GMT"


def test_no_two_are_alike() -> None:
    assert make_self_signed("a").key != make_self_signed("a").key


def test_without_cryptography_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(BadConfig, match=r"pip install 'tiermq\[broker\]'"):
        make_self_signed("a")
