"""What timers that are due within a year cost in the tier, counted over their whole life: objects, bytes, requests.

They go the way of a broker's: timer topic, wheel, tier; sorted by upkeep; pulled before they are due; delivered. Beside
it stands what the wheel alone would write: a timer beyond its window is put into the timer topic again each time.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import delivery_side, store_side
from benchmarks.report import Report
from tiermq.delivery.tiered_timers.tier_timers import PulledRecord, TierTimers
from tiermq.delivery.tiered_timers.tiered_timer_state import TieredTimerState
from tiermq.delivery.timer.timer_enqueue import slot_for
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.files.os_file_access import OsFileAccess
from tiermq.testing.local_broker import MovableClock
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease

CLUSTER, BROKER = "DefaultCluster", "bench"
DAY_S = 24 * 3_600
YEAR_S = 365 * DAY_S
STEP_S = DAY_S // 2
LOG_FILE_BYTES = 64 << 20


class CountedObjects:
    """Passes everything on; counts requests by name, and the timer objects and bytes that were put."""

    def __init__(self, inner: TierDriver) -> None:
        self._inner = inner
        self.requests: Counter[str] = Counter()
        self.objects = 0
        self.bytes = 0

    def put_object(self, name: str, data: bytes, **named: Any) -> str:
        self.requests["put"] += 1
        if name.endswith(".timers"):
            self.objects += 1
            self.bytes += len(data)
        return self._inner.put_object(name, data, **named)

    def get_object(self, name: str) -> Any:
        self.requests["get"] += 1
        return self._inner.get_object(name)

    def list_objects(self, prefix: str = "") -> list[str]:
        self.requests["list"] += 1
        return self._inner.list_objects(prefix)

    def delete_object(self, name: str) -> None:
        self.requests["delete"] += 1
        self._inner.delete_object(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class LeaseOwner:
    """The right to write, by a lease that is kept as long as the program runs."""

    writer = "bench"

    def __init__(self, driver: TierDriver) -> None:
        self._lease = BrokerLease(driver, CLUSTER, BROKER, self.writer)
        self._lease.acquire()

    def own(self) -> int:
        return self._lease.epoch

    def check(self) -> None:
        self._lease.check()


def rolls_in_the_wheel(delay_s: int, settings: TimerSettings) -> int:
    """How often the wheel alone would put a timer again that is due after so long."""
    at_ms, due_ms, rolls = 0, delay_s * 1_000, 0
    while True:
        at_ms, is_roll = slot_for(due_ms, at_ms, settings)
        if not is_roll:
            return rolls
        rolls += 1


def measure(made: Report, directory: Path, count: int, flushes: int) -> None:
    """Let `count` timers live, and state what they cost. They come in so many seconds, each writes an object."""
    clock = MovableClock()
    driver = CountedObjects(open_driver((directory / "tier").as_uri()))
    with ExitStack() as stack:
        root = directory / "store"
        store = stack.enter_context(store_side.open_store(root, LOG_FILE_BYTES, clock=clock))
        state = TieredTimerState(driver, CLUSTER, BROKER, LeaseOwner(driver))
        far = TierTimers(state, PulledRecord(str(root), state.place, OsFileAccess()), clock, DAY_S * 1_000)
        timers = TimerService(store, root, clock, tiered=far)
        stack.callback(timers.close)
        delays = _delays(count)
        pool = store_side.message_pool()
        record_bytes = 0
        for number, delay_s in enumerate(delays, start=1):
            due_ms = clock.now_ms() + delay_s * 1_000
            put = store.put(delivery_side.timer_message(timers, pool[number % len(pool)], due_ms))
            record_bytes += put.size
            if number % max(1, count // flushes) == 0 or number == count:
                clock.advance(1)
                _turn(store, timers, far)
        made.rates["far_objects_put"] = driver.objects
        made.rates["far_bytes_put_per_byte"] = round(driver.bytes / record_bytes, 3)
        while clock.ahead.total_seconds() < YEAR_S + 3 * DAY_S:
            clock.advance(STEP_S)
            _turn(store, timers, far)
        delivered = delivery_side.stored_count(store)
    if delivered != count:
        raise RuntimeError(f"expected {count} delivered timers, found {delivered}")
    settings = timers.settings
    rewrites = sum(rolls_in_the_wheel(delay_s, settings) for delay_s in delays) / count
    made.ratios["far_rewrites_of_the_wheel_vs_tier"] = round(rewrites / (driver.bytes / record_bytes), 4)
    made.rates["far_bytes_put_per_byte_in_a_life"] = round(driver.bytes / record_bytes, 3)
    made.rates["far_rewrites_of_the_wheel_alone"] = round(rewrites, 1)
    made.rates["far_timers_per_object"] = round(count / driver.objects, 1)
    made.rates["far_timers_per_request"] = round(count / driver.requests.total(), 1)
    made.environment["far_timers"] = count


def _delays(count: int) -> list[int]:
    """Seconds, over a year, in no order; none within the horizon."""
    chance = random.Random(3)
    return [chance.randrange(2 * DAY_S, YEAR_S) for _ in range(count)]


def _turn(store: Any, timers: TimerService, far: TierTimers) -> None:
    """Everything that can be done now. Checkpoints, and flushes of tiered timers, come once a second of the clock."""
    while timers.run_once() == 0.0 or store.dispatch_now():
        pass
    while far.tend():
        pass
