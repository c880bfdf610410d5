"""StoreLifecycle: opening, recovering, running and closing a store; what users call is in `local_store`.

    load files -> recover -> start services -> RUNNING -> gate shut -> everything durable -> clean marker -> unlocked

Invariants: a directory that is written to has an `abort` file and no clean marker; the marker is the last thing that a
clean close writes; a failed open leaves the directory unlocked and unmapped. A process that is forked while a store is
open has a closed one: files, lock and threads are its parent's, and it writes nothing, also when it closes.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tiermq.clock import Clock, SystemClock
from tiermq.config import BrokerRole, StoreConfig
from tiermq.consumequeue.queue_table import QueueType
from tiermq.errors import BadConfig, IllegalTransition, StoreClosed
from tiermq.files.file_access import FileAccess, FileLock
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.hosts import encode_host
from tiermq.metrics import Registry
from tiermq.service import COLLECTOR_PAUSE
from tiermq.store.checkpoint import CleanMarker, QueueEnd, read_marker, remove_marker, write_marker
from tiermq.store.readonly.directory import require_no_rocksdb
from tiermq.store.recovery import Recovered, Recovery
from tiermq.store.running_flags import Flag
from tiermq.store.tier_continuation import require_own_numbers
from tiermq.store.topic_attributes import TopicAttributes
from tiermq.store.wiring import StoreComponents, assemble, raise_descriptor_limit

_log = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1:10911"


class StoreLifecycle:
    """See the module. One thread opens and one closes; `_bind_hot_paths` and `_forbid` are the subclass's."""

    def __init__(self, parts: StoreComponents, lock: FileLock) -> None:
        self._parts = parts
        self._lock = lock
        self._lifecycle = StateMachine()
        self._close_lock = threading.Lock()
        self._in_use = False
        self._is_parents = False
        self.metrics = Registry()
        self.recovered: Recovered | None = None
        self.was_closed = True
        """Whether the one who had the directory before has closed the store, and was not killed."""

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        config: StoreConfig | None = None,
        clock: Clock | None = None,
        access: FileAccess | None = None,
        store_host: str = DEFAULT_HOST,
        batch_topics: Iterable[str] = (),
        background: bool = True,
        accept_weaker: bool = False,
        with_tier: bool = False,
        with_replication: bool = False,
        grows: bool = False,
        **settings: Any,
    ) -> Self:
        """Open the store in `path`, creating it if missing, and recover it.

        `settings` are RocketMQ's names in snake_case. Raises StoreLocked when another process has it, StoreDamaged when
        a file in it is foreign or of a wrong size, ReadOnlyStore when it cannot be written, BadConfig for a bad
        setting, and for one that asks for safety which is not provided (a replica), unless `accept_weaker`.
        StoreDamaged also when its numbering continues in a tier, unless `with_tier`: then the caller handles that.
        `with_replication`: the caller serves the role of `broker_role`, and copies the log.

        `grows`: files have disk blocks for what is in them, not tens of megabytes in advance; for stores that are
        embedded in a program and may stay small. Their sizes and bytes are the same.

        `background=False` starts no thread: only `dispatch_now`, `flush`, `flush_queues`, `clean_now` and
        `close` dispatch, flush or clean. For simulations, which must be deterministic.
        """
        config = config or StoreConfig()
        if path is not None:
            settings["store_path_root_dir"] = str(Path(path).absolute())
        config = config.with_settings(**settings)
        unkept = config.unkept(with_replication=with_replication)
        if unkept and not accept_weaker:
            raise BadConfig("\n".join([*unkept, "To open the store without: accept_weaker=True"]))
        access = access or OsFileAccess()
        root = str(config.root_path)
        require_no_rocksdb(root, access)
        raise_descriptor_limit()
        for directory in (root, *map(str, config.commit_log_paths), f"{root}/consumequeue", f"{root}/index"):
            access.make_directories(directory)
        lock = access.lock(f"{root}/lock")
        try:
            attributes = TopicAttributes.read(access, root)
            for topic in batch_topics:
                attributes.set_queue_type(topic, QueueType.BATCH)
            parts = assemble(
                config, access, clock or SystemClock(), encode_host(store_host), attributes, background, grows
            )
            store = cls(parts, lock)
            store._start(root, background, with_tier=with_tier)
        except BaseException:
            lock.release()
            raise
        return store

    def _start(self, root: str, background: bool, *, with_tier: bool) -> None:
        parts, access = self._parts, self._parts.access
        try:
            self.was_closed = clean = not access.exists(f"{root}/abort")
            marker = read_marker(access, root)
            with COLLECTOR_PAUSE:
                self._load(clean, marker)
                self._recover(clean, marker, background)
            if not with_tier:
                require_own_numbers(root, self._end_of)
            parts.reader.check_below(parts.log.files.max_offset)
            self._take_into_use()
            if background:
                parts.allocator.start()
            parts.log.open_for_append()  # Before the services: warming the first file may find the disk full.
        except BaseException:
            parts.allocator.shutdown()
            self._unmap()
            raise
        if background:
            for service in self._services():
                service.start()
        self._bind_hot_paths()
        register_metrics(self.metrics, parts)
        self._lifecycle.advance(State.RUNNING)
        _opened.add(self)
        if parts.config.broker_role is BrokerRole.SLAVE:
            parts.flags.set(Flag.SLAVE)  # Only a master's stream writes here.
        parts.log.set_writeable(parts.flags.writeable)

    def _end_of(self, topic: str, queue_id: int) -> int:
        queue = self._parts.queues.find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def _load(self, clean: bool, marker: CleanMarker | None) -> None:
        parts = self._parts
        self._lifecycle.advance(State.LOAD_BEGIN)
        parts.log.files.load()
        self._lifecycle.advance(State.LOAD_COMMITLOG_OK)
        parts.queues.load(lazily=clean and marker is not None)
        self._lifecycle.advance(State.LOAD_CONSUME_QUEUE_OK)
        self._index_from: int | None = None
        if parts.index is not None:
            index_from = parts.index.load(
                clean and not self._lost_index_files(marker), parts.checkpoint.index_msg_timestamp_ms
            )
            self._index_from = index_from if parts.config.message_index_safe else None
        self._lifecycle.advance(State.LOAD_INDEX_OK)

    def _lost_index_files(self, marker: CleanMarker | None) -> bool:
        """Whether index files are missing that existed when the store was closed."""
        if marker is None or marker.checkpoint_hex != self._parts.checkpoint.encoded().hex():
            return False
        listed = self._parts.access.list_files(f"{self._parts.config.root_path}/index")
        return not set(marker.index_names) <= {info.name for info in listed}

    def _recover(self, clean: bool, marker: CleanMarker | None, threads: bool) -> None:
        parts = self._parts
        self._lifecycle.advance(State.RECOVER_BEGIN)
        recovery = Recovery(
            parts.config, parts.log, parts.queues, parts.dispatch, parts.checkpoint, self._index_from, threads
        )
        # A recovery that is killed has changed queues: the marker would describe the state before it.
        self.recovered = recovery.run(clean, marker, before_changes=self._take_into_use)
        self._lifecycle.advance(State.RECOVER_TOPIC_QUEUE_TABLE_OK)
        _log.info("recovered %s: %s", parts.config.root_path, self.recovered)

    def _take_into_use(self) -> None:
        """Remove the clean marker and write the abort file. Idempotent."""
        if self._in_use:
            return
        access, root = self._parts.access, str(self._parts.config.root_path)
        access.write_bytes(f"{root}/abort", str(os.getpid()).encode())
        remove_marker(access, root)
        self._in_use = True

    def _services(self) -> list[Any]:
        parts = self._parts
        services = [parts.flush_service, parts.reput, parts.queue_flush, parts.housekeeping]
        return services if parts.commit_service is None else [parts.commit_service, *services]

    def close(self) -> None:
        """Flush and dispatch everything, and unlock the directory. Idempotent.

        The abort file stays, so that the next start checks everything, when something could not be finished.
        """
        with self._close_lock:
            if self._lifecycle.state >= State.SHUTDOWN_BEGIN:
                return
            self._lifecycle.advance(State.SHUTDOWN_BEGIN)
        parts = self._parts
        parts.log.close_for_append()
        finished = False
        try:
            finished = self._finish()
        finally:
            self._forbid()
            try:
                self._unmap()
            finally:
                self._lock.release()
                self._lifecycle.advance(State.SHUTDOWN_OK)
        if not finished:
            _log.warning("%s was not closed cleanly; the next start will check it", parts.config.root_path)

    def _leave_to_parent(self) -> None:
        """This process was forked from the one that opened the store. Takes no lock: a thread may have had it."""
        self._is_parents = True
        self._parts.log.appender.closed = True
        self._close_lock = threading.Lock()
        if self._lifecycle.running:
            self._lifecycle.advance(State.SHUTDOWN_BEGIN)
        self._forbid()

    @property
    def is_parents(self) -> bool:
        """Whether the process that this one was forked from has it open: here it is closed."""
        return self._is_parents

    def _finish(self) -> bool:
        """Stop the services and make everything durable; True when nothing was left undone."""
        parts = self._parts
        parts.replicated_where = None  # The next start takes the whole log: a master keeps what slaves lack.
        parts.housekeeping.stop()
        if parts.commit_service is not None:
            parts.commit_service.stop()
        parts.flush_service.stop()
        parts.group_commit.stop()
        parts.flusher.flush_all()  # The services did it, unless they were never started.
        paused = parts.reput.paused
        parts.reput.stop()
        parts.queue_flush.stop()
        try:
            if not paused:
                self._dispatch_the_rest()
            is_slave = parts.config.broker_role is BrokerRole.SLAVE
            if is_slave and parts.dispatch.offset < parts.log.files.max_wrote_offset:
                parts.log.cut(parts.dispatch.offset)  # The rest of the record comes again: ask for it from its start.
            parts.queue_flush.flush_all()
            behind = parts.log.files.max_wrote_offset - parts.dispatch.offset
            parts.dispatch.close()
            if parts.index is not None:
                parts.index.close()
        finally:
            parts.allocator.shutdown()
        parts.checkpoint.flush()
        flushed = parts.log.files.flushed_where >= parts.log.files.max_wrote_offset
        # A slave may have all records of a file, and not all of the blank behind them.
        if behind != 0 or parts.flusher.failure is not None or not flushed:
            return False
        self._write_marker()
        return True

    def _dispatch_the_rest(self) -> None:
        parts = self._parts
        try:
            parts.dispatch.run(parts.confirm_offset())
        except Exception:  # noqa: BLE001 - the edge of the store's life; the next start dispatches what was left.
            _log.exception("dispatch ended at %d when the store was closed", parts.dispatch.offset)

    def _write_marker(self) -> None:
        parts = self._parts
        root = str(parts.config.root_path)
        ends = [
            QueueEnd(q.topic, q.queue_id, type(q).__name__, q.min_offset, q.max_offset, q.max_physical_offset)
            for q in parts.queues.all_queues()
            if q.files.file_count
        ]
        index_names = [] if parts.index is None else [file.name for file in parts.index.files]
        checkpoint, log_begin = parts.checkpoint.encoded().hex(), max(0, parts.log.files.min_offset)
        marker = CleanMarker(parts.log.max_offset, checkpoint, ends, index_names, log_begin)
        write_marker(parts.access, root, marker)
        parts.access.remove(f"{root}/abort")
        parts.access.sync_directory(root)

    def _unmap(self) -> None:
        parts = self._parts
        with ExitStack() as let_go:  # Runs backwards, and each step also when one before it failed.
            if parts.pool is not None:
                let_go.callback(parts.pool.close)
            let_go.callback(parts.checkpoint.close)
            let_go.callback(parts.log.files.close)
            if parts.index is not None:
                let_go.callback(parts.index.close)
            let_go.callback(parts.queues.close)
            let_go.callback(parts.dispatch.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _bind_hot_paths(self) -> None:
        """Called when the store is about to run."""

    def _forbid(self) -> None:
        """Called when the store has stopped, before its files are unmapped."""

    @property
    def config(self) -> StoreConfig:
        return self._parts.config

    @property
    def running(self) -> bool:
        return self._lifecycle.running

    def closed_error(self) -> StoreClosed:
        """What a call gets that comes after `close`, or in a process that was forked."""
        if self._is_parents:
            return StoreClosed(
                f"the store in {self._parts.config.root_path} belongs to the process that opened it, and this one was "
                "forked from that: put there, or open it here once it is closed there. `tiermq.read` reads it meanwhile"
            )
        return StoreClosed(f"the store in {self._parts.config.root_path} is closed")

    def _ensure_running(self) -> None:
        if not self._lifecycle.running:
            raise self.closed_error()


_opened: weakref.WeakSet[StoreLifecycle] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for store in tuple(_opened):
        store._leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


class State(enum.IntEnum):
    """Numbers are RocketMQ's; the compaction state exists there only."""

    INIT = 0
    LOAD_BEGIN = 10
    LOAD_COMMITLOG_OK = 11
    LOAD_CONSUME_QUEUE_OK = 12
    LOAD_INDEX_OK = 14
    RECOVER_BEGIN = 20
    RECOVER_CONSUME_QUEUE_OK = 21
    RECOVER_COMMITLOG_OK = 22
    RECOVER_TOPIC_QUEUE_TABLE_OK = 23
    RUNNING = 30
    SHUTDOWN_BEGIN = 40
    SHUTDOWN_OK = 41


class StateMachine:
    """State of a store; it only moves forward. Changed by the thread that opens or closes it."""

    def __init__(self) -> None:
        self.state = State.INIT
        self.running = False
        """Each read asks for it."""

    def advance(self, to: State) -> None:
        """Move forward; a move to the same or an earlier state raises and changes nothing."""
        if to <= self.state:
            raise IllegalTransition(f"a store that is {self.state.name} cannot become {to.name}")
        self.state = to
        self.running = to is State.RUNNING


def register_metrics(registry: Registry, parts: StoreComponents) -> None:
    """Values are read at each rendering: a metric costs nothing between renderings."""
    figures = {
        "rocketmq_storage_size": ("bytes of the mapped commit log", lambda: parts.log.files.total_mapped_bytes),
        "rocketmq_storage_flush_behind_bytes": (
            "bytes of the commit log that are not durable yet",
            lambda: max(0, parts.log.max_offset - parts.log.files.flushed_where),
        ),
        "rocketmq_storage_dispatch_behind_bytes": ("bytes not dispatched yet", parts.reput.behind_bytes),
        "tiermq_store_puts_total": ("records put since the store was opened", lambda: parts.log.appender.puts),
        "tiermq_store_put_bytes_total": ("bytes put since the opening", lambda: parts.log.appender.stored_bytes),
        "tiermq_store_queues_refused_total": (
            "queues that were not begun because the next start could not map them",
            lambda: parts.queues.budget.refused_count,
        ),
        "tiermq_store_put_failures_total": ("messages that the log refused", lambda: parts.statistics.put_failures),
        "tiermq_store_flushes_total": ("flushes of the commit log", lambda: parts.flusher.flush_count),
        "tiermq_store_queue_gaps_total": ("queues found with lost messages", lambda: parts.dispatch.gap_count),
        "tiermq_store_writeable": ("1 when puts are accepted", lambda: float(parts.flags.writeable)),
    }
    for name, (text, read) in figures.items():
        make = registry.counter if name.endswith("_total") else registry.gauge
        make(name, text, (), read)
    parts.statistics.put_seconds = registry.histogram(
        "tiermq_put_latency_seconds", "how long puts took, of those that are timed"
    ).labels()
