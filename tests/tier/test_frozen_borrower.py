"""A job that stands still in the middle of a change, with a lease that it was lent, and goes on when it has lost it.

A process is stopped (SIGSTOP, a suspended machine, a long collection) between two requests. Its broker waits for one
term, takes its lease back, and goes on: it uploads, retains and merges. Then the job sends the request that it was
about to send, and all that follow until it is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from obstore.store import MemoryStore

from scenarios.broker_world import BrokerWorld
from servers.faulty_driver import FaultyDriver
from tier.driver.objects import URL, FreezingRequests, TestRequests
from tier.test_lent_lease import damage_units, require_all, require_equal_metadata, round_of_index, tending
from tiermq.errors import TierMQError
from tiermq.pipeline import worker_cache
from tiermq.pipeline.compact.job import compact
from tiermq.pipeline.expire.job import expire
from tiermq.pipeline.reindex.job import reindex
from tiermq.pipeline.verify.job import verify
from tiermq.tier.driver.contract import READS, ForwardingDriver
from tiermq.tier.driver.object_store import ObjectStoreDriver
from tiermq.tier.metadata.broker_lease import LeaseKeeper
from tiermq.tier.names import SegmentKey

TIER = "memory://frozen"
Result = TypeVar("Result")


class FreezingDriver(ForwardingDriver):
    """A driver of the process that stands still, for a tier that no request shows."""

    def __init__(self, inner: Any, at: int, meanwhile: Callable[[], object], operation: str = "") -> None:
        """`operation`: changes of other kinds do not count."""
        super().__init__(inner)
        self._at, self._meanwhile, self._operation = at, meanwhile, operation
        self.changes: list[str] = []

    def forward(self, operation: str, key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        if operation not in READS and operation.startswith(self._operation):
            self.changes.append(f"{operation} {key or ''}")
            if len(self.changes) == self._at:
                self._meanwhile()
        return super().forward(operation, key, call)


class Frozen:
    """One world, one job, one moment."""

    def __init__(self, path: Path, at: int, kind: str, *, in_objects: bool, operation: str = "") -> None:
        path.mkdir()
        self.kind = kind
        self.world = world = BrokerWorld(path)
        in_memory, store = world.driver.inner, MemoryStore()

        def opened() -> Any:
            """Each process has its own."""
            inner = ObjectStoreDriver(TestRequests(store), URL, clock=world.clock) if in_objects else in_memory
            return FaultyDriver(inner)

        self._opened = opened
        self._open()
        for _ in range(4):
            world.put(30)
            world.put(15, "old")
            world.store.flush_to_tier()
            round_of_index(world)
            world.clock.advance_ms(1_000)
        self.is_frozen = False
        requests = FreezingRequests(store, URL, at, self._meanwhile)
        driver = FreezingDriver(opened(), at, self._meanwhile, operation)
        self.job = requests if in_objects else driver
        worker_cache._drivers[TIER] = ObjectStoreDriver(requests, URL, clock=world.clock) if in_objects else driver
        if kind == "expire":
            world.store.set_retention("old", max_bytes=2_000)
        if kind == "verify":
            damage_units(world)
        if kind == "verify open":
            damage_units(world, -1)

    def _open(self) -> None:
        self.world.driver = self._opened()
        self.world.open(tiered_storage_level="FORCE", tiered_store_index_file_max_index_num=40)

    def _meanwhile(self) -> None:
        """The broker takes its lease back after a term, and goes on."""
        world = self.world
        self.is_frozen = True
        self._take_back()
        world.put(40)
        world.put(3, "old")
        assert world.store.flush_to_tier()
        round_of_index(world)
        world.store.expire_now()
        world.put(40)
        assert world.store.flush_to_tier()
        round_of_index(world)

    def run(self) -> None:
        world = self.world
        place: dict[str, Any] = {"tier": TIER, "clock": world.clock, "wait": tending(world)}
        if self.kind == "compact":
            compact(None, items_max=10_000, **place)
        elif self.kind == "reindex":
            reindex(None, **place)
        elif self.kind == "expire":
            expire(None, **place)
        else:
            verify(None, repair=True, **place)

    def check(self) -> None:
        """Nothing is lost, and the next job finishes what this one has left."""
        world = self.world
        self._take_back()
        require_all(world)
        driver = worker_cache._drivers[TIER] = self._opened()
        for row in world.store.tier.metadata.all_segments():
            assert driver.size(row.key) >= row.size, row.key
        self.run()
        self._take_back()
        for _ in range(2):
            world.put(10)
            assert world.store.flush_to_tier()
            round_of_index(world)
            require_all(world)
            require_equal_metadata(world)
            worker_cache._drivers[TIER] = self._opened()
            found = verify(None, tier=TIER, clock=world.clock)
            assert not found.problems, found.problems
            world.close()
            self._open()

    def _take_back(self) -> None:
        while self.world.store.tend_lease():
            self.world.clock.advance_ms(5_000)


@pytest.fixture(autouse=True)
def keeper_stands_still_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseKeeper, "run_once", lambda _keeper: 1.0)


@pytest.mark.parametrize(
    ("kind", "operation", "at"), [("compact", "delete", 1), ("reindex", "put_object", 4), ("verify open", "replace", 1)]
)
def test_a_borrower_that_stood_still_before_the_change_that_matters(
    tmp_path: Path, kind: str, operation: str, at: int
) -> None:
    """One that removes, one that overwrites, one that replaces."""
    frozen = Frozen(tmp_path / "world", at, kind, in_objects=False, operation=operation)
    try:
        with contextlib.suppress(TierMQError):
            frozen.run()
        assert frozen.is_frozen
        frozen.check()
    finally:
        worker_cache._drivers.pop(TIER, None)
        frozen.world.bury()


@pytest.mark.slow
@pytest.mark.parametrize("in_objects", [False, True])
@pytest.mark.parametrize("kind", ["compact", "reindex", "expire", "verify", "verify open"])
def test_a_borrower_that_stood_still_does_no_harm_when_it_goes_on(tmp_path: Path, kind: str, in_objects: bool) -> None:
    at, refused = 1, 0
    while True:
        frozen = Frozen(tmp_path / str(at), at, kind, in_objects=in_objects)
        try:
            frozen.run()
        except TierMQError:
            refused += 1
        try:
            if frozen.is_frozen:
                frozen.check()
        except BaseException:
            print(f"{kind}, stood still before change {at}: {frozen.job.changes}")
            raise
        finally:
            worker_cache._drivers.pop(TIER, None)
            frozen.world.bury()
        if not frozen.is_frozen:
            break
        at += 1
    assert at > 5
    assert refused
