"""The broker dies at each single call to the tier, before or after its effect: nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from scenarios.broker_world import HOUR_MS, BrokerWorld
from scenarios.dying_driver import Died, DyingDriver
from scenarios.steps import (
    EraseBrokerDisk,
    ExpectEverything,
    ExpectMessages,
    ExpectTierHolds,
    ExpireTier,
    MoveClock,
    Open,
    Produce,
    Reopen,
    Step,
    TierNow,
)
from tier.driver.objects import objects_driver
from tiermq.tier.driver.contract import ForwardingDriver
from tiermq.tier.driver.memory import MemoryDriver

pytestmark = [
    pytest.mark.crash,
    # The thread that ends a store's work dies too.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


class BucketDriver(ForwardingDriver):
    """An object store, for all processes of a life: each that is closed is followed by another one."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        super().__init__(objects_driver(self.store))

    def close(self) -> None:
        self.inner.close()
        self.inner = objects_driver(self.store)


class Seal:
    """Let the engine do what it does when it has time."""

    def run(self, world: BrokerWorld) -> None:
        while world.store.tier.engine.step():
            continue


LIFE: list[Step] = [
    Open(),
    Produce(12),
    TierNow(),
    MoveClock(1_000),
    Produce(30),  # More than a segment holds.
    MoveClock(1_000),
    Produce(5, "orders", 1),
    TierNow(),
    Seal(),
    MoveClock(1_000),
    Produce(8),
    TierNow(),
    Reopen(),
    MoveClock(1_000),
    Produce(3),
    TierNow(),
]
EXPECTED: list[Step] = [ExpectEverything(), ExpectTierHolds(0, 53), ExpectTierHolds(0, 5, queue_id=1)]


def live(
    path: Path, life: Sequence[Step], die_at: int, after: bool, *, bundled: bool = False
) -> tuple[BrokerWorld, DyingDriver]:
    """Play a life; where it dies, the next process repeats the step that was under way."""
    driver = DyingDriver(BucketDriver() if bundled else MemoryDriver())
    world = BrokerWorld(
        path, driver, tiered_store_commit_log_max_size=2_000, tiered_store_consume_queue_max_size=20 * 16,
        tiered_store_index_file_max_index_num=40, tier_manifest_interval=0, tier_bundle_interval=1_000 * bundled,
    )  # fmt: skip
    driver.die_at, driver.after = die_at, after
    for step in life:
        try:
            step.run(world)
        except Died:
            if world._store is not None:
                world.kill()
            world.open()
            if not isinstance(step, Reopen):
                step.run(world)
    return world, driver


def check(
    path: Path, life: Sequence[Step], expected: Sequence[Step], die_at: int, after: bool, *, bundled: bool = False
) -> None:
    world, driver = live(path, life, die_at, after, bundled=bundled)
    try:
        driver.die_at = 0
        for step in [*expected, EraseBrokerDisk(), Reopen(restore=True), *expected]:
            step.run(world)
    except BaseException as error:
        error.add_note(f"died at call {die_at}, {'after' if after else 'before'}")
        raise
    finally:
        world.bury()


def call_count(path: Path, life: Sequence[Step], *, bundled: bool = False) -> int:
    world, driver = live(path, life, 0, False, bundled=bundled)
    count = driver.calls
    world.bury()
    return count


@pytest.mark.parametrize("after", [False, True])
def test_a_broker_that_dies_at_a_call_to_the_tier_loses_and_doubles_nothing(tmp_path: Path, after: bool) -> None:
    count = call_count(tmp_path / "count", LIFE)
    for die_at in range(1 + after, count + 1, 7):
        check(tmp_path / str(die_at), LIFE, EXPECTED, die_at, after)


@pytest.mark.parametrize("life", ["life", "ending"])
@pytest.mark.parametrize("after", [False, True])
def test_a_broker_with_bundles_that_dies_at_a_call_to_the_tier_loses_and_doubles_nothing(
    tmp_path: Path, after: bool, life: str
) -> None:
    steps, expected = (LIFE, EXPECTED) if life == "life" else (ENDING, ENDED)
    count = call_count(tmp_path / "count", steps, bundled=True)
    for die_at in range(1 + after, count + 1, 29):
        check(tmp_path / str(die_at), steps, expected, die_at, after, bundled=True)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_broker_that_dies_at_any_call_to_the_tier_loses_and_doubles_nothing(tmp_path: Path, after: bool) -> None:
    count = call_count(tmp_path / "count", LIFE)
    for die_at in range(1, count + 1):
        check(tmp_path / str(die_at), LIFE, EXPECTED, die_at, after)


class DeleteTopic:
    def run(self, world: BrokerWorld) -> None:
        world.store.delete_topics(["orders"])
        world.sent = {name: sent for name, sent in world.sent.items() if name[0] != "orders"}


class Retain:
    def run(self, world: BrokerWorld) -> None:
        world.store.set_retention("short", hours=1)


ENDING: list[Step] = [
    Open(),
    Produce(30),
    Produce(30, "short"),
    Retain(),
    Produce(3, "kept"),
    TierNow(),
    Seal(),
    MoveClock(50 * HOUR_MS),
    ExpireTier(),
    DeleteTopic(),
    Produce(4),
    TierNow(),
    Seal(),
]


class ForgetShort:
    def run(self, world: BrokerWorld) -> None:
        file = world.store.tier.files.find("short", 0)
        assert file is not None
        assert file.min_offset > 0
        world.sent.pop(("short", 0), None)


ENDED: list[Step] = [ForgetShort(), ExpectMessages(), ExpectTierHolds(0, 4), ExpectTierHolds(0, 3, "kept")]


@pytest.mark.parametrize("after", [False, True])
def test_a_broker_that_dies_while_it_expires_and_deletes_goes_on_with_it(tmp_path: Path, after: bool) -> None:
    count = call_count(tmp_path / "count", ENDING)
    for die_at in range(1 + after, count + 1, 5):
        check(tmp_path / str(die_at), ENDING, ENDED, die_at, after)
