"""How the commands reach a cluster: signatures, TLS, and options that do not go together."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from tiermq.cli.main import cli
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.tls import TlsMode, TlsSettings
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


def test_credentials_of_the_environment_are_used(tmp_path: Path) -> None:
    with LocalBroker(tmp_path) as broker:
        signed = {"NAMESRV_ADDR": broker.name_server, "ROCKETMQ_ACCESS_KEY": "a", "ROCKETMQ_SECRET_KEY": "b"}
        for environment, words in (({}, ("-n", broker.name_server)), (signed, ())):
            result = CliRunner().invoke(cli, [*LISTING, *words], env=environment)
            assert result.exit_code == 0, result.output
            assert "TBW102" in result.output.split()


def test_nobody_at_the_address_is_one_line_with_what_to_do() -> None:
    result = CliRunner().invoke(cli, [*LISTING, "-n", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert "--namesrv" in result.output
