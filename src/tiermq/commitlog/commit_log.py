"""CommitLog: every message of every queue, in the order of arrival.

The kernel's Appender writes records; this module handles the rare cases: binding a new queue, reserving disk blocks,
rolling to the next file, refusing with RocketMQ's status, and records whose properties depend on their queue offset.

Threads: any thread may put. `_room` serializes reserving and rolling; it is never held while a record is written, and a
put that waits for it longer than `os_page_cache_busy_time_out_mills` is answered OS_PAGE_CACHE_BUSY.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import perf_counter_ns

from tiermq.clock import Clock, SystemClock
from tiermq.config import StoreConfig
from tiermq.errors import CorruptRecord, DiskFull, ReplicationError, StoreError, TooManyOpenFiles
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.kernel import Appender, Message, PutResult, PutResults, QueueHandle, Refusal, Stop, scan
from tiermq.message.client_batch import inner_num, with_inner_base
from tiermq.message.layout import TOPIC_BYTES_MAX_V1
from tiermq.message.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, with_property
from tiermq.message.system_flag import is_inner_batch
from tiermq.message.topic_name import is_light_queue, may_multi_dispatch, queue_problem
from tiermq.status import PutStatus

_log = logging.getLogger(__name__)

BLANK_BYTES = 8
LIGHT_QUEUES_MAX = 64
"""Light queues that one message may name. Each has a file and a memory map."""
_STATUS_OF = {
    Refusal.BODY_TOO_LARGE: PutStatus.MESSAGE_ILLEGAL,
    Refusal.RECORD_TOO_LARGE: PutStatus.MESSAGE_ILLEGAL,
    Refusal.EMPTY: PutStatus.MESSAGE_ILLEGAL,
    Refusal.PROPERTIES_TOO_LARGE: PutStatus.PROPERTIES_SIZE_EXCEEDED,
    Refusal.CLOSED: PutStatus.SERVICE_NOT_AVAILABLE,
}


class CommitLog:
    """See the module. The `MappedFileQueue` owns the files; the appender owns the positions of the active one."""

    def __init__(
        self,
        config: StoreConfig,
        files: MappedFileQueue,
        store_host: bytes,
        *,
        clock: Clock,
        wake: Callable[[], None],
        first_offset_of: Callable[[str, int], int] = lambda _topic, _queue_id: 0,
        may_begin: Callable[[str, int], bool] = lambda _topic, _queue_id: True,
        is_batch_queue: Callable[[str], bool] = lambda _topic: False,
        note_latency: Callable[[float], None] = lambda _milliseconds: None,
        note_failure: Callable[[int], None] = lambda _messages: None,
    ) -> None:
        self.files = files
        self.on_disk_full: Callable[[DiskFull], None] = lambda _error: None
        self.room_failure: StoreError | None = None
        """Why the last put that needed space got none."""
        self._config = config
        self._first_offset_of = first_offset_of
        self._may_begin = may_begin
        self._is_batch_queue = is_batch_queue
        self._note_latency = note_latency
        self._note_failure = note_failure
        self._room = threading.Lock()
        self._bind_lock = threading.Lock()
        self._light_lock = threading.Lock()
        self._gate_lock = threading.Lock()
        self._closed = False
        self._wake = wake
        self.copied_store_ms = 0
        """Of a slave: store time of the newest record that was dispatched."""
        self.appender = Appender(
            store_host,
            slow_path=self._put_slowly,
            wake=wake,
            clock=None if isinstance(clock, SystemClock) else clock.now_ms,
            sample=self._put_measured,
            max_body_bytes=config.max_message_size,
            crc_property=config.enabled_append_prop_crc,
            auto_version=config.auto_message_version_on_topic_len,
            lock=threading.RLock(),
        )

    # Bounds

    @property
    def min_offset(self) -> int:
        return self.files.min_offset

    @property
    def max_offset(self) -> int:
        """The end of readable records."""
        return self.files.max_offset

    @property
    def newest_store_ms(self) -> int:
        """Store time of the newest record, of a slave the newest that was dispatched; 0 before the first."""
        return max(self.appender.last_store_timestamp_ms, self.copied_store_ms)

    def open_for_append(self) -> None:
        """Continue at the end that recovery found. The gate stays unchanged.

        With `warm_maped_file_enable` the first file is warmed here, where no put waits for it.
        """
        last = self.files.last()
        if self._config.warm_maped_file_enable:
            if last is None:
                last = self.files.make_next()
                self.files.add(last)
            if not last.is_full:
                last.warm()
        self.appender.attach(None if last is None else last.tail)

    def set_writeable(self, writeable: bool) -> None:
        """Open or close the gate. A closed log stays closed."""
        with self._gate_lock:
            self.appender.closed = self._closed or not writeable

    def close_for_append(self) -> None:
        """Refuse all puts from now on. On return no put is rolling to the next file."""
        with self._room, self._gate_lock:
            self._closed = True
            self.appender.closed = True
            self.appender.attach(None)

    def verify(self) -> int:
        """Check every record that is readable now; how many. Raises CorruptRecord at the first bad one."""
        records = 0
        for file in self.files.files:
            if not file.hold():
                continue
            try:
                end = file.view.position
                position, stop, count, _, _, _ = scan(file.view, 0, end, 2 if self._config.force_verify_prop_crc else 1)
            finally:
                file.release()
            records += count
            if stop is not Stop.BLANK and position < end:
                raise CorruptRecord(f"{file.path}: expected a record at byte {position}, found damage ({stop.name})")
        return records

    # Puts

    def bind(self, topic: str, queue_id: int) -> PutStatus:
        """Let a queue be put to: PUT_OK, or why it cannot be."""
        if self.appender.handle(topic, queue_id) is not None:
            return PutStatus.PUT_OK
        if queue_problem(topic) is not None or self._needs_missing_version(topic):
            return PutStatus.MESSAGE_ILLEGAL
        if not self._may_begin(topic, queue_id):
            return PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
        return PutStatus.MESSAGE_ILLEGAL if self.queue(topic, queue_id) is None else PutStatus.PUT_OK

    def queue(self, topic: str, queue_id: int) -> QueueHandle | None:
        """The handle of a queue, made on first use; None when no queue can have that name. `bind` comes before puts."""
        handle = self.appender.handle(topic, queue_id)
        if handle is not None:
            return handle
        if queue_problem(topic) is not None or self._needs_missing_version(topic):
            return None
        with self._bind_lock:
            handle = self.appender.handle(topic, queue_id)
            if handle is None:
                handle = QueueHandle(self.appender, topic, queue_id, self._first_offset_of(topic, queue_id))
                self.appender.bind(handle)
        return handle

    def _needs_missing_version(self, topic: str) -> bool:
        """A version 1 record has one signed byte for the topic's length; the original writes an unreadable record."""
        return not self._config.auto_message_version_on_topic_len and len(topic.encode()) > TOPIC_BYTES_MAX_V1

    def put_together(self, messages: list[Message]) -> PutResults | PutStatus:
        """Store a batch whole, in one file and side by side, or refuse it whole."""
        while True:
            outcome = self.appender.put_together(messages)
            if not isinstance(outcome, Refusal):
                return outcome
            if outcome is Refusal.ROOM:
                needed = sum(map(self.appender.record_bytes, messages))
                status = self._make_room(needed)
            elif outcome is Refusal.UNBOUND:
                status = self.bind(messages[0].topic, messages[0].queue_id)
            else:
                status = _STATUS_OF[outcome]
            if status is not PutStatus.PUT_OK:
                self._note_failure(len(messages))
                return status

    def _put_measured(self, message: Message) -> PutResult:
        """One put in a thousand is timed, so that statistics have latencies and most puts pay nothing."""
        started_ns = perf_counter_ns()
        result = self.appender.put(message)
        self._note_latency((perf_counter_ns() - started_ns) / 1e6)
        return result

    def _put_slowly(self, message: Message, refusal: Refusal) -> PutResult:
        """The slow path of a put. Returns with a stored record, or with a status and nothing written."""
        if refusal is Refusal.NEEDS_OFFSET:
            result = self._put_special(message)
        else:
            status = self._remedy(message, refusal)
            if status is PutStatus.PUT_OK:
                return self.appender.put(message)  # If refused again, it comes back here and is counted then.
            result = PutResult(status)
        if result.status is not PutStatus.PUT_OK:
            self._note_failure(1)
        return result

    def _remedy(self, message: Message, refusal: Refusal) -> PutStatus:
        """Resolve the cause of a refusal: PUT_OK when the put should be retried."""
        if refusal is Refusal.UNBOUND:
            return self.bind(message.topic, message.queue_id)
        if refusal is Refusal.ROOM:
            return self._make_room(self.appender.record_bytes(message))
        return _STATUS_OF[refusal]

    def _put_special(self, message: Message) -> PutResult:
        """A record that contains its queue offset: encode with the next offset, store if that is still the next one."""
        batch = is_inner_batch(message.sys_flag)
        try:
            count = inner_num(message.encoded_properties)
        except CorruptRecord:  # A client may write anything there.
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        if batch != (count is not None) or (batch and not (count and self._is_batch_queue(message.topic))):
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        bound = self.bind(message.topic, message.queue_id)
        if bound is not PutStatus.PUT_OK:
            return PutResult(bound)
        light = self._light_queues(message)
        if isinstance(light, PutStatus):
            return PutResult(light)
        while True:
            handle = self.appender.handle(message.topic, message.queue_id)
            expected = handle.next_offset if handle is not None else 0
            with self._light_lock:  # Light queue offsets change only under it: valid until the record is stored.
                # One may have begun again since it was looked up.
                light = [(name, None if handle is None else self.queue(name, 0)) for name, handle in light]
                properties = message.encoded_properties
                if batch:
                    properties = with_inner_base(properties, expected)
                if light:
                    properties = with_property(properties, INNER_MULTI_QUEUE_OFFSET, _joined_offsets(light))
                outcome = self.appender.put_expecting(
                    _with_properties(message, properties), expected, max(1, count or 1)
                )
                if isinstance(outcome, PutResult):
                    for light_handle in {id(handle): handle for _, handle in light if handle is not None}.values():
                        light_handle.next_offset += 1  # Once, even if the message names the queue repeatedly.
                    return outcome
            if outcome is Refusal.OFFSET_MOVED:
                continue
            status = self._remedy(message, outcome)
            if status is not PutStatus.PUT_OK:
                return PutResult(status)

    def _light_queues(self, message: Message) -> list[tuple[str, QueueHandle | None]] | PutStatus:
        """The queues that the message is multi-dispatched to, with handles for those that count their own offsets; or
        why it cannot be.
        """
        enabled = self._config.enable_lmq and self._config.enable_multi_dispatch
        if not enabled or not may_multi_dispatch(message.topic):
            return []
        names = message.properties.get(INNER_MULTI_DISPATCH, "")
        if not names:
            return []
        listed = names.split(",", LIGHT_QUEUES_MAX)
        if len(listed) > LIGHT_QUEUES_MAX:
            return PutStatus.MESSAGE_ILLEGAL
        found: list[tuple[str, QueueHandle | None]] = []
        for name in listed:  # Empty names stay in the list: dispatch pairs names and offsets by it.
            is_light = is_light_queue(name)
            if is_light and self.bind(name, 0) is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED:
                return PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
            found.append((name, self.queue(name, 0) if is_light else None))
        return found

    def begin_again(self, name: str, end: int, drop: Callable[[], None]) -> bool:
        """Number a light queue from 0 on again, after `drop()` has deleted it. False, and nothing done, when more was
        put to it than the messages before `end`.
        """
        with self._light_lock:
            handle = self.appender.handle(name, 0)
            if handle is not None and handle.next_offset != end:
                return False
            drop()
            self.appender.unbind(name)
        return True

    # A slave's log

    def append_data(self, offset: int, data: memoryview) -> None:
        """Append bytes of a master's log that begin at `offset` there. They may end within a record.

        Only for a log that takes no puts; one thread calls. Raises ReplicationError, with nothing written, for bytes
        that do not continue this log within one file, and DiskFull.
        """
        with self._room:
            if self._closed:
                raise ReplicationError(f"expected an open log for bytes at {offset}, found it closing")
            file = self._file_for_data(offset, len(data))
            file.append(data)
        if self.appender.reput_idle:
            self.appender.reput_idle = False
            self._wake()

    def _file_for_data(self, offset: int, length: int) -> MappedFile:
        last, size = self.files.last(), self.files.file_size
        if last is not None and offset != self.files.max_wrote_offset:
            raise ReplicationError(
                f"expected bytes from physical offset {self.files.max_wrote_offset} on, where this log ends, found "
                f"some from {offset} on: this log is not a copy of that master's"
            )
        starts_file = last is None or last.is_full
        if (starts_file and offset % size) or offset % size + length > size:
            raise ReplicationError(
                f"expected bytes of one commit-log file of {size} bytes, found {length} from {offset} on: the master's "
                "mappedFileSizeCommitLog is different; set the same here, and start with an empty store"
            )
        if last is not None and not starts_file:
            return last
        if last is not None:
            last.store_timestamp_ms = self.newest_store_ms
        following = self.files.create_next(offset)
        self.appender.attach(following.tail)
        return following

    def cut(self, offset: int) -> None:
        """Drop everything from `offset` on, durably. No put and no flush may run."""
        self.files.truncate_dirty(offset)
        last = self.files.last()
        if last is not None and offset < last.from_offset + last.size:
            last.zero_from(offset - last.from_offset)

    # Space

    def _make_room(self, record_bytes: int) -> PutStatus:
        """Reserve blocks for a record of that size, rolling to the next file when the active one cannot hold it."""
        needed = record_bytes + BLANK_BYTES
        if needed > self.files.file_size:
            # The original wastes a whole file on such a message and then returns PUT_OK.
            return PutStatus.MESSAGE_ILLEGAL
        if not self._room.acquire(timeout=self._config.os_page_cache_busy_time_out_mills / 1000):
            return PutStatus.OS_PAGE_CACHE_BUSY
        try:
            return self._reserve_or_roll(needed)
        finally:
            self._room.release()

    def _reserve_or_roll(self, needed: int) -> PutStatus:
        if self.appender.closed:
            return PutStatus.SERVICE_NOT_AVAILABLE
        active = self.files.last()
        end = 0 if active is None else active.wrote_position + needed  # Read once: other threads keep appending.
        if active is not None and not active.is_full and end <= active.size:
            try:
                active.reserve(end)
            except DiskFull as error:
                self.room_failure = error
                self.on_disk_full(error)
                return PutStatus.SERVICE_NOT_AVAILABLE
            except TooManyOpenFiles as error:
                self.room_failure = error
                _log.exception("no disk blocks for the next record in %s", active.path)
                return PutStatus.SERVICE_NOT_AVAILABLE
            return PutStatus.PUT_OK
        try:
            following = self.files.make_next()
            following.reserve(needed)
        except DiskFull as error:
            self.room_failure = error
            self.on_disk_full(error)
            return PutStatus.CREATE_MAPPED_FILE_FAILED
        except StoreError as error:
            self.room_failure = error
            _log.exception("no next commit-log file after %s", "none" if active is None else active.path)
            return PutStatus.CREATE_MAPPED_FILE_FAILED
        self._roll_to(following, active)
        return PutStatus.PUT_OK

    def _roll_to(self, following: MappedFile, active: MappedFile | None) -> None:
        if active is not None:
            active.store_timestamp_ms = self.newest_store_ms
        self.appender.roll(following.tail)
        self.files.add(following)


def _joined_offsets(light: list[tuple[str, QueueHandle | None]]) -> str:
    return ",".join("" if handle is None else str(handle.next_offset) for _, handle in light)


def _with_properties(message: Message, encoded_properties: bytes) -> Message:
    return Message(
        message.topic,
        message.body,
        message.queue_id,
        encoded_properties=encoded_properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )
