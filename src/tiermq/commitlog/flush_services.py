"""Flush services: make the commit log durable.

    GroupCommit      SYNC_FLUSH: a waiting producer flushes for all producers that wrote before it
    RealTimeFlush    ASYNC_FLUSH: every interval, when enough pages are dirty; everything at a longer interval
    RealTimeCommit   with the transient pool: copies the pool's bytes to the file

Invariants: `flushed_where` only grows and bytes below it survive a power cut; a failed flush is final, because the
kernel may have dropped the pages that it could not write: the log stops accepting messages (`on_failure`) and every
waiting producer is notified. The original only logs it.
Threads: one flush at a time, under `_flush_lock`; fdatasync holds no interpreter lock.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from tiermq.clock import Clock
from tiermq.commitlog.commit_log import CommitLog
from tiermq.config import StoreConfig
from tiermq.errors import StoreError
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.service import Service
from tiermq.status import PutStatus

PATIENCE = 1.0
"""The longest gathering of a leader, in multiples of the last flush's duration."""
PATIENCE_S_MAX = 0.001
SKIPS_MAX = 64
ROWS = 2
"""How many followers are woken at once: one active, one waking up."""


class _Follower:
    __slots__ = ("behind", "leads", "offset", "turn")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.leads = False
        self.behind: _Follower | None = None  # The follower that it wakes next.
        self.turn = threading.Lock()
        self.turn.acquire()


