"""get and query. get: a page of messages of one queue, from an offset on, with RocketMQ's statuses and next offsets.

    offset < min      OFFSET_TOO_SMALL       next = min        offset == max   OFFSET_OVERFLOW_ONE    next = offset
    queue is empty    NO_MESSAGE_IN_QUEUE    next = 0          offset > max    OFFSET_OVERFLOW_BADLY  next = max
    unknown queue     NO_MATCHED_LOGIC_QUEUE next = 0          hole at offset  OFFSET_FOUND_NULL      next = next file
    otherwise FOUND, NO_MATCHED_MESSAGE (filter) or MESSAGE_WAS_REMOVING (log file gone); next = behind the last unit

A plain get of an ordinary queue is one call into the kernel; a filtered one, and one of a batch queue, goes unit by
unit through `_Collector`, which keeps the same limits. A filter by tag hashes alone looks at nothing but units until
one fits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tiermq.commitlog.commit_log import CommitLog
from tiermq.config import StoreConfig
from tiermq.consumequeue.batch_consume_queue import BatchConsumeQueue
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.queue_table import QueueTable
from tiermq.consumequeue.unit import UNIT, UNIT_BYTES, is_ext_address, is_real
from tiermq.errors import CorruptRecord
from tiermq.index.index_service import IndexService
from tiermq.kernel import GetPage, Segments, TransferLimits, read_page
from tiermq.message.layout import MAGIC_V1, MAGIC_V2
from tiermq.message.message_filter import MessageFilter, TagCodeFilter
from tiermq.message.record import decode_record
from tiermq.message.stored_message import StoredMessage
from tiermq.message.topic_name import SCHEDULE_TOPIC
from tiermq.status import GetStatus

PULL_BYTES_MIN = 100
PULL_BYTES_MAX = 134_217_728
NUMBER_MAX = 2**50
FILTER_STEPS_MAX = 10_000
"""Comparisons of one get with a filter that counts its comparisons; about ten milliseconds."""
BULK_BYTES = 1 << 20
BULK_MESSAGES = 1024
"""Of a page for those who copy queues as a whole: RocketMQ's limits make a page for each 32 messages."""
FILTER_STEP_BYTES = 4096
"""Each comparison counts once more for each of these of a record, in which properties are looked for."""
_HEAD = struct.Struct(">ii4xi4xq")  # Size, magic, queue id, queue offset.
_NONE = (0, 0, -1, -1)


@dataclass(slots=True)
class _Collector:
    """Takes units one by one, keeping the limits of a get."""

    segments: Segments
    limits: TransferLimits
    max_physical: int
    max_messages: int
    max_bytes: int
    parts: list[bytes]
    count: int = 0
    total: int = 0
    queue_id: int = -1
    """Queue id that the records must have; -1 where units point to records of other queues."""
    removed_before: int = -1
    last_physical: int = -1

    @property
    def low(self) -> int:
        """First offset of the log; above every offset when the log is empty."""
        views = self.segments.views
        return views[0].base if views else NUMBER_MAX

    def is_full(self, physical: int, size: int, batch: int) -> bool:
        """Whether a unit must wait for the next get. The first message always goes."""
        if self.total >= self.max_bytes:
            return True
        if self.count == 0:
            return False
        in_memory = self.max_physical - physical <= self.limits.memory_window_bytes
        bytes_max = self.limits.memory_bytes if in_memory else self.limits.disk_bytes
        count_max = self.limits.memory_count if in_memory else self.limits.disk_count
        return (
            self.count + batch > self.max_messages
            or self.total + size > min(self.max_bytes, bytes_max)
            or self.count >= count_max
        )

    def take(self, physical: int, size: int, batch: int, chosen: MessageFilter | None, queue_offset: int) -> bool:
        """Fetch the record of a unit and keep it if the filter accepts it. False, and nothing done, where the page must
        end because the record is damaged or not the unit's. Raises CorruptRecord where the page would begin with it.
        """
        record = self.segments.read(physical, size)
        if record is None and 0 <= physical < self.low:
            self.removed_before = physical - physical % self.segments.file_size + self.segments.file_size
            return True
        try:
            record = _required(record, physical, self.queue_id, queue_offset)
            if physical < self.limits.checked_below:
                decode_record(record)
        except CorruptRecord:
            if self.count:
                return False
            raise
        if chosen is not None and not chosen.matches_record(record):
            return True
        self.parts.append(record)
        self.count += batch
        self.total += size
        return True


