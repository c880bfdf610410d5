"""Wiring: create the components of a store and connect them; its threads reput, queue flush and housekeeping.

Tests may use components singly. Each round of a thread is short; a test can run it by hand.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tiermq.clock import Clock
from tiermq.commitlog.commit_log import CommitLog
from tiermq.commitlog.flush_services import Flusher, GroupCommit, PageRelease, RealTimeCommit, RealTimeFlush
from tiermq.config import BrokerRole, FlushDiskType, StoreConfig
from tiermq.consumequeue.queue_table import QueueTable, flush_whole
from tiermq.errors import CorruptRecord, StoreClosed
from tiermq.files.allocator import FileAllocator, Preparation, TransientPool
from tiermq.files.file_access import FileAccess
from tiermq.files.mapped_file_queue import MappedFileQueue, MultiPathMappedFileQueue
from tiermq.files.os_errors import maps_max
from tiermq.index.index_service import IndexService
from tiermq.kernel import QueueTail
from tiermq.service import Service
from tiermq.store.checkpoint import Checkpoint
from tiermq.store.clean_service import CleanService
from tiermq.store.dispatch import Dispatch
from tiermq.store.reader import CANDIDATES_MAX, Reader
from tiermq.store.running_flags import Flag, RunningFlags
from tiermq.store.statistics import Counting, StoreStatistics
from tiermq.store.topic_attributes import TopicAttributes

REPUT_REST_S = 0.1
HOUSEKEEPING_REST_S = 1.0
CLEAN_DELAY_MS = 60_000
SYNC_GATHER_S = 0.001
"""How long reput batches puts that wait for the disk anyway; RocketMQ's reput also polls every millisecond."""


class Reput(Service):
    """Dispatches what was put. The appender wakes it when `idle` is set."""

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
        self.on_idle: list[Callable[[], None]] = []
        """Called when everything was dispatched that may be; what is put from then on wakes this thread."""
        self._follows_master = config.broker_role is BrokerRole.SLAVE
        self._log = log
        self._dispatch = dispatch
        self._limit = limit
        self._on_damage = on_damage

    def run_once(self) -> float:
        if self.paused:
            return REPUT_REST_S
        if self._gather_s:
            self._stopping.wait(self._gather_s)
        limit = self._limit()
        try:
            self._dispatch.run(limit, stopping=lambda: self.stopping or self.paused)
        except CorruptRecord as error:
            self._on_damage(error)
            raise
        appender = self._log.appender
        if self._follows_master:  # No put has set it. The flusher notes it once everything that is written is durable.
            self._log.copied_store_ms = self._dispatch.last_store_timestamp_ms
        appender.reput_idle = True
        for call in self.on_idle:
            call()
        if self._limit() > limit:  # A put arrived between the last check and setting idle.
            appender.reput_idle = False
            return 0.0
        return REPUT_REST_S

    def behind_bytes(self) -> int:
        return max(0, self._limit() - self._dispatch.offset)


class QueueFlush(Service):
    """Flushes consume queues, and advances the checkpoint only to what is on disk.

    A round costs what the queues cost that got units since the last one, however many others there are:

        got a unit ── flush(least pages), once a second ── flush(0), once a minute ── durable
                      `take_unflushed`                     `_unsettled`, then the checkpoint

    Threads: any; `_lock` is held while queues are flushed: no checkpoint passes what another thread is flushing.
    """

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
        self._lock = threading.Lock()
        self._unsettled: dict[QueueTail, None] = {}
        """Got units since their last flush(0): less than the least pages may wait, and the first file's name."""

    def run_once(self) -> float:
        now_ms = self._clock.now_ms()
        if now_ms >= self._last_thorough_ms + self._config.flush_consume_queue_thorough_interval:
            self._last_thorough_ms = now_ms
            self.flush_all()
        else:
            with self._lock:
                for tail in self._take():
                    if (queue := self._queues.find(tail.topic, tail.queue_id)) is not None:
                        queue.flush(self._config.flush_consume_queue_least_pages)
        return self._config.flush_interval_consume_queue / 1000

    def flush_all(self) -> None:
        """Everything that was dispatched before the call is durable on return, and in the checkpoint."""
        with self._lock:
            settled_ms = self._dispatch.settled_ms
            self._take()
            for tail in list(self._unsettled):
                if (queue := self._queues.find(tail.topic, tail.queue_id)) is not None:
                    flush_whole(queue)
                del self._unsettled[tail]  # Where the flush raises it stays, and the checkpoint too.
            if settled_ms > 0:
                self._checkpoint.logics_msg_timestamp_ms = settled_ms
            self._checkpoint.flush()

    def _take(self) -> list[QueueTail]:
        fresh = self._dispatch.take_unflushed()
        self._unsettled.update(dict.fromkeys(fresh))
        return fresh


