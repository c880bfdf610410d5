"""BatchConsumeQueue: the inner batches of one queue of a topic whose `queue.type` is BatchCQ, as 46-byte units.

A unit covers as many queue offsets as its batch has messages, so queue offsets are found by binary search over the base
offsets: units are contiguous, without blanks, number n at byte 46 * n of the queue.

Method names are those of `ConsumeQueue` where the meaning is the same. Differences: `iterate_from` also gives the batch
size, and times come from the units. Bounds are those of a simple queue, also where RocketMQ's batch queue
has its own: `max_physical_offset` is the *end* of the newest record (RocketMQ: its start), `min_offset` of an empty
queue is 0 (RocketMQ: -1), `roll_next_file` moves forward (RocketMQ: to 0).

Threads: as in `ConsumeQueue`. `queue_tail.tail` stays None: the kernel's fast path does not write batch units.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from tiermq.clock import Clock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.consumequeue.batch_unit import BATCH_UNIT, BATCH_UNIT_BYTES, BatchUnit, decode, encode, is_valid
from tiermq.consumequeue.queue_units import (
    PHYSICAL_END_MAX,
    RECOVER_FILES,
    RESERVE_BYTES,
    AppendOutcome,
    Boundary,
    has_data_behind,
    readable,
)
from tiermq.errors import BadConfig
from tiermq.files.file_access import FileAccess
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.kernel import QueueTail


class BatchConsumeQueue:
    """See the module."""

    __slots__ = ("files", "min_offset", "queue_id", "queue_tail", "topic")

    def __init__(
        self, access: FileAccess, directory: str, topic: str, queue_id: int, file_size: int, clock: Clock
    ) -> None:
        if file_size <= 0 or file_size % BATCH_UNIT_BYTES:
            raise BadConfig(
                f"{directory}: expected batch queue files of whole {BATCH_UNIT_BYTES}-byte units, "
                f"found {file_size} bytes; correct mapperFileSizeBatchConsumeQueue"
            )
        self.topic = topic
        self.queue_id = queue_id
        self.files = MappedFileQueue(
            access, directory, file_size, clock=clock, reserve_bytes=RESERVE_BYTES, keep_descriptors=False
        )
        self.queue_tail = QueueTail(topic, queue_id)
        self.min_offset = 0

    # Bounds

    @property
    def max_offset(self) -> int:
        """The queue offset behind the newest message."""
        unit = self.last_unit()
        return 0 if unit is None else unit.end_offset

    @property
    def max_physical_offset(self) -> int:
        """The end of the newest record that has a unit; -1 when there is none."""
        return self.queue_tail.max_physical_offset

    def roll_next_file(self, offset: int) -> int:
        """The first queue offset in the file after the one that holds `offset`; the queue's end if that is last."""
        number = self._number_of(offset)
        units_per_file = self.files.file_size // BATCH_UNIT_BYTES
        unit = self._unit(number - number % units_per_file + units_per_file)
        return self.max_offset if unit is None else unit.base_offset

    # Appending

    def append(self, request: DispatchRequest) -> AppendOutcome:
        """Append a batch's unit. Readable on return, durable after a flush. Raises DiskFull, with nothing written."""
        unit = BatchUnit(
            request.physical_offset,
            request.size,
            request.tags_code,
            request.store_timestamp_ms,
            request.queue_offset,
            request.batch_size,
        )
        data = encode(unit)
        if unit.end_physical_offset <= self.queue_tail.max_physical_offset:
            return AppendOutcome.DUPLICATE
        last = self.last_unit()
        if last is not None and unit.base_offset < last.end_offset:
            taken = self.unit_at(unit.base_offset)
            same = taken is not None and taken.physical_offset == unit.physical_offset
            return AppendOutcome.DUPLICATE if same else AppendOutcome.CONFLICT
        self.files.last_or_create(self.files.max_offset).append(data)
        self.queue_tail.max_physical_offset = unit.end_physical_offset
        self.queue_tail.last_store_timestamp_ms = unit.store_timestamp_ms
        if last is None:
            self.min_offset = unit.base_offset
            return AppendOutcome.APPENDED
        return AppendOutcome.APPENDED if unit.base_offset == last.end_offset else AppendOutcome.GAP

    # Reading

    def iterate_from(self, offset: int) -> Iterator[tuple[int, int, int, int, int]] | None:
        """(physical offset, size, tags code, base offset, batch size) of the units from the one that covers `offset`
        to the end of its file; None when `offset` is before the oldest message or behind the newest.

        The first batch may begin before `offset`. An offset that no batch covers is followed by the next batch.
        """
        if offset < self.min_offset or offset >= self.max_offset:
            return None
        number = self._number_of(offset)
        unit = self._unit(number)
        if unit is not None and unit.end_offset <= offset:
            number += 1
        data = self._data_from(number)
        return None if data is None else _tuples(data)

    def unit_at(self, offset: int) -> BatchUnit | None:
        """The unit of the batch that holds queue offset `offset`; None when there is none."""
        unit = self._unit(self._number_of(offset))
        return unit if unit is not None and unit.base_offset <= offset < unit.end_offset else None

    def last_unit(self) -> BatchUnit | None:
        """The unit of the newest batch."""
        return self._unit(self._end_number - 1)

    def offset_by_time(
        self,
        timestamp_ms: int,
        boundary: Boundary,
        store_time_of: Callable[[int, int], int] | None = None,  # noqa: ARG002 - units contain their times.
        min_physical_offset: int = 0,
    ) -> int:
        """The base offset of the batch that belongs to a time, as RocketMQ answers.

        Of batches stored exactly then the first (LOWER) or the last (UPPER); else the first stored later; else the
        newest. 0 for an empty queue. (RocketMQ searches one file: for a time between the last batch of a file and the
        first of the next it returns the earlier one.)
        """
        end = self._end_number
        low = bisect_left(range(end), min_physical_offset, lo=self._first_number, key=self._physical_offset)
        if low >= end:
            return self.max_offset
        number = bisect_left(range(end), timestamp_ms, lo=low, key=self._store_timestamp)
        behind = bisect_right(range(end), timestamp_ms, lo=low, key=self._store_timestamp)
        if boundary is Boundary.UPPER and behind > number:
            number = behind - 1
        unit = self._unit(min(number, end - 1))
        return 0 if unit is None else unit.base_offset

    # Units by number

    @property
    def _first_number(self) -> int:
        first = self.files.first()
        return 0 if first is None else first.from_offset // BATCH_UNIT_BYTES

    @property
    def _end_number(self) -> int:
        return self.files.max_offset // BATCH_UNIT_BYTES

    def _data_from(self, number: int) -> memoryview | None:
        """The units from `number` to the end of what is written in its file."""
        place = number * BATCH_UNIT_BYTES
        file = self.files.find(place)
        if file is None:
            return None
        data = readable(file, place - file.from_offset)
        return data[: len(data) - len(data) % BATCH_UNIT_BYTES] or None

    def _unit(self, number: int) -> BatchUnit | None:
        place = number * BATCH_UNIT_BYTES
        file = self.files.find(place)
        data = None if file is None else file.read(place - file.from_offset, BATCH_UNIT_BYTES)
        return None if data is None else decode(data)

    def _physical_offset(self, number: int) -> int:
        unit = self._unit(number)
        return -1 if unit is None else unit.physical_offset

    def _store_timestamp(self, number: int) -> int:
        unit = self._unit(number)
        return -1 if unit is None else unit.store_timestamp_ms

    def _base_offset(self, number: int) -> int:
        unit = self._unit(number)
        return -1 if unit is None else unit.base_offset

    def _number_of(self, offset: int) -> int:
        """The number of the unit with the greatest base offset <= `offset`."""
        first = self._first_number
        return max(first, bisect_right(range(self._end_number), offset, lo=first, key=self._base_offset) - 1)

    # Starting, truncating, cleaning

    def load(self) -> None:
        """Map the files. Follow with `recover`. Raises StoreDamaged."""
        self.files.load()

    def recover(self, last_exit_ok: bool = False) -> bool:
        """Find the end of the queue in its last three files; True when units behind a hole were dropped.

        Their records must be dispatched again, from `max_physical_offset` on.
        """
        files = self.files.files[-RECOVER_FILES:]
        end = 0
        previous: BatchUnit | None = None
        for file in files:
            valid_bytes, previous = _scan(readable(file), previous)
            end = file.from_offset + valid_bytes
            if valid_bytes < file.size - file.size % BATCH_UNIT_BYTES:
                break
        dropped = any(
            has_data_behind(file, max(0, end - file.from_offset), BATCH_UNIT_BYTES if last_exit_ok else None)
            for file in files
        )
        if files:
            self._cut(end, erase=dropped)
        self.files.flushed_where = self.files.committed_where = end
        self._settle()
        return dropped

    def truncate_dirty(self, physical_offset: int) -> None:
        """Drop every unit whose record does not end at or before `physical_offset`, the new end of the commit log."""
        for file in reversed(self.files.files):
            valid_bytes, last = _scan(readable(file), None, physical_offset)
            if last is not None or file is self.files.first():
                self._cut(file.from_offset + valid_bytes, erase=True)
                break
        self._settle()

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the queue's min offset to the first batch whose record is at or behind `min_physical_offset`."""
        end = self._end_number
        number = bisect_left(range(end), min_physical_offset, lo=self._first_number, key=self._physical_offset)
        unit = self._unit(number)
        self.min_offset = max(self.min_offset, self.max_offset if unit is None else unit.base_offset)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Remove the leading files whose records are all deleted, never the last one, and correct the min offset."""
        count = self.files.delete_expired_by_offset(min_physical_offset, BATCH_UNIT_BYTES, _last_physical_offset)
        self.correct_min_offset(min_physical_offset)
        return count

    def flush(self, least_pages: int) -> bool:
        """Make one file durable up to its end, if `least_pages` are waiting (0: anything). True when nothing moved."""
        return self.files.flush(least_pages)

    def destroy(self) -> None:
        """Remove all files. The queue is empty afterwards and can be used again."""
        self.files.destroy()
        self.min_offset = 0
        self.queue_tail.max_physical_offset = -1

    def close(self) -> None:
        """Unmap. Deletes and flushes nothing."""
        self.files.close()

    def _cut(self, end: int, erase: bool) -> None:
        self.files.truncate_dirty(end)
        last = self.files.last()
        if last is None:
            return
        if last.wrote_position == 0:
            self.files.delete_last()
        elif erase and not last.is_full:
            last.zero_from(last.wrote_position)

    def _settle(self) -> None:
        """Recompute the queue's state from its units after a truncation."""
        first, last = self._unit(self._first_number), self.last_unit()
        if first is None or last is None:
            self.min_offset = 0
            self.queue_tail.max_physical_offset = -1
        else:
            self.min_offset = min(max(self.min_offset, first.base_offset), last.end_offset)
            self.queue_tail.max_physical_offset = last.end_physical_offset

    def __str__(self) -> str:
        return f"batch queue {self.queue_id} of topic {self.topic}"


