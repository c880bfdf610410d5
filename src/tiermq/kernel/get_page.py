"""read_page in pure Python: a get of an ordinary queue, its records copied into one bytes object.

Where a unit does not point to its own record, or points to a damaged one that this process has not written, a page
ends; a page that would begin there raises CorruptRecord. So damaged records are never returned, valid records before
them are, and no consumer is sent past them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tiermq.errors import CorruptRecord
from tiermq.kernel.write_cursor import Segments, WriteCursor
from tiermq.message.layout import MAGIC_V1, MAGIC_V2, PRE_BLANK_SIZE, RECORD_BYTES_MIN, SIZE_AND_MAGIC, UNIT, UNIT_BYTES
from tiermq.message.record import decode_record, decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.settings import LONG_MAX
from tiermq.status import GetStatus

_PLACE = struct.Struct(">i4xq")  # Queue id, flag, queue offset.
_PLACE_AT = 12
_FEW = 64  # Units decoded per step: a get rarely needs more.


class TransferLimits:
    """How much one get may return, by whether the records are expected in memory.

    Records below the physical offset `checked_below` were not written by this process: their checksums are verified.
    """

    __slots__ = (
        "checked_below",
        "disk_bytes",
        "disk_count",
        "filter_bytes",
        "memory_bytes",
        "memory_count",
        "memory_window_bytes",
    )

    def __init__(
        self,
        memory_bytes: int,
        memory_count: int,
        disk_bytes: int,
        disk_count: int,
        memory_window_bytes: int,
        filter_bytes: int,
    ) -> None:
        self.memory_bytes = memory_bytes
        self.memory_count = memory_count
        self.disk_bytes = disk_bytes
        self.disk_count = disk_count
        self.memory_window_bytes = memory_window_bytes
        self.filter_bytes = filter_bytes
        self.checked_below = 0


class GetPage:
    """Result of one get: a sequence of messages, also true when it is empty. `data` is the records as stored,
    concatenated; `messages` decodes them on first use.

    status: whether there are messages, else why not. count: how many. next_offset: where the next get begins.
    min_offset, max_offset: of the queue, the latter behind its newest message.
    """

    __slots__ = ("_messages", "count", "data", "max_offset", "min_offset", "next_offset", "status", "suggest_slave")

    def __init__(
        self,
        status: GetStatus,
        next_offset: int,
        min_offset: int = 0,
        max_offset: int = 0,
        data: bytes = b"",
        count: int = 0,
        suggest_slave: bool = False,
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.data = data
        self.count = count
        self.suggest_slave = suggest_slave
        self._messages: list[StoredMessage] | None = None

    @property
    def messages(self) -> list[StoredMessage]:
        """The records, decoded and their body CRCs checked. Raises CorruptRecord rather than return damaged data."""
        if self._messages is None:
            self._messages = list(decode_records(self.data))
        return self._messages

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return True  # An empty page is a page: it has a status and the next offset.

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self.messages)

    def __getitem__(self, at: int) -> StoredMessage:
        return self.messages[at]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(status={self.status.name}, count={self.count}, next_offset={self.next_offset})"


def read_page(
    queue: Segments,
    min_logic_offset: int,
    offset: int,
    log: Segments,
    max_messages: int,
    max_bytes: int,
    limits: TransferLimits,
    queue_id: int = -1,
) -> GetPage:
    """A get of an ordinary queue: the table of statuses, then the records as far as the limits allow.

    `queue_id`: records must have this queue id and the queue offset of their unit; -1 where units point to records of
    other queues. Raises CorruptRecord when the first record is damaged, or not its unit's.
    """
    low = min_logic_offset // UNIT_BYTES
    high = (queue.views[-1].base + queue.views[-1].position) // UNIT_BYTES if queue.views else 0
    if high == 0:
        return GetPage(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if offset < low:
        return GetPage(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetPage(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return GetPage(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    view = queue.find(offset * UNIT_BYTES)
    max_physical = log.views[-1].base + log.views[-1].position if log.views else 0
    data, count, examined, last_physical = b"", 0, 0, -1
    if view is not None:
        first_unit = offset - view.base // UNIT_BYTES
        data, count, examined, last_physical = _gather(
            view, first_unit, log, max_physical, max_messages, max_bytes, limits, queue_id
        )
    if examined == 0:
        per_file = queue.file_size // UNIT_BYTES
        return GetPage(GetStatus.OFFSET_FOUND_NULL, offset - offset % per_file + per_file, low, high)
    status = GetStatus.FOUND if count else GetStatus.MESSAGE_WAS_REMOVING
    suggest_slave = max_physical - last_physical > limits.memory_window_bytes
    return GetPage(status, offset + examined, low, high, data, count, suggest_slave)


def _gather(
    queue: WriteCursor,
    first_unit: int,
    log: Segments,
    max_physical: int,
    max_messages: int,
    max_bytes: int,
    limits: TransferLimits,
    queue_id: int,
) -> tuple[bytes, int, int, int]:
    """Copy the records that the units from `first_unit` of one queue file point to, as far as the limits allow.

    (data, count, units examined, last physical offset examined or -1)
    """
    start, end = first_unit * UNIT_BYTES, queue.position // UNIT_BYTES * UNIT_BYTES
    if queue.buffer is None or start >= end:
        return b"", 0, 0, -1
    units_max = max(max_messages, -(-limits.filter_bytes // UNIT_BYTES), 1)
    end = min(end, start + units_max * UNIT_BYTES)
    parts: list[memoryview] = []
    count = examined = total = 0
    last_physical, removed_before = -1, -1
    low = log.views[0].base if log.views else LONG_MAX
    before = _physical_before(queue, first_unit)
    view: WriteCursor | None = None
    step = min(end, start + _FEW * UNIT_BYTES)
    while start < end:
        for physical, size, _ in UNIT.iter_unpack(queue.buffer[start:step]):
            if size == PRE_BLANK_SIZE:
                examined += 1
                continue
            in_memory = max_physical - physical <= limits.memory_window_bytes
            bytes_max = limits.memory_bytes if in_memory else limits.disk_bytes
            count_max = limits.memory_count if in_memory else limits.disk_count
            full = count >= max_messages or total + size > max_bytes or total + size > bytes_max or count >= count_max
            if (count and full) or total >= max_bytes:
                return b"".join(parts), count, examined, last_physical
            last_physical = physical
            examined += 1
            goes_back, before = physical < before, physical
            if physical < removed_before and not goes_back:
                continue
            if view is None or not view.base <= physical < view.base + view.size:
                view = log.find(physical)
            if not goes_back and (0 <= physical < low or (view is not None and view.buffer is None)):
                removed_before = physical - physical % log.file_size + log.file_size
                continue
            unit = queue.base // UNIT_BYTES + first_unit + examined - 1
            record = _record(None if goes_back else view, physical, size)
            problem = _problem(record, queue_id, unit, physical < limits.checked_below)
            if problem:
                if not count:
                    raise CorruptRecord(
                        f"queue offset {unit} points to commit-log bytes that are not the record it describes "
                        f"(physical offset {physical}): {problem}; run `tiermq store check`"
                    )
                return b"".join(parts), count, examined - 1, last_physical
            parts.append(record)
            count += 1
            total += size
        start, step = step, end
    return b"".join(parts), count, examined, last_physical


def _physical_before(queue: WriteCursor, unit: int) -> int:
    """Physical offset of the unit before `unit` in a queue file; -1 without one, or if it has no message."""
    if not unit or queue.buffer is None:
        return -1
    physical, size, _ = UNIT.unpack_from(queue.buffer, (unit - 1) * UNIT_BYTES)
    return -1 if size == PRE_BLANK_SIZE else int(physical)


def _record(view: WriteCursor | None, physical: int, size: int) -> memoryview:
    """The bytes that a unit points to; empty where no record of that size can be."""
    at = 0 if view is None else physical - view.base
    if view is None or view.buffer is None or size < RECORD_BYTES_MIN or at + size > view.position:
        return memoryview(b"")
    return view.buffer[at : at + size]


def _problem(record: memoryview, queue_id: int, queue_offset: int, checked: bool) -> str:
    """Why a record is not its unit's, or damaged; "" when it is valid."""
    if not record:
        return "the log has no record of that size there"
    size, magic = SIZE_AND_MAGIC.unpack_from(record)
    if size != len(record) or magic not in (MAGIC_V1, MAGIC_V2):
        return "no record begins there"
    if queue_id >= 0 and _PLACE.unpack_from(record, _PLACE_AT) != (queue_id, queue_offset):
        return "the record there is of another place"
    if checked:
        try:
            decode_record(record)
        except CorruptRecord:
            return "its checksums do not agree with its bytes"
    return ""
