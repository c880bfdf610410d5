"""FileAllocator: creates the next file before it is needed, on a background thread; TransientPool: its buffers.

`take(path, next_path, size)` returns `path`, usually created in advance by an earlier call, and starts creating
`next_path` for the next call. So a live directory has one file more than it has data.

Rules: files are created in the order of their offsets and a failure cancels the requests after it, so that a power cut
never leaves a hole. A failure is raised to the taker that waits for that file; after a failure in advance `take` tries
once more and raises what that attempt raises. One allocator serves one queue. With `threaded=False` there is no thread:
`take` creates both files, so that a test sees them in a fixed order.
"""

from __future__ import annotations

import logging
import mmap
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tiermq.clock import Clock
from tiermq.errors import StoreClosed, StoreError
from tiermq.files import system_calls
from tiermq.files.file_access import FileAccess
from tiermq.files.mapped_file import RESERVE_BYTES, MappedFile


class TransientPool:
    """Memory buffers for puts to new commit-log files, instead of their maps.

    Appends then never wait for the page cache's write-back; the price is that bytes which were not committed yet
    are lost with the process. Buffers are as large as a file, allocated once, and locked in memory when the system
    permits it.

    A fixed number of buffers. Any thread may borrow and return them.
    """

    __slots__ = ("_closed", "_free", "_lock", "count", "size")

    def __init__(self, count: int, size: int, *, lock_memory: bool = True) -> None:
        self.count = count
        self.size = size
        self._lock = threading.Lock()
        self._closed = False
        self._free: deque[mmap.mmap] = deque(mmap.mmap(-1, size) for _ in range(count))
        if lock_memory:
            for buffer in self._free:
                system_calls.lock_pages(buffer, size)

    @property
    def available(self) -> int:
        """How many buffers can be borrowed now."""
        return len(self._free)

    def borrow(self) -> mmap.mmap | None:
        """A buffer with its old content; None when all are in use."""
        with self._lock:
            return self._free.popleft() if self._free else None

    def give_back(self, buffer: mmap.mmap) -> None:
        """Return a borrowed buffer. No view of it may exist."""
        with self._lock:
            if not self._closed:
                self._free.append(buffer)
                return
        buffer.close()

    def close(self) -> None:
        """Free the memory; buffers in use are freed when they are returned."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, deque()
        for buffer in free:
            buffer.close()


WAIT_MS = 5000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is done to a file in advance, beyond creating it and reserving its first chunk."""

    warm: bool = False  # Touch every page and lock the file in memory (RocketMQ's warmMapedFileEnable).
    pages_per_sync: int = 0  # While warming, sync after this many pages; 0 for never.
    populate_bytes: int = 0  # Reserve and populate this many leading bytes; a cheaper form of warming.
    lock_memory: bool = False


PLAIN = Preparation()


