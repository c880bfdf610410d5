"""Dispatch (reput): build the queue unit and index entries of each commit log record, and notify joined dispatchers.

The kernel's Builder dispatches ordinary records in bulk; this module dispatches special records, and runs the chain:

    consume queue, key index, then every joined dispatcher, in the order of joining

Invariants: records are dispatched in log order, each at least once and (as far as queue and index detect it) not twice;
nothing beyond the confirm offset; a record whose unit or entries could not be written (full disk) is retried before
anything behind it is dispatched.
Threads: everything here runs under `lock`, on the reput thread or on the thread that opens the store; only the flush of
the queues reads what is unflushed and settled without it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from tiermq.commitlog.commit_log import CommitLog
from tiermq.commitlog.dispatch_request import DispatchRequest, request_at
from tiermq.config import BrokerRole, StoreConfig
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.queue_table import Queue, QueueTable
from tiermq.consumequeue.queue_units import AppendOutcome
from tiermq.errors import CorruptRecord, StoreDamaged
from tiermq.index.index_service import IndexService
from tiermq.kernel import Builder, IndexTail, QueueTail, Stop, WriteCursor
from tiermq.message.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC
from tiermq.message.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET
from tiermq.message.system_flag import TransactionType, enters_consume_queue, transaction_type
from tiermq.message.topic_name import TABLE_LOG_TOPIC, QueueName, is_light_queue, lite_parent, may_multi_dispatch

_log = logging.getLogger(__name__)

SHORT_BYTES_MAX = 16 * 1024
"""What a broker's loop dispatches by itself: some forty records. More is worth another thread."""
CHUNK_BYTES = 4 * 1024 * 1024  # Dispatched between two checks of listeners and stop requests.


class DispatchSpan:
    """A range of dispatched records of one file, passed to dispatchers that joined the chain."""

    __slots__ = ("_config", "_view", "end_offset", "start_offset")

    def __init__(self, view: WriteCursor, start_offset: int, end_offset: int, config: StoreConfig) -> None:
        self._view = view
        self._config = config
        self.start_offset = start_offset
        self.end_offset = end_offset

    def __iter__(self) -> Iterator[DispatchRequest]:
        position = self.start_offset - self._view.base
        end = self.end_offset - self._view.base
        while position < end:
            request = request_at(self._view, position, self._config)
            yield request
            position += request.size


class Dispatcher(Protocol):
    """Receives every record after its unit is written. Called in log order, on the dispatching thread."""

    def dispatch(self, span: DispatchSpan) -> None: ...


ArrivalListener = Callable[[str, int, int, DispatchRequest | None], None]
"""(topic, queue id, next queue offset, the record if it came alone). No record: several arrived."""


