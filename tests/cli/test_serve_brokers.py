"""`tiermq serve --brokers N`: processes under one name server, started again when they die, gone when it is gone."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from broker.test_otlp_export import collector
from cli.wire_commands import shell
from console.console_world import Browser
from servers.preloaded import Preloaded
from servers.serving import ServerProcess
from tiermq.cli.broker_supervisor import NUMBERED, OF_SUPERVISOR, ONE_BROKER
from tiermq.cli.main import cli
from tiermq.errors import StoreLocked
from tiermq.files.store_lock import StoreLock
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.tls import KEY_PASSWORD
from waiting import until

serve_module = importlib.import_module("tiermq.cli.serve")  # The package has the command under that name.
server_log = importlib.import_module("tiermq.cli.server_log")
FREE = ("--port", "0", "--namesrv-port", "0")
READER = '[[accounts]]\naccessKey = "reader"\nsecretKey = "readersecret"\n'


def run(home: str, *words: str) -> list[str]:
    result = CliRunner().invoke(cli, words, env={"NAMESRV_ADDR": home})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def is_free(store: Path) -> bool:
    try:
        StoreLock(str(store / "lock")).release()
    except StoreLocked:
        return False
    return True


def test_topics_spread_over_brokers_that_are_started_again_when_they_die(tmp_path: Path) -> None:
    stores = [tmp_path / "stores" / str(number) for number in (0, 1)]
    words = ["--brokers", "2", *FREE]
    with ServerProcess("serve", tmp_path / "stores", {"broker_name": "b"}, words) as served:
        home = served.ready["nameServer"]
        first, second = served.ready["brokers"]
        assert [first["name"], second["name"]] == ["b-0", "b-1"]
        for each in (first, second):  # Of a restored settings file it would be a dead name server.
            with BlockingClient(*address_of(each["address"])) as client:
                settings = bytes(client.request(RemotingCommand(RequestCode.GET_BROKER_CONFIG)).body)
            assert b"brokerName=" in settings
            assert b"namesrvAddr=" not in settings
        run(home, "topic", "create", "T", "--queues", "1")
        (lines := tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(40)))
        run(home, "produce", "T", "--file", str(lines))
        until(lambda: all((store / "consumequeue" / "T" / "0").exists() for store in stores))  # Both have messages.
        os.kill(first["processId"], signal.SIGKILL)
        assert served.event() == {"event": "lost", "name": "b-0", "exitCode": -signal.SIGKILL}
        assert served.event() == {"event": "restarted", "name": "b-0"}
        bodies = run(home, "consume", "T", "--from", "first", "--bodies")
        assert sorted(map(int, bodies)) == list(range(40))
        assert not any(map(is_free, stores))
        served.terminate()
        assert all(map(is_free, stores))
        served.start()
        served.kill()  # The kernel ends what it has started.
        until(lambda: all(map(is_free, stores)))


def test_brokers_serve_while_one_cannot_start_and_it_joins_them_when_it_can(tmp_path: Path) -> None:
    """Its disk may be full, or its store damaged: the messages of the others are there."""
    (store := tmp_path / "stores" / "1").mkdir(parents=True)
    lock = StoreLock(str(store / "lock"))
    words = ["--brokers", "2", *FREE, "--console", "--console-port", "0"]
    with ServerProcess("serve", tmp_path / "stores", {"broker_name": "b"}, words) as served:
        assert [each["name"] for each in served.ready["brokers"]] == ["b-0"]
        home = served.ready["nameServer"]
        run(home, "topic", "create", "T", "--queues", "1")
        run(home, "produce", "T", "kept")
        browser = Browser(int(served.ready["console"].rsplit(":", 1)[1].rstrip("/")))
        until(lambda: [row["messages"] for row in browser.api("topic.list")["topics"]] == [1])
        assert served.event() == {"event": "lost", "name": "b-1", "exitCode": 2}
        lock.release()
        while (event := served.event())["event"] == "lost":
            pass
        assert event == {"event": "restarted", "name": "b-1"}
        assert run(home, "topic", "create", "U")[0].endswith(" at b-0, b-1")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a process namespace")
def test_process_1_of_a_container_runs_brokers_until_it_gets_a_signal(tmp_path: Path) -> None:
    words = ["serve", str(tmp_path), "--brokers", "2", "--name", "b", *FREE, "--json"]
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "tiermq.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as container:
        assert container.stdout is not None
        assert json.loads(container.stdout.readline())["event"] == "ready"
        [inside] = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
        for number, events in ((signal.SIGHUP, ["reloaded"]), (signal.SIGTERM, ["ending", "ended"])):
            os.kill(int(inside), number)
            assert [json.loads(container.stdout.readline())["event"] for _ in events] == events
    assert container.returncode == 0


def test_brokers_that_get_the_signal_of_their_whole_group_are_not_taken_for_lost(tmp_path: Path) -> None:
    words = ["--brokers", "2", *FREE, "--console", "--console-port", "0"]
    with ServerProcess("serve", tmp_path / "stores", {"broker_name": "b"}, words) as served:
        assert served.process is not None
        served.process.terminate()
        assert served.event() == {"event": "ending"}
        for each in served.ready["brokers"]:
            with contextlib.suppress(ProcessLookupError):  # The supervisor's signal has ended it.
                os.kill(each["processId"], signal.SIGTERM)
        assert served.event()["event"] == "ended"
        assert served.process.wait() == 0


def test_one_console_shows_all_brokers_their_stores_and_their_tier(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    words = ["--brokers", "2", *FREE, "--tier", tier, "--console", "--console-port", "0"]
    with ServerProcess("serve", tmp_path / "stores", {"broker_name": "b"}, words) as served:
        home = served.ready["nameServer"]
        run(home, "topic", "create", "T", "--queues", "2")
        (lines := tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(40)))
        run(home, "produce", "T", "--file", str(lines))
        browser = Browser(int(served.ready["console"].rsplit(":", 1)[1].rstrip("/")))
        until(lambda: [row["messages"] for row in browser.api("topic.list")["topics"]] == [40])
        shown = browser.api("topic.show", topic="T")
        assert {queue["broker"] for queue in shown["queues"]} == {"b-0", "b-1"}
        for broker in ("b-0", "b-1"):
            assert broker in browser.get("/").text
            assert browser.api("message.show", topic="T", broker=broker, queue=0, offset=0)["topic"] == "T"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--allow-changes",), "expected --console beside it"),
        (("--spark-master", "local[1]"), "--spark-master: expected --console beside it"),
        (("--table", "parquet:/t"), "--table: expected --console beside it"),
        (("--allow-host", "a.example"), "--allow-host: expected --console beside it"),
        (("--standby",), "expected no --standby, which is of one broker"),
        (("--read-only",), "expected no --read-only, which is of one broker"),
        (("--broker-id", "1"), "expected no --broker-id, which is of one broker"),
        (("--config", "log.conf"), "expected no store_path_commit_log in the file"),
        (("--config", "ha.conf"), "expected no haListenPort in the file"),
        (("--acl", "reader.toml"), "expected an administrator, as whom brokers register, found none"),
        (("--tier", "nothing://x"), "b-0 and b-1: expected to start, found the error above"),
    ],
)
def test_what_several_brokers_cannot_share_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.conf").write_text("storePathCommitLog=/tmp/x\n")
    Path("ha.conf").write_text("haListenPort=10912\n")
    Path("reader.toml").write_text(READER)
    result = CliRunner().invoke(cli, ["serve", "stores", "--brokers", "2", "--name", "b", *FREE, *words])
    assert result.exit_code == 2
    assert expected in result.stderr


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ("commitlog", "found the store of one broker"),
        ("2/commitlog", "expected the stores of at most 2 brokers, found 3"),
    ],
)
def test_a_directory_whose_messages_would_be_hidden_is_refused(tmp_path: Path, there: str, expected: str) -> None:
    (tmp_path / there).mkdir(parents=True)
    result = CliRunner().invoke(cli, ["serve", str(tmp_path), "--brokers", "2", *FREE])
    assert result.exit_code == 2
    assert expected in result.stderr


def test_the_store_of_one_broker_with_a_tier_is_refused_for_what_it_is(tmp_path: Path) -> None:
    with shell(tmp_path, tier=(tmp_path / "tier").as_uri()) as at:
        at.broker.send("orders", b"x")
    result = CliRunner().invoke(cli, ["serve", str(tmp_path / "store"), "--brokers", "2", *FREE])
    assert result.exit_code == 2
    assert "expected a directory for 2 brokers, found the store of one broker" in result.stderr


def refused(*words: str) -> tuple[int | None, str]:
    """The exit code and the errors of a server that must not become ready; one that does is ended."""
    process = Preloaded(words, stderr=subprocess.PIPE)
    assert process.stderr is not None
    if first := process.stdout.readline():
        process.terminate()
    _, errors = process.communicate()
    assert first == ""
    return process.returncode, errors or ""


@pytest.mark.parametrize("words", [(), ("--brokers", "1")])
def test_one_broker_does_not_start_where_several_have_their_stores(tmp_path: Path, words: tuple[str, ...]) -> None:
    stores = tmp_path / "stores"
    with ServerProcess("serve", stores, {"broker_name": "b"}, ["--brokers", "2", *FREE]) as served:
        run(served.ready["nameServer"], "topic", "create", "T", "--queues", "1")
        run(served.ready["nameServer"], "produce", "T", "kept")
        served.terminate()
        before = sorted(stores.iterdir())
        code, errors = refused("serve", str(stores), "--name", "b", *FREE, *words)
        assert code == 2
        assert "expected the store of one broker, found those of 2 (from `--brokers 2`)" in errors
        assert f"give --brokers 2, or serve one of them: {stores}/0" in errors
        assert sorted(stores.iterdir()) == before
        served.start()
        assert run(served.ready["nameServer"], "consume", "T", "--from", "first", "--bodies") == ["kept"]


def test_a_store_of_one_broker_beside_those_of_several_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """What one broker had made there before it was refused."""
    for name in ("commitlog", "0/commitlog", "1/commitlog"):
        (tmp_path / name).mkdir(parents=True)
    code, errors = refused("serve", str(tmp_path), "--name", "b", *FREE)
    assert code == 2
    assert "found those of 2 (from `--brokers 2`) beside one" in errors
    assert "move commitlog, config and the rest of that one to a directory" in errors


class Recorded(Exception):
    """The commands were made; nothing is to be started."""


def commands_with(monkeypatch: pytest.MonkeyPatch, directory: Path, *words: str) -> tuple[list[list[str]], Result]:
    """The commands that the supervisor would start, and what came out: an error of the options, or `Recorded`."""
    made: list[list[str]] = []

    def record(commands: list[list[str]], _announce: object) -> None:
        made.extend(commands)
        raise Recorded

    monkeypatch.setattr(serve_module, "BrokerSupervisor", record)
    monkeypatch.setattr(server_log, "start_log", lambda *_, **__: None)  # It is of the whole process.
    own = () if "--namesrv-port" in words else ("--namesrv", "127.0.0.1:1")
    name = () if "--name" in words else ("--name", "b")
    return made, CliRunner().invoke(cli, ["serve", str(directory), "--brokers", "2", *own, *name, *words])


def given(option: click.Parameter, home: Path) -> list[str]:
    """The option with a value that it accepts."""
    word = next(each for each in option.opts if each.startswith("--"))
    if isinstance(option, click.Option) and option.is_flag:
        return [word]
    if isinstance(option.type, click.IntRange):
        return [word, "7001" if "port" in word else "2"]
    if isinstance(option.type, click.Choice):
        return [word, option.type.choices[-1]]
    if isinstance(option.type, click.Path):
        made = home / "accounts.toml"
        made.write_text(READER + "admin = true\n")
        return [word, str(made)]
    return [word, "tiermq.tier=DEBUG" if option.name == "log_levels" else "127.0.0.1:2"]


SERVE_OPTIONS = [each for each in serve_module.serve.params if isinstance(each, click.Option)]


@pytest.mark.parametrize("option", SERVE_OPTIONS, ids=lambda option: str(option.name))
def test_each_option_of_serve_reaches_every_broker_or_has_a_place_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: click.Option
) -> None:
    """A new option is passed on without a line of code; whoever lists it otherwise has to say here what it does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(KEY_PASSWORD, "")
    words = ["--config", "b.conf"] if option.name == "config_file" else given(option, tmp_path)
    Path("b.conf").write_text("fileReservedTime=24\n")
    made, result = commands_with(monkeypatch, tmp_path / "stores", *words)
    if option.name in ONE_BROKER:
        assert (result.exit_code, made) == (2, [])
        assert f"expected no {words[0]}, which is of one broker" in result.stderr
        return
    if option.name in ("allow_changes", "hosts", "tables", "spark_master"):
        made, result = commands_with(monkeypatch, tmp_path / "stores", *words, "--console")
    assert isinstance(result.exception, Recorded), result.output
    assert len(made) == 2
    value = words[1] if len(words) > 1 else ""
    if option.name == "name":
        assert [f"--name {value}-{number}" in " ".join(each) for number, each in enumerate(made)] == [True, True]
    elif option.name in NUMBERED:
        distance = 10 if option.name == "port" else 1
        for number, each in enumerate(made):
            assert f"{words[0]} {int(value) + number * distance}" in " ".join(each)
    elif option.name == "namesrv":
        assert all(f"--namesrv {value}" in " ".join(each) for each in made)
    elif option.name == "tls_key_password":
        assert all(value not in each for each in made)
        assert os.environ[KEY_PASSWORD] == value
    elif option.name in OF_SUPERVISOR:
        assert all(words[0] not in each or words[0] == "--json" for each in made)
    else:
        assert all(" ".join(words) in " ".join(each) for each in made)


