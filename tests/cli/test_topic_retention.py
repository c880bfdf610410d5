"""How long a topic is kept: said by a command or mqadmin, applied by the tier, shown everywhere."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.wire_commands import Shell, shell
from tiermq.cli.main import cli
from tiermq.pipeline.expire.job import expire
from tiermq.remoting.client import BlockingClient
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.status import GetStatus
from tiermq.testing import LocalBroker
from tiermq.tier.names import state_object
from tiermq.tier.retention.retention_plan import KEPT_FOR_EVER, Kept
from tiermq.tier.tier_config import kept_by_settings

TIER: dict[str, Any] = {"tiered_store_index_file_max_hash_slot_num": 64, "tiered_store_index_file_max_index_num": 500}


def tiered(at: Shell) -> Any:
    return at.broker.broker.store


def update_topic(broker: LocalBroker, name: str, attributes: str) -> RemotingCommand:
    """What `mqadmin updateTopic -a` sends."""
    host, _, port = broker.address.rpartition(":")
    client = BlockingClient(host, int(port), timeout_s=60)
    ext = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": attributes,
    }
    try:
        return client.request(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext))
    finally:
        client.close()


def test_history_is_kept_for_ever_unless_a_topic_or_the_broker_says_otherwise(tmp_path: Path) -> None:
    with shell(tmp_path, tier=(tmp_path / "tier").as_uri(), tiered_storage_level="FORCE", **TIER) as at:
        at.run("topic", "create", "short", "--queues", "1", "--retention", "2h")
        at.run("topic", "create", "years", "--queues", "1")
        for topic in ("short", "years"):
            at.broker.send(topic, b"x")
        assert tiered(at).flush_to_tier()
        at.broker.clock.advance(timedelta(days=3650))
        tiered(at).expire_now()
        assert tiered(at).get("short", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
        assert [message.body for message in tiered(at).get("years", 0, 0).messages] == [b"x"]


def test_a_change_applies_at_once_and_after_a_restart_and_is_shown(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with shell(tmp_path, tier=tier, tiered_store_file_reserved_time=72, **TIER) as at:
        at.run("topic", "create", "orders", "--queues", "2", "--retention", "365d", "--retention-bytes", "10G")
        assert tiered(at).own_retention("orders") == (365 * 24, 10 << 30)
        shown = at.lines("topic", "show", "orders")[-1]
        assert shown == "kept in the tier of broker-a: 365 d, at most 10,737,418,240 bytes of a topic (its own)"
        assert at.json("topic", "alter", "orders", "--retention", "forever")["brokers"] == ["broker-a"]
        made = at.broker.broker.parts.topics.get("orders")
        assert made is not None
        assert (made.read_queues, made.attributes["reserve.bytes"]) == (2, str(10 << 30))
        assert at.lines("topic", "show", "orders")[-1].startswith("kept in the tier of broker-a: for ever, at most")
        at.run("topic", "alter", "orders", "--retention", "default", "--retention-bytes", "default")
        assert tiered(at).own_retention("orders") == (-1, -1)
        assert at.lines("topic", "show", "orders")[-1] == "kept in the tier of broker-a: 3 d (by default)"
        at.run("topic", "alter", "orders", "--retention", "30d")
        at.broker.send("orders", b"x")
        assert tiered(at).flush_to_tier()
        tiered(at).tier.metadata.update_topic("orders", reserve_time_hours=-1)  # As if the tier had not heard of it.
        at.broker.stop()
        at.broker.start()
        assert tiered(at).own_retention("orders") == (720, -1)
    reported = json.loads(at.run("tier", "stat", tier, "--json").stdout)
    assert [(row["topic"], row["hours"]) for row in reported["retention"]] == [("orders", 720)]
    assert "    orders     30 d" in at.lines("tier", "stat", tier)
    assert "  retention  own: 1 of 1 topic; others: 3 d" in at.lines("tier", "stat", tier)


@pytest.mark.parametrize(
    ("settings", "hours", "max_bytes", "words"),
    [
        ({}, None, None, "for ever"),
        ({"tiered_store_file_reserved_time": 2}, 2, None, "2 h"),
        ({"tier_max_bytes_per_topic": 1 << 30}, None, 1 << 30, "for ever, at most 1,073,741,824 bytes of a topic"),
        ({"tiered_store_file_reserved_time": 2, "tiered_store_delete_file_enable": False}, None, None, "for ever"),
    ],
)
def test_the_tier_shows_what_its_broker_keeps(
    tmp_path: Path, settings: dict[str, Any], hours: int | None, max_bytes: int | None, words: str
) -> None:
    tier = (tmp_path / "tier").as_uri()
    with shell(tmp_path, tier=tier, **settings, **TIER) as at:
        at.broker.send("orders", b"x")
        assert tiered(at).flush_to_tier()
    assert f"  retention  own: 0 of 1 topic; others: {words}" in at.lines("tier", "stat", tier)
    [row] = json.loads(at.run("tier", "stat", tier, "--json").stdout)["brokerRetention"]
    assert (row["hours"], row["maxBytes"], row["problem"]) == (hours, max_bytes, None)
    table = tmp_path / "tier" / state_object("DefaultCluster", "broker-a", "settings")
    table.write_bytes(table.read_bytes().replace(b"properties", b"propertied"))
    shown = next(line for line in at.lines("tier", "stat", tier) if "retention" in line)
    assert "others: not known (" in shown
    assert table.name in shown
    table.unlink()
    assert "  retention  own: 0 of 1 topic; others: not known (no settings in the tier)" in at.lines(
        "tier", "stat", tier
    )


def test_a_tier_that_a_job_copies_from_rocketmq_keeps_for_ever() -> None:
    """RocketMQ's settings are in the tier, and are about a tier of RocketMQ."""
    settings = {"rocketmqHome": "/opt/rocketmq", "tieredStoreFileReservedTime": "72"}
    assert kept_by_settings(settings) == KEPT_FOR_EVER
    assert kept_by_settings({"tieredStoreFileReservedTime": "72"}) == Kept(72)


