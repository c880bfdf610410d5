"""Replays: what was asked for, in order, once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.replay.replay_world import ReplayWorld
from present import present
from tiermq.errors import (
    BadHistory,
    BadOption,
    BadSchema,
    ForeignCheckpoint,
    IllegalMessage,
    StoreError,
    StoreLocked,
)
from tiermq.pipeline.export.job import export
from tiermq.pipeline.replay import job as module
from tiermq.pipeline.replay.job import put
from tiermq.pipeline.replay.plan import RateLimiter, left_of
from tiermq.pipeline.replay.record import ReplayRecord
from tiermq.pipeline.replay.task import stage_replay
from tiermq.pipeline.store_directory import open_store
from tiermq.spark import SparkRunner
from tiermq.store.local_store import LocalStore


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ReplayWorld]:
    made = ReplayWorld(tmp_path)
    yield made
    made.bury()


class Died(Exception):
    """What a replay dies of in these tests."""


def test_everything_comes_back_in_the_order_of_its_queues(world: ReplayWorld) -> None:
    report = world.replay()
    assert (report.done["messages"], report.problems) == (42, [])
    for topic, queue_id in world.sent:
        assert world.found(topic, queue_id) == world.bodies(topic, queue_id)


def test_the_record_has_a_line_for_each_message(world: ReplayWorld) -> None:
    world.replay(topic="orders", to_topic="again")
    lines = world.lines()
    assert len(lines) == 35
    assert {line["topic"] for line in lines} == {"again"}
    assert lines[0]["sourceTopic"] == "orders"
    stored = world.messages("again", 0)
    for line in (each for each in lines if each["queueId"] == "0"):
        assert stored[int(line["queueOffset"])].body == world.bodies("orders", 0)[int(line["sourceOffset"])]


def test_files_of_second_copies_of_tasks_are_gone_when_a_replay_ends(
    world: ReplayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:

    def twice(task: Any) -> Any:
        stage_replay(task)
        return stage_replay(task)

    monkeypatch.setattr(module, "stage_replay", twice)
    assert world.replay().done["messages"] == 42
    assert list((world.record / "staging").iterdir()) == []


def test_filters_and_options_choose_and_change(world: ReplayWorld) -> None:
    world.replay(topic="orders", tags="t1", to_topic="again", queue_count=1, properties={"why": "test"})
    wanted = [sent.body for queue in (0, 1) for sent in world.sent["orders", queue] if sent.tags == "t1"]
    assert world.found("again", 0) == wanted
    message = world.messages("again", 0)[0]
    assert (message.properties["why"], message.tags) == ("test", "t1")


def test_a_key_is_enough(world: ReplayWorld) -> None:
    assert world.replay(keys="key-7").done["messages"] == 1
    assert world.found() == [world.bodies()[6]]


def test_a_function_changes_and_leaves_out(world: ReplayWorld) -> None:
    report = world.replay(topic="returns", function="pipeline.replay.replay_world:shouted")
    assert (report.done["messages_read"], report.done["messages"]) == (7, 4)
    assert world.found("returns") == [body.upper() for body in world.bodies("returns")[::2]]


def test_a_second_run_puts_nothing(world: ReplayWorld) -> None:
    world.replay()
    again = world.replay()
    assert (again.done["messages"], again.done["messages_before"]) == (0, 42)
    assert "has ended" in again.details["notes"][0]
    assert len(world.found()) == 25


def test_what_is_stored_meanwhile_is_not_replayed_when_it_goes_on(world: ReplayWorld) -> None:
    stop = threading.Event()
    world.replay(topic="returns", rate=10.0, stop=stop, wait=lambda _seconds: stop.set())
    assert len(world.found("returns")) == 1
    world.put(5, "returns", 0)
    world.replay(topic="returns", rate=None)
    assert world.found("returns") == world.bodies("returns")[:7]


def test_what_expired_after_it_was_replayed_is_not_missed_when_it_goes_on(world: ReplayWorld) -> None:
    """Only what is left must still be there."""
    stop, puts = threading.Event(), []

    def stop_at_third(_seconds: float) -> None:
        puts.append(1)
        if len(puts) == 3:
            stop.set()

    world.replay(topic="orders", offsets=(0, None), rate=50.0, stop=stop, wait=stop_at_third)
    before = len(world.lines())
    assert 0 < before < 35
    asked = json.loads((world.record / "replay.json").read_text())["asked"]
    shown = left_of(present(ReplayRecord.find(world.record, asked)))
    assert [bounds.from_offset for bounds in shown.values()] == [before, 0]
    report = world.replay(topic="orders", offsets=(0, None))
    assert report.done["messages"] == 35 - before
    assert report.planned["messages"] == 35 - before
    assert world.found("orders", 0) == world.bodies("orders", 0)


def test_damage_is_shown_by_every_run_of_the_replay(world: ReplayWorld) -> None:
    log = next(path for path in sorted((world.disk.parent / "tier").rglob("*/COMMIT_LOG/*")) if path.is_file())
    data = bytearray(log.read_bytes())
    data[data.index(world.bodies("orders", 0)[3])] ^= 0xFF
    log.write_bytes(data)
    given = {"store": None, "broker": None, "topic": "orders"}
    first = world.replay(**given)
    # Every message of the block that is not what was written, and no other.
    assert first.problems
    assert len(first.problems) + len(world.found("orders", 0)) == 20
    again = world.replay(**given)
    assert (again.problems, again.is_clean) == (first.problems, False)


def test_progress_is_reported_in_bytes_as_messages_are_put(world: ReplayWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PUT_AT_ONCE", 5)
    reported: list[tuple[int, int]] = []
    report = world.replay(progress=lambda done, total: reported.append((done, total)))
    assert len(reported) >= 9
    assert reported == sorted(reported)
    assert reported[-1] == (report.planned["bytes"], report.planned["bytes"])


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_replay_that_dies_between_put_and_record_puts_nothing_twice(
    world: ReplayWorld, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(module, "PUT_AT_ONCE", 4)
    calls = []

    def put_and_die(store: LocalStore, messages: Any) -> Any:
        found = put(store, messages)
        calls.append(len(found))
        if len(calls) == after:
            raise Died
        return found

    monkeypatch.setattr(module, "put", put_and_die)
    with pytest.raises(Died):
        world.replay(topic="orders", to_topic="again", function="pipeline.replay.replay_world:shouted")
    monkeypatch.setattr(module, "put", put)
    report = world.replay(topic="orders", to_topic="again", function="pipeline.replay.replay_world:shouted")
    assert f"{calls[-1]} of them had not been recorded" in report.details["notes"][0]
    for queue_id in (0, 1):
        assert world.found("again", queue_id) == [body.upper() for body in world.bodies("orders", queue_id)[::2]]
    assert len(world.lines()) == 18


@pytest.mark.parametrize("begun", [False, True])
def test_of_two_at_the_same_replay_one_goes_on(
    world: ReplayWorld, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """The other one comes between reading the record and getting the store."""
    stop = threading.Event()
    if begun:
        world.replay(topic="returns", rate=10.0, stop=stop, wait=lambda _seconds: stop.set())

    def late(options: Any) -> Any:
        monkeypatch.setattr(module, "open_store", open_store)
        world.replay(topic="returns")
        return open_store(options)

    monkeypatch.setattr(module, "open_store", late)
    with pytest.raises(ForeignCheckpoint, match="another at work"):
        world.replay(topic="returns")
    assert world.found("returns") == world.bodies("returns")
    assert len(world.lines()) == 7


def test_a_record_is_of_one_replay(world: ReplayWorld) -> None:
    world.replay(topic="returns")
    with pytest.raises(ForeignCheckpoint, match="--subscribe was"):
        world.replay(topic="orders")
    with pytest.raises(ForeignCheckpoint, match="--to-topic was none and is other"):
        world.replay(topic="returns", to_topic="other")


def test_nothing_to_replay_is_reported(world: ReplayWorld) -> None:
    report = world.replay(offsets=(1000, 2000), dry_run=True)
    assert (report.planned["messages"], "nothing in what was asked for" in report.details["notes"][0]) == (0, True)


def test_a_dry_run_puts_nothing(world: ReplayWorld) -> None:
    report = world.replay(dry_run=True)
    assert report.planned["bytes"] > 0
    assert not world.target.exists()
    assert not world.record.exists()


def test_a_topic_can_be_replayed_into_the_store_that_it_is_read_from(tmp_path: Path, world: ReplayWorld) -> None:
    world.replay()
    second = {"tier": None, "store": world.target, "broker": None, "record": tmp_path / "second"}
    report = world.replay(topic="returns", **second)
    assert report.done["messages"] == 7
    assert world.found("returns") == world.bodies("returns") * 2


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_an_exported_table_is_replayed_as_the_history_is(world: ReplayWorld, tmp_path: Path, kind: str) -> None:
    to: dict[str, Any] = {"to": f"{kind}:{tmp_path}/lake"}
    if kind == "iceberg":
        to = {"to": "iceberg:lake.t", "catalog": f"sqlite:///{tmp_path}/c.db"}
    export(None, tier=world.url, store=world.disk, broker="broker-a", **to)
    given = {"tier": None, "store": None, "broker": None, "table": to["to"], "catalog": to.get("catalog")}
    report = world.replay(topic="orders", offsets=(2, 8), **given)
    assert report.done["messages"] == 12
    assert world.found("orders", 0) == world.bodies("orders", 0)[2:8]
    assert world.replay(topic="orders", offsets=(2, 8), **given).done["messages"] == 0
    assert world.replay(keys="key-3", record=tmp_path / "other", **given).done["messages"] == 1


def test_a_table_that_was_filled_backwards_is_replayed_forwards(world: ReplayWorld, tmp_path: Path) -> None:
    to = f"parquet:{tmp_path}/lake"
    source: dict[str, Any] = {"tier": world.url, "store": world.disk, "broker": "broker-a", "to": to}
    export(None, topic="orders", offsets={"orders": {0: (12, None), 1: (5, None)}}, **source)
    export(None, topic="orders", **source)
    world.replay(tier=None, store=None, broker=None, table=to)
    for queue_id in (0, 1):
        assert world.found("orders", queue_id) == world.bodies("orders", queue_id)


def test_what_a_table_gets_while_it_is_replayed_is_not_replayed(world: ReplayWorld, tmp_path: Path) -> None:
    to = f"delta:{tmp_path}/lake"
    source: dict[str, Any] = {"tier": world.url, "store": world.disk, "broker": "broker-a", "to": to}
    export(None, topic="returns", **source)
    stop = threading.Event()
    given = {"tier": None, "store": None, "broker": None, "table": to}
    world.replay(**given, rate=10.0, stop=stop, wait=lambda _seconds: stop.set())
    export(None, topic="orders", **source)
    world.replay(**given)
    assert (len(world.found("returns")), world.found("orders")) == (7, [])


def test_a_table_that_was_rewritten_meanwhile_is_not_gone_on_with(world: ReplayWorld, tmp_path: Path) -> None:
    to = f"parquet:{tmp_path}/lake"
    export(None, topic="returns", tier=world.url, store=world.disk, broker="broker-a", to=to)
    stop = threading.Event()
    given = {"tier": None, "store": None, "broker": None, "table": to}
    world.replay(**given, rate=10.0, stop=stop, wait=lambda _seconds: stop.set())
    file = next((tmp_path / "lake").glob("*.parquet"))
    file.rename(file.with_name("other.parquet"))
    with pytest.raises(ForeignCheckpoint, match="rewritten"):
        world.replay(**given)


def test_a_table_without_bodies_cannot_be_replayed(world: ReplayWorld, tmp_path: Path) -> None:
    export(None, tier=world.url, to=f"parquet:{tmp_path}/lake", columns=["topic", "queueId", "queueOffset"])
    given = {"tier": None, "store": None, "broker": None, "table": f"parquet:{tmp_path}/lake"}
    with pytest.raises(BadSchema, match=r"part-\S+ has no .*body"):
        world.replay(**given)


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        ({"rate": 0.0}, "rate of more than 0"),
        ({"offsets": (9, 3)}, "from before to"),
        ({"queue_count": 0}, "1 queue or more"),
        ({"function": "nowhere"}, "expected module:function"),
        ({"function": "nowhere:f"}, "importable here"),
        ({"function": "pipeline.replay.replay_world:NOT_A_FUNCTION"}, "expected a function"),
        ({"function": "pipeline.replay.replay_world:wrong"}, "return a ReplayMessage or None, found bytes"),
        (
            {"function": "pipeline.replay.replay_world:failing"},
            "failing failed for broker-a/orders/0/0: KeyError: 'price'",
        ),
        ({"table": "parquet:/x"}, "a history or a table"),
    ],
)
def test_what_cannot_be_replayed_is_reported(world: ReplayWorld, more: dict[str, Any], reported: str) -> None:
    with pytest.raises(BadOption, match=reported):
        world.replay(**more)
    assert not world.found()


def test_a_store_that_is_open_elsewhere_is_not_written(world: ReplayWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiermq.pipeline.store_directory.open_store.__defaults__", (None, 0.0))
    with pytest.raises(StoreLocked, match="one writer"):
        world.replay(into=world.disk)


def test_a_message_that_the_store_refuses_ends_the_replay_and_the_rest_stays(world: ReplayWorld) -> None:
    with pytest.raises(StoreError, match="found MESSAGE_ILLEGAL|found .*; what was put stays"):
        world.replay(topic="returns", to_topic="x" * 200)


def test_what_a_function_makes_of_a_message_must_be_one(world: ReplayWorld) -> None:
    with pytest.raises(IllegalMessage, match="replay made of broker-a/orders/0/0 can be no message"):
        world.replay(function="pipeline.replay.replay_world:text_body")
    assert not world.found()


def test_an_empty_tier_is_no_history(world: ReplayWorld, tmp_path: Path) -> None:
    with pytest.raises(BadHistory, match="found none"):
        world.replay(tier=f"file://{tmp_path}/nowhere", store=None, broker=None)
    assert not world.target.exists()
    assert not world.record.exists()


def test_a_rate_limiter_waits_for_what_is_due() -> None:
    now = [0.0]
    limiter = RateLimiter(100.0, lambda: now[0])
    assert limiter.at_once == 10
    for _ in range(5):
        rest_s = limiter.after(10)
        assert rest_s == pytest.approx(0.1)
        now[0] += rest_s
    now[0] += 10.0
    assert limiter.after(10) == 0.0
    assert RateLimiter(3.0).at_once == 1
    assert RateLimiter(None).at_once == 1000


def test_spark_replays_what_it_reads(spark: Any, world: ReplayWorld) -> None:
    report = world.replay(SparkRunner(spark), topic="orders", to_topic="again")
    assert report.done["messages"] == 35
    assert world.found("again", 0) == world.bodies("orders", 0)
    assert world.replay(SparkRunner(spark), topic="orders", to_topic="again").done["messages"] == 0
