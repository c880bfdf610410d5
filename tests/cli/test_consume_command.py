"""`tiermq consume` against a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.brokers import lagging_dispatch
from broker.consuming import on_loop
from cli.wire_commands import shell
from present import present
from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.remoting.codes import RequestCode
from tiermq.testing.local_broker import SMALL


def test_every_message_is_printed_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        for number in range(40):
            at.broker.send("orders", b"order %d" % number, queue_id=number % 4, tags="paid")
        expected = sorted(f"{number % 4}:{number // 4} [paid] order {number}" for number in range(40))
        assert sorted(at.lines("consume", "orders")) == expected
        assert sorted(at.lines("consume", "orders")) == expected
        assert sorted(at.lines("consume", "orders", "--bodies")) == sorted(f"order {number}" for number in range(40))


def test_a_time_to_begin_at_is_of_any_form(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.broker.send("orders", b"old")
        at.broker.advance(hours=3)
        at.broker.send("orders", b"new")
        stored_ms = at.broker.messages("orders")[-1].store_timestamp_ms
        iso = datetime.fromtimestamp(stored_ms / 1000, tz=UTC).isoformat()
        for start, wanted in ((str(stored_ms), ["new"]), (iso, ["new"]), ("1d", ["old", "new"])):
            assert at.lines("consume", "orders", "--bodies", "--from", start) == wanted
        for start in ("yesterday", "2026-13-31", "1 fortnight"):
            assert "--from" in at.run("consume", "orders", "--from", start, code=2).output


def test_a_broker_that_answered_no_pull_is_sent_no_offsets_of_a_group_it_does_not_know(tmp_path: Path) -> None:
    """A group is made at a broker by its first pull there."""
    with shell(tmp_path) as at:
        second = BrokerConfig(
            bind_address="127.0.0.1", listen_port=0, broker_name="broker-b", namesrv_addr=at.broker.name_server
        )
        with Broker.open(tmp_path / "second", config=second, **SMALL) as other:
            assert other.registration is not None
            assert other.registration.wait_registered(60)
            at.run("topic", "create", "orders", "--queues", "1")
            assert {each.broker_name for each in present(at.route("orders")).readable} == {"broker-a", "broker-b"}
            at.broker.send("orders", b"one")
            silent = RequestCode.PULL_MESSAGE
            on_loop(other, lambda: other.parts.server.refuse([silent], lambda _connection, _command: None))
            assert at.lines("consume", "orders", "--group", "audit", "--max", "1", "--bodies") == ["one"]
        assert at.broker.broker.parts.offsets.query("audit", "orders", 0) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["before", "after"]),
        (("--from", "1970-01-01T00:00Z"), ["after"]),
        (("--tag", "paid"), ["after"]),
        (("--tag", "open"), []),
        (("--from", "0"), ["after"]),
    ],
)
def test_what_was_produced_a_moment_ago_is_printed(tmp_path: Path, words: tuple[str, ...], expected: list[str]) -> None:
    with shell(tmp_path) as at:
        at.run("topic", "create", "orders", "--queues", "2")
        if not words or words[0] != "--from":
            at.broker.send("orders", b"before")
        with lagging_dispatch(at.broker.broker):
            at.run("produce", "orders", "after", "--queue", "0", "--tag", "paid")
            assert at.lines("consume", "orders", "--bodies", *words) == expected


def test_json_reports_everything_of_a_message(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.broker.send("orders", b"\xff\x00", keys=["k"])
        [reported] = at.json_lines("consume", "orders")
        assert (reported["body"], reported["bodyEncoding"], reported["queueOffset"]) == ("/wA=", "base64", 0)
        assert reported["properties"]["KEYS"] == "k"


def test_a_group_goes_on_where_it_was(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        for number in range(5):
            at.broker.send("orders", b"%d" % number)
        assert at.lines("consume", "orders", "--group", "audit", "--max", "2", "--bodies") == ["0", "1"]
        assert at.broker.committed_offset("audit", "orders", 0) == 2
        assert at.lines("consume", "orders", "--group", "audit", "--bodies") == ["2", "3", "4"]
        assert at.lines("consume", "orders", "--group", "audit", "--bodies") == []
        assert at.lines("consume", "orders", "--group", "audit", "--from", "first", "--queue", "0", "--bodies") == [
            "0", "1", "2", "3", "4",
        ]  # fmt: skip


def test_tags_and_conditions_choose_messages(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        for number in range(6):
            properties = {"amount": str(number)}
            at.broker.send("orders", b"%d" % number, tags="even" if number % 2 == 0 else "odd", properties=properties)
        assert at.lines("consume", "orders", "--bodies", "--tag", "odd") == ["1", "3", "5"]
        assert at.lines("consume", "orders", "--bodies", "--sql", "amount BETWEEN 2 AND 4") == ["2", "3", "4"]
        at.run("consume", "orders", "--sql", "amount >", code=1)
        at.run("consume", "orders", "--sql", "amount > 1", "--tag", "odd", code=2)


def test_reading_begins_at_a_time_or_at_the_end(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.broker.send("orders", b"early")
        at.broker.advance(hours=1)
        late = at.broker.send("orders", b"late")
        assert at.lines("consume", "orders", "--bodies", "--from", str(late.store_timestamp_ms - 1)) == ["late"]
        assert at.lines("consume", "orders", "--bodies", "--from", "last") == []
        at.run("consume", "orders", "--from", "yesterday", code=2)


def test_a_topic_that_nobody_has_is_an_error(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        assert "no broker has it" in at.run("consume", "nothing", code=1).output
        at.broker.send("orders", b"x")
        assert "found none" in at.run("consume", "orders", "--queue", "99", code=1).output


def test_quiet_counts(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        for _ in range(100):
            at.broker.send("orders", b"x")
        result = at.run("consume", "orders", "--quiet")
        assert result.stdout == ""
        assert "received 100 messages in" in result.stderr
        at.run("consume", "orders", "--quiet", "--json", code=2)


def test_following_prints_what_comes_and_ctrl_c_ends_it_with_its_offsets_kept(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.broker.send("orders", b"before")
        command = [sys.executable, "-m", "tiermq.cli", "consume", "orders", "--group", "audit", "--follow", "--bodies"]
        with subprocess.Popen(
            command, env={**os.environ, **at.environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "before\n"
            at.broker.send("orders", b"after")
            assert process.stdout.readline() == "after\n"
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0
        assert at.broker.committed_offset("audit", "orders", 0) == 2
