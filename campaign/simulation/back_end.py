"""The tier's back end: what outlives every process, the drivers through which one process reaches it, and the weather.

Two kinds, because they fail differently: `plain` is the driver contract at its barest, whose writes can tear; `objects`
is the real object-store driver over a bucket in memory, whose every request can fail on its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from campaign.simulation.bucket import Bucket, BucketRequests
from campaign.simulation.machine import SteppedPool
from campaign.simulation.power import Power
from servers.faulty_driver import Fault, FaultyDriver
from simulation.manual_clock import ManualClock
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.driver.retry import RetryingDriver

CALM: Mapping[Fault, float] = {}
WEATHERS: dict[str, Mapping[Fault, float]] = {
    "calm": CALM,
    "unsteady": {Fault.BEFORE: 0.03, Fault.AFTER: 0.03, Fault.TWICE: 0.03, Fault.DELAY: 0.02, Fault.STALE: 0.01},
    "stormy": {Fault.BEFORE: 0.10, Fault.AFTER: 0.12, Fault.TORN: 0.06, Fault.TWICE: 0.05, Fault.DELAY: 0.04},
    "deaf": {Fault.AFTER: 0.35, Fault.TWICE: 0.15},
    "slow": {Fault.DELAY: 0.5},
    "down": {Fault.BEFORE: 1.0},
}
DELAYS_S = (0.05, 4.0, 45.0)
CALLS = frozenset(
    {"write", "read", "size", "trim", "seal", "is_sealed", "delete", "replace", "list_segments"}
) | frozenset({"get_object", "put_object", "delete_object", "list_objects"})


class Weather:
    """A fault plan (`servers.faulty_driver.FaultPlan`) whose chance begins again with every step."""

    def __init__(self) -> None:
        self.name = "calm"
        self.injected: Counter[str] = Counter()
        self._random = random.Random(0)
        self._shelters = 0
        self.is_fresh = False
        """Whether listings show everything: object stores do today, and a restore has nothing else to go by."""

    def begin_step(self, seed: int) -> None:
        self._random.seed(seed)

    @property
    def is_calm(self) -> bool:
        return self.name == "calm" or self._shelters > 0

    def __enter__(self) -> None:
        """For as long as the block lasts nothing goes wrong."""
        self._shelters += 1

    def __exit__(self, *_error: object) -> None:
        self._shelters -= 1

    def next_fault(self, operation: str) -> Fault | None:  # noqa: ARG002
        if self.is_calm:
            return None
        drawn = self._random.random()
        for fault, rate in WEATHERS[self.name].items():
            drawn -= rate
            if drawn < 0:
                if fault is Fault.STALE and self.is_fresh:
                    return None
                self.injected[fault.name.lower()] += 1
                return fault
        return None


class _Touching:
    """A driver whose calls go through the power, before and after their effect."""

    def __init__(self, inner: TierDriver, power: Power) -> None:
        self._inner = inner
        self._power = power
        self.url = inner.url

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        if name not in CALLS:
            return call

        def touched(*values: Any, **named: Any) -> Any:
            self._power.touch(name, str(values[0]) if values else "")
            result = call(*values, **named)
            self._power.touch(name, "done")
            return result

        return touched


class BackEnd:
    """`plain` or `objects`; `is_retrying` puts the driver that tries again on top, as a real tier has it."""

    def __init__(self, kind: str, clock: ManualClock, *, is_retrying: bool, delay_s: float) -> None:
        self.weather = Weather()
        self.is_retrying = is_retrying
        self._kind = kind
        self._clock = clock
        self._delay_s = delay_s
        self._memory = MemoryDriver(clock=clock)
        self._bucket = Bucket(clock)

    def driver(self, power: Power, seed: int) -> TierDriver:
        """How one process reaches it."""
        chance = random.Random(seed)
        bare: TierDriver
        if self._kind == "objects":
            requests = BucketRequests(self._bucket, self.weather, power, chance, self._sleep, self._delay_s)
            bare = objects = ObjectStoreDriver(requests, "memory://bucket", clock=self._clock)
            objects._pool.shutdown()
            objects._pool = SteppedPool()  # type: ignore[assignment]
        else:
            touching: Any = _Touching(self._memory, power)
            bare = FaultyDriver(touching, self.weather, delay_s=self._delay_s, sleep=self._sleep)
        if not self.is_retrying:
            return bare
        return RetryingDriver(bare, clock=self._clock, chance=chance.random, wait=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self._clock.advance_ms(round(seconds * 1000))
