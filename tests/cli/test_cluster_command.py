"""How the commands reach a cluster: signatures, TLS, and options that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization

from tiermq.cli.cluster_command import ProgressLine, in_words
from tiermq.cli.main import cli
from tiermq.console.queue_bounds import queue_of_key
from tiermq.errors import RequestRefused
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.json_dialect import ObjectKeyed, decode_object, encode_body
from tiermq.remoting.permissions import AccessFile
from tiermq.remoting.tls import TlsMode, TlsSettings, make_self_signed
from tiermq.testing import LocalBroker

LISTING = ("topic", "list", "--all")


def test_no_secret_is_shown_by_help_or_taken_from_the_command_line() -> None:
    text = CliRunner().invoke(cli, ["produce", "--help"]).output
    assert "secret" not in text.lower()
    assert "NAMESRV_ADDR" in text


def test_tls_is_spoken_where_it_is_asked_for() -> None:
    config = NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path="")
    with NameServer(config, tls=TlsSettings(TlsMode.ENFORCING)) as server:
        words = [*LISTING, "-n", f"127.0.0.1:{server.port}"]
        assert CliRunner().invoke(cli, [*words, "--tls"]).exit_code == 0
        assert CliRunner().invoke(cli, words).exit_code == 1


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    made = make_self_signed(name)
    paths = directory / f"{name}.crt", directory / f"{name}.key"
    paths[0].write_text(made.certificate)
    paths[1].write_text(made.key)
    return paths


def name_server(tls: TlsSettings | None = None, acl: AccessFile | None = None) -> NameServer:
    return NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=""), tls=tls, acl=acl)


def test_a_certificate_is_shown_to_a_server_that_asks_for_one(tmp_path: Path) -> None:
    own, own_key = certificate(tmp_path, "server")
    client, client_key = certificate(tmp_path, "client")
    settings = TlsSettings(TlsMode.ENFORCING, own, own_key, trusted_path=client, client_must_authenticate=True)
    with name_server(settings) as server:
        words = [*LISTING, "-n", f"127.0.0.1:{server.port}"]
        shown = [*words, "--tls-cert", str(client), "--tls-key", str(client_key)]
        found = CliRunner().invoke(cli, [*shown, "--tls-ca", str(own)])
        assert found.exit_code == 0, found.output
        refused = CliRunner().invoke(cli, [*words, "--tls"])
        assert (refused.exit_code, "need a client's certificate (--tls-cert" in refused.output) == (1, True)
        other = CliRunner().invoke(cli, [*shown, "--tls-ca", str(client)])
        assert (other.exit_code, "--tls-ca" in other.output, "CERTIFICATE_VERIFY_FAILED" in other.output) == (
            1,
            True,
            True,
        )
        plain = CliRunner().invoke(cli, words)
        assert (plain.exit_code, "try TLS (--tls)" in plain.output) == (1, True)


def test_a_key_that_is_elsewhere_or_has_a_password_is_asked_for(tmp_path: Path) -> None:
    client, key = certificate(tmp_path, "client")
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"word")
    key.write_bytes(loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with name_server(TlsSettings(TlsMode.ENFORCING)) as server:
        words = [*LISTING, "-n", f"127.0.0.1:{server.port}", "--tls-cert", str(client)]
        assert "--tls-key" in CliRunner().invoke(cli, words).output
        words += ["--tls-key", str(key)]
        assert "TIERMQ_TLS_KEY_PASSWORD" in CliRunner().invoke(cli, words).output
        found = CliRunner().invoke(cli, words, env={"TIERMQ_TLS_KEY_PASSWORD": "word"})
        assert found.exit_code == 0, found.output


def test_a_request_that_is_refused_because_it_is_not_signed_names_the_variables(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text('[[accounts]]\naccessKey = "admin"\nsecretKey = "12345678"\nadmin = true\n')
    with name_server(acl=AccessFile(accounts)) as server:
        words = [*LISTING, "-n", f"127.0.0.1:{server.port}"]
        found = CliRunner().invoke(cli, words)
        assert (found.exit_code, "set ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY" in found.output) == (1, True)
        signed = {"ROCKETMQ_ACCESS_KEY": "admin", "ROCKETMQ_SECRET_KEY": "12345678"}
        assert CliRunner().invoke(cli, words, env=signed).exit_code == 0


def test_credentials_of_the_environment_are_used(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        signed = {"NAMESRV_ADDR": broker.name_server, "ROCKETMQ_ACCESS_KEY": "a", "ROCKETMQ_SECRET_KEY": "b"}
        for environment, words in (({}, ("-n", broker.name_server)), (signed, ())):
            result = CliRunner().invoke(cli, [*LISTING, *words], env=environment)
            assert result.exit_code == 0, result.output
            assert "TBW102" in result.output.split()


@pytest.mark.parametrize("words", [LISTING, ["consume", "orders"], ["produce", "orders", "x"]])
def test_a_broker_s_port_as_the_name_server_is_named_as_such(tmp_path: Path, words: list[str]) -> None:
    with LocalBroker(tmp_path) as broker:
        result = CliRunner().invoke(cli, [*words, "-n", broker.address])
        assert result.exit_code == 1
        assert f"{broker.address}: that is a broker, not a name server" in result.output


def test_nobody_at_the_address_is_one_line_with_what_to_do() -> None:
    result = CliRunner().invoke(cli, [*LISTING, "-n", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "--namesrv" in result.output


def test_the_figures_count_messages_bytes_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    now = [10.0]
    line = ProgressLine("sent", clock=lambda: now[0], shown=False)
    line.add(3, 300)
    now[0] = 12.0
    line.failed = 1
    figures = line.end()
    assert figures == {"messages": 3, "failed": 1, "bytes": 300, "seconds": 2.0, "messagesPerSecond": 1.5}
    assert in_words("sent", figures) == "sent 3 messages in 2.00 s (2/s, 0.0 MB/s), 1 failed"
    assert capsys.readouterr().err == ""


def test_a_terminal_sees_the_rate_of_the_last_moment(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    line = ProgressLine("received", clock=lambda: now[0], shown=True)
    line.add(1_000, 0)
    assert capsys.readouterr().err == ""
    now[0] = 1.0
    line.add(1_000, 0)
    assert capsys.readouterr().err == "\rreceived 2,000 messages, 2,000/s "
    line.end()
    assert capsys.readouterr().err.strip() == ""


def test_no_time_at_all_is_no_rate() -> None:
    assert ProgressLine("sent", clock=lambda: 0.0, shown=False).end()["messagesPerSecond"] == 0.0


def test_a_queue_is_read_from_the_key_that_a_broker_writes() -> None:
    queue = {"brokerName": "b", "queueId": 3, "topic": "T"}
    [key] = decode_object(encode_body({"table": ObjectKeyed([(queue, 7)])}))["table"]
    assert queue_of_key(key) == ("T", 3, "b")


@pytest.mark.parametrize("key", ["", "T", "{}", "[1]", '{"topic":"T","queueId":1}'])
def test_a_key_that_is_no_queue_is_refused(key: str) -> None:
    with pytest.raises(RequestRefused, match="expected a queue"):
        queue_of_key(key)