def _tuples(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    for physical_offset, size, tags_code, _, base_offset, batch_size, _, _ in BATCH_UNIT.iter_unpack(data):
        if physical_offset >= 0 and size > 0 and base_offset >= 0 and batch_size > 0:
            yield physical_offset, size, tags_code, base_offset, batch_size


def _scan(
    data: memoryview, previous: BatchUnit | None, physical_end_max: int = PHYSICAL_END_MAX
) -> tuple[int, BatchUnit | None]:
    """How many bytes of `data` are units in order below `physical_end_max`, and the last of them."""
    whole = len(data) - len(data) % BATCH_UNIT_BYTES
    for number, values in enumerate(BATCH_UNIT.iter_unpack(data[:whole])):
        unit = BatchUnit._make(values[:6])
        in_order = previous is None or (
            unit.physical_offset >= previous.end_physical_offset and unit.base_offset >= previous.end_offset
        )
        if not (is_valid(unit) and in_order and unit.end_physical_offset <= physical_end_max):
            return number * BATCH_UNIT_BYTES, previous
        previous = unit
    return whole, previous


def _last_physical_offset(file: MappedFile) -> int:
    data = readable(file)
    return -1 if len(data) < BATCH_UNIT_BYTES else decode(data, len(data) - BATCH_UNIT_BYTES).physical_offset
