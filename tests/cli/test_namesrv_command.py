"""`tiermq namesrv` as its user runs it: a process that says when it is ready and ends when it is told to."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from servers.preloaded import Preloaded
from tiermq.cli.main import cli
from tiermq.cli.server_process import SecurityOptions, server_settings
from tiermq.namesrv.name_server_config import PROMISES, NameServerConfig
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand


def refused(*words: str) -> Result:
    result = CliRunner().invoke(cli, ["namesrv", *words])
    assert result.exit_code == 2
    return result


@contextmanager
def running(home: Path, *words: str) -> Iterator[Preloaded]:
    process = Preloaded(["namesrv", *words], environment={**os.environ, "HOME": str(home)})
    try:
        with process:
            yield process
    finally:
        process.kill()


def line_of(process: Preloaded) -> str:
    return process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_that_it_is_ready_serves_and_ends_cleanly_when_it_is_asked_to(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "ns.conf").write_text(f"listenPort=1\nkvConfigPath={tmp_path}/kv.json\nrocketmqHome=/nowhere\n")
    words = ("--bind", "127.0.0.1", "--port", "0", "--config", str(tmp_path / "ns.conf"), "--json")
    with running(tmp_path, *words) as process:
        assert json.loads(line_of(process)) == {"event": "ignored", "settings": ["rocketmqHome"]}
        ready = json.loads(line_of(process))
        assert ready["event"] == "ready"
        assert ready["kvConfigPath"] == f"{tmp_path}/kv.json"
        with BlockingClient("127.0.0.1", ready["port"], timeout_s=60) as client:
            put = {"namespace": "n", "key": "k", "value": "v"}
            assert client.request(RemotingCommand(RequestCode.PUT_KV_CONFIG, ext=put)).code == 0
            process.send_signal(number)
            assert json.loads(line_of(process)) == {"event": "ended"}
        assert process.wait() == 0
    assert json.loads((tmp_path / "kv.json").read_text())["configTable"] == {"n": {"k": "v"}}


def test_without_json_it_says_so_in_words(tmp_path: Path) -> None:
    with running(tmp_path, "--bind", "127.0.0.1", "--port", "0") as process:
        assert line_of(process).startswith("name server ready at 127.0.0.1:")
        process.terminate()
        assert line_of(process) == "name server ended\n"
        assert process.wait() == 0


def test_only_this_machine_can_connect_unless_an_address_is_named(tmp_path: Path) -> None:
    (tmp_path / "ns.conf").write_text("scanNotActiveBrokerInterval=1000\n")
    with running(tmp_path, "--port", "0", "--config", str(tmp_path / "ns.conf"), "--json") as process:
        ready = json.loads(line_of(process))
        assert ready["address"] == "127.0.0.1"
        lines = [each.split() for each in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]]
        assert {each[1] for each in lines if each[1].endswith(f":{ready['port']:04X}") and each[3] == "0A"} == {
            f"0100007F:{ready['port']:04X}"
        }
        process.terminate()


@pytest.mark.parametrize(
    ("bind", "text", "listening"),
    [
        (None, "", "127.0.0.1"),
        ("0.0.0.0", "", "0.0.0.0"),
        (None, "bindAddress=10.0.0.5\n", "10.0.0.5"),
        ("127.0.0.1", "bindAddress=0.0.0.0\n", "127.0.0.1"),
    ],
)
def test_where_it_listens_is_what_the_option_or_the_file_says(
    tmp_path: Path, bind: str | None, text: str, listening: str
) -> None:
    (tmp_path / "ns.conf").write_text(text)
    config, _ = server_settings(
        "namesrv",
        NameServerConfig,
        tmp_path / "ns.conf",
        PROMISES,
        SecurityOptions(),
        accept_weaker=False,
        listen_port=None,
        bind_address=bind,
    )
    assert config.bind_address == listening


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    (tmp_path / "ns.conf").write_text(f"kvConfigPath={tmp_path}/kv.json\n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = refused("--bind", "127.0.0.1", "--port", port, "--config", str(tmp_path / "ns.conf"))
        assert f"cannot start at 127.0.0.1:{port}" in result.output
        assert "address already in use" in result.output


@pytest.mark.parametrize("words", [("--port", "65536"), ("--port", "x"), ("--config", "/nowhere/at/all"), ("--what",)])
def test_options_that_make_no_sense_are_refused(words: tuple[str, ...]) -> None:
    assert "Error:" in refused(*words).output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listenPort=abc\n", "listenPort is"),
        ("scanNotActiveBrokerInterval=0\n", "scanNotActiveBrokerInterval must be within"),
    ],
)
def test_a_file_with_settings_that_make_no_sense_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "ns.conf").write_text(text)
    assert said in refused("--config", str(tmp_path / "ns.conf")).output


def test_a_damaged_file_of_settings_is_said_and_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "kv.json").write_text("nonsense")
    (tmp_path / "ns.conf").write_text(f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/kv.json\n")
    assert "kv.json" in refused("--config", str(tmp_path / "ns.conf")).output
    assert (tmp_path / "kv.json").read_text() == "nonsense"


@pytest.mark.parametrize(
    "line", ["enableControllerInNamesrv=true", "enableAllTopicList=false", "enableTopicList=false"]
)
def test_a_file_that_asks_for_what_is_not_provided_is_refused_unless_less_is_accepted(
    tmp_path: Path, line: str
) -> None:
    (tmp_path / "ns.conf").write_text(f"{line}\nkvConfigPath=\n")
    words = ("--bind", "127.0.0.1", "--port", "0", "--config", str(tmp_path / "ns.conf"))
    said = refused(*words).output
    assert line in said
    assert "--accept-weaker" in said
    with running(tmp_path, *words, "--accept-weaker") as process:
        assert line.partition("=")[0] in line_of(process)
        assert "ready" in line_of(process)
        process.terminate()


def test_a_hangup_does_not_end_it(tmp_path: Path) -> None:
    with running(tmp_path, "--bind", "127.0.0.1", "--port", "0", "--json") as process:
        ready = json.loads(line_of(process))
        process.send_signal(signal.SIGHUP)
        with BlockingClient("127.0.0.1", ready["port"], timeout_s=60) as client:
            asked = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            assert client.request(asked).code == 0
        process.terminate()
        assert process.wait() == 0


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
def test_a_secured_file_does_not_start_an_open_name_server(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "ns.conf").write_text(f"{line}\n")
    result = refused("--port", "0", "--config", str(tmp_path / "ns.conf"))
    assert f"{line}: " in result.output
    assert words in result.output
    assert "To start without it: --accept-weaker" in result.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("authenticationEnabled=yes", "authenticationEnabled is true or false, found 'yes'"),
        ('{"authenticationEnabled": true}', "expected lines of the form name=value, found JSON"),
    ],
)
def test_a_file_of_which_it_is_unclear_what_it_protects_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "ns.conf").write_text(f"{text}\n")
    assert words in refused("--port", "0", "--config", str(tmp_path / "ns.conf")).output


@pytest.mark.parametrize("line", ["aclEnabled=true", "ACLENABLE=true", "authenticationEnable=true", "useTls=true"])
def test_a_misspelled_setting_of_security_does_not_start_an_open_name_server(tmp_path: Path, line: str) -> None:
    (tmp_path / "ns.conf").write_text(f"{line}\n")
    result = refused("--port", "0", "--config", str(tmp_path / "ns.conf"))
    assert f"{line.partition('=')[0]}: there is no such setting; did you mean" in result.output
    assert "To start without it: --accept-weaker" in result.output


def test_a_secured_file_starts_with_the_option_that_keeps_it_or_when_less_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "ns.conf").write_text(f"aclEnable=true\nkvConfigPath={tmp_path}/kv.json\n")
    (tmp_path / "accounts.toml").write_text('[[accounts]]\naccessKey = "root"\nsecretKey = "12345678"\nadmin = true\n')
    for option in (("--acl", str(tmp_path / "accounts.toml")), ("--accept-weaker",)):
        words = ("--port", "0", "--config", str(tmp_path / "ns.conf"), "--json", *option)
        with running(tmp_path, *words) as process:
            if "--acl" not in option:
                assert json.loads(line_of(process)) == {"event": "ignored", "settings": ["aclEnable"]}
            ready = json.loads(line_of(process))
            assert (ready["event"], ready["open"]) == ("ready", False)  # Only this machine can connect.
            process.terminate()
