"""`tiermq group` against a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.wire_commands import shell


def test_a_group_is_made_shown_moved_and_deleted(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        for _ in range(5):
            at.broker.send("orders", b"x")
        at.run("group", "create", "audit", "--retries", "3")
        made = at.broker.broker.parts.groups.get("audit")
        assert made is not None
        assert made.retry_max_times == 3
        at.run("consume", "orders", "--group", "audit", "--max", "2")
        reported = at.json("group", "show", "audit")
        assert (reported["behind"], reported["members"]) == (3, [])
        assert "3 messages behind, 0 members" in at.lines("group", "show", "audit")
        at.run("consume", "orders", "--group", "audit", "--max", "2")
        assert "1 message behind, 0 members" in at.lines("group", "show", "audit")
        for goal, offset in (("first", 0), ("last", 5), ("0", 0)):
            moved = at.json("group", "reset", "audit", "orders", "--to", goal)
            assert {"broker": "broker-a", "queueId": 0, "offset": offset} in moved["queues"]
        assert at.lines("consume", "orders", "--group", "audit", "--bodies") == ["x"] * 5
        assert "audit" in at.lines("group", "list", "--names")
        at.run("group", "delete", "audit", "--yes")
        assert "audit" not in {row["group"] for row in at.json("group", "list")["groups"]}
        assert at.broker.committed_offset("audit", "orders", 0) is None


def test_long_names_fold_at_80_columns_and_figures_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, group = "a-topic-with-a-name-of-so-many-characters-that-it-fills-a-line-" + "x" * 40, "g" * 90
    monkeypatch.setattr("tiermq.cli.terminal.terminal_width", lambda: 80)
    with shell(tmp_path) as at:
        at.broker.send(topic, b"x")
        at.run("group", "create", group)
        at.broker.broker.parts.offsets.commit(group, topic, 0, 1)
        for words in (
            ("group", "show", group), ("group", "reset", group, topic, "--to", "first"), ("topic", "show", topic),
            ("group", "reset", group, topic, "--to", "last", "--preview"), ("topic", "list"), ("group", "list"),
        ):  # fmt: skip
            table = [line for line in at.lines(*words) if "would" not in line]
            assert max(map(len, table)) <= 80, (words, table)
        [head, *rows] = at.lines("group", "show", group)[:5]
        assert head.split() == ["topic", "broker", "queue", "offset", "end", "behind"]
        assert any(row.split()[-4:] == ["0", "0", "1", "1"] for row in rows), rows


def test_making_and_deleting_a_group_can_be_reported_to_programs(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        reported = at.json("group", "create", "audit", "--retries", "3", "--orderly")
        at.run(
            "group", "create", "lite", "--attribute", "lite.bind.topic=Sessions", "--attribute", "lite.sub.model=Shared"
        )
        lite = at.broker.broker.parts.groups.get("lite")
        assert lite is not None
        assert lite.attributes == {"lite.bind.topic": "Sessions", "lite.sub.model": "Shared"}
        assert reported == {"group": "audit", "retries": 3, "disabled": False, "orderly": True, "brokers": ["broker-a"]}
        asked = at.run("group", "delete", "audit", "--json", input="y\n")
        assert json.loads(asked.stdout) == {
            "group": "audit", "deleted": True, "keptOffsets": False, "brokers": ["broker-a"],
        }  # fmt: skip
        assert "Delete the group audit?" in asked.stderr


def test_bad_input_is_reported(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.run("group", "reset", "audit", "orders", "--to", "soon", code=2)
        at.run("group", "reset", "audit", "nothing", "--to", "first", code=1)
        at.run("group", "delete", "audit", code=1, input="n\n")
        at.run("group", "create", "no good name!", code=1)
        for more in ((), ("--json",)):
            unknown = at.run("group", "show", "nogroup", *more, code=1)
            assert "expected a group nogroup, found none of that name" in unknown.stderr
        at.run("group", "create", "fresh")
        assert "0 messages behind, 0 members" in at.lines("group", "show", "fresh")
