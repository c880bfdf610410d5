"""LocalStore: a complete message store in a directory that a RocketMQ 5.3 broker can open.

    with LocalStore.open("store", flush_disk_type="SYNC_FLUSH") as store:
        result = store.put(Message("orders", b"...", keys=["order-42"], tags="paid"))
        page = store.get("orders", 0, result.queue_offset)

What is durable when: under SYNC_FLUSH a put that returned PUT_OK survives a power cut; under ASYNC_FLUSH it survives
the death of the process, and a power cut once the flush interval has passed. What is readable when: a message can be
got once it is dispatched, which follows the put within milliseconds (under SYNC_FLUSH: once it is durable).

Threads: any thread may call anything but `open` and `close`. Hot paths are bound at open: `store.put` *is* the
appender's put under ASYNC_FLUSH, `store.get` *is* the reader's get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal, NoReturn

from tiermq.config import FlushDiskType
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.ext_unit import ExtUnit
from tiermq.consumequeue.queue_table import Queue, QueueType
from tiermq.consumequeue.queue_units import Boundary
from tiermq.consumequeue.unit import UNIT, is_real
from tiermq.errors import CorruptRecord, IllegalMessage, StoreError
from tiermq.files.mapped_file import SelectedBuffer
from tiermq.kernel import (
    Appender,
    Collected,
    DeferredRecord,
    GetPage,
    Message,
    PutResult,
    PutResults,
    QueueHandle,
    Segments,
    collect_for_tier,
    messages_of_batch,
    read_deferred,
)
from tiermq.kernel.columns import TIME_MAX_MS
from tiermq.kernel.message import batch_of
from tiermq.message.layout import UNIT_BYTES
from tiermq.message.message_filter import MessageFilter
from tiermq.message.properties import DELAY, get_property
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import QueueName, is_light_queue, is_system_topic
from tiermq.settings import LONG_MAX
from tiermq.status import PutStatus
from tiermq.store.clean_service import Cleaned, RetentionGuard
from tiermq.store.dispatch import ArrivalListener
from tiermq.store.reader import PULL_BYTES_MAX, QueryPage, query_by_key, record_at
from tiermq.store.running_flags import Flag
from tiermq.store.store_lifecycle import StoreLifecycle
from tiermq.store.wiring import dispatch_short, wake_reput


class LocalStore(StoreLifecycle):
    """See the module. `open` and `close` are `StoreLifecycle`'s."""

    def _bind_hot_paths(self) -> None:
        parts = self._parts
        appender = parts.log.appender
        self.get = parts.reader.get  # type: ignore[method-assign]
        self.append = appender.put  # type: ignore[method-assign]
        if parts.config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            appender.is_sync = True
            appender.sync_put = self.put
        elif not parts.config.wake_flush_when_put_message:
            self.put = appender.put  # type: ignore[method-assign]
            self.put_many = appender.put_many  # type: ignore[method-assign]

    def _forbid(self) -> None:
        """A closed store raises on reads instead of returning empty pages."""

        def closed(*_args: object, **_keywords: object) -> NoReturn:
            raise self.closed_error()

        self.get = closed  # type: ignore[method-assign]

    # Putting

    def put(self, message: Message) -> PutResult:
        """Store one message. A refusal is a status, with nothing written; see `PutStatus`."""
        result = self._parts.log.appender.put(message)
        if result.status is not PutStatus.PUT_OK:
            return result
        status = self._await_flush(result.end_offset, message.waits_for_store)
        return result if status is PutStatus.PUT_OK else result.with_status(status)

    def put_many(self, messages: Iterable[Message]) -> PutResults:
        """Store messages in one call, in order; each has its own result. Cheaper than putting them one by one."""
        batch = messages if isinstance(messages, list) else batch_of(messages)
        results = self._parts.log.appender.put_many(batch)
        if results.end_offset < 0:
            return results
        status = self._await_flush(results.end_offset, any(message.waits_for_store for message in batch))
        return results if status is PutStatus.PUT_OK else results.with_status(status)

    def put_batch(self, envelope: Message) -> PutResults:
        """Store a classic batch: `envelope.body` holds the client's messages, which are stored side by side.

        Each of them gets the envelope's properties behind its own, as RocketMQ stores them. Raises CorruptRecord when
        the body is not a batch; a batch that is too large, transactional or delayed is refused whole (every result has
        the status).
        """
        outcome = self.append_batch(envelope)
        if outcome.end_offset < 0:
            return outcome
        status = self._await_flush(outcome.end_offset, envelope.waits_for_store)
        return outcome if status is PutStatus.PUT_OK else outcome.with_status(status)

    def append(self, message: Message) -> PutResult:
        """`put` for callers that must not block: it never waits for the disk. The message is as durable
        as under ASYNC_FLUSH until `when_durable(result.end_offset, ...)` has called back; that also starts the flush.
        """
        return self._parts.log.appender.put(message)

    def append_batch(self, envelope: Message) -> PutResults:
        """`put_batch` that never waits for the disk, as `append`."""
        messages = messages_of_batch(envelope)
        illegal = (
            len(envelope.body) > self._parts.log.appender.max_body_bytes
            or envelope.sys_flag & 0x0C
            or get_property(envelope.encoded_properties, DELAY.encode()) not in (None, b"0")
        )
        if illegal or any(message.needs_offset for message in messages):
            self._parts.statistics.record_put_failures(len(messages))
            return PutResults.refused(PutStatus.MESSAGE_ILLEGAL, len(messages))
        outcome = self._parts.log.put_together(messages)
        return PutResults.refused(outcome, len(messages)) if isinstance(outcome, PutStatus) else outcome

    @property
    def puts_at_once(self) -> bool:
        """Whether `put` and `put_many` are the appender's: no put waits for the disk or wakes its flush."""
        return "put" in vars(self)

    @property
    def room_failure(self) -> StoreError | None:
        """Why the last put that needed disk space got none; None when every one did."""
        return self._parts.log.room_failure

    @property
    def refuses_puts_because(self) -> str:
        """Why puts are refused now, in words; empty when they are not."""
        return self._parts.flags.words()

    def queue(self, topic: str, queue_id: int = 0) -> QueueHandle:
        """A handle for putting many messages to one queue. Raises IllegalMessage when no queue can have that name, and
        StoreError when there are as many queues as the next start could map.
        """
        if self._parts.log.bind(topic, queue_id) is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED:
            raise StoreError(
                f"{topic}-{queue_id}: expected a memory map for another queue at the next start, found too few left; "
                "raise `sysctl vm.max_map_count`, or delete topics that are not used"
            )
        return self._handle(topic, queue_id)

    def _handle(self, topic: str, queue_id: int) -> QueueHandle:
        handle = self._parts.log.queue(topic, queue_id)
        if handle is None:
            raise IllegalMessage(f"{topic!r} is not a legal topic name")
        return handle

    def may_begin_queue(self, topic: str, queue_id: int) -> bool:
        """Whether a client may send to a queue: it has messages, or another one may begin (`MapBudget`)."""
        parts = self._parts
        bound = parts.log.appender.handle(topic, queue_id) is not None
        return bound or parts.queues.may_begin(topic, queue_id, for_client=True)

    def when_durable(self, offset: int, call: Callable[[PutStatus], None]) -> None:
        """Call back once everything below physical `offset` is durable. For callers that must not block."""
        self._ensure_running()
        with self._close_lock:  # Concurrent first callers, or one during a close, start a single thread.
            self._ensure_running()
            if not self._parts.group_commit.running:
                self._parts.group_commit.start()
            # Still under the lock: a close that begins behind it finds the call and makes it.
            self._parts.group_commit.when_durable(offset, call)

    def _await_flush(self, end_offset: int, waits: bool) -> PutStatus:
        parts = self._parts
        if parts.config.flush_disk_type is not FlushDiskType.SYNC_FLUSH:
            parts.flush_service.wake()
            return PutStatus.PUT_OK
        if waits:
            return parts.group_commit.wait(end_offset)
        parts.group_commit.wake()
        return PutStatus.PUT_OK

    # Reading

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int = PULL_BYTES_MAX,
        message_filter: MessageFilter | None = None,
        bulk: bool = False,
    ) -> GetPage:
        """A page of messages from `offset` on. The page has the status and the next offset. `bulk`: a large one."""
        return self._parts.reader.get(topic, queue_id, offset, max_messages, max_bytes, message_filter, bulk)

    def query(
        self,
        topic: str,
        key: str,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX_MS,
        max_messages: int = 32,
    ) -> QueryPage:
        """The newest messages of a topic that have `key` among their keys, oldest of them first."""
        self._ensure_running()
        index = self._parts.index
        if index is None:
            raise StoreError("this store keeps no key index: open it with message_index_enable=True")
        most = min(max_messages, self._parts.config.max_msgs_num_batch)
        return query_by_key(index, self._parts.log.files.segments, topic, key, most, begin_ms, end_ms)

    def message_at(self, physical_offset: int, size: int | None = None) -> StoredMessage | None:
        """The message at a physical offset, or None. Raises CorruptRecord when its bytes are damaged."""
        self._ensure_running()
        return record_at(self._parts.log.files.segments, physical_offset, size)

    def stored_at(self, physical_offset: int) -> StoredMessage | None:
        """The message whose record begins at a physical offset that a client names, or None.

        Its queue must refer to that offset: bytes within a message's body may look like a record. What was read there
        is not reported, since it is another message's content.
        """
        if physical_offset < 0:
            return None
        try:
            message = self.message_at(physical_offset)
        except CorruptRecord:
            return None
        if message is None:
            return None
        return message if self.refers_to(message, message.topic) else None

    def deferred_at(self, topic: str, physical_offset: int, size: int = 0) -> DeferredRecord | None:
        """The record of a topic for messages that wait; None if `message_at` must read it. Without a size it may be
        within another message: ask `refers_to`.
        """
        self._ensure_running()
        return read_deferred(self._parts.log.files.segments, physical_offset, size, topic)

    def refers_to(self, record: StoredMessage | DeferredRecord, topic: str) -> bool:
        """Whether the unit of a record's queue names its place: then it is a record, and not bytes of a body."""
        if record.physical_offset >= self.dispatched_where:
            self.dispatch_now()  # It is not dispatched yet.
        return self.physical_offset_of(topic, record.queue_id, record.queue_offset) == record.physical_offset

    # Offsets and times

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """The offset behind the newest message: of those that can be got, or (not committed) of all that were put."""
        if not committed:
            handle = self._parts.log.appender.handle(topic, queue_id)
            if handle is not None:
                return handle.next_offset
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    @property
    def appender(self) -> Appender:
        """The log's appender, for the kernel's fast path; a put through it waits for no flush."""
        return self._parts.log.appender

    @property
    def min_physical_offset(self) -> int:
        return self._parts.log.min_offset

    @property
    def max_physical_offset(self) -> int:
        return self._parts.log.max_offset

    @property
    def flushed_where(self) -> int:
        """Everything below this physical offset survives a power cut."""
        return self._parts.log.files.flushed_where

    @property
    def dispatched_where(self) -> int:
        """Everything below this physical offset can be got and queried."""
        return self._parts.dispatch.offset

    def offset_at(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """The queue offset that belongs to a time: the first message at or after it, or the last at or before it."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0
        found = queue.offset_by_time(
            timestamp_ms, Boundary(boundary), self._store_time_of, max(0, self.min_physical_offset)
        )
        return min(max(found, queue.min_offset), queue.max_offset)

    def store_time_of(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message with a queue offset was stored, in milliseconds; -1 when there is none."""
        physical, size = self._place_of(topic, queue_id, offset)
        return -1 if size <= 0 else self._store_time_of(physical, size)

    def physical_offset_of(self, topic: str, queue_id: int, offset: int) -> int:
        """Physical offset of the record of a queue offset; -1 when there is none."""
        return self._place_of(topic, queue_id, offset)[0]

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Store time of the oldest message of a queue; -1 when there is none."""
        return self.store_time_of(topic, queue_id, self.min_offset(topic, queue_id))

    def newest_time(self, topic: str, queue_id: int) -> int:
        """Store time of the newest message of a queue; -1 when it has none, or its record is deleted. The first look
        after a start reads the record.
        """
        queue = self._queue(topic, queue_id)
        if queue is None or queue.max_physical_offset <= max(0, self.min_physical_offset):
            return -1
        if not queue.queue_tail.last_store_timestamp_ms:
            with self._parts.dispatch.lock:
                time_ms = self.store_time_of(topic, queue_id, queue.max_offset - 1)
                queue.queue_tail.last_store_timestamp_ms = max(0, time_ms)
            return time_ms
        return queue.queue_tail.last_store_timestamp_ms

    def _place_of(self, topic: str, queue_id: int, offset: int) -> tuple[int, int]:
        queue = self._queue(topic, queue_id)
        unit = None if queue is None or offset < 0 else queue.unit_at(offset)
        return (-1, -1) if unit is None else (unit.physical_offset, unit.size)

    def _store_time_of(self, physical_offset: int, size: int) -> int:
        log = self._parts.log.files.segments
        head = log.read(physical_offset, min(size, 80))
        if head is None or len(head) < 68:
            return -1
        at = 68 if head[39] & 0x10 else 56
        return int.from_bytes(head[at : at + 8], "big", signed=True) if len(head) >= at + 8 else -1

    # Topics

    def topics(self) -> dict[str, list[int]]:
        """Every topic that has queues, with its queue ids."""
        queues = self._parts.queues
        return {topic: sorted(queues.queues_of(topic)) for topic in queues.topics()}

    def set_queue_type(self, topic: str, queue_type: QueueType) -> None:
        """Set whether a topic has simple queues or batch queues, before anything is put to it.

        Raises StoreError when it already has queues of the other type: their files would no longer load.
        """
        self._ensure_running()
        attributes = self._parts.attributes
        if attributes.queue_type_of(topic) is queue_type:
            return
        if self._parts.queues.queues_of(topic):
            raise StoreError(
                f"topic {topic}: expected no queues yet, or {queue_type.value}, found some of another type"
            )
        attributes.set_queue_type(topic, queue_type)

    def delete_topics(self, topics: Iterable[str]) -> int:
        """Delete the queues of topics; their records are deleted with their files. Returns how many topics there were.

        What is put to such a topic afterwards begins at offset 0 again. Do not put to it meanwhile.
        """
        with self._parts.dispatch.lock:
            self.flush()
            self.dispatch_now()  # Otherwise pending dispatches would create the queues again.
            return self.drop_queues(topics)

    def drop_queues(self, topics: Iterable[str], before: int = LONG_MAX) -> int:
        """Delete the queues of topics as far as they are dispatched; how many topics there were. An arrival listener of
        a slave may call it: what its master deleted at the physical offset `before`. A topic that has messages behind
        it stays.
        """
        self._ensure_running()
        parts = self._parts
        count = 0
        with parts.dispatch.lock:
            gone = {
                topic
                for topic in topics
                if all(each.max_physical_offset <= before for each in parts.queues.queues_of(topic).values())
            }
            for topic in gone:
                parts.dispatch.forget_topic(topic)
                count += parts.queues.delete_topic(topic) > 0
            for handle in parts.log.appender.handles():
                if handle.topic in gone:
                    handle.next_offset = 0  # The handle stays: a producer may have it.
        return count

    def drop_light_queue(self, name: str, before_ms: int) -> bool:
        """Delete a light queue to which nothing was put since `before_ms`, also while others put to it. What is put
        afterwards begins at offset 0 again: dispatch, here and on slaves, sees by that that the queue was deleted.
        """
        self._ensure_running()
        parts = self._parts

        def drop() -> None:
            parts.dispatch.forget_topic(name)
            parts.queues.delete_topic(name)

        with parts.dispatch.lock:
            queue = parts.queues.find(name, 0)
            if queue is None or self.newest_time(name, 0) >= before_ms:
                return False
            return parts.log.begin_again(name, queue.max_offset, drop)

    def between_dispatches(self, call: Callable[[], None]) -> None:
        """Call it while no record is dispatched, as arrival listeners are."""
        self._ensure_running()
        with self._parts.dispatch.lock:
            call()

    def clean_unused_topics(self, retained: Iterable[str]) -> int:
        """Delete every topic that is not retained, not the system's and not a light queue."""
        keep = set(retained)
        return self.delete_topics(
            topic for topic in self.topics() if not (topic in keep or is_system_topic(topic) or is_light_queue(topic))
        )

    # Dispatch, flush, cleaning: for layers on top of the store

    def dispatch_by(self, soon: Callable[[Callable[[], None]], bool]) -> None:
        """Let a thread that puts dispatch what it has put, without waking another thread.

        `soon(call)` is called by a put: it arranges for `call` to run soon on the thread of the put, and returns True;
        or it returns False. Nothing happens where puts become visible only when they are flushed.
        """
        parts = self._parts
        if parts.config.flush_disk_type is not FlushDiskType.SYNC_FLUSH:
            parts.dispatch_soon = partial(soon, self._dispatch_short)

    def _dispatch_short(self) -> None:
        if self.running and not self._parts.reput.paused:
            dispatch_short(self._parts)

    def add_arrival_listener(self, listener: ArrivalListener) -> None:
        """Call `listener` on the dispatch thread when a queue got messages."""
        self._parts.dispatch.listeners.append(listener)

    def add_eviction_veto(self, veto: RetentionGuard) -> None:
        """Hold commit-log files back from cleaning as long as `veto(first offset, end)` returns True."""
        self._parts.cleaner.vetoes.append(veto)

    def remove_eviction_veto(self, veto: RetentionGuard) -> None:
        """The files are not needed any more by what added it."""
        self._parts.cleaner.vetoes.remove(veto)

    def dispatch_now(self) -> int:
        """Dispatch everything that may be, on this thread; how many records. Everything put before can then be got."""
        self._ensure_running()
        if self._parts.pool is not None:
            self._parts.flusher.commit_all()
        return self._parts.dispatch.run(self._parts.confirm_offset())

    def catch_up(self) -> None:
        """Return once everything that was put before the call can be got: it is dispatched on this thread, if it is not
        yet, as far as the log goes now. What is put meanwhile is not waited for. Under SYNC_FLUSH it is flushed first.
        """
        parts = self._parts
        end = parts.log.files.max_wrote_offset
        if parts.dispatch.offset >= end:
            return
        self._ensure_running()
        if parts.pool is not None:
            parts.flusher.commit_all()
        if parts.confirm_offset() < end:
            self.flush()
        parts.dispatch.run(min(end, parts.confirm_offset()))

    @property
    def is_caught_up(self) -> bool:
        """Whether everything that was put can be got."""
        return self._parts.dispatch.offset >= self._parts.log.files.max_wrote_offset

    def flush(self) -> None:
        """Make everything that was put before durable."""
        self._ensure_running()
        self._parts.flusher.flush_all()
        if self._parts.flusher.failure is not None:
            raise StoreError("the commit log could not be flushed") from self._parts.flusher.failure

    def flush_queues(self) -> None:
        """Make every unit that was dispatched before durable, and update the checkpoint."""
        self._ensure_running()
        self._parts.queue_flush.flush_all()

    def clean_now(self) -> Cleaned:
        """Run the cleaner once, as if its hour had come."""
        self._ensure_running()
        self._parts.cleaner.request()
        return self._parts.cleaner.run()

    def fence(self, reason: str = "") -> bool:
        """Refuse puts from now on, for as long as the store is open; False when the store was fenced before.

        `reason`: which process has the broker instead.
        """
        return self._parts.flags.set(Flag.FENCED, reason)

    @property
    def is_fenced(self) -> bool:
        return Flag.FENCED in self._parts.flags.bits

    def clean_soon(self) -> None:
        """A file is no longer held back: wake housekeeping to clean now. Does not block."""
        self._parts.housekeeping.clean_soon()

    def verify_log(self) -> int:
        """Check every record of the log, body CRCs included; how many. Raises CorruptRecord at the first bad one."""
        self._ensure_running()
        return self._parts.log.verify()

    # Replication: the log as bytes

    @property
    def confirm_offset(self) -> int:
        """Everything below this physical offset is committed: as durable and as replicated as the settings require."""
        return self._parts.confirm_offset()

    def require_replicas(self, replicated_where: Callable[[], int]) -> None:
        """From now on a message is committed only below what this returns; `replicas_moved` follows each rise."""
        self._parts.replicated_where = replicated_where

    def replicas_moved(self) -> None:
        """Replicas have more of the log than before, so that more may be dispatched. Any thread may call."""
        wake_reput(self._parts)

    def set_few_replicas(self, detail: str) -> None:
        """Refuse puts while fewer replicas are in sync than required, with this detail; accept them without one."""
        self._refuse_puts(Flag.FEW_REPLICAS, detail)

    def set_draining(self, detail: str) -> None:
        """Refuse puts before the role changes, with this detail; accept them without one."""
        self._refuse_puts(Flag.DRAINING, detail)

    def _refuse_puts(self, flag: Flag, detail: str) -> None:
        if detail:
            self._parts.flags.set(flag, detail)
        else:
            self._parts.flags.clear(flag)

    def add_growth_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` soon after puts, on any thread; once for many. It must not block."""
        self._parts.reput.on_idle.append(listener)

    def log_bytes(self, offset: int, length_max: int) -> SelectedBuffer | None:
        """Bytes of the log from physical `offset` on, of one file, without a copy; None when there are none.

        Release what was returned: its file is not deleted before.
        """
        file = self._parts.log.files.find(offset)
        if file is None:
            return None
        position = offset - file.from_offset
        length = min(length_max, file.read_position - position)
        return file.select(position, length) if length > 0 else None

    def append_data(self, offset: int, data: memoryview) -> None:
        """Append bytes of a master's log to a slave's; see `CommitLog.append_data`."""
        self._ensure_running()
        self._parts.log.append_data(offset, data)

    # Copying: for a tier, which takes messages queue by queue

    def advance_queue(self, topic: str, queue_id: int, offset: int) -> None:
        """Let the queue's next message have at least this queue offset: the offsets before it are in use in the tier.

        An empty queue begins there; in a non-empty queue the offsets in between have no message. Only before puts.
        """
        handle = self._handle(topic, queue_id)
        with self._parts.dispatch.lock:
            if handle.next_offset >= offset:
                return
            queue = self._parts.queues.find_or_create(topic, queue_id)
            if isinstance(queue, ConsumeQueue) and queue.max_physical_offset < 0:
                queue.initialize_with_offset(offset)
                self._parts.dispatch.note_unflushed(queue)
            else:
                self._parts.dispatch.advanced[topic, queue_id] = offset
            handle.next_offset = offset

    @property
    def memory_window_bytes(self) -> int:
        """Records this close to the end of the log are expected in memory."""
        return self._parts.reader.memory_window_bytes

    @property
    def put_count(self) -> int:
        """How many messages were put since the store was opened."""
        return self._parts.log.appender.puts

    def simple_queues(self) -> list[QueueName]:
        """Topic and id of every queue whose units are 20 bytes; those of batch topics are not."""
        queues = self._parts.queues.all_queues()
        return [(queue.topic, queue.queue_id) for queue in queues if isinstance(queue, ConsumeQueue)]

    def units_between(self, topic: str, queue_id: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """(queue offset, physical offset, size) of the messages low..high-1; offsets without a message are skipped."""
        queue = self._queue(topic, queue_id)
        if not isinstance(queue, ConsumeQueue):
            return
        low, high = max(low, queue.min_offset), min(high, queue.max_offset)
        while low < high:
            for physical, size, _, offset in queue.iterate_from(low) or ():
                if offset >= high:
                    return
                yield offset, physical, size
            low = queue.roll_next_file(low)

    def queue_units(
        self, topic: str, queue_id: int, low: int, high: int
    ) -> Iterator[tuple[int, int, int, ExtUnit | None]]:
        """(physical offset, size, tags code, ext unit) of the units that hold the offsets low..high-1, of any queue."""
        queue = self._queue(topic, queue_id)
        if queue is None:
            return
        low, high = max(low, queue.min_offset), min(high, queue.max_offset)
        while low < high:
            for physical, size, tags_code, offset, *_ in queue.iterate_from(low) or ():
                if offset >= high:
                    return
                ext = queue.ext_unit_of(tags_code) if isinstance(queue, ConsumeQueue) else None
                yield physical, size, tags_code, ext
            low = queue.roll_next_file(low)

    def unit_at(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        """Physical offset and size of the message at exactly that offset of a simple queue; None when there is none.

        Cheap for many lookups: it copies 20 bytes and holds no file.
        """
        queue = self._queue(topic, queue_id)
        if not isinstance(queue, ConsumeQueue) or not queue.min_offset <= offset < queue.max_offset:
            return None
        unit = queue.files.segments.read(offset * UNIT_BYTES, UNIT_BYTES)
        if unit is None:
            return None
        physical, size, _ = UNIT.unpack(unit)
        return (physical, size) if is_real(physical, size) else None

    def collect_for_tier(
        self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int, tier_offset: int
    ) -> Collected:
        """Copy records from `offset` on, with units rebased to `tier_offset`; see the kernel's.

        Collects nothing of a queue that does not exist or is not a simple queue.
        """
        queue = self._queue(topic, queue_id)
        units = queue.files.segments if isinstance(queue, ConsumeQueue) else Segments((), UNIT_BYTES)
        log = self._parts.log.files.segments
        return collect_for_tier(units, log, offset, max_count, max_bytes, tier_offset)

    # State

    @property
    def writeable(self) -> bool:
        return self.running and not self._parts.log.appender.closed

    @property
    def why_not_writeable(self) -> str:
        """Why puts are refused, as text; empty when they are not."""
        if self.writeable:
            return ""
        return (self.running and self._parts.flags.words()) or "it is closing"

    @property
    def why_not_dispatched(self) -> str:
        """Why nothing more of the log is given to queues and index, as text; empty while all is well."""
        return self._parts.flags.words(Flag.WRITE_LOGICS_QUEUE_ERROR)

    def set_max_message_size(self, max_message_size: int) -> None:
        """Change the body limit; the next put honours it. Values below 10 are ignored, as RocketMQ does."""
        if max_message_size >= 10:
            self._parts.log.appender.max_body_bytes = max_message_size

    def statistics(self) -> dict[str, object]:
        """Counts, rates and latencies as plain values."""
        return self._parts.statistics.snapshot()

    def put_counts(self) -> dict[str, int]:
        """Topic → messages that were put to it since the store was opened, a second old at most."""
        return {topic: counts.put_messages for topic, counts in self._parts.statistics.topics().items()}

    def status(self) -> dict[str, object]:
        """The main figures for operators."""
        parts = self._parts
        return {
            "running": self.running,
            "writeable": self.writeable,
            "flags": parts.flags.names(),
            "min_physical_offset": self.min_physical_offset,
            "max_physical_offset": self.max_physical_offset,
            "flushed_where": self.flushed_where,
            "dispatch_behind_bytes": parts.reput.behind_bytes(),
            "queue_gaps": parts.dispatch.gap_count,
            "queue_conflicts": parts.dispatch.conflict_count,
            "service_errors": {s.name: s.error_count for s in self._services() if s.error_count},
        }

    def _queue(self, topic: str, queue_id: int) -> Queue | None:
        self._ensure_running()
        return self._parts.queues.find(topic, queue_id)