class Dispatch:
    """See the module."""

    def __init__(self, config: StoreConfig, log: CommitLog, queues: QueueTable, index: IndexService | None) -> None:
        self.lock = threading.RLock()
        self.dispatchers: list[Dispatcher] = []
        self.listeners: list[ArrivalListener] = []
        self.recovering = False
        # A slave's log ends within a record while the rest of it is on the way.
        self._follows_master = config.broker_role is BrokerRole.SLAVE
        self.gap_count = 0
        self.advanced: dict[QueueName, int] = {}  # Where `LocalStore.advance_queue` left offsets without messages.
        self.conflict_count = 0
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._builder = Builder(config.delay_levels_ms)
        self._offset = 0
        self._unflushed: dict[QueueTail, int] = {}
        self._settled_ms = 0

    @property
    def offset(self) -> int:
        """Everything below has been dispatched."""
        return self._offset

    @offset.setter
    def offset(self, value: int) -> None:
        self._offset = value

    @property
    def last_store_timestamp_ms(self) -> int:
        return self._builder.last_store_timestamp_ms

    @property
    def settled_ms(self) -> int:
        """The store time of the newest record whose queues `take_unflushed` knows, as those of all records before it.
        Behind `last_store_timestamp_ms` while a chunk is dispatched, and after one that failed half-way.
        """
        return self._settled_ms

    @property
    def records(self) -> int:
        return self._builder.records

    def adopt(self, queue: ConsumeQueue) -> None:
        """Let the fast path append to a queue from its next unit on, where an append only needs the file offset."""
        follows = queue.max_physical_offset >= 0 or queue.max_logic_offset == 0
        if follows and self._is_ordinary(queue.topic):
            with self.lock:
                self._builder.add(queue.queue_tail)

    def prepare_index(self) -> None:
        """Create the index file that the next record needs, if missing: 20 MB of blocks for its slots."""
        with self.lock:
            if self._index is not None:
                self._refresh_index_tail(self._index)

    def forget_topic(self, topic: str) -> None:
        """Drop a deleted topic's queues from the fast path."""
        with self.lock:
            self._notify_touched()
            for queue_id in self._queues.queues_of(topic):
                self._builder.remove(topic, queue_id)

    def note_unflushed(self, queue: Queue) -> None:
        """The queue has bytes that no flush has seen: the next one that calls `take_unflushed` makes them durable."""
        self._unflushed[queue.queue_tail] = 0

    def take_unflushed(self) -> list[QueueTail]:
        """The queues that got units since the last call. Any one thread may call it, without `lock`: a queue is noted
        behind its unit, so that it is here or in the next call's list, and `settled_ms` moves behind the note.
        """
        tails = list(self._unflushed)
        for tail in tails:
            del self._unflushed[tail]
        return tails

    def close(self) -> None:
        """Unmap every file."""
        with self.lock:
            self._builder.clear()
            self._drop_index_tail()

    def destroy_index(self) -> None:
        """Remove every index file."""
        with self.lock:
            self._drop_index_tail()
            if self._index is not None:
                self._index.destroy()

    def drop_index_from(self, physical_offset: int) -> int | None:
        """Drop the entries of records that the log lost; see `IndexService.drop_from`."""
        with self.lock:
            self._drop_index_tail()
            return None if self._index is None else self._index.drop_from(physical_offset)

    # Running

    def run(self, limit: int, *, stopping: Callable[[], bool] = lambda: False) -> int:
        """Dispatch everything below `limit`; how many records."""
        before = self.records
        with self.lock:
            while self._offset < limit and not stopping() and self._step(limit):
                pass
        return self.records - before

    def run_short(self, limit: int) -> bool:
        """Dispatch a short rest by the fast path alone, unless another thread is at it; whether all below `limit` is
        done. It waits for nothing and makes no file: a broker's loop may call it.
        """
        if limit - self._offset > SHORT_BYTES_MAX or not self.lock.acquire(blocking=False):
            return False
        try:
            has_index_tail = self._index is None or self._builder.index is not None
            file = self._log.files.find(self._offset)
            if self.dispatchers or not has_index_tail or file is None or not file.hold():
                return False
            try:
                view, start = file.view, self._offset - file.view.base
                position, stop = self._builder.dispatch(view, start, min(limit - view.base, view.position))
                self._finish(view, start, position)
            finally:
                file.release()
            self._offset = view.base + position
            return stop is Stop.END and self._offset >= limit
        finally:
            self.lock.release()

    def _step(self, limit: int) -> bool:
        """One chunk of one file. False when nothing could be done."""
        files = self._log.files
        if self._offset < files.min_offset:
            _log.error("records below %d were removed before they were dispatched", files.min_offset)
            self._offset = files.min_offset
        file = files.find(self._offset)
        if file is None or not file.hold():
            return False
        try:
            return self._step_in(file.view, limit)
        finally:
            file.release()

    def _step_in(self, view: WriteCursor, limit: int) -> bool:
        start = self._offset - view.base
        end = min(limit - view.base, view.position)
        position, stop = self.walk(view, start, end, budget=CHUNK_BYTES)
        self._finish(view, start, position)
        # Replicas have bytes, not records: what they confirm may end within one.
        may_be_cut = self._follows_master or end < view.position
        if stop is Stop.CORRUPT and not (may_be_cut and _is_unfinished(view, position, end)):
            self._offset = view.base + position
            raise CorruptRecord(
                f"expected a record at physical offset {self._offset}, found none: the commit log changed under a "
                "running store; stop it and run `tiermq store check`"
            )
        if stop is Stop.BLANK:
            self._offset = view.base + position
            self.require_own_blank(view, position)
        at_end = stop is Stop.BLANK or position >= view.size
        self._offset = view.base + (view.size if at_end else position)
        return at_end or position > start

    def _finish(self, view: WriteCursor, start: int, position: int) -> None:
        """Notify the joined dispatchers and the listeners."""
        if position > start and self.dispatchers:
            span = DispatchSpan(view, view.base + start, view.base + position, self._config)
            for dispatcher in self.dispatchers:
                dispatcher.dispatch(span)
        self._notify_touched()
        self._settled_ms = self._builder.last_store_timestamp_ms

    def _notify_touched(self) -> None:
        """Note and report the queues to which the kernel appended."""
        touched = self._builder.take_touched()
        self._unflushed.update(touched)
        if not self.listeners:
            return
        for queue, next_offset in touched:
            for listener in self.listeners:
                listener(queue.topic, queue.queue_id, next_offset, None)

    def walk(
        self, view: WriteCursor, start: int, end: int, crc_mode: int = 0, budget: int = 1 << 62
    ) -> tuple[int, Stop]:
        """Build units and entries for [start, end) of one file, fast where possible. Stops as the kernel does."""
        position = start
        if self._index is not None and self._builder.index is None and start < end:
            # Without it the fast path would treat the store as one without an index, and skip every key.
            self._refresh_index_tail(self._index)
        while True:
            left = start + budget - position
            position, stop = self._builder.dispatch(view, position, end, crc_mode, left)
            if stop is not Stop.SLOW:
                return position, stop
            request = request_at(view, position, self._config)
            self.dispatch_one(request)
            self._builder.last_store_timestamp_ms = request.store_timestamp_ms
            self._builder.records += 1
            position += request.size

    def require_own_blank(self, view: WriteCursor, position: int) -> None:
        """A blank record fills its file. One that is shorter was copied from a master with smaller files: what is
        behind it would never be dispatched, and recovery would erase it. Raises CorruptRecord, and StoreDamaged at
        the start.
        """
        size = _size_and_magic(view, position)[0]
        if size == view.size - position:
            return
        if not self._follows_master and _size_and_magic(view, position + size)[1] not in (MAGIC_V1, MAGIC_V2):
            return
        words = (
            f"expected the blank record at physical offset {view.base + position} to fill the rest of its file of "
            f"{view.size} bytes, found one of {size} bytes: the log was copied from a master with another "
            "mappedFileSizeCommitLog. Set the same here, and start with an empty store"
        )
        raise StoreDamaged(words) if self.recovering else CorruptRecord(words)

    # One record

    def dispatch_one(self, request: DispatchRequest) -> None:
        """Give one record its unit and its entries. Raises DiskFull with nothing lost: it can be dispatched again."""
        if enters_consume_queue(request.sys_flag):
            self._append_unit(request)
            self._append_light_units(request)
        if self._index is not None and transaction_type(request.sys_flag) is not TransactionType.ROLLBACK:
            self._index.put(request.topic, request.keys, request.physical_offset, request.store_timestamp_ms)
            self._refresh_index_tail(self._index)

    def _append_unit(self, request: DispatchRequest) -> None:
        queue = self._queues.find_or_create(request.topic, request.queue_id)
        outcome = self._append_to(queue, request)
        is_replayed = self.recovering or self._follows_master
        if outcome is AppendOutcome.CONFLICT and is_replayed and request.queue_offset == 0:
            # The topic was deleted and began again: the log's older records of it belong to no queue.
            self._notify_touched()  # `remove` forgets them.
            self._builder.remove(request.topic, request.queue_id)
            queue.destroy()
            outcome = self._append_to(queue, request)
        self._note(outcome, request)
        if isinstance(queue, ConsumeQueue) and self._is_ordinary(request.topic):
            self._builder.add(queue.queue_tail)
        for listener in self.listeners:
            listener(request.topic, request.queue_id, request.queue_offset + request.batch_size, request)

    def _append_to(self, queue: Queue, request: DispatchRequest) -> AppendOutcome:
        try:
            return queue.append(request)
        finally:
            self.note_unflushed(queue)  # Also of a full disk: the blanks before the unit may be written.

    def _is_ordinary(self, topic: str) -> bool:
        """Whether the kernel may append this topic's units. Each record of the table log reaches listeners before the
        next record is dispatched: a slave's tables are those of the master at that point of the log.
        """
        return not self._config.enable_consume_queue_ext and topic.isascii() and topic != TABLE_LOG_TOPIC

    def _append_light_units(self, request: DispatchRequest) -> None:
        """A multi-dispatched record has a unit in each light queue that its properties name."""
        names = request.properties.get(INNER_MULTI_DISPATCH)
        enabled = self._config.enable_lmq and self._config.enable_multi_dispatch
        if not names or not enabled or not may_multi_dispatch(request.topic):
            return
        offsets = request.properties.get(INNER_MULTI_QUEUE_OFFSET, "").split(",")
        for name, offset in zip(names.split(","), offsets, strict=False):
            if not (is_light_queue(name) and offset.isascii() and offset.isdigit()):
                continue
            light = replace(request, topic=name, queue_id=0, queue_offset=int(offset), batch_size=1)
            if light.queue_offset == 0:
                self._end_earlier(name, request.physical_offset)
            self._note(self._append_to(self._queues.find_or_create(name, 0), light), light)
            for listener in self.listeners:
                listener(name, 0, int(offset) + 1, request)

    def _end_earlier(self, name: str, physical_offset: int) -> None:
        """A light queue of a lite topic that begins at 0 behind its own end was deleted in between, where the record
        was put (`LocalStore.drop_light_queue`): this slave, or this store before a crash, did not see it.
        """
        queue = self._queues.find(name, 0)
        if queue is not None and 0 < queue.max_physical_offset <= physical_offset and lite_parent(name) is not None:
            self.forget_topic(name)
            self._queues.delete_topic(name)

    def _note(self, outcome: AppendOutcome, request: DispatchRequest) -> None:
        if outcome is AppendOutcome.GAP:
            name = f"{request.topic}-{request.queue_id}"
            if self.advanced.pop((request.topic, request.queue_id), -1) == request.queue_offset:
                _log.info(
                    "queue %s continues at offset %d; the offsets before it are taken", name, request.queue_offset
                )
                return
            self.gap_count += 1
            _log.error("queue %s: messages before offset %d are not in this store", name, request.queue_offset)
        elif outcome in (AppendOutcome.CONFLICT, AppendOutcome.TOO_FAR):
            self.conflict_count += 1
            _log.error("record at %d cannot enter its queue: %s (%r)", request.physical_offset, outcome.name, request)

    def _refresh_index_tail(self, index: IndexService) -> None:
        """Point the kernel at the index file that is being filled, with the blocks that it has now."""
        file = index.current()
        tail = self._builder.index
        if tail is None or self._indexed_file is not file:
            self._drop_index_tail()
            tail = IndexTail(file.buffer, file.slot_count_max, file.entry_count_max)
            self._builder.index = tail
            self._indexed_file = file
        tail.entry_limit = file.entry_limit

    _indexed_file: object = None

    def _drop_index_tail(self) -> None:
        if self._builder.index is not None:
            self._builder.index.detach()
            self._builder.index = None
            self._indexed_file = None


def _is_unfinished(view: WriteCursor, position: int, end: int) -> bool:
    """Whether the record at `position` continues beyond `end`: its size and magic are there or still missing."""
    if end - position < SIZE_AND_MAGIC.size:
        return True
    size, magic = _size_and_magic(view, position)
    return magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) and end - position < size <= view.size - position


def _size_and_magic(view: WriteCursor, position: int) -> tuple[int, int]:
    head = view.read(position, SIZE_AND_MAGIC.size)
    return SIZE_AND_MAGIC.unpack(head) if head is not None else (0, 0)
