"""Open half messages of a store directory, by its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from delivery.transactions.transaction_world import World
from tiermq import Message
from tiermq.delivery.transactions.open_halves import open_halves
from tiermq.errors import StoreError
from tiermq.message.topic_name import HALF_TOPIC, OPERATION_HALF_TOPIC


def listed(world: World) -> list[tuple[str, int]]:
    world.store.flush()
    world.store.dispatch_now()
    return [(each.transaction_id.removeprefix("ID-"), each.questions) for each in open_halves(world.path)]


def test_what_was_not_ended_is_open(world: World) -> None:
    halves = [world.half(name) for name in "abcd"]
    world.roll_back(halves[1])
    world.commit(halves[2])
    assert listed(world) == [("a", 0), ("c", 0), ("d", 0)], "the op of a commit waits to be written"
    world.ops.write()
    assert listed(world) == [("a", 0), ("d", 0)]


def test_copies_are_one_transaction_and_its_end_ends_them(world: World) -> None:
    half = world.half("a")
    world.half("b")
    world.round_after(30)
    assert listed(world) == [("a", 1), ("b", 1)]
    world.roll_back(half)
    assert listed(world) == [("b", 1)]


def test_copies_of_a_rocketmq_are_one_transaction_too(world: World) -> None:
    world.half("a")
    last = world.half("a", more={"TRANSACTION_CHECK_TIMES": "1"})
    assert listed(world) == [("a", 1)]
    world.roll_back(last)
    assert listed(world) == []


def test_it_begins_where_check_rounds_are(world: World) -> None:
    for name in "ab":
        world.half(name)
    (world.path / "config").mkdir(exist_ok=True)
    (world.path / "config" / "consumerOffset.json").write_text(
        '{"offsetTable":{"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:1},"x@y":{0:7}}}'
    )
    assert listed(world) == [("b", 0)]


def test_what_is_known_of_an_open_one(world: World) -> None:
    world.half("abc")
    world.store.flush()
    (found,) = open_halves(world.path)
    assert json.loads(json.dumps(found.to_dict())) == {
        "transaction_id": "ID-abc",
        "topic": "T",
        "queue_id": 1,
        "producer_group": "PG",
        "half_offset": 0,
        "born_ms": world.clock.now_ms(),
        "questions": 0,
        "body_bytes": 3,
    }


def test_records_that_say_nothing_do_not_count(world: World) -> None:
    world.store.put(Message(HALF_TOPIC, b"no place", 0))
    world.store.put(Message(OPERATION_HALF_TOPIC, b"nonsense", 0, tags="d"))
    assert listed(world) == []


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="store directory"):
        list(open_halves(tmp_path / "nothing"))
