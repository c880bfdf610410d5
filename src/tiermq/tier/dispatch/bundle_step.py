"""BundleStep: what many quiet queues have to upload becomes one object.

    step of a queue ─► collected, appended, not committed ─► waits here ─┐
    step of a queue ─► …                                                 ├─► one `write_bundle` ─► each queue commits
    step of a queue ─► …                                                 ┘

A queue that waits here has its bytes pending, as after a failed commit. When the bundle is written, its next step
repeats the commit: the driver recognises the bytes and sends no request; rows and index follow as for any commit.
So a crash at any point leaves what a crash in a commit leaves.

Queues are stepped at multiples of the interval, so that those of one interval meet here.
Threads: any; one bundle at a time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from tiermq.clock import Clock
from tiermq.errors import BundlesFenced, TierError, TierUnavailable
from tiermq.tier.dispatch.ready_queue import BackOff, QueueDispatchState
from tiermq.tier.dispatch.writer import QueueWriter
from tiermq.tier.driver.contract import SegmentWrite, TierDriver
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.names import QueueName

_log = logging.getLogger(__name__)

QUIET_BYTES_MAX = 64 << 10  # A queue with more to upload writes its own objects.
BUNDLE_BYTES_MAX = 8 << 20


def is_manifest_behind(run: QueueDispatchState, committed_bytes: int, *, is_bundled: bool) -> bool:
    """Whether growth is worth a manifest: what is in bundles costs none, or PUTs would grow with queues again."""
    run.bundled_bytes += committed_bytes
    if is_bundled and run.manifest_written_ms is not None and run.bundled_bytes < QUIET_BYTES_MAX:
        return False
    run.bundled_bytes = 0
    return True


@dataclass(slots=True)
class _Waiting:
    run: QueueDispatchState
    file: FlatMessageFile


class BundleStep:
    """See the module."""

    def __init__(
        self, driver: TierDriver, writer: QueueWriter, interval_ms: int, back_off: BackOff, clock: Clock
    ) -> None:
        self._driver = driver
        self._writer = writer
        self._interval_ms = interval_ms
        self._back_off = back_off
        self._clock = clock
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._in_flight = 0
        self._since_ms = 0
        self._retry_at_ms = 0
        self._failures = 0

    def __len__(self) -> int:
        """Queues that wait, or whose bundle is being written."""
        with self._lock:
            return len(self._waiting) + self._in_flight

    def aligned(self, at_ms: int) -> int:
        """The first time, not before `at_ms`, at which quiet queues are stepped."""
        return -(-at_ms // self._interval_ms) * self._interval_ms

    def add(self, run: QueueDispatchState, file: FlatMessageFile) -> None:
        """Let what the queue has pending wait for the next bundle."""
        with self._lock:
            if not self._waiting:
                self._since_ms = self._clock.now_ms()
            run.is_packed = True
            self._waiting.append(_Waiting(run, file))
            self._waiting_bytes += file.pending_bytes

    def is_due(self) -> bool:
        """Whether a bundle is to be written although other queues are not through their steps."""
        if not self._waiting or self._clock.now_ms() < self._retry_at_ms:
            return False
        is_old = self._clock.now_ms() - self._since_ms >= self._interval_ms
        return is_old or self._waiting_bytes >= BUNDLE_BYTES_MAX

    def retry_now(self) -> None:
        """Do not wait any longer after a failure."""
        self._retry_at_ms = 0

    def wait_idle(self, timeout_s: float) -> bool:
        """Until no bundle is being written; False when that takes longer."""
        if not self._writing.acquire(timeout=timeout_s):
            return False
        self._writing.release()
        return True

    def write(
        self,
        ask: Callable[[Callable[[], None]], bool],
        push: Callable[[Sequence[QueueName]], None],
        held_topics: Collection[str],
    ) -> bool:
        """Write a bundle, and make its queues ready for their commits; False when there is nothing, or not now.

        `ask` sends a request through the circuit breaker, and returns whether it did.
        """
        if self._clock.now_ms() < self._retry_at_ms or not self._writing.acquire(blocking=False):
            return False
        try:
            batch = self._take(held_topics)
            is_done = bool(batch) and self._write_batch(batch, ask)
            if is_done:
                for waiting in batch:
                    waiting.run.is_packed = False
                push([waiting.run.name for waiting in batch])
            return is_done
        finally:
            self._in_flight = 0  # Last: until here the queues are nowhere else, see `__len__`.
            self._writing.release()

    def _write_batch(self, batch: list[_Waiting], ask: Callable[[Callable[[], None]], bool]) -> bool:
        """Whether each queue is to go on by itself: its bytes are stored, or it writes its own objects."""
        writes = [write for waiting in batch for write in waiting.file.pending_writes()]
        if not writes or not self._writer.may_write():
            return True
        try:
            if not ask(partial(self._write, writes)):
                self._put_back(batch, None)
                return False
        except TierUnavailable as error:
            self._put_back(batch, error)
            return False
        except BundlesFenced as error:
            self._put_back(batch, error)
            self._writer.fence_again()
            return False
        except TierError as error:
            _log.warning("%d quiet queues write objects of their own: %s", len(batch), error)
        self._failures = 0
        return True

    def _write(self, writes: Sequence[SegmentWrite]) -> None:
        self._driver.write_bundle(writes)

    def _take(self, held_topics: Collection[str]) -> list[_Waiting]:
        taken, kept, size = [], [], 0
        with self._lock:
            while self._waiting and size < BUNDLE_BYTES_MAX:
                waiting = self._waiting.popleft()
                self._waiting_bytes -= waiting.file.pending_bytes
                if waiting.run.name[0] in held_topics:
                    kept.append(waiting)
                    continue
                size += waiting.file.pending_bytes
                taken.append(waiting)
            for waiting in kept:
                waiting.run.is_packed = False  # Its topic is being deleted.
            if not self._waiting:
                self._waiting_bytes = 0
            self._in_flight = len(taken)
        return taken

    def _put_back(self, batch: list[_Waiting], error: TierError | None) -> None:
        with self._lock:
            self._waiting.extendleft(reversed(batch))
            self._waiting_bytes += sum(waiting.file.pending_bytes for waiting in batch)
        if error is not None:
            self._failures += 1
            rest_ms = self._back_off.rest_ms(self._failures, 1.0)
            self._retry_at_ms = self._clock.now_ms() + rest_ms
            _log.warning("%d quiet queues are uploaded in %d ms: %s", len(batch), rest_ms, error)
