"""Lives by chance: steps by chance, the same ones for the same seed, and everything is expected always."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import HOUR_MS, BrokerWorld
from scenarios.steps import (
    BackEndDown,
    BackEndUp,
    EraseBrokerDisk,
    ExpectEverything,
    ExpectMessages,
    KillWriter,
    MoveClock,
    Open,
    Pause,
    Produce,
    Reopen,
    Resume,
    Step,
    TierNow,
    play,
)
from servers.faulty_driver import Fault, FaultyDriver, SeededFaults
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import bare_driver


class Evict:
    """Local files that are proven go; there may be none."""

    def run(self, world: BrokerWorld) -> None:
        world.clock.advance_ms(73 * HOUR_MS)
        world.evict()


class Upkeep:
    """Whatever waits its turn has it."""

    def run(self, world: BrokerWorld) -> None:
        tier = world.store.tier
        tier.engine.tick()
        while tier.engine.step():
            continue
        if tier.index is not None:
            tier.index.run_once()


class TierWithFaults:
    """Try to upload through a back end that fails by chance, loses answers and tears writes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def run(self, world: BrokerWorld) -> None:
        rates = {Fault.BEFORE: 0.08, Fault.AFTER: 0.08, Fault.TORN: 0.04, Fault.STALE: 0.02}
        before = world.driver.plan
        world.driver.plan = SeededFaults(self.seed, rates)
        for _ in range(8):
            world.clock.advance_ms(120_000)
            world.store.flush_to_tier()
            Upkeep().run(world)
        world.driver.plan = before


def life(seed: int) -> list[Step]:
    """Steps that fit each other: what is down comes up again before everything has to be there."""
    chance = random.Random(seed)
    steps: list[Step] = [Open()]
    down = paused = False
    for _ in range(25):
        kind = chance.choice("pppppttuukkrrecmdsxff")
        if kind == "p":
            steps += [MoveClock(1_000 + chance.randrange(5_000)), Produce(chance.randrange(1, 60), "orders",
                      chance.choice([0, 0, 0, 1, 2]), {"size": chance.choice([10, 60, 600])})]  # fmt: skip
        elif kind == "t" and not down and not paused:
            steps += [MoveClock(120_000), TierNow()]
        elif kind == "u":
            steps.append(Upkeep())
        elif kind == "k":
            steps.append(KillWriter())
            paused = False
        elif kind == "r":
            steps.append(Reopen())
            paused = False
        elif kind == "e":
            steps.append(Evict())
        elif kind == "f":
            steps.append(TierWithFaults(seed * 1_000 + len(steps)))
        elif kind == "c":
            steps.append(ExpectMessages() if not down else MoveClock(1))
        elif kind == "m":
            steps.append(MoveClock(chance.randrange(0, 3 * HOUR_MS)))
        elif kind == "d":
            steps.append(BackEndUp() if down else BackEndDown())
            down = not down
        elif kind == "s":
            steps.append(Resume() if paused else Pause())
            paused = not paused
        elif kind == "x" and not down and not paused:
            steps += [MoveClock(120_000), TierNow(), EraseBrokerDisk(), Reopen(restore=True), ExpectEverything()]
    steps += [BackEndUp(), Resume(), MoveClock(120_000), TierNow(), ExpectEverything(), Evict(), ExpectEverything()]
    return [*steps, EraseBrokerDisk(), Reopen(restore=True), ExpectEverything()]


def live(path: Path, seed: int, driver: TierDriver | None = None, **settings: Any) -> None:
    settings = {"tiered_store_file_reserved_time": 100_000, **settings}
    world = BrokerWorld(path, None if driver is None else FaultyDriver(driver), **settings)
    try:
        play(world, life(seed))
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


@pytest.mark.parametrize("seed", range(6))
def test_a_life_by_chance(tmp_path: Path, seed: int) -> None:
    live(tmp_path, seed)


@pytest.mark.parametrize("kind", ["file", "objects"])
def test_a_life_by_chance_on_another_back_end(tmp_path: Path, kind: str) -> None:
    directory = tmp_path / "tier"
    directory.mkdir()
    url = directory.as_uri() if kind == "file" else f"memory://{tmp_path.name}?driver=object"
    live(tmp_path, 100 + len(kind), bare_driver(url, {}))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_100))
def test_many_lives_by_chance(tmp_path: Path, seed: int) -> None:
    sizes: dict[str, Any] = (
        {"tiered_store_group_commit_size": 1_500} if seed % 2 else {"tiered_store_group_commit_count": 5}
    )
    live(tmp_path, seed, tiered_storage_level=seed // 2 % 2 + 1, **sizes)
