"""World: one simulated disk, one store on it, and a history that both are held to, step by step on one thread."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from crash.history import History, Sent, put_batch, put_many, put_one
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.store.local_store import LocalStore

ROOT = "/store"
QUEUES = [("orders", 0), ("orders", 1), ("refunds", 0)]
TINY: dict[str, Any] = {
    "mapped_file_size_commit_log": 8192,
    "mapped_file_size_consume_queue": 20 * 30,  # More than one crash page.
    "max_hash_slot_num": 64,
    "max_index_num": 40,
    "file_reserved_time": 0,
    "delete_commit_log_files_interval": 0,
}


class PowerCut(BaseException):
    """Raised by every call to a file system that has no power any more."""


class World:
    """See the module. `steps` lets a test repeat a history: each is a method name with its arguments."""

    def __init__(self, sync: bool = True, **settings: Any) -> None:
        self.clock = ManualClock()
        self.access = SimulatedFileAccess(clock=self.clock)
        self.sync = sync
        self.settings = {**TINY, "flush_disk_type": "SYNC_FLUSH" if sync else "ASYNC_FLUSH", **settings}
        self.history = History()
        self.store = self._opened()

    def _opened(self) -> LocalStore:
        return LocalStore.open(ROOT, access=self.access, clock=self.clock, background=False, **self.settings)

    # What users do

    def put(self, queue: int, body_bytes: int, padding_bytes: int = 0) -> None:
        put_one(self.store, self.history, self._prepare(queue, body_bytes, padding_bytes), self.sync)

    def put_many(self, sizes: list[tuple[int, int]]) -> None:
        put_many(self.store, self.history, [self._prepare(queue, size) for queue, size in sizes], self.sync)

    def put_batch(self, queue: int, sizes: list[int]) -> None:
        put_batch(self.store, self.history, [self._prepare(queue, size) for size in sizes], self.sync)

    def _prepare(self, queue: int, body_bytes: int, padding_bytes: int = 0) -> Sent:
        return self.history.prepare(QUEUES[queue], body_bytes, padding_bytes)

    def flush(self) -> None:
        self.store.flush()
        self.history.all_durable()

    def dispatch(self) -> None:
        self.store.dispatch_now()

    def flush_queues(self) -> None:
        self.store.flush_queues()

    def clean(self) -> None:
        self.history.cleaning = True
        if not self._outlives_the_process:
            self.flush()  # What the pool holds cannot be read yet, and would be missed.
        self.store.dispatch_now()
        self.store.clean_now()
        self.history.settle(self.store)

    def move_clock(self, delta_ms: int) -> None:
        self.clock.advance_ms(delta_ms)

    def reopen(self) -> None:
        self.store.close()
        self.history.all_durable()
        self._open_and_settle()

    # What happens to them

    def kill(self) -> None:
        """The process dies: locks go, every byte that was written stays."""
        self.access._locked.clear()
        self.open_only()
        for sent in self.history.messages:
            sent.durable = sent.durable or (sent.physical_offset >= 0 and self._outlives_the_process)
        self.settle()

    @property
    def _outlives_the_process(self) -> bool:
        return not self.settings.get("transient_store_pool_enable")

    def cut_power(self, seed: int, likely: float) -> None:
        self.access = self.access.crash(chooser(seed, likely))
        self._open_and_settle()

    def cut_power_during(self, work: Callable[[], None], number: int, seed: int, likely: float) -> bool:
        """Do `work`, but lose the power at its n-th call to the file system; False when it was through before."""
        if not self.lose_power_during(work, number, seed, likely):
            return False
        self._open_and_settle()
        return True

    def lose_power_during(self, work: Callable[[], None], number: int, seed: int, likely: float) -> bool:
        """The same, but the store stays closed afterwards."""
        access = self.access
        left = number
        after: SimulatedFileAccess | None = None

        def count(operation: str, path: str) -> None:
            nonlocal left, after
            left -= 1
            if left < 0 and after is None:
                after = access.crash(chooser(seed, likely))
            if after is not None:
                raise PowerCut

        access.on_call = count
        try:
            work()
        except PowerCut:
            assert after is not None
            self.access = after
            return True
        finally:
            access.on_call = None
        assert after is None, "a power cut was swallowed"
        return False

    def cut_power_during_recovery(self, numbers: list[int], seed: int, likely: float) -> None:
        """Cut the power, and again while the store recovers from it."""
        self.access = self.access.crash(chooser(seed, likely))
        for at, number in enumerate(numbers):
            if not self.lose_power_during(self.open_only, number, seed + at + 1, likely):
                self.settle()
                break
        else:
            self._open_and_settle()

    def open_only(self) -> None:
        self.store = self._opened()

    def _open_and_settle(self) -> None:
        self.open_only()
        self.settle()

    def settle(self) -> None:
        """After a recovery: what it found has been made durable by it."""
        self.history.settle(self.store)
        self.history.all_durable()

    def check(self) -> None:
        if not self._outlives_the_process:
            self.flush()
        self.store.dispatch_now()
        self.history.check_keys(self.store)
        assert self.store.verify_log() >= 0


def chooser(seed: int, likely: float) -> Callable[[str, int], bool]:
    """Which unsynced pages reach the disk: each by its own throw, none, or all."""
    throw = random.Random(seed)
    return lambda path, page: throw.random() < likely