class FlushGroup:
    """Producers that wait for one flush together.

    One producer leads: it gathers followers for a moment, flushes, and releases every producer that the flush
    covers. Producers that came too late follow the next leader, or become the next leader.

    Why gather: of producers that put again as soon as they are released, half would otherwise come just too late for
    each flush, and two halves would alternate for ever, each with a separate flush. A leader therefore expects all
    producers that the previous flush released or left waiting, and waits for them at most as long as a flush takes.
    If no producer comes meanwhile, the next leaders do not wait, with an increasing back-off.

    Why followers are released in a chain: woken all at once, all but one would block again on the interpreter lock.
    So a leader wakes the first two, and a woken follower first wakes the next one.

    Invariants: at most one leader; a follower is released once, because its bytes are durable, flushing failed, or it
    is the leader now; a released follower releases the next one, however it leaves; no follower waits without a
    leader.

    `flush(offset, deadline)` makes everything below the offset durable, or gives up; `flushed_where()` is the
    flushed offset, `has_failed()` whether flushing failed for good.
    """

    def __init__(
        self,
        flush: Callable[[int, float], None],
        flushed_where: Callable[[], int],
        has_failed: Callable[[], bool],
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._flush = flush
        self._flushed_where = flushed_where
        self._has_failed = has_failed
        self._now = now
        self._lock = threading.Lock()
        self._led = False
        self._followers: list[_Follower] = []
        self._expected = 1
        self._complete: threading.Lock | None = None  # What a gathering leader waits for.
        self._flush_s = 0.0
        self._misses = 0
        self._skips = 0

    @property
    def expected(self) -> int:
        """How many producers the next leader expects, including the leader."""
        return self._expected

    def wait(self, offset: int, timeout_s: float) -> bool:
        """True once everything below `offset` is durable; False on timeout, or when flushing failed."""
        deadline = self._now() + timeout_s
        follower = self._join(offset)
        if follower is not None and not self._follow(follower, timeout_s):
            return self._flushed_where() >= offset
        try:
            self._gather()
            begun = self._now()
            self._flush(offset, deadline)
            self._flush_s = self._now() - begun
        finally:
            self._hand_over()
        return self._flushed_where() >= offset

    def _join(self, offset: int) -> _Follower | None:
        """Queue the caller as a follower; None when it leads."""
        with self._lock:
            if not self._led:
                self._led = True
                return None
            follower = _Follower(offset)
            self._followers.append(follower)
            if self._complete is not None and len(self._followers) + 1 >= self._expected:
                self._complete.release()
                self._complete = None
            return follower

    def _follow(self, follower: _Follower, timeout_s: float) -> bool:
        """Wait for the release; True for a follower that leads now."""
        try:
            if not follower.turn.acquire(timeout=timeout_s):
                self._leave(follower)
            return follower.leads
        except BaseException:  # From a signal, in the main thread: followers must not wait for a producer that left.
            if not self._leave(follower) and follower.leads:
                self._hand_over()
            raise
        finally:
            if follower.behind is not None:
                follower.behind.turn.release()

    def _leave(self, follower: _Follower) -> bool:
        """Leave after a timeout; False when the follower was released at the last moment."""
        with self._lock:
            if follower not in self._followers:
                return False
            self._followers.remove(follower)
            return True

    def _gather(self) -> None:
        with self._lock:
            if len(self._followers) + 1 >= self._expected:
                return
            if self._skips > 0:
                self._skips -= 1
                return
            before = len(self._followers)
            complete = self._complete = threading.Lock()
            complete.acquire()
        all_came = complete.acquire(timeout=min(self._flush_s * PATIENCE, PATIENCE_S_MAX))
        with self._lock:
            self._complete = None
            came = all_came or len(self._followers) > before
            self._misses = 0 if came else self._misses + 1
            self._skips = 0 if came else min(2**self._misses, SKIPS_MAX)

    def _hand_over(self) -> None:
        """Release every served producer, and make a waiting one the leader."""
        failed = self._has_failed()
        with self._lock:
            where = self._flushed_where()
            served = [each for each in self._followers if failed or each.offset <= where]
            waiting = [each for each in self._followers if not (failed or each.offset <= where)]
            self._followers = waiting[1:]
            self._expected = 1 + len(served) + len(waiting)
            self._led = bool(waiting)
            if waiting:
                waiting[0].leads = True  # Under the lock, so that a follower that times out sees it, too.
            for each, behind in zip(served, served[ROWS:], strict=False):
                each.behind = behind
        if waiting:
            waiting[0].turn.release()
        for each in served[:ROWS]:
            each.turn.release()


SHUTDOWN_TRIES_MAX = 10


class Flusher:
    """Flushes the commit log and updates the checkpoint."""

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
        """Flush within one file; True when nothing moved."""
        with self._flush_lock:
            return self._flush(least_pages)

    def flush_to(self, offset: int, timeout_s: float) -> bool:
        """Return True once everything below `offset` is durable: flush, or wait for another thread's flush.

        False on timeout or when flushing failed; whether the bytes are durable is then unknown.
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
        newest_ms = self._log.newest_store_ms  # Before the flush: later puts may not be durable.
        # Read after the time, so that its record is below; not from the last file, which may not be listed yet.
        tail = appender.tail
        wrote = files.max_wrote_offset if tail is None else tail.base + tail.position
        try:
            self.commit(least_pages)
            unmoved = files.flush(least_pages)
        except (OSError, StoreError) as error:  # A StoreError is a translated OSError: disk full, read-only.
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
    """SYNC_FLUSH. Waiting producers flush for each other; the thread serves producers that do not wait."""

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
    """ASYNC_FLUSH: a flush each interval when enough is dirty, and a full one at a longer interval."""

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


KEPT_BYTES = 8 << 20
WHOLE_TURNS = 10
_STATM = Path("/proc/self/statm")


def resident_file_bytes() -> int:
    """Resident pages of files that this process maps; 0 where the system does not report it."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[2]) * mmap.PAGESIZE
    except FileNotFoundError:
        return 0


class PageRelease:
    """Releases pages of the mapped log that are unlikely to be read soon.

    Pages written or read through a map count as resident memory of the process until the kernel reclaims them, so a
    broker seems to grow with its log. The bytes stay in the page cache either way; touching a released page costs a
    fault, which maps its neighbours, too.

    When more than `residentLogBytesMax` of all mapped files is resident, the log is released up to its flushed and
    dispatched offset, except the last pages, which consumers at the end of their queues read. Pages written since
    the last round are released at once, pages read again with every tenth round: a consumer that reads eight queues
    in rotation needs each page of a range eight times. Threads: `run` is called by the housekeeping thread alone.
    """

    def __init__(
        self,
        files: MappedFileQueue,
        resident_bytes_max: int,
        dispatched_where: Callable[[], int],
        resident: Callable[[], int] = resident_file_bytes,
    ) -> None:
        """`resident_bytes_max` of 0 releases nothing."""
        self._files = files
        self._dispatched_where = dispatched_where
        self._resident_bytes_max = resident_bytes_max
        self._resident = resident
        self._released_where = 0
        self.release_count = 0

    def run(self) -> None:
        """Check the resident size, and release pages if it is too large."""
        if not 0 < self._resident_bytes_max < self._resident():
            return
        end = min(self._files.flushed_where, self._dispatched_where()) - KEPT_BYTES
        start = 0 if self.release_count % WHOLE_TURNS == 0 else self._released_where
        for file in self._files.files:
            first, last = max(0, start - file.from_offset), min(file.size, end - file.from_offset)
            if first < last:
                file.release_pages(first, last)
        self._released_where = max(0, end)
        self.release_count += 1
