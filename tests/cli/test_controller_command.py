"""`tiermq controller` as its user runs it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from servers.preloaded import Preloaded
from servers.seaweedfs import SeaweedFS, missing
from tiermq.cli.main import cli
from tiermq.controller.set_store import DIRECTORY, object_name
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand

SET = {"clusterName": "C", "brokerName": "b"}


@contextmanager
def running(*words: str) -> Iterator[Preloaded]:
    process = Preloaded(["controller", "--port", "0", "--json", *words])
    try:
        with process:
            yield process
    finally:
        process.kill()


def event(process: Preloaded) -> dict[str, object]:
    found = json.loads(process.stdout.readline())
    assert isinstance(found, dict)
    return found


def ask(port: object, code: int, **ext: object) -> RemotingCommand:
    fields = {**SET, **{name: str(value) for name, value in ext.items()}}
    with BlockingClient("127.0.0.1", int(str(port)), timeout_s=60) as client:
        return client.request(RemotingCommand(code, ext=fields))


def test_two_processes_share_one_state_and_what_a_killed_one_has_stored_is_kept(tmp_path: Path) -> None:
    (tmp_path / "controller.conf").write_text("enableElectUncleanMaster=true\ncontrollerDLegerGroup=group1\n")
    url = f"file://{tmp_path}/state"
    with running("--state", url) as one, running("--state", url, "--config", f"{tmp_path}/controller.conf") as two:
        first = event(one)
        assert event(two) == {"event": "ignored", "settings": ["controllerDLegerGroup"]}
        second = event(two)
        assert first["event"] == second["event"] == "ready"
        assert first["state"] == url
        code = "10.0.0.1:1;1"
        applied = ask(first["port"], RequestCode.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=1, registerCheckCode=code)
        assert applied.code == 0
        assert ask(first["port"], RequestCode.CONTROLLER_ELECT_MASTER, brokerId=1).code == 0
        one.kill()
        found = ask(second["port"], RequestCode.CONTROLLER_GET_REPLICA_INFO)
        assert (found.ext["masterBrokerId"], found.ext["masterEpoch"]) == ("1", "1")
        config = ask(second["port"], RequestCode.GET_CONTROLLER_CONFIG)
        assert b"enableElectUncleanMaster=true" in bytes(config.body)
        two.send_signal(signal.SIGTERM)
        assert event(two) == {"event": "ended"}
        assert two.wait() == 0
    assert (tmp_path / "state" / object_name("b")).exists()
    assert sorted(each.name for each in (tmp_path / "state" / DIRECTORY).glob("*.json")) == ["b.tiermq.json"]


@pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")
def test_a_controller_keeps_its_state_in_s3_and_the_next_one_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SeaweedFS(tmp_path / "weed") as server:
        server.create_bucket("state")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with running("--state", "s3://state/sets") as one:
            first = event(one)
            code = "10.0.0.1:1;1"
            ext = {"appliedBrokerId": 1, "registerCheckCode": code}
            assert ask(first["port"], RequestCode.CONTROLLER_APPLY_BROKER_ID, **ext).code == 0
            assert ask(first["port"], RequestCode.CONTROLLER_ELECT_MASTER, brokerId=1).code == 0
            one.kill()
        with running("--state", "s3://state/sets") as two:
            found = ask(event(two)["port"], RequestCode.CONTROLLER_GET_REPLICA_INFO)
            assert (found.ext["masterBrokerId"], found.ext["masterEpoch"]) == ("1", "1")
            two.kill()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--state", "nonsense"], "nonsense"),
        (["--state", "file:///proc/no/such/place"], "expected a directory"),
        (["--state", "memory://x", "--config", "{path}/bad.conf"], "scanInactiveMasterInterval"),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start(tmp_path: Path, words: list[str], text: str) -> None:
    (tmp_path / "bad.conf").write_text("scanInactiveMasterInterval=never\n")
    result = CliRunner().invoke(cli, ["controller", *(each.format(path=tmp_path) for each in words)])
    assert result.exit_code == 2
    assert text in result.output


def test_a_controller_inside_a_name_server_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "ns.conf").write_text("enableControllerInNamesrv=true\n")
    result = CliRunner().invoke(cli, ["namesrv", "--port", "0", "--config", str(tmp_path / "ns.conf")])
    assert result.exit_code == 2
    assert "run `tiermq controller` beside it" in result.output


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("aclEnable=true", "give --acl"),
        ("authenticationEnabled=true", "give --acl"),
        ("tls.server.mode=enforcing", "give --tls enforcing"),
        ("useTLS=true", "give --tls enforcing"),
        ("tls.server.trustCertPath=/ca.pem", "give --tls-trusted"),
    ],
)
def test_a_secured_file_does_not_start_an_open_controller(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "c.conf").write_text(f"{line}\n")
    state = f"file://{tmp_path}/state"
    result = CliRunner().invoke(cli, ["controller", "--state", state, "--port", "0", "--config", f"{tmp_path}/c.conf"])
    assert result.exit_code == 2
    assert f"{line}: " in result.output
    assert words in result.output
    with running("--state", state, "--config", f"{tmp_path}/c.conf", "--accept-weaker") as process:
        assert event(process) == {"event": "ignored", "settings": [line.partition("=")[0]]}
        assert event(process)["event"] == "ready"
        process.terminate()