class Housekeeping(Service):
    """Once a second: statistics, checkpoint, memory; at its interval: cleaning."""

    def __init__(
        self,
        config: StoreConfig,
        cleaner: CleanService,
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
        """Resume a round of the cleaner that a veto stopped. Any thread may call it."""
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
            with contextlib.suppress(StoreClosed):  # By a veto, which reads a store that is being closed.
                self._cleaner.run()
        return HOUSEKEEPING_REST_S


LOG_RESERVE_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class StoreComponents:
    """Everything that a store consists of."""

    config: StoreConfig
    access: FileAccess
    clock: Clock
    attributes: TopicAttributes
    checkpoint: Checkpoint
    flags: RunningFlags
    statistics: StoreStatistics
    allocator: FileAllocator
    pool: TransientPool | None
    log: CommitLog
    queues: QueueTable
    index: IndexService | None
    dispatch: Dispatch
    reader: Reader
    cleaner: CleanService
    flusher: Flusher
    group_commit: GroupCommit
    flush_service: GroupCommit | RealTimeFlush
    commit_service: RealTimeCommit | None
    reput: Reput
    queue_flush: QueueFlush
    housekeeping: Housekeeping
    dispatch_soon: Callable[[], bool] | None = None
    """Called by the first put after everything was dispatched: whether the caller's thread will dispatch it."""
    replicated_where: Callable[[], int] | None = None
    """Where the log ends that enough replicas have, with sync replication; None without."""

    def confirm_offset(self) -> int:
        """Records below are committed, and may be dispatched: what is durable under SYNC_FLUSH, else what is readable,
        as far as enough replicas have it.
        """
        end = self.log.max_offset
        if self.config.flush_disk_type is FlushDiskType.SYNC_FLUSH and not self.config.read_un_committed:
            end = min(self.log.files.flushed_where, end)
        return end if self.replicated_where is None else min(end, self.replicated_where())


def assemble(
    config: StoreConfig,
    access: FileAccess,
    clock: Clock,
    store_host: bytes,
    attributes: TopicAttributes,
    background: bool = True,
    grows: bool = False,
) -> StoreComponents:
    """Make and connect the parts; options as of `LocalStore.open`. On disk, only the checkpoint is opened."""
    statistics = StoreStatistics(clock)
    pool = _pool(config)
    allocator = _allocator(config, access, clock, pool, background, grows)
    files = log_files(config, access, clock, allocator, grows=grows)
    box: list[StoreComponents] = []  # The callbacks below run only once the parts exist.
    queues = _queue_table(config, access, clock, attributes, box)
    log = CommitLog(
        config,
        files,
        store_host,
        clock=clock,
        wake=lambda: _wake_after_put(box[0]),
        first_offset_of=lambda topic, queue_id: _first_offset(queues, topic, queue_id),
        may_begin=queues.may_begin,
        is_batch_queue=attributes.is_batch_queue,
        note_latency=statistics.record_latency,
        note_failure=statistics.record_put_failures,
    )
    checkpoint = Checkpoint(access, os.path.join(config.root_path, "checkpoint"))
    index = _index_service(config, access, clock, checkpoint, background, grows)
    dispatch = Dispatch(config, log, queues, index)
    flags = RunningFlags(lambda writeable: _set_gate(box[0], writeable))
    cleaner = CleanService(config, access, log, queues, index, flags, clock)
    cleaner.vetoes.append(lambda _, end: end > dispatch.offset)  # Those records were never readable.
    log.on_disk_full = cleaner.note_disk_full
    flusher = Flusher(
        log,
        note_durable=lambda store_ms: setattr(checkpoint, "physic_msg_timestamp_ms", store_ms),
        on_failure=lambda _error: _stop_writing(flags),
        on_progress=lambda: wake_reput(box[0]),
    )
    group_commit = GroupCommit(config, flusher)
    reader = Reader(config, log, queues, _physical_memory_bytes())
    sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    parts = StoreComponents(
        config=config,
        access=access,
        clock=clock,
        attributes=attributes,
        checkpoint=checkpoint,
        flags=flags,
        statistics=statistics,
        allocator=allocator,
        pool=pool,
        log=log,
        queues=queues,
        index=index,
        dispatch=dispatch,
        reader=reader,
        cleaner=cleaner,
        flusher=flusher,
        group_commit=group_commit,
        flush_service=group_commit if sync else RealTimeFlush(config, flusher, clock),
        commit_service=None if pool is None else RealTimeCommit(config, flusher, clock, lambda: wake_reput(box[0])),
        reput=Reput(config, log, dispatch, lambda: box[0].confirm_offset(), _note_damage(flags)),
        queue_flush=QueueFlush(config, queues, dispatch, checkpoint, clock),
        housekeeping=_housekeeping(config, cleaner, checkpoint, log, reader, statistics, dispatch, clock),
    )
    box.append(parts)
    return parts


def _housekeeping(
    config: StoreConfig,
    cleaner: CleanService,
    checkpoint: Checkpoint,
    log: CommitLog,
    reader: Reader,
    statistics: StoreStatistics,
    dispatch: Dispatch,
    clock: Clock,
) -> Housekeeping:
    release = PageRelease(log.files, config.resident_log_bytes_max, lambda: dispatch.offset)
    take_over = Counting(log, reader, statistics).take_over
    return Housekeeping(config, cleaner, checkpoint, take_over, release.run, clock)


DARWIN_OPEN_MAX = 10_240


def raise_descriptor_limit() -> None:
    """Take as many descriptors as this process may have. Files that are written need one, sockets of a server too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except ValueError:  # macOS reports a hard limit, often none, that is above what it grants.
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, DARWIN_OPEN_MAX)), hard))


def _pool(config: StoreConfig) -> TransientPool | None:
    if not config.transient_store_pool_enable or config.broker_role is BrokerRole.SLAVE:
        return None  # A slave has no puts to answer from memory, as in RocketMQ.
    return TransientPool(config.transient_store_pool_size, config.mapped_file_size_commit_log)


def _allocator(
    config: StoreConfig, access: FileAccess, clock: Clock, pool: TransientPool | None, background: bool, grows: bool
) -> FileAllocator:
    warm = config.warm_maped_file_enable
    sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    return FileAllocator(
        access,
        clock=clock,
        reserve_bytes=LOG_RESERVE_BYTES,
        pool=pool,
        fast_fail=config.fast_fail_if_no_buffer_in_store_pool,
        preparation=Preparation(
            warm=warm,
            pages_per_sync=config.flush_least_pages_when_warm_maped_file if sync else 0,
            lock_memory=warm,
        ),
        threaded=background,
        grows=grows,
    )


def log_files(
    config: StoreConfig, access: FileAccess, clock: Clock, allocator: FileAllocator | None, *, grows: bool = False
) -> MappedFileQueue:
    """The files of the commit log, not loaded yet. Without an allocator no file can be added."""
    paths = [str(path) for path in config.commit_log_paths]
    size = config.mapped_file_size_commit_log
    if len(paths) == 1 and not config.read_only_commit_log_paths:
        return MappedFileQueue(
            access, paths[0], size, clock=clock, allocator=allocator, reserve_bytes=LOG_RESERVE_BYTES, grows=grows
        )

    def full_paths() -> set[str]:
        limit = config.disk_clean_forcibly_fraction
        return {path for path in paths if access.disk_usage_ratio(path) > limit}

    return MultiPathMappedFileQueue(
        access,
        paths,
        size,
        clock=clock,
        read_only_paths=[str(path) for path in config.read_only_commit_log_paths],
        full_paths=full_paths,
        allocator=allocator,
        reserve_bytes=LOG_RESERVE_BYTES,
        grows=grows,
    )


def _queue_table(
    config: StoreConfig, access: FileAccess, clock: Clock, attributes: TopicAttributes, box: list[StoreComponents]
) -> QueueTable:
    return QueueTable(
        access,
        str(config.root_path),
        clock,
        attributes.queue_type_of,
        file_size=config.mapped_file_size_consume_queue,
        ext_file_size=config.mapped_file_size_consume_queue_ext,
        batch_file_size=config.mapper_file_size_batch_consume_queue,
        enable_ext=config.enable_consume_queue_ext,
        maps_max=maps_max(),
        other_maps=lambda: _other_maps(box[0]),
    )


def _other_maps(parts: StoreComponents) -> int:
    return len(parts.log.files.files) + (0 if parts.index is None else len(parts.index.files))


def _index_service(
    config: StoreConfig, access: FileAccess, clock: Clock, checkpoint: Checkpoint, background: bool, grows: bool
) -> IndexService | None:
    if not config.message_index_enable:
        return None

    def note_synced(timestamp_ms: int) -> None:
        checkpoint.index_msg_timestamp_ms = timestamp_ms
        checkpoint.flush()

    return IndexService(
        access,
        os.path.join(config.root_path, "index"),
        config.max_hash_slot_num,
        config.max_index_num,
        clock,
        note_synced,
        background=None if background else lambda task: task(),
        query_count_max=CANDIDATES_MAX,
        grows=grows,
    )


def _first_offset(queues: QueueTable, topic: str, queue_id: int) -> int:
    queue = queues.find(topic, queue_id)
    return 0 if queue is None else queue.max_offset


def _set_gate(parts: StoreComponents, writeable: bool) -> None:
    parts.log.set_writeable(writeable)


def _stop_writing(flags: RunningFlags) -> None:
    flags.set(Flag.NOT_WRITEABLE)


def _note_damage(flags: RunningFlags) -> Callable[[CorruptRecord], None]:
    def stop_writing(error: CorruptRecord) -> None:
        flags.set(Flag.WRITE_LOGICS_QUEUE_ERROR, str(error))

    return stop_writing


def _wake_after_put(parts: StoreComponents) -> None:
    if parts.dispatch_soon is None or not parts.dispatch_soon():
        parts.reput.wake()
    for call in parts.reput.on_idle:
        call()
    if parts.commit_service is not None and parts.config.wake_commit_when_put_message:
        parts.commit_service.wake()  # Neither readers nor reput can read it before it is committed.


def dispatch_short(parts: StoreComponents) -> None:
    """Do the work of reput on the calling thread if it is little, or wake reput."""
    if not parts.dispatch.run_short(parts.confirm_offset()):
        parts.reput.wake()
        return
    parts.log.appender.reput_idle = True
    for call in parts.reput.on_idle:
        call()
    if parts.confirm_offset() > parts.dispatch.offset:  # A put arrived between the last check and setting idle.
        parts.log.appender.reput_idle = False
        parts.reput.wake()


def wake_reput(parts: StoreComponents) -> None:
    """More may be dispatched than before: it was flushed, committed or replicated."""
    appender = parts.log.appender
    if appender.reput_idle:
        appender.reput_idle = False
        parts.reput.wake()


def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
