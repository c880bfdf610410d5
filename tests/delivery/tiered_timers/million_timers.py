"""A program: so many tiered timers over a year in a directory, given back day by day; prints counts and its memory.

    python -m delivery.tiered_timers.million_timers DIRECTORY COUNT

A process of its own, because what it prints is the largest memory that it ever had.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from pathlib import Path

from delivery.tiered_timers.tier_world import BROKER, CLUSTER, DAY_MS, NOW_MS, LeaseOwner
from servers.faulty_driver import FaultyDriver
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.delivery.tiered_timers.tier_timers import PulledRecord, TierTimers
from tiermq.delivery.tiered_timers.tiered_timer_state import TieredTimerState
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.tier.driver.posix import PosixCalls, PosixDriver

RECORD = bytes(240)


class Unsynced(PosixCalls):
    """What is measured here is not the disk."""

    def sync_data(self, descriptor: int) -> None:
        """Not at all."""

    def sync_directory(self, path: str) -> None:
        """Not at all."""


class Requests:
    """Counts them by kind."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def next_fault(self, operation: str) -> None:
        self.counts[operation] = self.counts.get(operation, 0) + 1


def main(directory: Path, count: int) -> None:
    requests = Requests()
    driver = FaultyDriver(PosixDriver(directory / "tier", calls=Unsynced()), requests)
    clock = ManualClock(NOW_MS)
    state = TieredTimerState(driver, CLUSTER, BROKER, LeaseOwner(driver, clock))
    timers = TierTimers(state, PulledRecord(str(directory), state.place, SimulatedFileAccess()), clock, DAY_MS)
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chance = random.Random(1)
    for number in range(count):
        timers.add(TieredTimer(NOW_MS + DAY_MS + chance.randrange(365 * DAY_MS), False, number.to_bytes(8) + RECORD))
        if number % 10_000 == 9_999:
            timers.flush()
            while timers.tend():
                pass
    timers.flush()
    stored = dict(requests.counts)
    objects_max = len(driver.list_objects())
    seen = bytearray(count)
    while clock.now_ms() < NOW_MS + 367 * DAY_MS:
        clock.advance_ms(DAY_MS // 2)
        for timer in timers.pull(clock.now_ms() + DAY_MS // 2):
            seen[int.from_bytes(timer.record[:8])] += 1
            assert timer.deliver_ms > clock.now_ms() - DAY_MS
        timers.pulled()
        timers.forget(clock.now_ms())
        while timers.tend():
            pass
    timers.tend()
    print(json.dumps({
        "once": seen.count(1),
        "objects_max": objects_max,
        "objects_left": len(driver.list_objects()),
        "requests_to_store": sum(stored.values()),
        "requests": sum(requests.counts.values()),
        "memory_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before) * 1024,
    }))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
