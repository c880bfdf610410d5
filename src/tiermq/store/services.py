"""The store's own threads: reput, queue flush, housekeeping. Each round is short; each can be run by hand in a test."""

from __future__ import annotations

from collections.abc import Callable

from tiermq.clock import Clock
from tiermq.commitlog.commit_log import CommitLog
from tiermq.config import FlushDiskType, StoreConfig
from tiermq.consumequeue.queue_table import QueueTable
from tiermq.errors import CorruptRecord
from tiermq.service import Service
from tiermq.store.checkpoint import Checkpoint
from tiermq.store.cleaning import Cleaner
from tiermq.store.dispatching import Dispatch

REPUT_REST_S = 0.1
HOUSEKEEPING_REST_S = 1.0
CLEAN_DELAY_MS = 60_000
SYNC_GATHER_S = 0.001
"""How long reput lets puts gather that wait for the disk anyway: RocketMQ's looks once in a millisecond, too."""


class Reput(Service):
    """Dispatches what was put. The appender wakes it when it rests; `idle` tells the appender that it does."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        dispatch: Dispatch,
        limit: Callable[[], int],
        on_damage: Callable[[CorruptRecord], None],
    ) -> None:
        super().__init__("reput")
        # Under SYNC_FLUSH every put would wake it, which costs a put more than its dispatch does.
        self._gather_s = SYNC_GATHER_S if config.flush_disk_type is FlushDiskType.SYNC_FLUSH else 0.0
        self.paused = False
        self._log = log
        self._dispatch = dispatch
        self._limit = limit
        self._on_damage = on_damage

    def run_once(self) -> float:
        if self.paused:
            return REPUT_REST_S
        if self._gather_s:
            self._stopping.wait(self._gather_s)
        try:
            self._dispatch.run(self._limit(), stopping=lambda: self.stopping or self.paused)
        except CorruptRecord as error:
            self._on_damage(error)
            raise
        appender = self._log.appender
        appender.idle = True
        if self._limit() > self._dispatch.offset:  # Something came between the last look and the word "idle".
            appender.idle = False
            return 0.0
        return REPUT_REST_S

    def behind_bytes(self) -> int:
        return max(0, self._limit() - self._dispatch.offset)


class QueueFlush(Service):
    """Flushes consume queues, and moves the checkpoint only to what they have on disk."""

    def __init__(
        self, config: StoreConfig, queues: QueueTable, dispatch: Dispatch, checkpoint: Checkpoint, clock: Clock
    ) -> None:
        super().__init__("flush-consumequeue")
        self._config = config
        self._queues = queues
        self._dispatch = dispatch
        self._checkpoint = checkpoint
        self._clock = clock
        self._last_thorough_ms = clock.now_ms()

    def run_once(self) -> float:
        now_ms = self._clock.now_ms()
        if now_ms >= self._last_thorough_ms + self._config.flush_consume_queue_thorough_interval:
            self._last_thorough_ms = now_ms
            self.flush_all()
        else:
            for queue in self._queues.all_queues():
                queue.flush(self._config.flush_consume_queue_least_pages)
        return self._config.flush_interval_consume_queue / 1000

    def flush_all(self) -> None:
        """Everything that was dispatched before the call is durable on return, and the checkpoint says so."""
        dispatched_ms = self._dispatch.last_store_timestamp_ms
        for queue in self._queues.all_queues():
            while not queue.flush(0):
                pass
        if dispatched_ms > 0:
            self._checkpoint.logics_msg_timestamp_ms = dispatched_ms
        self._checkpoint.flush()


class Housekeeping(Service):
    """Once a second: statistics, checkpoint, memory; every now and then: cleaning."""

    def __init__(
        self,
        config: StoreConfig,
        cleaner: Cleaner,
        checkpoint: Checkpoint,
        sample: Callable[[], None],
        release_pages: Callable[[], None],
        clock: Clock,
    ) -> None:
        super().__init__("housekeeping")
        self._config = config
        self._cleaner = cleaner
        self._checkpoint = checkpoint
        self._sample = sample
        self._release_pages = release_pages
        self._clock = clock
        self._next_clean_ms = clock.now_ms() + CLEAN_DELAY_MS

    def clean_soon(self) -> None:
        """Go on with a run of the cleaner that a veto stopped. Any thread may call it."""
        self._cleaner.go_on()
        self._next_clean_ms = 0
        self.wake()

    def run_once(self) -> float:
        self._sample()
        self._checkpoint.flush()
        self._release_pages()
        now_ms = self._clock.now_ms()
        if now_ms >= self._next_clean_ms:
            self._next_clean_ms = now_ms + self._config.clean_resource_interval
            self._cleaner.run()
        return HOUSEKEEPING_REST_S
