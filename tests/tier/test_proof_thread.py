"""Reading copies back is the tier's business: a back end that hangs holds up nothing but the files that wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import HOUR_MS, SETTINGS
from simulation.manual_clock import ManualClock
from small_store import LOG_BYTES
from tiermq import Message
from tiermq.store.clean_service import MANUAL_RUNS
from tiermq.tier.dispatch import proof
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.tiered_store import TieredStore

T = "orders"
KEPT: dict[str, Any] = {
    **SETTINGS,
    "tiered_store_file_reserved_time": 10_000,
    "tiered_store_commit_log_max_size": 1 << 30,
    "tiered_store_consume_queue_max_size": 1 << 20,
    "tier_proof_mode": "readback",
}


class HangingRereads(MemoryDriver):
    """Answers everything but rereads, until it is `released`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.clock = clock
        self.entered, self.released = threading.Event(), threading.Event()
        self.asked_by = ""

    def reread(self, key: Any, position: int, length: int) -> memoryview:
        self.asked_by = self.asked_by or threading.current_thread().name
        self.entered.set()
        self.released.wait()
        return super().reread(key, position, length)

    @contextmanager
    def released_at_last(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.released.set()


@pytest.fixture
def driver() -> HangingRereads:
    return HangingRereads(ManualClock(time.time_ns() // 1_000_000))  # The files of the real disk are of today.


def opened(path: Path, driver: HangingRereads, **more: Any) -> TieredStore:
    return TieredStore.open(path, driver=driver, clock=driver.clock, **{**KEPT, **more})


def filled(store: TieredStore) -> int:
    """Many log files, all in the tier and due; where the last one begins, which always stays."""
    for number in range(240):
        assert store.put(Message(T, b"%03d" % number * 500)).ok
    assert store.flush_to_tier()
    return store.local.max_physical_offset // LOG_BYTES * LOG_BYTES


def counted(service: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """One permit for each time that the service has done it."""
    done, act = threading.Semaphore(0), getattr(service, name)

    def counting() -> None:
        act()
        done.release()

    monkeypatch.setattr(service, name, counting)
    return done


def next_round(store: TieredStore, *done: threading.Semaphore) -> None:
    """Wait until housekeeping has done each of those after now, whatever it did before."""
    for each in done:
        while each.acquire(blocking=False):
            pass
    for _ in range(2):
        for each in done:
            store.local._parts.housekeeping.wake()
            each.acquire()


def test_housekeeping_goes_on_while_the_tier_hangs_and_files_go_when_it_answers(
    tmp_path: Path, driver: HangingRereads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, driver) as store, driver.released_at_last():
        monkeypatch.setattr(proof, "UNITS_AT_ONCE", 1)  # As in large files: the proof of one says nothing of the next.
        last_file = filled(store)
        assert last_file > MANUAL_RUNS * LOG_BYTES
        housekeeping = store.local._parts.housekeeping
        sampled = counted(housekeeping, "_sample", monkeypatch)
        checkpointed = counted(housekeeping._checkpoint, "flush", monkeypatch)
        driver.clock.advance_ms(100 * HOUR_MS)
        store.local._parts.cleaner.request()
        store.local.clean_soon()
        driver.entered.wait()
        assert driver.asked_by == "tier-proof", "the store's own thread waits for the tier"
        next_round(store, sampled, checkpointed)
        cleaned = store.local.clean_now()
        assert (cleaned.log_files, cleaned.vetoed, store.local.min_physical_offset) == (0, True, 0)
        tier: Any = store.status()["tier"]
        assert "to be compared with the tier" in tier["unproven"]
        driver.released.set()
        # The clock stands still: only the proof itself brings the cleaner back, for each file, however many they are.
        while store.local.min_physical_offset < last_file:
            next_round(store, sampled)
        tier = store.status()["tier"]
        assert tier["unproven"] == ""
        assert store.get(T, 0, 0).messages[0].body == b"000" * 500
        assert 'tiermq_tier_proven_bytes_total{how="readback"}' in store.metrics.render_prometheus()


def test_a_close_does_not_wait_for_a_proof_that_hangs(
    tmp_path: Path, driver: HangingRereads, caplog: pytest.LogCaptureFixture
) -> None:
    with driver.released_at_last():
        store = opened(tmp_path, driver, tier_close_timeout=300)
        filled(store)
        driver.clock.advance_ms(100 * HOUR_MS)
        assert store.local.clean_now().vetoed
        driver.entered.wait()
        store.close()
        assert not store.local.running
    store.tier.engine.proof._thread.stop()
    assert "a round failed" not in caplog.text
    with opened(tmp_path, driver) as again:
        assert again.local.min_physical_offset == 0
        assert again.flush_to_tier()
        assert again.clean_now().log_files > 0, "asked by hand, it proves on the thread that asks"
