"""`tiermq query` against a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.brokers import lagging_dispatch
from cli.wire_commands import shell


def test_messages_are_found_by_key_by_both_ids_and_by_place(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.run("produce", "orders", "wanted", "--key", "order-42", "--queue", "1")
        at.run("produce", "orders", "another", "--key", "order-43", "--queue", "1")
        at.wait_for_topic("orders")
        [message] = [each for each in at.broker.messages("orders") if each.body == b"wanted"]
        for words in (
            ("--key", "order-42"),
            ("--id", message.message_id),
            ("--id", str(message.unique_key)),
            ("--queue", "1", "--offset", "0"),
        ):
            assert [reported["body"] for reported in at.json_lines("query", "orders", *words)] == ["wanted"]
        assert any(line.split() == ["body", "wanted"] for line in at.lines("query", "orders", "--key", "order-42"))


@pytest.mark.parametrize("words", [("--key", "order-42"), ("--queue", "1", "--offset", "0")])
def test_what_was_produced_a_moment_ago_is_found(tmp_path: Path, words: tuple[str, ...]) -> None:
    with shell(tmp_path) as at:
        at.run("topic", "create", "orders", "--queues", "2")
        with lagging_dispatch(at.broker.broker):
            at.run("produce", "orders", "wanted", "--key", "order-42", "--queue", "1")
            assert [reported["body"] for reported in at.json_lines("query", "orders", *words)] == ["wanted"]


def test_files_and_a_tier_answer_as_brokers_do(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with shell(tmp_path, tier=tier) as at:
        for number in range(3):
            at.run("produce", "orders", f"order {number}", "--key", f"order-{number}", "--queue", "1")
        at.wait_for_topic("orders")
        tiered = at.broker.broker.parts.tiered
        assert tiered is not None
        assert tiered.flush_to_tier()
        [message] = [each for each in at.broker.messages("orders") if each.body == b"order 1"]
        for words in (
            ("--key", "order-1"), ("--id", str(message.unique_key)), ("--queue", "1", "--offset", "1"),
            ("--key", "order-1", "--begin", "1h"),
        ):  # fmt: skip
            [asked] = at.json_lines("query", "orders", *words)
            for place in (
                ("--tier", tier),
                ("--store", str(tmp_path / "store")),
                ("--tier", tier, "--broker", "broker-a"),
            ):
                [read] = [json.loads(line) for line in at.lines("query", "orders", *words, *place, "--json", "-n", "")]
                moved = {"side", "segment", "broker"}
                assert {k: v for k, v in read.items() if k not in moved} == {
                    k: v for k, v in asked.items() if k not in moved
                }
        for words in (("--queue", "1", "--offset", "7"), ("--key", "order-1", "--end", "1h")):
            at.run("query", "orders", *words, "--tier", tier, "-n", "", code=1)
            at.run("query", "orders", *words, code=1)


def test_times_count_however_a_message_is_named_at_brokers_and_in_a_tier(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with shell(tmp_path, tier=tier) as at:
        at.run("produce", "orders", "wanted", "--key", "order-1", "--queue", "1")
        at.wait_for_topic("orders")
        tiered = at.broker.broker.parts.tiered
        assert tiered is not None
        assert tiered.flush_to_tier()
        [message] = [each for each in at.broker.messages("orders") if each.body == b"wanted"]
        at_ms = message.store_timestamp_ms
        before, moment, after = str(at_ms - 1), str(at_ms), str(at_ms + 1)
        wire, files = (), ("--tier", tier, "-n", "")
        for words, places in (
            (("--key", "order-1"), (wire, files)),
            (("--id", str(message.unique_key)), (wire, files)),
            (("--id", message.message_id), (wire,)),  # It is a place in a broker's log: a tier has no such id.
            (("--queue", "1", "--offset", "0"), (wire, files)),
        ):
            for place in places:
                at.run("query", "orders", *words, "--begin", moment, "--end", moment, *place)
                at.run("query", "orders", *words, "--begin", after, *place, code=1)
                at.run("query", "orders", *words, "--end", before, *place, code=1)


def test_times_that_hold_no_message_are_refused_or_noted(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.run("produce", "orders", "x", "--key", "a")
        at.wait_for_topic("orders")
        refused = at.run("query", "orders", "--key", "a", "--begin", "1h", "--end", "2h", code=2)
        assert "expected --begin before --end" in refused.output
        noted = at.run("query", "orders", "--key", "a", "--begin", "1700000000")
        assert "--begin 1700000000 is 1970-01-20" in noted.output
        assert "milliseconds" in noted.output
        assert "milliseconds" not in at.run("query", "orders", "--key", "a", "--begin", "1700000000000").output


def test_a_tier_without_history_is_refused_as_tier_stat_does_also_beside_brokers(tmp_path: Path) -> None:
    tier = (tmp_path / "missing").as_uri()
    with shell(tmp_path) as at:
        for words in (("--key", "a"), ("--id", "b"), ("--queue", "0", "--offset", "1")):
            refused = at.run("query", "orders", *words, "--tier", tier, code=1)
            assert refused.stderr == at.run("tier", "stat", tier, code=1).stderr
    assert not (tmp_path / "missing").exists()


def test_nothing_found_is_exit_code_1(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.run("produce", "orders", "x", "--key", "a")
        at.wait_for_topic("orders")
        for words in (
            ("--key", "b"),
            ("--key", "a", "--end", "1"),
            ("--queue", "0", "--offset", "9"),
            ("--id", "7F00000100002A9F00000000FFFFFFFF"),
            ("--id", "no id"),
        ):
            at.run("query", "orders", *words, code=1)
        at.run("query", "nothing", "--key", "a", code=1)


def test_what_is_asked_must_be_clear(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        for words in ((), ("--key", "a", "--id", "b"), ("--queue", "1"), ("--offset", "1")):
            at.run("query", "orders", *words, code=2)
