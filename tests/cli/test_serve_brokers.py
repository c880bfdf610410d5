"""`tiermq serve --brokers N`: processes under one name server, started again when they die, gone when it is gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.console_world import Browser
from servers.serving import ServerProcess
from tiermq.cli.main import cli
from tiermq.errors import StoreLocked
from tiermq.files.store_lock import StoreLock
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from waiting import until

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
