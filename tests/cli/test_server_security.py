"""TLS and accounts from the command line, on a real name server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tiermq.cli.main import cli
from tiermq.cli.server_process import SecurityOptions, security_options
from tiermq.errors import BadConfig, PeerGone, install_hint
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.permissions import Credentials
from tiermq.remoting.tls import TlsMode, make_self_signed, trusting_client_context

ACCOUNTS = '[[accounts]]\naccessKey = "user"\nsecretKey = "secret"\ndefaultTopicPerm = "SUB"\n'
LIST = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER


@contextmanager
def name_server(home: Path, *words: str) -> Iterator[int]:
    command = [sys.executable, "-m", "tiermq.cli", "namesrv", "--bind", "127.0.0.1", "--port", "0", "--json", *words]
    environment = {**os.environ, "HOME": str(home)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["port"]
        finally:
            process.terminate()
            process.stdout.read()


def write_certificate(directory: Path) -> Path:
    """A certificate and its key in one file."""
    made = make_self_signed("server")
    path = directory / "server.pem"
    path.write_text(made.certificate + made.key)
    return path


def test_enforced_tls_and_accounts_keep_out_who_has_neither(tmp_path: Path) -> None:
    made = make_self_signed("server")
    (tmp_path / "server.crt").write_text(made.certificate)
    (tmp_path / "server.key").write_text(made.key)
    (tmp_path / "accounts.toml").write_text(ACCOUNTS)
    files = ("--tls-cert", f"{tmp_path}/server.crt", "--tls-key", f"{tmp_path}/server.key")
    with name_server(tmp_path, "--tls", "enforcing", *files, "--acl", f"{tmp_path}/accounts.toml") as port:
        with BlockingClient("127.0.0.1", port, timeout_s=60) as plain, pytest.raises(PeerGone):
            plain.request(RemotingCommand(LIST))
        with BlockingClient("127.0.0.1", port, tls=trusting_client_context(), timeout_s=60) as stranger:
            assert stranger.request(RemotingCommand(LIST)).code == ResponseCode.NO_PERMISSION
        who = Credentials("user", "secret")
        with BlockingClient("127.0.0.1", port, tls=trusting_client_context(), credentials=who, timeout_s=60) as user:
            assert user.request(RemotingCommand(LIST)).code == 0
            put = RemotingCommand(RequestCode.PUT_KV_CONFIG, ext={"namespace": "n", "key": "k", "value": "v"})
            assert user.request(put).code == ResponseCode.NO_PERMISSION


def test_a_broken_file_of_accounts_is_reported_although_no_request_comes(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    command = [sys.executable, "-m", "tiermq.cli", "namesrv", "--port", "0", "--json", "--acl", str(accounts)]
    environment = {**os.environ, "HOME": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert json.loads(process.stdout.readline())["event"] == "ready"
            accounts.write_text("accounts = 7")
            assert "accounts: expected a list, found a number" in process.stderr.readline()
            process.send_signal(signal.SIGHUP)
            assert "stays in force" in process.stderr.readline(), "SIGHUP does not claim that it was read"
        finally:
            process.terminate()


def test_without_options_tls_and_plain_peers_are_both_served(tmp_path: Path) -> None:
    with name_server(tmp_path) as port:
        for tls in (None, trusting_client_context()):
            with BlockingClient("127.0.0.1", port, tls=tls, timeout_s=60) as client:
                assert client.request(RemotingCommand(LIST)).code == 0


@pytest.mark.parametrize("option", ["--tls-cert", "--tls-trust", "--acl"])
def test_a_file_that_is_something_else_is_named(tmp_path: Path, option: str) -> None:
    (tmp_path / "nonsense").write_text("nonsense")
    words = ["namesrv", "--bind", "127.0.0.1", "--port", "0", option, f"{tmp_path}/nonsense"]
    if option == "--tls-trust":
        words += ["--tls", "enforcing", "--tls-cert", str(write_certificate(tmp_path))]
    result = CliRunner(env={"HOME": str(tmp_path)}).invoke(cli, words)
    assert result.exit_code == 2
    assert f"{tmp_path}/nonsense" in result.output


def test_the_options_come_together() -> None:
    seen: list[SecurityOptions] = []

    @click.command()
    @security_options
    def command(security: SecurityOptions) -> None:
        seen.append(security)

    assert CliRunner().invoke(command, []).exit_code == 0
    assert CliRunner().invoke(command, ["--tls", "disabled"]).exit_code == 0
    assert CliRunner().invoke(command, ["--tls", "perhaps"]).exit_code == 2
    assert [each.chosen_mode for each in seen] == [TlsMode.PERMISSIVE, TlsMode.DISABLED]
    assert seen[0].acl() is None


def test_a_key_without_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="--tls-cert"):
        SecurityOptions(TlsMode.PERMISSIVE, key=tmp_path).tls()


@pytest.mark.parametrize("mode", [None, TlsMode.PERMISSIVE, TlsMode.DISABLED])
def test_trusted_certificates_are_refused_where_plain_peers_are_served(tmp_path: Path, mode: TlsMode | None) -> None:
    with pytest.raises(BadConfig, match="--tls enforcing"):
        SecurityOptions(mode, certificate=tmp_path, trusted=tmp_path).tls()


def test_trusted_certificates_are_refused_without_a_certificate_of_the_server(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="--tls-cert"):
        SecurityOptions(TlsMode.ENFORCING, trusted=tmp_path).tls()


def test_without_cryptography_tls_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermq.cli.server_process.can_make_self_signed", lambda: False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    unasked = SecurityOptions()
    assert unasked.tls().mode is TlsMode.DISABLED
    assert unasked.shown == f"TLS off (no --tls-cert; one is made with cryptography: {install_hint('broker')})"
    with pytest.raises(BadConfig, match=r"pip install 'tiermq\[broker\]'"):
        SecurityOptions(TlsMode.PERMISSIVE).tls().server_context()


@pytest.mark.parametrize(
    ("address", "options", "is_open"),
    [
        ("0.0.0.0", SecurityOptions(), True),
        ("10.0.0.5", SecurityOptions(TlsMode.ENFORCING), True),
        ("0.0.0.0", SecurityOptions(accounts=Path("accounts.toml")), False),
        ("0.0.0.0", SecurityOptions(trusted=Path("ca.pem")), False),
        ("127.0.0.1", SecurityOptions(), False),
        ("::1", SecurityOptions(), False),
    ],
)
def test_a_server_is_open_where_others_reach_it_and_nothing_is_asked_of_them(
    address: str, options: SecurityOptions, is_open: bool
) -> None:
    assert options.is_open(address) is is_open
