"""`tiermq produce` against a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker.replication.pairs import slave
from cli.wire_commands import shell
from tiermq.cli.main import cli
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from waiting import until


def test_one_message_is_stored_with_what_was_said_of_it(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        words = ("--tag", "paid", "--key", "a", "--key", "b", "--property", "amount=7", "--queue", "2")
        [line] = at.lines("produce", "orders", "order 42 Ω", *words)
        [message] = at.broker.messages("orders")
        assert line.startswith(message.message_id)
        assert message.body.decode() == "order 42 Ω"
        assert (message.queue_id, message.tags, message.keys) == (2, "paid", ["a", "b"])
        assert message.properties["amount"] == "7"
        assert message.unique_key


@pytest.mark.parametrize("key", ["a b", " a", ""])
def test_a_key_that_would_be_stored_as_several_is_refused(tmp_path: Path, key: str) -> None:
    with shell(tmp_path) as at:
        refused = at.run("produce", "orders", "x", "--key", "good", "--key", key, code=2)
        assert f"expected a key without blanks, since blanks separate the stored keys, found {key!r}" in " ".join(
            refused.stderr.split()
        )
        assert at.broker.messages("orders") == []


def test_the_lines_of_a_file_become_messages_spread_over_the_queues(tmp_path: Path) -> None:
    file = tmp_path / "orders.txt"
    file.write_bytes(b"one\r\ntwo\n\nthree\nfour without an end")
    with shell(tmp_path) as at:
        reported = at.json("produce", "orders", "--file", str(file))
        assert (reported["messages"], reported["failed"]) == (4, 0)
        messages = at.broker.messages("orders")
        assert {message.body for message in messages} == {b"one", b"two", b"three", b"four without an end"}
        assert {message.queue_id for message in messages} == {0, 1, 2, 3}


def test_made_up_messages_have_the_size_and_the_number_that_was_asked_for(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.broker.create_topic("orders", queues=1)
        reported = at.json("produce", "orders", "--count", "700", "--size", "33", "--in-flight", "8")
        assert (reported["messages"], reported["bytes"]) == (700, 700 * 33)
        assert reported["first"]["queueOffset"] == 0
        assert {len(message.body) for message in at.broker.messages("orders")} == {33}


def test_a_delayed_message_comes_when_it_is_due(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.run("produce", "orders", "later", "--delay-level", "18")
        assert at.broker.messages("orders") == []
        at.broker.advance(hours=2)
        until(lambda: at.broker.messages("orders"))


def test_what_the_broker_refuses_is_counted_and_the_reason_reported(tmp_path: Path) -> None:
    with shell(tmp_path, max_message_size=100) as at:
        result = at.run("produce", "orders", "--count", "3", "--size", "1000", code=1)
        assert "3 failed" in result.stderr
        assert "refuses" in result.stderr


def test_a_topic_that_nobody_may_make_is_an_error_that_says_how_to_make_it(tmp_path: Path) -> None:
    with shell(tmp_path, auto_create_topic_enable=False) as at:
        assert "tiermq topic create orders" in at.run("produce", "orders", "x", code=1).output


def test_bad_options_are_reported_before_anything_is_sent(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        for words in (["orders"], ["orders", "x", "--count", "2"], ["orders", "x", "--property", "none"]):
            at.run("produce", *words, code=2)
        at.run("produce", "orders", "x", "--queue", "99", code=1)
        assert at.broker.messages("orders") == []


def test_ctrl_c_ends_it_after_what_was_sent(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        command = [sys.executable, "-m", "tiermq.cli", "produce", "orders", "--file", "-"]
        with subprocess.Popen(
            command, env={**os.environ, **at.environment}, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            process.stdin.write("one\n")
            process.stdin.flush()
            until(lambda: at.broker.messages("orders"))
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0
            assert process.stderr is not None
            assert "sent 1 message in" in process.stderr.read()


def test_a_broker_without_a_master_is_named_and_its_topic_is_not_called_missing(tmp_path: Path) -> None:
    with NameServer(NameServerConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path="")) as names:
        at = ["-n", f"127.0.0.1:{names.port}"]
        for words in (["produce", "orders", "x"], ["consume", "orders"]):
            nothing = CliRunner().invoke(cli, [*words, *at])
            assert nothing.exit_code == 1
            assert "no broker is registered at the name server" in nothing.output
            assert "topic create" not in nothing.output
        unknown = CliRunner().invoke(cli, ["broker", "status", "b1", *at])
        assert "change roles are not registered for a moment" in unknown.output
        with slave(tmp_path, None, namesrv_addr=f"127.0.0.1:{names.port}") as copy:
            assert copy.registration is not None
            assert copy.registration.wait_registered(60)
            for words in (["produce", "orders", "x"], ["consume", "orders"]):
                alone = CliRunner().invoke(cli, [*words, *at])
                assert alone.exit_code == 1
                assert f"{copy.config.broker_name} has no master at the moment" in alone.output


def test_a_topic_that_is_read_only_is_called_so(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.run("topic", "create", "orders", "--perm", "r")
        assert "found only queues to read" in at.run("produce", "orders", "x", code=1).stderr
        at.run("topic", "create", "two", "--queues", "2")
        assert "expected queue 5, found 2 others" in at.run("produce", "two", "x", "--queue", "5", code=1).stderr
