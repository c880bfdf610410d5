"""`tiermq dlq` against a real broker: dead letters are listed, and come back once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import Peer
from cli.wire_commands import Shell, shell
from tiermq.cli.dlq import ResentRecord
from tiermq.errors import StoreDamaged
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.codes import RequestCode
from tiermq.testing import LocalBroker


def kill(broker: LocalBroker, message: StoredMessage, group: str = "audit") -> None:
    """Give a message up, as a consumer does that wants no more retries, and see to it that the letter can be found."""
    fields: dict[str, Any] = {"offset": message.physical_offset, "group": group, "delayLevel": -1}
    with Peer(broker.broker) as peer:
        answer = peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, originTopic=message.topic, **fields)
    assert answer.code == 0
    broker.broker.parts.local.dispatch_now()


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Shell]:
    with shell(tmp_path) as made:
        made.broker.create_topic("orders", queues=1)
        made.broker.create_topic("bills", queues=1)
        for number in range(4):
            topic = "orders" if number < 3 else "bills"
            sent = made.broker.send(
                topic, f"body {number}".encode(), tags="paid", keys=[f"k{number}"], properties={"x": "y"}
            )
            kill(made.broker, sent)
        made.wait_for_topic("%DLQ%audit")
        yield made


def test_dead_letters_are_listed_with_where_they_came_from_and_how_often_they_were_tried(at: Shell) -> None:
    found = at.json_lines("dlq", "ls", "audit")
    assert [each["key"] for each in found] == ["k0", "k1", "k2", "k3"]
    first = found[0]
    original = at.broker.messages("orders")[0]
    assert (first["originTopic"], first["originMessageId"]) == ("orders", original.message_id)
    assert (first["tries"], first["tags"], first["bornMs"]) == (1, "paid", original.born_timestamp_ms)
    assert first["diedMs"] >= first["bornMs"]
    result = at.run("dlq", "ls", "%DLQ%audit")
    assert "orders k0" in result.stdout
    assert "body 0" in result.stdout
    assert "4 dead letters of audit" in result.stderr


def test_filters_leave_out_what_is_not_wanted(at: Shell) -> None:
    def keys(*words: str) -> list[str]:
        return [each["key"] for each in at.json_lines("dlq", "ls", "audit", *words)]

    assert keys("--topic", "bills") == ["k3"]
    assert keys("--key", "k1") == ["k1"]
    assert keys("--key", at.broker.messages("orders")[2].message_id) == ["k2"]
    assert keys("--limit", "2") == ["k0", "k1"]
    assert keys("--since", "1h") == ["k0", "k1", "k2", "k3"]
    died_ms = at.json_lines("dlq", "ls", "audit")[3]["diedMs"]
    assert keys("--since", str(died_ms + 1)) == []
    assert "k3" in keys("--since", str(died_ms))


def test_a_group_without_dead_letters_has_none(at: Shell) -> None:
    at.run("group", "create", "mail")
    listed = at.run("dlq", "ls", "mail")
    assert (listed.stdout, listed.stderr) == ("", "0 dead letters of mail\n")
    assert at.json("dlq", "resend", "mail")["found"] == 0


@pytest.mark.parametrize("command", ["ls", "resend"])
def test_a_group_that_no_broker_knows_is_refused(at: Shell, command: str) -> None:
    for more in ((), ("--json",)):
        refused = at.run("dlq", command, "mial", *more, code=1)
        assert "expected a group mial, found none of that name" in refused.stderr
        assert refused.stdout == ""


def test_dead_letters_of_a_deleted_group_are_listed(at: Shell) -> None:
    at.run("group", "create", "audit")
    at.run("group", "delete", "audit", "--yes")
    assert "4 dead letters of audit" in at.run("dlq", "ls", "audit").stderr


def test_dead_letters_come_back_to_their_topics_as_they_were_and_once(at: Shell) -> None:
    dry = at.json("dlq", "resend", "audit", "--dry-run")
    assert (dry["found"], dry["resent"]) == (4, 4)
    assert len(at.broker.messages("orders")) == 3
    done = at.json("dlq", "resend", "audit")
    assert (done["resent"], done["already"], done["unconfirmed"]) == (4, 0, 0)
    first, again = at.broker.messages("orders")[0], at.broker.messages("orders")[3]
    assert (again.body, again.tags, again.keys) == (first.body, first.tags, first.keys)
    assert again.born_timestamp_ms == first.born_timestamp_ms
    assert again.reconsume_times == 0
    assert again.properties["x"] == "y"
    assert again.properties["DLQ_ORIGIN_MESSAGE_ID"] == first.message_id
    assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY"} & set(again.properties)
    assert at.broker.messages("bills")[1].body == b"body 3"
    done = at.json("dlq", "resend", "audit")
    assert (done["resent"], done["already"]) == (0, 4)
    assert at.json("dlq", "resend", "audit", "--dry-run")["resent"] == 0
    assert len(at.broker.messages("orders")) == 6
    assert "4 dead letters of audit: 0 sent again, 4 sent before" in at.run("dlq", "resend", "audit").stdout


def test_only_what_is_wanted_is_sent_and_to_the_topic_that_is_wanted(at: Shell) -> None:
    done = at.json("dlq", "resend", "audit", "--topic", "orders", "--limit", "2", "--to", "bills")
    assert (done["found"], done["resent"]) == (2, 2)
    assert [each.body for each in at.broker.messages("bills")] == [b"body 3", b"body 0", b"body 1"]
    assert at.json("dlq", "resend", "audit", "--key", "k0")["resent"] == 1  # To its own topic it was not sent yet.


def test_a_record_remembers_what_brokers_have_forgotten(at: Shell, tmp_path: Path) -> None:
    record = tmp_path / "resent.jsonl"
    assert at.json("dlq", "resend", "audit", "--topic", "bills", "--record", str(record))["resent"] == 1
    at.run("topic", "delete", "bills", "--yes")
    at.broker.create_topic("bills", queues=1)
    done = at.json("dlq", "resend", "audit", "--topic", "bills", "--record", str(record))
    assert (done["resent"], done["already"]) == (0, 1)
    assert json.loads(record.read_text())["group"] == "audit"
    words = ("dlq", "resend", "audit", "--key", "k0", "--record", str(record))
    assert at.json(*words, "--to", "bills")["resent"] == 1
    assert at.json(*words)["resent"] == 0, "with a record, once whatever the topic"


def test_a_letter_that_dies_again_is_another_letter(at: Shell) -> None:
    assert at.json("dlq", "resend", "audit", "--key", "k0")["resent"] == 1
    again = at.broker.messages("orders")[-1]
    kill(at.broker, again)
    letters = at.json_lines("dlq", "ls", "audit", "--key", "k0")
    assert [each["originMessageId"] for each in letters][1] == again.message_id
    done = at.json("dlq", "resend", "audit", "--key", "k0")
    assert (done["resent"], done["already"]) == (1, 1)


def test_an_error_is_reported_and_what_was_not_sent_is_sent_the_next_time(at: Shell) -> None:
    at.run("topic", "create", "orders", "--queues", "1", "--perm", "r")
    at.wait_for_topic("orders", is_writable=False)
    result = at.run("dlq", "resend", "audit", code=1)
    assert "orders" in result.output + str(result.exception)
    at.run("topic", "create", "orders", "--queues", "1", "--perm", "rw")
    at.wait_for_topic("orders")
    at.run("dlq", "resend", "audit")
    assert (len(at.broker.messages("orders")), len(at.broker.messages("bills"))) == (6, 2)


def test_bad_options_of_dlq_are_reported(at: Shell) -> None:
    assert "expected milliseconds" in at.run("dlq", "ls", "audit", "--since", "soon", code=2).output
    assert "2026-01-31T12:00" in at.run("dlq", "ls", "audit", "--since", "soon", code=2).output
    at.run("dlq", "ls", "audit", "--limit", "0", code=2)
    at.run("dlq", "ls", "audit", "--namesrv", "127.0.0.1:1", code=1)


def test_a_letter_that_does_not_say_where_it_came_from_needs_a_topic(at: Shell) -> None:
    at.broker.send("%DLQ%other", b"put here by hand")
    result = at.run("dlq", "resend", "other", code=1)
    assert "use --to" in result.stderr
    assert at.json("dlq", "resend", "other", "--to", "bills")["resent"] == 1


def test_letters_are_remembered_by_group(tmp_path: Path) -> None:
    path = tmp_path / "resent"
    ResentRecord(path, "audit").add(["a-0-1", "a-0-2"])
    ResentRecord(path, "bills").add(["a-0-3"])
    ResentRecord(path, "audit").add(["a-0-2"])
    again = ResentRecord(path, "audit")
    assert "a-0-1" in again
    assert "a-0-3" not in again
    assert len(path.read_text().splitlines()) == 3


def test_a_torn_line_is_cut_off_and_the_others_count(tmp_path: Path) -> None:
    path = tmp_path / "resent"
    ResentRecord(path, "audit").add(["a-0-1", "a-0-2"])
    path.write_bytes(path.read_bytes()[:-5])
    record = ResentRecord(path, "audit")
    assert "a-0-1" in record
    assert "a-0-2" not in record
    record.add(["a-0-2"])
    assert "a-0-2" in ResentRecord(path, "audit")


def test_another_file_is_not_taken_for_a_record(tmp_path: Path) -> None:
    path = tmp_path / "resent"
    path.write_text("dear diary\n")
    with pytest.raises(StoreDamaged, match="name another file"):
        ResentRecord(path, "audit")
    assert path.read_text() == "dear diary\n"
