"""`tiermq status`, lists with figures, and consoles as processes: over brokers, and over files without any."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.wire_commands import shell
from tiermq.cli.main import cli


@contextmanager
def process(*words: str) -> Iterator[dict[str, Any]]:
    """A server command, and the values of its ready line; it must end cleanly."""
    environment = {**os.environ, "NAMESRV_ADDR": ""}
    command = [sys.executable, "-m", "tiermq.cli", *words, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        try:
            yield json.loads(child.stdout.readline())
        finally:
            child.send_signal(signal.SIGTERM)
            child.stdout.read()
        assert child.wait() == 0


def get(url: str, path: str) -> Any:
    host = url.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(host)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status == 200, text
    return json.loads(text)


def test_the_status_says_what_needs_attention(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.broker.send("orders", b"x")
        told = at.json("status")
        assert (told["topics"], told["warnings"], told["brokers"][0]["role"]) == (1, [], "master")
        assert at.lines("status")[-1] == "nothing needs attention"
        at.broker.create_topic("%DLQ%audit", queues=1)
        warned = at.run("status", code=1).stdout
        assert "1 groups have dead letters" in warned
    assert "! " in at.run("status", "--store", str(tmp_path / "store"), "-n", "", code=1).stdout


def test_lists_have_figures_with_and_without_a_broker(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.run("topic", "create", "orders", "--queues", "2")
        for number in range(5):
            at.broker.send("orders", b"x", queue_id=number % 2)
        at.broker.broker.parts.offsets.commit("audit", "orders", 0, 1)
        at.broker.broker.parts.offsets.flush()
        for words in ((), ("--store", str(tmp_path / "store"), "-n", "")):
            [topic] = at.json("topic", "list", *words)["topics"]
            assert (topic["topic"], topic["messages"], topic["groups"], topic["behind"]) == ("orders", 5, 1, 4)
            groups = {row["group"]: row["behind"] for row in at.json("group", "ls", *words)["groups"]}
            assert groups["audit"] == 4
            assert at.lines("topic", "list", *words)[1].split() == ["orders", "2", "5", "–", "1", "4"]


def test_a_table_never_cuts_a_figure(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        name = "a-topic-with-a-name-of-many-characters-that-would-fill-a-line-by-itself-and-then-some"
        at.broker.send(name, b"x")
        line = at.lines("topic", "list")[1]
        assert line.split() == [name, "4", "1", "–", "0", "0"]


def test_offsets_take_ages_and_a_preview_changes_nothing(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        for _ in range(3):
            at.broker.send("orders", b"x")
        at.run("group", "create", "audit")
        at.run("consume", "orders", "--group", "audit", "--quiet")
        shown = at.json("group", "reset", "audit", "orders", "--to", "1h", "--preview")
        assert (shown["skipped"], shown["repeated"]) == (0, 3)
        assert at.broker.committed_offset("audit", "orders", 0) == 3
        at.run("group", "reset", "audit", "orders", "--to", "1h")
        assert at.json("group", "show", "audit")["behind"] == 3
        assert "its zone" in at.run("group", "reset", "audit", "orders", "--to", "2026-01-31T12:00", code=2).stderr


def test_a_console_of_a_store_and_a_broker_with_its_console_end_cleanly(tmp_path: Path) -> None:
    store = tmp_path / "store"
    serve = ("serve", str(store), "--port", "0", "--namesrv-port", "0", "--console", "--console-port", "0")
    with process(*serve) as ready:
        assert ready["event"] == "ready"
        overview = get(ready["console"], "/api/overview")
        assert [row["broker"] for row in overview["brokers"]] == [ready["name"]]
        assert overview["stores"][0]["state"] == "running"
        with process("console", "--store", str(store), "--port", "0") as alone:
            found = get(alone["url"], "/api/overview")
            assert (found["brokers"], found["stores"][0]["path"]) == ([], str(store))


@pytest.mark.parametrize("words", [["console"], ["console", "--store", "STORE", "--host", "0.0.0.0", "--port", "0"]])
def test_a_console_without_a_source_or_open_to_others_does_not_start(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "commitlog").mkdir()
    result = CliRunner().invoke(cli, [str(tmp_path) if word == "STORE" else word for word in words])
    assert (result.exit_code, "expected" in result.stderr) == (2, True), result.output