def test_mqadmin_gives_and_takes_a_topic_s_own_time(tmp_path: Path) -> None:
    with shell(tmp_path, tier=(tmp_path / "tier").as_uri(), **TIER) as at:
        assert update_topic(at.broker, "orders", "+reserve.time=48").code == 0
        assert tiered(at).own_retention("orders") == (48, -1)
        assert update_topic(at.broker, "orders", "-reserve.time").code == 0
        assert tiered(at).own_retention("orders") == (-1, -1)
        refused = update_topic(at.broker, "orders", "+reserve.time=-2")
        assert (refused.code, "not in range" in (refused.remark or "")) == (1, True)


def test_without_a_tier_a_topic_s_own_time_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with shell(tmp_path) as at:
        answer = update_topic(at.broker, "orders", "+reserve.time=48")
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "expected a broker with a tier" in (answer.remark or "")
        assert at.broker.broker.parts.topics.get("orders") is None


def test_where_a_job_copies_the_job_also_keeps_a_topic_s_own_time(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with shell(tmp_path, tier=tier, **TIER) as at:
        at.run("topic", "create", "longer", "--queues", "1", "--retention", "2h")
        at.run("topic", "create", "forever", "--queues", "1", "--retention", "2h")
        at.broker.send("longer", b"x")
        at.broker.send("forever", b"x")
        assert tiered(at).flush_to_tier()
        clock = at.broker.clock
    with shell(tmp_path, tier=tier, tier_dispatch_enable=False, **TIER) as at:
        at.run("topic", "create", "short", "--queues", "1", "--retention", "1h")
        at.run("topic", "alter", "longer", "--retention", "365d")
        at.run("topic", "alter", "forever", "--retention", "default")
        at.broker.send("short", b"x")
        at.broker.broker.parts.local.flush()
        at.run("pipeline", "offload", "--tier", tier, "--master", "here")
    clock.advance(timedelta(hours=3))

    def leaving() -> set[str]:
        found = expire(tier=tier, clock=clock, dry_run=True, orphans=False)
        return {row["path"].split("/")[2] for row in found.details["leaving"] if "/COMMIT_LOG/" in row["path"]}

    assert leaving() == {"short"}
    assert expire(tier=tier, clock=clock, orphans=False).problems == []
    clock.advance(timedelta(days=366))
    assert leaving() == {"longer"}


def test_a_store_that_was_restored_knows_the_topics_own_times(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with shell(tmp_path, tier=tier, **TIER) as at:
        at.run("topic", "create", "orders", "--queues", "1", "--retention", "30d")
        at.broker.send("orders", b"x")
        assert tiered(at).flush_to_tier()
    shutil.rmtree(tmp_path / "store")
    at.run("tier", "restore", tier, "--store", str(tmp_path / "store"))
    with shell(tmp_path, tier=tier, **TIER) as at:
        assert tiered(at).own_retention("orders") == (720, -1)
        made = at.broker.broker.parts.topics.get("orders")
        assert made is not None
        assert made.attributes == {"reserve.time": "720"}


def test_the_job_follows_the_broker_s_rule(tmp_path: Path) -> None:
    tier = (tmp_path / "tier").as_uri()
    with shell(tmp_path, tier=tier, **TIER) as at:
        at.run("topic", "create", "short", "--queues", "1", "--retention", "2h")
        at.run("topic", "create", "years", "--queues", "1")
        for topic in ("short", "years"):
            at.broker.send(topic, b"x")
        assert tiered(at).flush_to_tier()
        clock = at.broker.clock
    clock.advance(timedelta(hours=3))
    found = expire(tier=tier, clock=clock, dry_run=True, orphans=False)
    assert {"/short/" in row["path"] for row in found.details["leaving"]} == {True}


@pytest.mark.parametrize("words", [("--retention", "soon"), ("--retention-bytes", "0"), ()])
def test_what_is_no_time_and_no_size_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    with shell(tmp_path, tier=(tmp_path / "tier").as_uri(), **TIER) as at:
        at.broker.create_topic("orders")
        result = at.run("topic", "alter", "orders", *words, code=2)
        assert "--retention" in result.output or "--retention" in str(result.exception)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--retention", "or the word forever or default, found 'soon'"),
        ("--retention-bytes", "or the word default, found"),
    ],
)
def test_a_retention_that_is_no_amount_is_refused_with_all_that_it_may_be(option: str, words: str) -> None:
    done = CliRunner().invoke(cli, ["topic", "alter", "orders", option, "soon"])
    assert done.exit_code != 0
    assert words in done.output
