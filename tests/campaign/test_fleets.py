"""The check of a fleet's tier finds what it looks for: lost, doubled, moved and reordered messages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from campaign.fleets.check import TierCheck
from campaign.fleets.load import Acknowledged
from campaign.fleets.part import Fault, FleetKills, _World
from campaign.part import Outcome
from pipeline.offload.wire_world import WireWorld, wire_world
from tiermq import Message

QUEUE = ("broker-0", 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WireWorld]:
    with wire_world(tmp_path) as made:
        yield made


def sent(world: WireWorld, numbers: list[int], name: str = "r1") -> Acknowledged:
    """Messages as the producer numbers them, copied into the tier."""
    load, local = Acknowledged("orders", name), world.broker.broker.parts.local
    for number in numbers:
        key = f"{name}-broker-0-{number}"
        put = local.put(Message("orders", f"{key} ".encode(), 0, keys=[key]))
        load.note(f"broker-0 0 {put.queue_offset} {number} 0")
    local.dispatch_now()
    local.flush()
    world.offload()
    return load


def check_of(world: WireWorld) -> TierCheck:
    return TierCheck(world.tier, "orders")


def test_messages_that_are_there_once_and_in_order_pass_in_every_round(world: WireWorld) -> None:
    check = check_of(world)
    for name in ("r1", "r2"):
        load = sent(world, list(range(20)), name)
        assert check.has(load)
        assert check.check(load, random.Random(1)) == []
    assert check.check_all() == []
    assert (check.messages_checked, check.checked) == (80, {QUEUE: 40})


def test_a_message_that_is_not_in_the_tier_is_missed(world: WireWorld) -> None:
    check, load = check_of(world), sent(world, [0, 1, 2])
    load.note("broker-0 0 3 3 0")
    assert not check.has(load)
    assert check.check(load, random.Random(1)) == [f"{QUEUE}: 1 of 4 acknowledged are not at their offset: [3]"]


def test_a_message_at_another_offset_is_found_out(world: WireWorld) -> None:
    check, load = check_of(world), sent(world, [0, 1, 2])
    load.numbers[QUEUE] = {0: 0, 1: 2, 2: 1}
    (moved, unordered) = check.check(load, random.Random(1))
    assert moved == f"{QUEUE}: 2 of 3 acknowledged are not at their offset: [1, 2]"
    assert "not in the order" in unordered


def test_a_message_that_is_there_twice_is_found_out_in_its_round_and_in_later_ones(world: WireWorld) -> None:
    check = check_of(world)
    assert (
        "1 messages are there twice, such as r1-broker-0-1" in check.check(sent(world, [0, 1, 1]), random.Random(1))[0]
    )
    again = check.check(sent(world, [0, 5]), random.Random(1))
    assert any("messages of earlier rounds are there again, such as r1-broker-0-0" in each for each in again)


def test_an_offset_that_was_acknowledged_twice_is_a_problem_of_the_load() -> None:
    load = Acknowledged("orders", "r1")
    load.note("b 0 7 1 0")
    load.note("b 0 7 2 0")
    assert load.problems == ["b acknowledged offset 7 of queue 0 twice"]


class StillFleet:
    """Has no executor, and brokers that send nothing."""

    def __init__(self, sent: Acknowledged) -> None:
        self._sent = sent
        self.driver_starts = self.asked_again = 0
        self.names = ""
        self.brokers: list[Any] = []
        self.driver_ends: list[int] = []
        self.load = self

    def start(self, *_words: Any, **_options: Any) -> None:
        pass

    def wait(self, _messages: int) -> None:
        pass

    def stop(self) -> Acknowledged:
        return self._sent

    def kill(self, victim: str, _chance: random.Random) -> bool:
        return victim != "executor"

    def metric(self, _name: str) -> dict[str, float]:
        return {}

    def delete_local_files(self) -> None:
        pass


def test_a_fault_that_found_no_process_is_not_counted(world: WireWorld) -> None:
    outcome, faults = Outcome(), [Fault("executor", 1, 1), Fault("worker", 1, 1), Fault("driver", 1, 1)]
    played = _World(cast("Any", StillFleet(sent(world, [0, 1, 2]))), check_of(world))
    assert FleetKills()._run(played, "r1", faults, random.Random(1), outcome) == []
    assert {name: outcome.counts[name] for name in outcome.counts if "kill" in name} == {
        "killed: executor": 0, "killed: worker": 1, "killed: driver": 1, "kills": 2,
    }  # fmt: skip