class FileAllocator:
    """`_changed` guards every field. `take` belongs to the queue's writer, creation to the `allocate` thread."""

    def __init__(
        self,
        access: FileAccess,
        *,
        clock: Clock,
        reserve_bytes: int = RESERVE_BYTES,
        pool: TransientPool | None = None,
        fast_fail: bool = False,
        preparation: Preparation = PLAIN,
        wait_ms: int = WAIT_MS,
        threaded: bool = True,
        grows: bool = False,
    ) -> None:
        """`grows`: files get blocks when they are written, those that are made in advance none."""
        self._access = access
        self._clock = clock
        self._reserve_bytes = reserve_bytes
        self._pool = pool
        self._fast_fail = fast_fail
        self._preparation = preparation
        self._wait_ms = wait_ms
        self._threaded = threaded
        self._grows = grows
        self._changed = threading.Condition()
        self._wanted: deque[tuple[str, int]] = deque()
        self._awaited: str | None = None
        self._making: str | None = None
        self._ready: dict[str, MappedFile] = {}
        self._failed: dict[str, Exception] = {}
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="allocate", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Stop the thread and delete unused files."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.discard_unused()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def take(self, path: str, next_path: str, size: int) -> MappedFile:
        """The file at `path`, durable in its directory, its first chunk reserved; `next_path` is made afterwards.

        Raises what its creation raised (DiskFull, ReadOnlyStore, ...), or StoreError on timeout or, with fast fail,
        when the transient pool is empty. A file that is ready too late is kept for the next attempt.
        """
        self._discard(lambda ready: ready not in (path, next_path))
        if not self._threaded:
            return self._take_by_hand(path, next_path, size)
        with self._changed:
            if self._thread is None or self._stopping:
                raise StoreClosed(f"{path}: expected a running allocator, found it stopped.")
            self._failed.pop(path, None)
            self._request(path, next_path, size)
            self._awaited = path
            self._changed.notify_all()
            self._changed.wait_for(self._is_settled(path), self._wait_ms / 1000)
            self._awaited = None
            if path in self._ready:
                return self._ready.pop(path)
            if path in self._failed:
                raise self._failed.pop(path)
            if self._stopping:
                raise StoreClosed(f"{path}: the allocator was stopped while a file was being made.")
        raise StoreError(
            f"{path}: expected a new file of {size} bytes within {self._wait_ms} ms, found it unfinished. "
            "The disk is slow or stuck; the put can be tried again."
        )

    def _take_by_hand(self, path: str, next_path: str, size: int) -> MappedFile:
        file = self._ready.pop(path, None) or self._make(path, size, awaited=True)
        try:
            self._ready[next_path] = self._make(next_path, size, awaited=False)
        except (StoreError, OSError) as error:
            _log.warning("could not make %s in advance, will try again when it is needed: %s", next_path, error)
        return file

    def discard_unused(self) -> int:
        """Delete, durably, the files that were not taken; how many. Waits for one in creation."""
        return self._discard(lambda _: True)

    def _is_settled(self, path: str) -> Callable[[], bool]:
        return lambda: path in self._ready or path in self._failed or self._stopping

    def _request(self, path: str, next_path: str, size: int) -> None:
        """Queue what is missing, the earlier offset first. The caller holds `_changed`."""
        for wanted in (path, next_path):
            if wanted in self._ready or wanted == self._making or (wanted, size) in self._wanted:
                continue
            if not self._buffer_left():
                if wanted == path:
                    raise StoreError(
                        f"{path}: expected a free buffer in the transient pool, found all {self._pool_count()} in use. "
                        "Commit is behind; wait, or raise transientStorePoolSize."
                    )
                continue
            if wanted == path:
                self._wanted.appendleft((wanted, size))
            else:
                self._wanted.append((wanted, size))

    def _buffer_left(self) -> bool:
        if self._pool is None or not self._fast_fail:
            return True
        return self._pool.available - len(self._wanted) - (self._making is not None) > 0

    def _pool_count(self) -> int:
        return 0 if self._pool is None else self._pool.count

    def _discard(self, unwanted: Callable[[str], bool]) -> int:
        with self._changed:
            self._wanted = deque(entry for entry in self._wanted if not unwanted(entry[0]))
            self._changed.wait_for(lambda: self._making is None or not unwanted(self._making))
            paths = sorted(filter(unwanted, self._ready), key=lambda path: self._ready[path].from_offset, reverse=True)
            files = [self._ready.pop(path) for path in paths]
        for file in files:
            file.destroy(0)
        return len(files)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._stopping)
                if self._stopping:
                    self._wanted.clear()
                    return
                path, size = self._wanted.popleft()
                self._making = path
                awaited = self._awaited == path
            try:
                file = self._make(path, size, awaited)
            except Exception as error:  # noqa: BLE001 - the edge of the thread; the taker gets it.
                self._settle_failure(path, error)
            else:
                with self._changed:
                    self._ready[path] = file
                    self._making = None
                    self._changed.notify_all()

    def _settle_failure(self, path: str, error: Exception) -> None:
        """The thread's edge: the error is kept for the taker, and no file is created behind the missing one."""
        with self._changed:
            if self._awaited != path:
                _log.warning("could not make %s in advance, will try again when it is needed: %s", path, error)
            self._failed[path] = error
            self._wanted.clear()
            self._making = None
            self._changed.notify_all()

    def _make(self, path: str, size: int, awaited: bool) -> MappedFile:
        file = MappedFile.create(
            self._access, path, size, clock=self._clock, reserve_bytes=self._reserve_bytes, grows=self._grows
        )
        try:
            if awaited or not self._grows:
                file.reserve(1)
            if not awaited:  # A put is waiting for the awaited one, and warming a file can take seconds.
                self._prepare(file)
            buffer = None if self._pool is None else self._pool.borrow()
            if buffer is not None and self._pool is not None:
                file.attach_transient(buffer, self._pool)
        except BaseException:
            file.destroy(0)
            raise
        return file

    def _prepare(self, file: MappedFile) -> None:
        preparation = self._preparation
        if preparation.warm:
            file.warm(preparation.pages_per_sync)
        elif preparation.populate_bytes > 0:
            file.reserve(min(file.size, preparation.populate_bytes))
            file.populate(preparation.populate_bytes)
        if preparation.lock_memory:
            file.lock_memory()
