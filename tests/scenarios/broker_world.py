"""The world that scenarios act on: one broker's disk, its tier, a clock, and a record of everything that was put.

Nothing runs by itself: what a scenario's steps say is all that happens. The broker's disk is a real directory. When its
process is killed, the directory is copied as it lies there and the dead process keeps the old one, so that its open
files can do no harm; being of the same name, the copy is the same broker to the tier.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from servers.faulty_driver import FaultyDriver
from simulation.manual_clock import ManualClock
from small_store import SIZES
from tiermq import GetStatus, Message
from tiermq.message.stored_message import StoredMessage
from tiermq.store.store_lifecycle import DEFAULT_HOST
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.tiered_store import TieredStore

HOUR_MS = 3_600_000
SETTINGS: dict[str, Any] = {
    **SIZES,
    "broker_name": "broker-a",
    "tiered_store_file_reserved_time": 72,
    "tiered_store_commit_log_max_size": 4096,
    "tiered_store_consume_queue_max_size": 20 * 64,
    "tiered_store_index_file_max_hash_slot_num": 64,
    "tiered_store_index_file_max_index_num": 500,
}
OVER = (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)

GOING_ON = (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.OFFSET_TOO_SMALL)

Queue = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sent:
    """One message that was put and acknowledged."""

    offset: int
    body: bytes
    keys: tuple[str, ...]
    tags: str
    store_ms: int


class BrokerWorld:
    """One broker. `sent` is what everybody should be able to read, less what was said to be lost."""

    def __init__(
        self, path: Path, driver: TierDriver | None = None, *, store_host: str = DEFAULT_HOST, **settings: Any
    ) -> None:
        self.clock = ManualClock(time.time_ns() // 1_000_000)  # The cleaner compares it with the age of real files.
        self.disk = path / "disk"
        self.driver: Any = driver or FaultyDriver(MemoryDriver(clock=self.clock))
        self.settings = {**SETTINGS, **settings}
        self.sent: dict[Queue, list[Sent]] = {}
        self.dead: list[TieredStore] = []
        self._store: TieredStore | None = None
        self.serial = 0
        self.store_host = store_host

    @property
    def store(self) -> TieredStore:
        assert self._store is not None, "the broker is not running"
        return self._store

    def open(self, *, restore: bool = False, **settings: Any) -> TieredStore:
        self._store = TieredStore.open(
            self.disk, driver=self.driver, clock=self.clock, background=False, restore=restore,
            store_host=self.store_host,
            **{"tier_url": "memory://unused", **self.settings, **settings},
        )  # fmt: skip
        return self._store

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def kill(self) -> None:
        """The process is gone at once. What it had written is on the disk; its objects are left where they are."""
        old = self.disk.with_name(f"dead-{len(self.dead)}")
        self.disk.rename(old)
        shutil.copytree(old, self.disk)
        self.dead.append(self.store)
        self._store = None

    def erase_disk(self) -> None:
        """The machine is gone, with everything on it."""
        self.disk.rename(self.disk.with_name(f"dead-{len(self.dead)}"))
        if self._store is not None:
            self.dead.append(self._store)
            self._store = None

    def bury(self) -> None:
        """Let go of everything, at a test's end."""
        self.close()
        for store in self.dead:
            store.tier.pool.shutdown()
            store.tier.metadata.close()
            store.local._parts.allocator.shutdown()
            store.local._unmap()
            store.local._lock.release()

    # Acting

    def put(self, count: int, topic: str = "orders", queue_id: int = 0, *, size: int = 60, **fields: Any) -> None:
        queue = self.sent.setdefault((topic, queue_id), [])
        for _ in range(count):
            self.serial += 1
            body = f"{topic} {queue_id} {self.serial} ".encode().ljust(size, b".")
            keys, tags = (f"key-{self.serial}", f"all-{topic}"), f"t{self.serial % 3}"
            result = self.store.put(Message(topic, body, queue_id, keys=list(keys), tags=tags, **fields))
            assert result.ok, result
            queue.append(Sent(result.queue_offset, body, keys, tags, self.clock.now_ms()))
        self.store.local.dispatch_now()

    def read(
        self,
        topic: str = "orders",
        queue_id: int = 0,
        *,
        page: int = 7,
        ask: Callable[[Callable[[], Any]], Any] = lambda get: get(),
    ) -> list[StoredMessage]:
        """Every message of a queue from its minimum on, page by page, as a consumer reads. `ask` gets a page."""
        found: list[StoredMessage] = []
        offset = self.store.min_offset(topic, queue_id)
        while True:
            got = ask(partial(self.store.get, topic, queue_id, offset, page))
            if got.status in OVER:
                assert offset == self.store.max_offset(topic, queue_id)
                return found
            assert got.next_offset > offset, (got, offset)
            assert got.status in GOING_ON, got
            found += got.messages
            offset = got.next_offset

    def evict(self) -> int:
        """Run the local cleaner until it removes no more; how many log files went."""
        removed = 0
        while True:
            cleaned = self.store.clean_now()
            removed += cleaned.log_files
            if not cleaned.log_files:
                return removed
