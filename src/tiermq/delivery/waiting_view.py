"""WaitingView: what waits in a store directory, read from its files: timers and messages of delay levels.

Nothing is written and no lock is taken: the directory may be in use, and is then shown as its last flush left it. It
may be RocketMQ's.

    timers   the wheel from the checkpoint's read time on, and the timer topic from its queue offset on
    levels   the queues of the schedule topic from the offsets of delayOffset.json on
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tiermq.clock import SystemClock
from tiermq.config import StoreConfig
from tiermq.delivery.timer.timer_checkpoint import FILE as CHECKPOINT_FILE
from tiermq.delivery.timer.timer_checkpoint import TimerProgress, decode_progress
from tiermq.delivery.timer.timer_destination import TIMER_QUEUE
from tiermq.delivery.timer.timer_listing import WaitingTimer, described, described_level, readable, waiting_timers
from tiermq.delivery.timer.timer_log import DIRECTORY, TimerLog
from tiermq.delivery.timer.timer_record import read_timer
from tiermq.delivery.timer.timer_state import FILE as METRICS_FILE
from tiermq.delivery.timer.timer_state import TimerMetrics, decode_timer_metrics
from tiermq.delivery.timer.timer_wheel import FILE as WHEEL_FILE
from tiermq.delivery.timer.timer_wheel import SLOT_BYTES, TimerWheel
from tiermq.errors import CorruptRecord, StoreDamaged
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import SCHEDULE_TOPIC, TIMER_TOPIC
from tiermq.store.delay_offsets import FILE as OFFSETS_FILE
from tiermq.store.delay_offsets import decode_delay_offsets, stored_delays_ms
from tiermq.store.readonly.store import ReadOnlyStore

DEFAULT_PRECISION_MS = 1_000


class WaitingView:
    """See the module. Used by one thread, as a context."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        delays_ms: tuple[int, ...] = (),
        precision_ms: int | None = None,
        *,
        commit_log_paths: Sequence[Path] = (),
    ) -> None:
        """Without `delays_ms` those that the broker wrote down, or RocketMQ's. `precision_ms` is needed for a directory
        of RocketMQ's with an unusual one. Raises StoreError when `root` is no store, StoreDamaged when its timer files
        are none.
        """
        self._root = Path(root)
        self._delays_ms = delays_ms or stored_delays_ms(root) or StoreConfig().delay_levels_ms
        self._access = OsFileAccess()
        self._open = ExitStack()
        self._wheel: TimerWheel | None = None
        self._log: TimerLog | None = None
        try:
            self._store = self._open.enter_context(ReadOnlyStore.open(root, commit_log_paths=commit_log_paths))
            self.progress = self._read_progress()
            self.precision_ms = precision_ms or self.progress.precision_ms or DEFAULT_PRECISION_MS
            self._open_timers()
        except BaseException:
            self._open.close()
            raise

    def _config(self, name: str) -> str:
        return str(self._root / "config" / name)

    def _read_progress(self) -> TimerProgress:
        try:
            return decode_progress(self._access.read_bytes(self._config(CHECKPOINT_FILE)))
        except (FileNotFoundError, StoreDamaged):
            return TimerProgress()

    def _open_timers(self) -> None:
        wheel = self._access.file_info(str(self._root / WHEEL_FILE))
        files = self._access.list_files(str(self._root / DIRECTORY))
        if wheel is None or wheel.size == 0 or not files:
            return
        if wheel.size % SLOT_BYTES:
            raise StoreDamaged(f"{self._root / WHEEL_FILE}: expected slots of {SLOT_BYTES} bytes, found {wheel.size}")
        path = str(self._root / WHEEL_FILE)
        self._wheel = TimerWheel(self._access, path, self.precision_ms, wheel.size // SLOT_BYTES, writable=False)
        self._open.callback(self._wheel.close)
        directory = str(self._root / DIRECTORY)
        self._log = TimerLog(self._access, directory, files[0].size, SystemClock(), writable=False)
        self._open.callback(self._log.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    # Messages

    def _message_at(self, physical_offset: int, size: int) -> StoredMessage | None:
        record = self._store.read(physical_offset, size)
        return None if record is None else decode_record(record, expect_physical_offset=physical_offset)

    def _queue(self, topic: str, queue_id: int, offset: int) -> Iterator[StoredMessage]:
        queue = self._store.queue(topic, queue_id)
        if queue is None:
            return
        end = self._store.max_offset(topic, queue_id)
        for at in range(max(offset, self._store.min_offset(topic, queue_id)), end):
            unit = queue.unit_at(at)
            if unit is None:
                continue
            try:
                message = self._message_at(unit.physical_offset, unit.size)
            except CorruptRecord:
                continue  # Delivery passes it over, too.
            if message is not None:
                yield message

    # What waits

    def timers(self) -> Iterator[WaitingTimer]:
        """Those of the wheel in the order of their slots, then those that were not enqueued yet."""
        if self._wheel is not None and self._log is not None:
            yield from waiting_timers(
                self._wheel, self._log, self._message_at, self.progress.read_time_ms, self.precision_ms
            )
        for message in self._queue(TIMER_TOPIC, TIMER_QUEUE, self.progress.queue_offset):
            found = readable(lambda *_place, message=message: message, 0, 0)
            if found is not None and not read_timer(found).is_delete:
                yield described(found, self.precision_ms)

    def levels(self) -> Iterator[WaitingTimer]:
        """The messages of each delay level that were not delivered."""
        found = self._access.read_config(self._config(OFFSETS_FILE), decode_delay_offsets)
        offsets = {} if found is None else found[0]
        for level, delay_ms in enumerate(self._delays_ms, start=1):
            for message in self._queue(SCHEDULE_TOPIC, level - 1, offsets.get(level, 0)):
                yield described_level(message, level, delay_ms)

    def summary(self) -> dict[str, Any]:
        """How many wait, without reading their messages; None where nothing is known."""
        found = self._access.read_config(self._config(OFFSETS_FILE), decode_delay_offsets)
        offsets = {} if found is None else found[0]
        levels = {
            level: self._store.max_offset(SCHEDULE_TOPIC, level - 1) - offsets.get(level, 0)
            for level in range(1, len(self._delays_ms) + 1)
            if self._store.queue(SCHEDULE_TOPIC, level - 1) is not None
        }
        metrics = self._access.read_config(self._config(METRICS_FILE), decode_timer_metrics) or TimerMetrics()
        read_ms = self.progress.read_time_ms
        due = None if self._wheel is None else next(self._wheel.slots_between(read_ms), None)
        end = self._store.max_offset(TIMER_TOPIC, TIMER_QUEUE)
        return {
            "timers": 0 if self._wheel is None else max(0, self._wheel.waiting_count(read_ms)),
            "timers_by_topic": metrics.counts(),
            "timers_next_due_ms": None if due is None else due.time_ms + self.precision_ms,
            "timers_delivered_until_ms": read_ms or None,
            "timers_not_taken_in": max(0, end - self.progress.queue_offset),
            "delayed_by_level": {str(level): count for level, count in levels.items() if count > 0},
        }
