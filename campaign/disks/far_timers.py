"""The ground of far timers: objects of a tier that nothing else has a copy of, and what a broker remembers of them.

Timers that are a day to weeks away, flushed in small objects, some of them merged. Damage may cost those of one object,
and then it is told; it is never given out as a timer, and never holds the others up.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from campaign.disks.ground import Verdict
from delivery.far.far_world import DAY_MS, HOUR_MS, NOW_MS, FarWorld
from tiermq.delivery.timer.far_timers import FarTimer
from tiermq.errors import TierError
from tiermq.tier.driver.tier_url import open_driver

TIMERS = 60
DAYS = 4
STEP_MS = 6 * HOUR_MS
TRIES_MAX = 3


class Contents(NamedTuple):
    timers: dict[bytes, int]
    """When each is due, by its record."""


class FarTimerGround:
    """See the module."""

    name = "far timers"
    mended = frozenset({"manifest"})
    unsummed = frozenset[str]()

    def build(self, root: Path, seed: int) -> Contents:
        chance = random.Random(seed)
        timers = {
            b"%d:" % number * chance.choice((5, 20)): NOW_MS + DAY_MS + chance.randrange(DAYS * DAY_MS)
            for number in range(TIMERS)
        }
        world = _world(root)
        world.add([FarTimer(due_ms, False, record) for record, due_ms in timers.items()], flush_every=7)
        world.tend()
        return Contents(timers)

    def kind_of(self, path: Path) -> str:
        """The lease is the ground of a tier's: its owner here is one of the tests' own."""
        if path.name.endswith(".tiermq.timers"):
            return "object of timers"
        return "manifest" if path.name == "manifest.tiermq.json" else ""

    def judge(self, root: Path, expected: Contents) -> Verdict:
        verdict = Verdict()
        found: dict[bytes, int] = {}
        end_ms = NOW_MS + (DAYS + 2) * DAY_MS
        world = None
        for _ in range(TRIES_MAX):  # As a broker does: what fails is tried again later.
            try:
                world = world or _world(root)
                for given in world.walk(end_ms, STEP_MS):
                    found |= {timer.record: timer.deliver_ms for timer in given}
            except TierError as error:
                verdict.told.append(str(error))
        verdict.compare(expected.timers, found)
        return verdict


def _world(root: Path) -> FarWorld:
    return FarWorld(root, open_driver((root / "tier").as_uri(), retry=None))