class Reader:
    """Serves gets; any thread may use it. The three counts are taken over by the statistics each second."""

    def __init__(self, config: StoreConfig, log: CommitLog, queues: QueueTable, memory_bytes: int) -> None:
        self.found_count = 0
        self.missed_count = 0
        self.transferred_count = 0
        self._log = log
        self._queues = queues
        window_bytes = memory_bytes * config.access_message_in_memory_max_ratio // 100
        self._limits = TransferLimits(
            config.max_transfer_bytes_on_message_in_memory,
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_disk,
            config.max_transfer_count_on_message_in_disk,
            window_bytes,
            config.max_filter_message_size,
        )
        self._bulk_limits = TransferLimits(
            max(BULK_BYTES, self._limits.memory_bytes),
            max(BULK_MESSAGES, self._limits.memory_count),
            max(BULK_BYTES, self._limits.disk_bytes),
            max(BULK_MESSAGES, self._limits.disk_count),
            window_bytes,
            config.max_filter_message_size,
        )

    @property
    def memory_window_bytes(self) -> int:
        return self._limits.memory_window_bytes

    def check_below(self, physical_offset: int) -> None:
        """Verify the checksums of records below: another process wrote them, and a crash may have torn them."""
        self._limits.checked_below = self._bulk_limits.checked_below = physical_offset

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
        """See the module. `bulk`: large pages, to copy a queue.

        Raises CorruptRecord where a page would begin with a record that is damaged, or with a unit that does not lead
        to its own; a page ends before one.
        """
        queue = self._queues.find(topic, queue_id)
        try:
            page = self._page(queue, offset, max_messages, max_bytes, message_filter, bulk)
        except CorruptRecord:
            # Log files may have been added or deleted between the reads of queue and log. Real damage is found again.
            page = self._page(queue, offset, max_messages, max_bytes, message_filter, bulk)
        if page.count:
            self.found_count += 1
            self.transferred_count += page.count
        else:
            self.missed_count += 1
        return page

    def _page(
        self,
        queue: ConsumeQueue | BatchConsumeQueue | None,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
        bulk: bool,
    ) -> GetPage:
        if message_filter is None and type(queue) is ConsumeQueue:
            try:
                return read_page(
                    queue.files.segments,
                    queue.min_logic_offset,
                    offset,
                    self._log.files.segments,
                    max_messages,
                    max_bytes if PULL_BYTES_MIN <= max_bytes <= PULL_BYTES_MAX else _clamped(max_bytes),
                    self._bulk_limits if bulk else self._limits,
                    queue.own_id,
                )
            except OverflowError:  # Beyond 64 bits: above any queue offset and any page size.
                return self._page(queue, _fitting(offset), _fitting(max_messages), max_bytes, None, bulk)
        if queue is None:
            return GetPage(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        if type(message_filter) is TagCodeFilter and _has_plain_codes(queue):
            return self._collect_by_code(queue, offset, max_messages, _clamped(max_bytes), message_filter)
        return self._collect(queue, offset, max_messages, _clamped(max_bytes), message_filter)

    def _collect_by_code(
        self,
        queue: ConsumeQueue | BatchConsumeQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: TagCodeFilter,
    ) -> GetPage:
        """`_collect` for units whose tags codes are hashes: units that do not match cost almost nothing."""
        min_offset, max_offset = queue.min_offset, queue.max_offset
        segments = queue.files.segments
        per_file = segments.file_size // UNIT_BYTES
        wanted = max(self._limits.filter_bytes // UNIT_BYTES, max_messages)
        wanted = min(wanted, max_offset - offset, per_file - offset % per_file)
        units = segments.read(offset * UNIT_BYTES, wanted * UNIT_BYTES) if min_offset <= offset < max_offset else None
        if units is None:
            return self._collect(queue, offset, max_messages, max_bytes, message_filter)
        files, codes = self._log.files, message_filter.codes
        collector = _Collector(
            files.segments,
            self._limits,
            files.max_offset,
            max_messages,
            max_bytes,
            [],
            queue_id=-1 if isinstance(queue, BatchConsumeQueue) else queue.own_id,
        )
        examined = physical = 0
        for physical, size, code in UNIT.iter_unpack(units):
            if code in codes and is_real(physical, size):
                if collector.is_full(physical, size, 1):
                    break
                if physical >= collector.removed_before and not collector.take(
                    physical, size, 1, None, offset + examined
                ):
                    break
            examined += 1
        status = GetStatus.NO_MATCHED_MESSAGE if collector.removed_before < 0 else GetStatus.MESSAGE_WAS_REMOVING
        if collector.count:
            status = GetStatus.FOUND
        behind = collector.max_physical - physical > self._limits.memory_window_bytes
        data = b"".join(collector.parts)
        return GetPage(status, offset + examined, min_offset, max_offset, data, collector.count, behind)

    def _collect(
        self,
        queue: ConsumeQueue | BatchConsumeQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
    ) -> GetPage:
        """The same, unit by unit, with a filter or for a batch queue."""
        min_offset, max_offset = queue.min_offset, queue.max_offset
        if offset < min_offset or offset >= max_offset:
            return _outside(offset, min_offset, max_offset)
        units = queue.iterate_from(offset)
        if units is None:
            return GetPage(GetStatus.OFFSET_FOUND_NULL, queue.roll_next_file(offset), min_offset, max_offset)
        files = self._log.files
        collector = _Collector(
            files.segments,
            self._limits,
            files.max_offset,
            max_messages,
            max_bytes,
            [],
            queue_id=-1 if isinstance(queue, BatchConsumeQueue) else queue.own_id,
        )
        scan_units = max(self._limits.filter_bytes // UNIT_BYTES, max_messages)
        steps = getattr(message_filter, "steps", 0)
        next_offset = offset
        examined = work = 0
        for physical, size, tags_code, queue_offset, batch in _with_batch(units):
            work += steps * (1 + size // FILTER_STEP_BYTES)
            is_over = examined >= scan_units or (examined and work > FILTER_STEPS_MAX)
            if is_over or collector.is_full(physical, size, batch):
                break
            examined += 1
            collector.last_physical = physical
            passed = physical < collector.removed_before or (
                message_filter is not None and not _unit_matches(queue, message_filter, tags_code)
            )
            if not passed and not collector.take(physical, size, batch, message_filter, queue_offset):
                break
            next_offset = queue_offset + batch
        if examined == 0:
            return GetPage(GetStatus.OFFSET_FOUND_NULL, queue.roll_next_file(offset), min_offset, max_offset)
        status = GetStatus.NO_MATCHED_MESSAGE if collector.removed_before < 0 else GetStatus.MESSAGE_WAS_REMOVING
        if collector.count:
            status = GetStatus.FOUND
        behind = collector.max_physical - collector.last_physical > self._limits.memory_window_bytes
        return GetPage(status, next_offset, min_offset, max_offset, b"".join(collector.parts), collector.count, behind)


def _required(record: bytes | None, physical: int, queue_id: int, queue_offset: int) -> bytes:
    """The record that a unit points to. Raises CorruptRecord when it is invalid, or has another offset."""
    size, magic, found_id, found_offset = _HEAD.unpack_from(record) if record and len(record) >= _HEAD.size else _NONE
    if record is None or size != len(record) or magic not in (MAGIC_V1, MAGIC_V2):
        problem = "that are not the record it describes"
    elif queue_id >= 0 and (found_id, found_offset) != (queue_id, queue_offset):
        problem = f"of queue {found_id}, offset {found_offset}"
    else:
        return record
    raise CorruptRecord(
        f"the unit at queue offset {queue_offset} points to commit-log bytes {problem} "
        f"(physical offset {physical}); run `tiermq store check`"
    )


def _has_plain_codes(queue: ConsumeQueue | BatchConsumeQueue) -> bool:
    """Whether the tags codes of a queue's units are hashes of tags and nothing else."""
    return type(queue) is ConsumeQueue and queue.ext is None and queue.topic != SCHEDULE_TOPIC


def _clamped(max_bytes: int) -> int:
    return min(max(max_bytes, PULL_BYTES_MIN), PULL_BYTES_MAX)


def _fitting(number: int) -> int:
    return min(max(number, -1), NUMBER_MAX)


def _with_batch(units: Any) -> Any:
    """(physical, size, tags code, queue offset, batch size) of units of either kind of queue."""
    for unit in units:
        yield unit if len(unit) == 5 else (*unit, 1)


def _unit_matches(queue: ConsumeQueue | BatchConsumeQueue, message_filter: MessageFilter, tags_code: int) -> bool:
    ext_unit = None
    code: int | None = tags_code
    if isinstance(queue, ConsumeQueue) and is_ext_address(tags_code):
        ext_unit = queue.ext_unit_of(tags_code)
        code = None if ext_unit is None else ext_unit.tags_code
    return message_filter.matches_unit(code, ext_unit)


def _outside(offset: int, min_offset: int, max_offset: int) -> GetPage:
    """An offset that is not in [min, max)."""
    if max_offset == 0:
        return GetPage(GetStatus.NO_MESSAGE_IN_QUEUE, 0, min_offset, max_offset)
    if offset < min_offset:
        return GetPage(GetStatus.OFFSET_TOO_SMALL, min_offset, min_offset, max_offset)
    if offset == max_offset:
        return GetPage(GetStatus.OFFSET_OVERFLOW_ONE, offset, min_offset, max_offset)
    return GetPage(GetStatus.OFFSET_OVERFLOW_BADLY, max_offset, min_offset, max_offset)


CANDIDATES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class QueryPage:
    """Messages that a query found, and the end of the index: a sequence, also true when it is empty."""

    messages: list[StoredMessage]
    last_update_timestamp_ms: int
    last_update_physical_offset: int
    complete: bool = True
    """False while an index is being rebuilt: stored older messages may be missing here."""

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return True  # As every page.

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self.messages)

    def __getitem__(self, at: int) -> StoredMessage:
        return self.messages[at]


def query_by_key(
    index: IndexService, log: Segments, topic: str, key: str, max_messages: int, begin_ms: int, end_ms: int
) -> QueryPage:
    """Messages by key and time, from the index to verified records. The newest `max_messages` hits, oldest first.

    The index knows hashes and seconds; a hit counts only when the record has the key and is within the time range.
    (The original returns collisions to the client.) Reads more candidates as long as too few are left.
    """
    wanted = max_messages
    while True:
        found = index.query(topic, key, wanted, begin_ms, end_ms)
        hits: dict[int, StoredMessage] = {}
        for offset in found.offsets:
            message = record_at(log, offset)
            if message is not None and _matches(message, topic, key, begin_ms, end_ms):
                hits[offset] = message
        if len(hits) >= max_messages or len(found.offsets) < wanted or wanted >= CANDIDATES_MAX:
            break
        wanted *= 4
    newest = sorted(hits)[-max_messages:]
    return QueryPage([hits[at] for at in newest], found.last_update_timestamp_ms, found.last_update_physical_offset)


def record_at(log: Segments, physical_offset: int, size: int | None = None) -> StoredMessage | None:
    """The message at a physical offset; None when nothing readable is stored there. Raises CorruptRecord on damage."""
    if size is None:
        prefix = log.read(physical_offset, 4)
        size = int.from_bytes(prefix, "big", signed=True) if prefix is not None else 0
    record = log.read(physical_offset, size) if size > 0 else None
    if record is None:
        return None
    try:
        return decode_record(record, expect_physical_offset=physical_offset)
    except CorruptRecord as error:
        raise CorruptRecord(f"physical offset {physical_offset}: {error}") from error


def _matches(message: StoredMessage, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
    return (
        message.topic == topic
        and begin_ms <= message.store_timestamp_ms <= end_ms
        and (key in message.keys or key == message.unique_key)
    )
