"""Counts the requests that a broker's tier costs: a day of quiet queues, and a backlog of busy ones."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore

from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.clock import HOUR_MS
from tiermq.tier.driver.object_requests import ObjectRequests
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.tiered_store import TieredStore

URL = "memory://counted"
TICK_MS = 20_000
DAY_TICKS = 24 * HOUR_MS // TICK_MS
SMALL_INDEX: dict[str, Any] = {
    "tiered_store_index_file_max_hash_slot_num": 64,
    "tiered_store_index_file_max_index_num": 5_000_000,
}


class CountedBroker:
    """A store with a tier in memory, with default settings but for the size of the index, at a clock that is moved."""

    def __init__(self, path: Path, **settings: Any) -> None:
        # Bundles are written at multiples of their interval, of up to an hour: what is counted must not depend on the
        # time of the test.
        self.clock = ManualClock(time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS)
        self.objects = MemoryStore()
        self.requests = ObjectRequests(self.objects, URL)
        self.store = TieredStore.open(
            path,
            driver=ObjectStoreDriver(self.requests, URL, clock=self.clock),
            clock=self.clock,
            background=False,
            broker_name="broker-a",
            tier_url=URL,
            **SMALL_INDEX,
            **settings,
        )
        self.upload_times: Counter[int] = Counter()  # Commits by the time at which they were made.
        self.store.tier.engine.on_upload.append(self._uploaded)

    def _uploaded(self, _topic: str, _queue_id: int, _offset: int) -> None:
        self.upload_times[self.clock.now_ms()] += 1

    def work(self) -> None:
        """What the threads of the tier do until nothing is due at this time."""
        self.store.local.dispatch_now()
        self.store.local.flush()
        self.store.tier.engine.tick()
        while self.store.tier.engine.step():
            pass
        self.store._upkeep.run_once()

    def pass_time(self, ticks: int) -> None:
        for _ in range(ticks):
            self.clock.advance_ms(TICK_MS)
            self.work()

    def object_count(self) -> int:
        return sum(len(batch) for batch in self.objects.list())


def spent(broker: CountedBroker, before: dict[str, int]) -> Counter[str]:
    return Counter(broker.requests.counts) - Counter(before)


def idle_day(path: Path) -> Counter[str]:
    """A broker without a message: its lease."""
    broker = CountedBroker(path)
    broker.work()
    before = broker.requests.counts
    broker.pass_time(DAY_TICKS)
    counted = spent(broker, before)
    broker.store.close()
    return counted


def quiet_day(path: Path, queues: int, *, days: int = 1, **settings: Any) -> tuple[Counter[str], CountedBroker]:
    """As `quiet_hours`; the last of `days` is counted."""
    return quiet_hours(path, queues, 24, rest=24 * (days - 1), **settings)


def quiet_hours(
    path: Path, queues: int, hours: int, *, rest: int = 0, **settings: Any
) -> tuple[Counter[str], CountedBroker]:
    """Each queue gets a message every hour, each at its own time. Counted are the hours behind `rest`.

    Arrivals start uploads; the sweep over all queues, which sends no request, is less frequent than by default.
    """
    broker = CountedBroker(path, tier_dispatch_interval=600_000, **settings)
    hour = HOUR_MS // TICK_MS
    before: dict[str, int] = {}
    for tick in range((rest + hours) * hour):
        if tick == rest * hour:
            before = broker.requests.counts
        for queue in range(tick % hour, queues, hour):
            assert broker.store.put(Message(f"topic-{queue // 8}", b"x" * 200, queue % 8, keys=[f"k{tick}"])).ok
        broker.pass_time(1)
    return spent(broker, before), broker


def busy_queues(path: Path, messages: int, queues: int = 10) -> tuple[Counter[str], CountedBroker]:
    """The messages as fast as they can be put, into all queues in turn; time passes at 50,000 messages a second."""
    broker = CountedBroker(path, tiered_storage_level="FORCE")
    before = broker.requests.counts
    for number in range(messages):
        assert broker.store.put(Message("orders", b"x" * 200, number % queues)).ok
        if number % 10_000 == 9_999:
            broker.clock.advance_ms(200)
            broker.work()
    broker.pass_time(6)
    return spent(broker, before), broker


def read_back(broker: CountedBroker, messages: int, queues: int = 10) -> Counter[str]:
    """Every message once, from the tier, queue by queue, in pages of 256."""
    before = broker.requests.counts
    count = 0
    for queue in range(queues):
        offset, end = 0, broker.store.max_offset("orders", queue)
        while offset < end:
            got = broker.store.get("orders", queue, offset, 256)
            count += got.count
            assert got.next_offset > offset, got
            offset = got.next_offset
    assert count == messages
    return spent(broker, before)