def test_what_one_broker_is_may_not_be_in_the_file_of_several(tmp_path: Path) -> None:
    for number, line in enumerate(("brokerId=1\nbrokerRole=SLAVE\n", "readOnly=true\n")):
        (file := tmp_path / f"{number}.conf").write_text(line)
        words = ["serve", str(tmp_path / "stores"), "--brokers", "2", "--name", "b", *FREE, "-c", str(file)]
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 2
        assert "expected no brokerId and readOnly in the file" in result.stderr


def test_no_broker_serves_grpc_when_the_option_says_so_and_the_file_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.conf").write_text("grpcServerPort=8081\n")
    words = ["--config", str(tmp_path / "b.conf"), "--grpc-port", "0"]
    made, _ = commands_with(monkeypatch, tmp_path / "stores", *words)
    assert [each[each.index("--grpc-port") + 1] for each in made] == ["0", "0"]


def test_every_broker_exports_its_metrics_and_logs_in_the_form_that_was_asked_for(tmp_path: Path) -> None:
    with collector() as at:
        logs = ["--log-format", "json", "--log-level", "tiermq=INFO"]
        words = ["--brokers", "2", *FREE, "--otlp", at.url, *logs]
        with ServerProcess("serve", tmp_path / "stores", {"broker_name": "b", "otlp_interval": 100}, words) as served:
            found: set[str] = set()
            while found != {"b-0", "b-1"}:
                [resource] = at.received.get()[1].resource_metrics
                named = {each.key: each.value.string_value for each in resource.resource.attributes}
                found.add(named["service.instance.id"])
            for each in served.ready["brokers"]:
                with BlockingClient(*address_of(each["address"])) as client:
                    client.request(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=24\n"))
        lines = [json.loads(line) for line in served.errors.read_text().splitlines()]
    assert [line["level"] for line in lines if line["message"].startswith("setting fileReservedTime")] == ["INFO"] * 2
