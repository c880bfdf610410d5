"""Who makes the commit log durable, and when.

    GroupCommit      SYNC_FLUSH: a producer that needs durability flushes for everybody who wrote before it
    RealTimeFlush    ASYNC_FLUSH: every interval, when enough pages are dirty; everything once in a while
    RealTimeCommit   with the transient pool: copies the pool's bytes to the file

Invariants: `flushed_where` only grows and bytes below it survive a power cut; a failed flush is final, because the
kernel may have dropped the pages that it could not write: the log stops accepting messages (`on_failure`) and every
waiting producer is told. The original only logs it.
Threads: one flush at a time, under `_flush_lock`; the flush itself (fdatasync) holds no interpreter lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from tiermq.clock import Clock
from tiermq.commitlog.commit_log import CommitLog
from tiermq.commitlog.flush_group import FlushGroup
from tiermq.config import StoreConfig
from tiermq.errors import StoreError
from tiermq.service import Service
from tiermq.status import PutStatus

SHUTDOWN_TRIES_MAX = 10


class Flusher:
    """The one place that flushes the commit log and tells the checkpoint what is durable."""

    def __init__(
        self,
        log: CommitLog,
        *,
        note_durable: Callable[[int], None],
        on_failure: Callable[[Exception], None],
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._note_durable = note_durable
        self._on_failure = on_failure
        self._on_progress = on_progress
        self._flush_lock = threading.Lock()
        self._commit_lock = threading.Lock()
        self._group = FlushGroup(self._flush_until, lambda: self.flushed_where, lambda: self.failure is not None)
        self.failure: Exception | None = None
        self.flush_count = 0

    @property
    def flushed_where(self) -> int:
        return self._log.files.flushed_where

    def commit(self, least_pages: int) -> bool:
        """Copy what the transient pool holds to the files; True when nothing moved."""
        with self._commit_lock:
            return self._log.files.commit(least_pages)

    def commit_all(self) -> None:
        """Copy everything that was put before."""
        for _ in range(len(self._log.files.files) + SHUTDOWN_TRIES_MAX):
            if self.commit(0):
                return

    def flush(self, least_pages: int) -> bool:
        """Flush one file's worth; True when nothing moved."""
        with self._flush_lock:
            return self._flush(least_pages)

    def flush_to(self, offset: int, timeout_s: float) -> bool:
        """Return True once everything below `offset` is durable: flush, or ride along with whoever is flushing.

        False when the wait is over or flushing failed; whether the bytes are durable is then unknown.
        """
        return self.flushed_where >= offset or self._group.wait(offset, timeout_s)

    def _flush_until(self, offset: int, deadline: float) -> None:
        """Flush everything below `offset`, unless flushing fails or nothing moves until the deadline."""
        files = self._log.files
        with self._flush_lock:
            while files.flushed_where < offset:
                unmoved = self._flush(0)
                if self.failure is not None or (unmoved and monotonic() >= deadline):
                    return

    def _flush(self, least_pages: int) -> bool:
        """The caller holds the lock."""
        if self.failure is not None:
            return True
        files, appender = self._log.files, self._log.appender
        newest_ms = appender.last_store_timestamp_ms  # Before the flush: what comes during it may not be durable.
        # After the time, so that its record lies below; not the last file's, which may not be listed yet.
        tail = appender.tail
        wrote = files.max_wrote_offset if tail is None else tail.base + tail.position
        try:
            self.commit(least_pages)
            unmoved = files.flush(least_pages)
        except (OSError, StoreError) as error:  # A StoreError is an OSError with a name: no room, read-only.
            self.failure = error
            self._on_failure(error)
            return True
        if not unmoved:
            self.flush_count += 1
            self._on_progress()
        if newest_ms > 0 and files.flushed_where >= wrote:
            self._note_durable(newest_ms)
        return unmoved

    def flush_all(self) -> None:
        """Flush until nothing moves."""
        with self._flush_lock:
            for _ in range(len(self._log.files.files) + SHUTDOWN_TRIES_MAX):
                if self._flush(0):
                    return


class GroupCommit(Service):
    """SYNC_FLUSH. Producers flush for themselves and each other; the thread serves those who do not wait."""

    def __init__(self, config: StoreConfig, flusher: Flusher) -> None:
        super().__init__("flush-commitlog")
        self._timeout_s = config.sync_flush_timeout / 1000
        self._flusher = flusher
        self._waiting: list[tuple[int, Callable[[PutStatus], None]]] = []
        self._waiting_lock = threading.Lock()

    def wait(self, offset: int) -> PutStatus:
        """Block until everything below `offset` is durable."""
        durable = self._flusher.flush_to(offset, self._timeout_s)
        return PutStatus.PUT_OK if durable else PutStatus.FLUSH_DISK_TIMEOUT

    def when_durable(self, offset: int, call: Callable[[PutStatus], None]) -> None:
        """Call back, on the flush thread, once everything below `offset` is durable (or could not be made so)."""
        with self._waiting_lock:
            self._waiting.append((offset, call))
        self.wake()

    def run_once(self) -> float:
        with self._waiting_lock:
            waiting, self._waiting = self._waiting, []
        if not waiting:
            self._flusher.flush(0)
        for offset, call in waiting:
            call(self.wait(offset))
        return 0.01 if waiting else 0.5

    def finish(self) -> None:
        self.run_once()
        self._flusher.flush_all()


class RealTimeFlush(Service):
    """ASYNC_FLUSH: a flush each interval when enough is dirty, and a thorough one now and then."""

    def __init__(self, config: StoreConfig, flusher: Flusher, clock: Clock) -> None:
        super().__init__("flush-commitlog")
        self._config = config
        self._flusher = flusher
        self._clock = clock
        self._last_thorough_ms = 0

    def run_once(self) -> float:
        now_ms = self._clock.now_ms()
        thorough = now_ms >= self._last_thorough_ms + self._config.flush_commit_log_thorough_interval
        if thorough:
            self._last_thorough_ms = now_ms
        self._flusher.flush(0 if thorough else self._config.flush_commit_log_least_pages)
        return self._config.flush_interval_commit_log / 1000

    def wake(self) -> None:
        if not self._config.flush_commit_log_timed or self.stopping:
            super().wake()

    def finish(self) -> None:
        self._flusher.flush_all()


class RealTimeCommit(Service):
    """Moves the transient pool's bytes to the files, so that readers and the flusher see them."""

    def __init__(self, config: StoreConfig, flusher: Flusher, clock: Clock, on_commit: Callable[[], None]) -> None:
        super().__init__("commit-commitlog")
        self._config = config
        self._flusher = flusher
        self._clock = clock
        self._on_commit = on_commit
        self._last_thorough_ms = 0

    def run_once(self) -> float:
        now_ms = self._clock.now_ms()
        pages = self._config.commit_commit_log_least_pages
        if now_ms >= self._last_thorough_ms + self._config.commit_commit_log_thorough_interval:
            self._last_thorough_ms = now_ms
            pages = 0
        if not self._flusher.commit(pages):
            self._on_commit()
        return self._config.commit_interval_commit_log / 1000

    def finish(self) -> None:
        for _ in range(SHUTDOWN_TRIES_MAX):
            if self._flusher.commit(0):
                return
