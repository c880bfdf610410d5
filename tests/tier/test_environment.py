"""Environment: a tiered store takes everything but its tier from them."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import SETTINGS
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq import Message
from tiermq.clock import Clock
from tiermq.errors import StoreLocked
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.open_tier import Environment, HeldLock
from tiermq.tier.tiered_store import TieredStore


class _AtOnce(Executor):
    def submit(self, work: Any, /, *values: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*values, **named))
        return future


class _Lock:
    def release(self) -> None: ...


class _Elsewhere(Environment):
    """A disk in memory, no threads."""

    restore_threads = 1
    index_query_threads = 0

    def __init__(self) -> None:
        self.access = SimulatedFileAccess()

    def open_metadata(self, path: Path, clock: Clock) -> MetadataStore:
        return MetadataStore(IN_MEMORY, clock=clock)

    def lock_tier(self, root: Path, owner: str) -> HeldLock:
        return _Lock()

    def fetch_pool(self, thread_count: int) -> Executor:
        return _AtOnce()


def test_a_tiered_store_touches_no_real_file_in_surroundings_without_any(tmp_path: Path) -> None:
    root = tmp_path / "nowhere"
    driver = MemoryDriver()
    with TieredStore.open(
        root, driver=driver, clock=ManualClock(), background=False, surroundings=_Elsewhere(), **SETTINGS
    ) as store:
        for number in range(20):
            assert store.put(Message("orders", b"body %d" % number, keys=[f"key-{number}"])).ok
        assert store.flush_to_tier()
        assert len(store.get("orders", 0, 0, 32).messages) == 20
        assert [m.queue_offset for m in store.query("orders", "key-7").messages] == [7]
    assert not root.exists()
    assert [info.size > 0 for info in driver.list_segments()]


def test_the_machine_locks_a_store_directory_for_one(tmp_path: Path) -> None:
    held = Environment().lock_tier(tmp_path, "the first")
    with pytest.raises(StoreLocked, match="the first"):
        Environment().lock_tier(tmp_path, "the second")
    held.release()
    Environment().lock_tier(tmp_path, "the second").release()


def test_discarded_metadata_leaves_no_file_behind(tmp_path: Path) -> None:
    around = Environment()
    path = tmp_path / "config" / "metadata.db"
    around.open_metadata(path, ManualClock()).close()
    path.with_name("metadata.db-wal").touch()
    around.discard_metadata(path)
    assert list(path.parent.iterdir()) == []
    around.discard_metadata(path)


def test_chance_is_a_share_of_one() -> None:
    assert all(0 <= Environment().chance() < 1 for _ in range(100))
