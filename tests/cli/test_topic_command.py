"""`tiermq topic` against a real broker."""

from __future__ import annotations

import json
from pathlib import Path

from cli.wire_commands import shell


def test_a_topic_is_made_shown_changed_and_deleted(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.run("topic", "create", "orders", "--queues", "2")
        for number in range(5):
            at.broker.send("orders", b"x", queue_id=number % 2)
        reported = at.json("topic", "show", "orders")
        assert reported["messages"] == 5
        assert [(each["queueId"], each["minOffset"], each["maxOffset"]) for each in reported["queues"]] == [
            (0, 0, 3),
            (1, 0, 2),
        ]
        assert at.lines("topic", "show", "orders")[-1] == "5 messages in 2 queues"
        assert at.json("topic", "create", "orders", "--queues", "3", "--perm", "r")["brokers"] == ["broker-a"]
        made = at.broker.broker.parts.topics.get("orders")
        assert made is not None
        assert (made.read_queues, made.perm) == (3, 4)
        asked = at.run("topic", "delete", "orders", "--json", input="y\n")
        assert json.loads(asked.stdout) == {"topic": "orders", "deleted": True, "brokers": ["broker-a"]}
        assert "all its messages?" in asked.stderr, "a question is no part of what a program reads"
        assert at.json("topic", "list")["topics"] == []
        at.run("topic", "create", "orders")
        assert at.lines("topic", "delete", "orders", "--yes") == ["topic orders: deleted at broker-a"]


def test_the_list_leaves_out_what_is_the_system_s(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.broker.create_topic("orders")
        at.broker.create_topic("%RETRY%audit", queues=1)
        assert at.lines("topic", "ls", "--names") == ["orders"]
        everything = {row["topic"] for row in at.json("topic", "list", "--all")["topics"]}
        assert {"orders", "%RETRY%audit", "TBW102"} <= everything


def test_a_deletion_asks_first_and_a_slip_of_the_pen_deletes_nothing(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.broker.create_topic("orders")
        at.run("topic", "delete", "orders", code=1, input="n\n")
        at.run("topic", "delete", "order", "--yes", code=1)
        assert at.lines("topic", "list", "--names") == ["orders"]


def test_what_the_broker_refuses_is_reported(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        assert "refuses" in at.run("topic", "create", "TBW102", code=1).output
        at.run("topic", "create", "orders", "--cluster", "nowhere", code=1)
        at.run("topic", "show", "nothing", code=1)
