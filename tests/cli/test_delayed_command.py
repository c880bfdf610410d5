"""`tiermq delayed` against a real broker, and on its directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import waiting
from broker.brokers import Producer
from broker.consuming import until
from cli.wire_commands import Shell, shell
from present import present
from tiermq.cli.delayed import cancel_tiered_timer, tiered_timer_rows, tiered_timers_at
from tiermq.cli.main import cli
from tiermq.client.cluster_client import Access
from tiermq.testing import LocalBroker

DAY_MS = 86_400_000


def waits(at: Shell, count: int) -> list[dict[str, Any]]:
    """What the broker is told to keep, once it has taken it in."""
    waiting.until(lambda: len(at.json_lines("delayed", "ls")) == count)
    return at.json_lines("delayed", "ls")


def test_what_waits_is_listed_soonest_first_from_the_broker_and_from_its_directory(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        at.run("produce", "orders", "late", "--property", "TIMER_DELAY_SEC=7200", "--key", "order-42")
        at.run("produce", "orders", "soon", "--property", "TIMER_DELAY_SEC=3600")
        at.run("produce", "bills", "level", "--delay-level", "16")
        found = waits(at, 3)
        assert [(each["topic"], each["level"], each["keys"]) for each in found] == [
            ("bills", 16, []),
            ("orders", 0, []),
            ("orders", 0, ["order-42"]),
        ]
        assert all(each["broker"] and each["uniqueKey"] for each in found)
        assert len(at.json_lines("delayed", "ls", "--topic", "orders")) == 2
        assert len(at.json_lines("delayed", "ls", "--key", "order-42")) == 1
        assert len(at.json_lines("delayed", "ls", "--limit", "1")) == 1
        [line] = at.lines("delayed", "ls", "--key", "order-42")
        assert "orders:" in line
        assert "keys order-42" in line
        directory = str(at.broker.broker.store.config.root_path)
        in_directory = at.json_lines("delayed", "ls", "--store", directory)
        assert [each["uniqueKey"] for each in in_directory] == [each["uniqueKey"] for each in found]
        # And `store stat` counts them: in the wheel when it was written down, else as those that are to come.
        waiting = at.json("store", "stat", directory)["waiting"]
        assert waiting["timers"] + waiting["timersNotTakenIn"] == 2
        assert waiting["delayedByLevel"] == {"16": 1}
        assert "timers" in at.run("store", "stat", directory).stdout


def test_a_cancelled_timer_waits_no_longer_and_is_not_delivered(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        for body in ("keep", "drop"):
            at.run("produce", "orders", body, "--property", "TIMER_DELAY_SEC=3600", "--key", body, "--queue", "0")
        [row] = [each for each in waits(at, 2) if each["keys"] == ["drop"]]
        key = str(row["uniqueKey"])
        [reported] = at.json_lines("delayed", "cancel", "orders", key)
        assert [each["uniqueKey"] for each in reported["cancelled"]] == [key]
        assert [each["keys"] for each in waits(at, 1)] == [["keep"]]
        at.run("delayed", "cancel", "orders", key, code=1)  # It is cancelled already.
        at.run("delayed", "cancel", "bills", "unknown", code=1)
        at.broker.advance(hours=2)
        timers = at.broker.broker.parts.timers
        assert timers is not None
        # They may be due in different seconds.
        while not timers.counts.cancelled or not at.broker.messages("orders"):
            time.sleep(0.01)
        assert timers.counts.cancelled == 1
        assert [message.body for message in at.broker.messages("orders")] == [b"keep"]


def test_a_directory_that_is_no_store_is_exit_code_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["delayed", "ls", "--store", str(tmp_path)])
    assert result.exit_code == 2
    assert "expected a store" in result.output
    wrong = CliRunner().invoke(cli, ["delayed", "ls", "--store", str(tmp_path), "--levels", "soon"])
    assert wrong.exit_code == 2
    assert "message_delay_level" in wrong.output


def test_a_timer_that_its_broker_has_forgotten_is_cancelled_by_what_the_tier_knows(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with LocalBroker(tmp_path / "store", tier=tier, timer_flush_interval_ms=50) as broker:
        broker.create_topic("T", queues=1)
        due_ms = broker.clock.now_ms() + 30 * DAY_MS
        properties = f"UNIQ_KEY\x01A1\x02WAIT\x01true\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
        with Producer(broker.broker) as producer:
            assert producer.send("T", b"x", properties=properties).code == 0
        timers = present(broker.broker.delivery.tiered_timers).timers
        until(broker.broker, lambda: timers.kept_count == 1)
        access = Access(broker.name_server)
        assert cancel_tiered_timer(access, tier, "T", "unknown") == []
        [done] = cancel_tiered_timer(access, tier, "T", "A1")
        assert (done.broker_name, done.waiting.unique_key) == ("broker-a", "A1")
        until(broker.broker, lambda: timers.kept_count == 2)
        assert list(tiered_timer_rows(tier)) == []


def test_a_tier_without_timers_has_none_and_one_that_is_none_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    tier = (tmp_path / "tier").as_uri()
    assert list(tiered_timers_at(tier)) == []
    assert CliRunner().invoke(cli, ["delayed", "ls", "--tier", tier]).exit_code == 0
    assert CliRunner().invoke(cli, ["delayed", "ls", "--tier", "nowhere:"]).exit_code == 2
    both = CliRunner().invoke(cli, ["delayed", "ls", "--tier", tier, "--store", str(tmp_path)])
    assert "expected --store or --tier" in both.output
