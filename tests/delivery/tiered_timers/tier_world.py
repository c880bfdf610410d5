"""A broker's tiered timers in a test: a driver that outlives them, a clock that is moved, a lease of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from simulation.manual_clock import ManualClock
from tiermq.delivery.tiered_timers.tier_timers import PulledRecord, TierTimers
from tiermq.delivery.tiered_timers.tiered_timer_state import TieredTimerState, TimerOwner
from tiermq.delivery.tiered_timers.timer_upkeep import TimerLimits
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.broker_lease import BrokerLease

CLUSTER, BROKER = "DefaultCluster", "broker-a"
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000
SMALL = TimerLimits(object_bytes=2_000, run_bytes=8_000, flush_count=4, merge_count=3, cache_bytes=4_000)


class LeaseOwner:
    """The right to write, by a lease of its own and nothing else."""

    def __init__(self, driver: TierDriver, clock: ManualClock, name: str = "one") -> None:
        self.lease = BrokerLease(driver, CLUSTER, BROKER, name, clock=clock)
        self.writer = name
        self._held = False

    def own(self) -> int:
        if not self._held:
            self.lease.acquire()
            self._held = True
        return self.lease.epoch

    def check(self) -> None:
        self.lease.check()


class FarWorld:
    """`timers` is the process; `restart` kills it, `lose_disk` its machine."""

    def __init__(
        self,
        path: Path,
        driver: TierDriver,
        *,
        horizon_ms: int = DAY_MS,
        limits: TimerLimits = SMALL,
        access: FileAccess | None = None,
        owner: Callable[[TierDriver, ManualClock], TimerOwner] = LeaseOwner,
    ) -> None:
        self.path = path
        self.driver = driver
        self.clock = ManualClock(NOW_MS)
        self.horizon_ms = horizon_ms
        self.limits = limits
        self.access = access or OsFileAccess()
        self._owner = owner
        self.disks = 0
        self.timers = self.opened()

    def opened(self, driver: TierDriver | None = None) -> TierTimers:
        driver = driver or self.driver
        state = TieredTimerState(driver, CLUSTER, BROKER, self._owner(driver, self.clock))
        record = PulledRecord(str(self.path / f"disk-{self.disks}"), state.place, self.access)
        return TierTimers(state, record, self.clock, self.horizon_ms, self.limits)

    def restart(self) -> None:
        self.timers = self.opened()

    def lose_disk(self) -> None:
        self.disks += 1
        self.restart()

    def tend(self) -> None:
        while self.timers.tend():
            pass
        self.timers.tend()  # Removes what the last round replaced.

    def add(self, timers: Iterable[TieredTimer], *, flush_every: int = 1_000_000) -> None:
        for index, timer in enumerate(timers, start=1):
            self.timers.add(timer)
            if index % flush_every == 0:
                self.timers.flush()
        self.timers.flush()

    def walk(self, until_ms: int, step_ms: int) -> Iterator[list[TieredTimer]]:
        """Move the clock there in steps; what each pull gives, confirmed. The pulls reach half of the horizon ahead."""
        while self.clock.now_ms() < until_ms:
            self.clock.advance_ms(min(step_ms, until_ms - self.clock.now_ms()))
            given = list(self.timers.pull(self.clock.now_ms() + self.horizon_ms // 2))
            self.timers.pulled()
            self.timers.forget(self.clock.now_ms())
            self.tend()
            yield given

    def objects(self) -> list[str]:
        return [name.rpartition("timers.tiermq/")[2] for name in self.driver.list_objects() if "timers.tiermq" in name]


def timer(number: int, due_ms: int, *, size: int = 60, is_delete: bool = False) -> TieredTimer:
    return TieredTimer(due_ms, is_delete, (f"{number}:".encode() * size)[:size])


def number_of(found: TieredTimer) -> int:
    return int(found.record.partition(b":")[0])
