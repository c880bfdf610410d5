"""The simulated machine: a disk in memory that outlives processes, and what one process reaches of it.

The metadata's database is a SQLite database in memory. SQLite promises that what was committed is on the disk and that
nothing else is, so a life that ends leaves the last committed state, and that is what the next one finds. The pool does
its work when it is asked for a result, or when the simulation says so: read-ahead that comes late is a matter of steps.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from campaign.simulation.power import Power, PowerCut
from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.clock import Clock
from tiermq.tier.metadata.database import IN_MEMORY, Database
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.open_tier import Environment, HeldLock

KEEP_ALL = 1.0


class Disk:
    """What is there when no process runs: files, and the last committed metadata (None: none was ever made)."""

    def __init__(self, access: SimulatedFileAccess, metadata: bytes | None = None) -> None:
        self.access = access
        self.metadata = metadata

    @staticmethod
    def blank(clock: ManualClock) -> Disk:
        return Disk(SimulatedFileAccess(clock=clock))

    def after_cut(self, seed: int, likely: float) -> SimulatedFileAccess:
        """The files as a power cut leaves them: each unsynced page reached the disk by its own throw."""
        throw = random.Random(seed)
        return self.access.crash(lambda _path, _page: likely >= KEEP_ALL or throw.random() < likely)


class SimulatedDatabase(Database):
    """A database whose transactions are calls to the outside: a life may end before and after each commit."""

    def __init__(self, image: bytes | None, power: Power) -> None:
        self._image = image
        self._power = power
        super().__init__(IN_MEMORY)

    def _connect(self) -> Any:
        connection = super()._connect()
        if self._image is not None:
            connection.deserialize(self._image)
        return connection

    def _begin(self) -> bool:
        if self._owner is None:
            self._power.touch("begin", "metadata")
        return super()._begin()

    def _end(self, outermost: bool, commit: bool) -> None:
        commits = outermost and commit
        if commits:
            try:
                self._power.touch("commit", "metadata")
            except PowerCut:
                super()._end(outermost, False)
                raise
        super()._end(outermost, commit)
        if commits:
            self._power.touch("committed", "metadata")

    def let_go(self) -> bytes:
        """The last committed state; the process that had it open is gone."""
        if not self._closed:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            self._image = self._writer.serialize()
            self._closed = True
            self._writer.close()
        assert self._image is not None
        return self._image

    def close(self) -> None:
        self.let_go()


class SimulatedMetadata(MetadataStore):
    def __init__(self, database: SimulatedDatabase, clock: Clock) -> None:
        self._clock = clock
        self._database = database
        self.path = database.path


class _Work(Future[Any]):
    """Something that was handed to the pool. The thread that asks for its result does it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def run(self) -> None:
        if not self.set_running_or_notify_cancel():
            return
        try:
            self.set_result(self._work())
        except PowerCut as cut:
            self.set_exception(cut)
            raise
        except Exception as error:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:  # noqa: ARG002
        if not self.done():
            self.run()
        return super().result(0)

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self.set_running_or_notify_cancel()
        return cancelled


class SteppedPool(Executor):
    """No thread: work waits until its result is wanted or the simulation lets some of it be done."""

    def __init__(self) -> None:
        self._waiting: deque[_Work] = deque()
        self._is_shut = False

    def submit(self, work: Callable[..., Any], /, *values: Any, **named: Any) -> Future[Any]:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = _Work(lambda: work(*values, **named))
        self._waiting.append(future)
        return future

    def run(self, count: int) -> int:
        """Do so many of what waits, oldest first; how many were done."""
        done = 0
        while self._waiting and done < count:
            work = self._waiting.popleft()
            if not work.done():
                work.run()
                done += 1
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        self._is_shut = True
        self._waiting.clear()


class _Held:
    def release(self) -> None:
        """Locks of a simulated process go with it."""


class Process(Environment):
    """What one process, one life of a store, reaches of its machine. `chance` is drawn from a seed."""

    restore_threads = 1
    index_query_threads = 0

    def __init__(self, disk: Disk, power: Power, seed: int) -> None:
        self.disk = disk
        self.power = power
        self.access: SimulatedFileAccess = disk.access
        self.access.on_call = power.touch
        self.pool = SteppedPool()
        self._database: SimulatedDatabase | None = None
        self._chance = random.Random(seed)

    def open_metadata(self, path: Path, clock: Clock) -> MetadataStore:  # noqa: ARG002
        self._database = SimulatedDatabase(self.disk.metadata, self.power)
        return SimulatedMetadata(self._database, clock)

    def put_away_damaged_metadata(self, path: Path, root: Path, *, may_replace: bool) -> bool:  # noqa: ARG002
        return False  # What is in memory does not go bad.

    def put_away_metadata(self, path: Path) -> None:
        self.discard_metadata(path)

    def ask_timeout_s(self, timeout_ms: int) -> float:  # noqa: ARG002
        return 0.0

    def discard_metadata(self, path: Path) -> None:  # noqa: ARG002
        self.disk.metadata = self._database = None

    def lock_tier(self, root: Path, owner: str) -> HeldLock:  # noqa: ARG002
        return _Held()

    def fetch_pool(self, thread_count: int) -> Executor:  # noqa: ARG002
        return self.pool

    def chance(self) -> float:
        return self._chance.random()

    def leave(self, files: SimulatedFileAccess) -> Disk:
        """The process is over: the machine has these files now, and the metadata that was committed."""
        if self._database is not None:
            self.disk.metadata = self._database.let_go()
        files.on_call = None
        return Disk(files, self.disk.metadata)
