"""ConsumeQueue: the messages of one queue of a topic, in their order, as 20-byte units.

    min_logic_offset                                        max_logic_offset
    |                                                       |
    +--------+--------+--------+--------+--------+--------+-+------------
    | unit 0 | unit 1 | unit 2 |  ...                       | (empty)         unit k at byte 20 * k
    +--------+--------+--------+--------+--------+--------+-+------------

Invariants:

* The unit of the message with queue offset k is at byte 20 * k, or nowhere. An offset without a message has a pre-blank
  unit. (RocketMQ appends at the end when the queue offset is 0 or too large.)
* Physical offsets of real units ascend, and records do not overlap.
* `queue_tail.max_physical_offset` is the end of the newest record that has a unit, -1 without one. Pre-blank units
  do not count. (In RocketMQ they make it 2 GiB, and everything below is then taken for a duplicate.)
* Bytes behind the end are zero. Truncation erases them, since the end position is not stored: after a crash, old
  bytes behind new units would be taken for units. Between `rewind` and `end_rewind` old units remain there.

Threads: `append` and the kernel's fast path, which writes through `queue_tail.tail`, belong to the dispatching thread;
`load`, `recover`, `rewind` and `truncate_dirty` to the thread that starts the store; `delete_expired` and
`correct_min_offset` to the cleaning thread. Any thread may read. A queue with ext units has no `queue_tail.tail`: each
unit is appended here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tiermq.clock import Clock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.consumequeue.consume_queue_ext import ConsumeQueueExt
from tiermq.consumequeue.ext_unit import ExtUnit
from tiermq.consumequeue.queue_units import (
    RECOVER_FILES,
    RESERVE_BYTES,
    AppendOutcome,
    Boundary,
    QueueUnits,
    first_not_below,
    has_data_behind,
    readable,
    real_units,
    real_units_backwards,
    scan_units,
)
from tiermq.consumequeue.unit import PRE_BLANK, Unit, encode, is_ext_address, whole_units_bytes
from tiermq.errors import IllegalMessage, IllegalTransition
from tiermq.files.file_access import DirectorySync, FileAccess
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.kernel import QueueTail
from tiermq.message.layout import UNIT_BYTES
from tiermq.message.topic_name import is_light_queue

GAP_UNITS_MAX = 10_000_000
"""A wider gap (200 MB of pre-blank units) is not filled: more likely a record is damaged."""

PLACE_MAX = (1 << 63) - 1 - (1 << 40)
"""No unit is beyond: offsets of files are i64, and a file is smaller than the difference."""

_BLANK_RUN = PRE_BLANK * 4096

StoreTimeOf = Callable[[int, int], int]
"""`store_time_of(physical_offset, size)`: a record's store time in milliseconds; negative when it cannot be read."""


class ConsumeQueue:
    """See the module."""

    __slots__ = (
        "_gap_before",
        "_rewound_from",
        "_units",
        "ext",
        "files",
        "min_logic_offset",
        "own_id",
        "queue_id",
        "queue_tail",
        "topic",
    )

    def __init__(
        self,
        access: FileAccess,
        directory: str,
        topic: str,
        queue_id: int,
        file_size: int,
        clock: Clock,
        ext: ConsumeQueueExt | None = None,
        names: DirectorySync | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        # Queue id in every record of the queue; -1 where units point to records of other topics.
        self.own_id = -1 if is_light_queue(topic) else queue_id
        self.ext = ext
        self.files = MappedFileQueue(
            access,
            directory,
            whole_units_bytes(file_size),
            clock=clock,
            reserve_bytes=RESERVE_BYTES,
            keep_descriptors=False,  # A store may have ten thousand queues, and fewer descriptors.
            names=names,
        )
        self._units = QueueUnits(self.files)
        self.queue_tail = QueueTail(topic, queue_id)
        self.min_logic_offset = 0
        self._gap_before = -1
        self._rewound_from = -1

    # Bounds

    @property
    def max_logic_offset(self) -> int:
        """The byte behind the last unit."""
        return self.files.max_offset

    @property
    def min_offset(self) -> int:
        """The queue offset of the oldest message whose record still exists."""
        return self.min_logic_offset // UNIT_BYTES

    @property
    def max_offset(self) -> int:
        """The queue offset behind the newest message."""
        return self.files.max_offset // UNIT_BYTES

    @property
    def max_physical_offset(self) -> int:
        """The end of the newest record that has a unit; -1 when there is none."""
        return self.queue_tail.max_physical_offset

    def roll_next_file(self, offset: int) -> int:
        """The queue offset of the first unit in the file after the one that holds `offset`."""
        return self._units.roll_next_file(offset)

    # Appending

    def append(self, request: DispatchRequest) -> AppendOutcome:
        """Append the unit of a record. Readable on return, durable after a flush.

        Raises DiskFull with nothing written: the same request may be repeated.
        """
        data = encode(request.physical_offset, request.size, request.tags_code)
        if request.queue_offset < 0:
            raise IllegalMessage(f"{self}: expected a queue offset >= 0, found {request.queue_offset} in {request}")
        if request.physical_offset + request.size <= self.queue_tail.max_physical_offset:
            return AppendOutcome.DUPLICATE
        place = request.queue_offset * UNIT_BYTES
        if self.files.files and place < self.max_logic_offset:
            unit = self._units.at(request.queue_offset)
            same = unit is not None and unit.physical_offset == request.physical_offset
            return AppendOutcome.DUPLICATE if same else AppendOutcome.CONFLICT
        if not self._make_way(place):
            return AppendOutcome.TOO_FAR
        if self.ext is not None:
            data = self._with_ext_unit(request, data)
        self.files.last_or_create(place).append(data)
        self.queue_tail.max_physical_offset = request.physical_offset + request.size
        self.queue_tail.last_store_timestamp_ms = request.store_timestamp_ms
        self._point_tail()
        outcome = AppendOutcome.GAP if place == self._gap_before else AppendOutcome.APPENDED
        self._gap_before = -1
        return outcome

    def initialize_with_offset(self, offset: int) -> None:
        """Start an empty queue at `offset`: its next message has that queue offset. Raises DiskFull."""
        if self.queue_tail.max_physical_offset >= 0 or self.max_logic_offset > offset * UNIT_BYTES:
            raise IllegalTransition(
                f"{self}: expected an empty queue to begin at {offset}, found it up to {self.max_offset}"
            )
        self._begin_at(offset * UNIT_BYTES)
        self._point_tail()

    def _make_way(self, place: int) -> bool:
        """Make `place` the end of the queue; False, and nothing written, when it is too far away."""
        if place > PLACE_MAX:
            return False
        if self.queue_tail.max_physical_offset < 0:
            self._begin_at(place)
            return True
        missing = place - self.max_logic_offset
        if missing > GAP_UNITS_MAX * UNIT_BYTES:
            return False
        if missing > 0:
            # Kept until the unit is written: the disk may be full in between, and the gap must still be reported.
            self._gap_before = place
            self._fill_blank(place)
        return True

    def _begin_at(self, place: int) -> None:
        """Make `place` the end of a queue that holds no message, with blanks before it in its file."""
        last = self.files.last()
        if last is not None and place > last.from_offset + last.size:
            while self.files.delete_last():  # Blank files; the queue restarts in the file of `place`.
                pass
            last = None
        if last is None:
            last = self.files.create_next(place)
            self.files.flushed_where = self.files.committed_where = last.from_offset
        self._fill_blank(place)
        self.min_logic_offset = place

    def _fill_blank(self, end: int) -> None:
        """Append pre-blank units up to byte `end`."""
        while (missing := end - self.max_logic_offset) > 0:
            file = self.files.last_or_create()
            file.append(_BLANK_RUN[: min(missing, file.size - file.wrote_position, len(_BLANK_RUN))])

    def _with_ext_unit(self, request: DispatchRequest, data: bytes) -> bytes:
        """The unit with the address of an ext unit as its tags code; unchanged when the bit map is too long."""
        assert self.ext is not None
        address = self.ext.put(ExtUnit(request.tags_code, request.store_timestamp_ms))
        return data if address is None else encode(request.physical_offset, request.size, address)

    def _point_tail(self) -> None:
        last = self.files.last()
        self.queue_tail.tail = None if last is None or self.ext is not None else last.tail

    # Reading

    def iterate_from(self, offset: int) -> Iterator[tuple[int, int, int, int]] | None:
        """(physical offset, size, tags code, queue offset) of the units from `offset` to the end of its file.

        None when `offset` is before the oldest message or behind the newest. Offsets without a message are skipped.
        """
        if offset * UNIT_BYTES < self.min_logic_offset:
            return None
        data = self._units.from_offset(offset)
        return None if data is None else real_units(data, offset)

    def unit_at(self, offset: int) -> Unit | None:
        """The unit of the message with queue offset `offset`; None when there is none."""
        return None if offset * UNIT_BYTES < self.min_logic_offset else self._units.at(offset)

    def ext_unit_of(self, tags_code: int) -> ExtUnit | None:
        """The ext unit that a unit's tags code refers to; None when it is not an address or the ext unit is deleted."""
        return None if self.ext is None else self.ext.get(tags_code)

    def last_unit(self) -> Unit | None:
        """The unit of the newest message."""
        last = self._units.at(self.max_offset - 1)  # Only what a truncation left may end with blanks.
        return next(self._units.backwards(), None) if last is None else last

    def offset_by_time(
        self, timestamp_ms: int, boundary: Boundary, store_time_of: StoreTimeOf, min_physical_offset: int = 0
    ) -> int:
        """The queue offset that belongs to a time, among messages whose records can still be read.

        LOWER: the first message stored at the time or later, or the end of the queue. UPPER: the last one stored at the
        time or earlier, or the oldest of all. Always within min_offset..max_offset.
        """

        def probe(low: int, high: int) -> tuple[int, int] | None:
            while (found := self._units.next_real(low, high)) is not None:
                timestamp = store_time_of(found[1].physical_offset, found[1].size)
                if timestamp >= 0:
                    return found[0], timestamp
                low = found[0] + 1
            return None

        high = self.max_offset
        low = first_not_below(min(self.min_offset, high), high, min_physical_offset, self._units.probe_physical)
        if boundary is Boundary.LOWER:
            return first_not_below(low, high, timestamp_ms, probe)
        behind = first_not_below(low, high, timestamp_ms + 1, probe)
        for offset in range(behind - 1, low - 1, -1):
            if probe(offset, offset + 1) is not None:
                return offset
        return low

    # Starting, truncating, cleaning

    def load(self, *, lazily: bool = False) -> None:
        """Map the files (and those of the ext queue). Follow with `recover` or `resume`. Raises StoreDamaged.

        `lazily`: files are mapped when they are used. A store with ten thousand queues uses few of them.
        """
        self.files.load(lazily=lazily and self.ext is None)
        if self.ext is not None:
            self.ext.load()

    def recover(self, last_exit_ok: bool = False) -> bool:
        """Find the end of the queue in its last three files; everything behind the first invalid unit is dropped.

        True when that dropped anything: units behind a hole that a power cut left. Their records must be dispatched
        again, from `max_physical_offset` on. Not checked after a clean stop.
        """
        files = self.files.files[-RECOVER_FILES:]
        if self.ext is not None:
            self.ext.recover()
        end = physical_end = 0
        for file in files:
            scan = scan_units(readable(file), physical_end)
            end, physical_end = file.from_offset + scan.valid_bytes, scan.physical_end
            if scan.valid_bytes < file.size:
                break
        dropped = bool(files) and self._has_remains(end, last_exit_ok)
        if files:
            self._cut(end, erase=dropped)
        self.files.flushed_where = self.files.committed_where = end
        first = self.files.first()
        self.min_logic_offset = 0 if first is None else first.from_offset
        self._settle()
        self.correct_min_offset(0)
        return dropped

    def resume(self, min_offset: int, max_offset: int, max_physical_offset: int) -> None:
        """Resume at the end that a clean stop recorded, without reading the queue."""
        if self.files.resume_at(max_offset * UNIT_BYTES):
            self.min_logic_offset = min_offset * UNIT_BYTES
            self.queue_tail.max_physical_offset = max_physical_offset
            self._gap_before = -1
            self.queue_tail.tail = None
            return
        self._cut(max_offset * UNIT_BYTES, erase=False)
        self.files.flushed_where = self.files.committed_where = max_offset * UNIT_BYTES
        self.min_logic_offset = min_offset * UNIT_BYTES
        self._settle()

    def truncate_dirty(self, physical_offset: int) -> None:
        """Drop every unit whose record does not end at or before `physical_offset`, the new end of the commit log."""
        cut = self._end_below(physical_offset)
        if cut is not None:
            self._cut(cut, erase=True)
        self._settle_after_cut()

    def rewind(self, physical_offset: int) -> None:
        """Drop the same units before a scan of the log that rebuilds most of them; `end_rewind` follows the scan.

        The file keeps its map and its blocks, and old units behind the end stay until they are overwritten, so that
        the kernel can append at once. A crash in between leaves old units, or units rebuilt from the log: the next
        start rewinds as far, since no checkpoint covers them yet.
        """
        if self.ext is not None:
            self.truncate_dirty(physical_offset)
            return
        cut = self._end_below(physical_offset)
        before = self.max_logic_offset
        if cut is not None:
            self.files.truncate_dirty(cut)
        last = self.files.last()
        if last is not None:
            self._rewound_from = min(before, last.from_offset + last.size)
            if self._rewound_from > self.max_logic_offset:
                last.note_blocks(self._rewound_from - last.from_offset)  # Units were read there.
        self._settle_after_cut()

    def end_rewind(self) -> None:
        """Erase, durably, what the scan since `rewind` did not overwrite; for most queues that is nothing."""
        end, before = self.max_logic_offset, self._rewound_from
        self._rewound_from = -1
        last = self.files.last()
        if last is not None and before >= 0 and (end < before or last.wrote_position == 0):
            self._cut(end, erase=True)
            self._settle_after_cut()

    def _end_below(self, physical_offset: int) -> int | None:
        """The byte behind the last unit whose record ends at or before `physical_offset`; None without files."""
        cut: int | None = None
        for file in reversed(self.files.files):
            data = readable(file)
            scan = scan_units(data, physical_end_max=physical_offset)
            if cut is None or scan.valid_bytes < len(data):
                cut = file.from_offset + scan.valid_bytes
            if scan.has_real:
                break
        return cut

    def _settle_after_cut(self) -> None:
        self.min_logic_offset = min(self.min_logic_offset, self.max_logic_offset)
        self._settle()
        if self.queue_tail.max_physical_offset < 0:
            self.files.doubt_names()  # Possibly nothing in it was ever flushed.

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Move the queue's min offset to the first message whose record is at or behind `min_physical_offset`.

        When all records are deleted it is empty: min offset = max offset. The min offset never decreases.
        """
        first = self.files.first()
        if first is None or self.min_logic_offset >= self.max_logic_offset:
            return
        low = max(self.min_logic_offset, first.from_offset) // UNIT_BYTES
        oldest = self._units.at(low)
        if oldest is None or oldest.physical_offset < min_physical_offset:
            low = first_not_below(low, self.max_offset, min_physical_offset, self._units.probe_physical)
        self.min_logic_offset = low * UNIT_BYTES
        if self.ext is not None and (unit := self._units.at(low)) is not None:
            self.ext.truncate_by_min(unit.tags_code)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Remove the leading files whose records are all deleted, never the last one, and correct the min offset."""
        count = self.files.delete_expired_by_offset(min_physical_offset, UNIT_BYTES, _last_physical_offset)
        self.correct_min_offset(min_physical_offset)
        return count

    def flush(self, least_pages: int) -> bool:
        """Make one file durable up to its end, if `least_pages` are waiting (0: anything). True when nothing moved."""
        unmoved = self.files.flush(least_pages)
        return (self.ext is None or self.ext.flush(least_pages)) and unmoved

    def destroy(self) -> None:
        """Remove all files. The queue is empty afterwards and can be used again."""
        self.queue_tail.tail = None
        self.files.destroy()
        if self.ext is not None:
            self.ext.destroy()
        self.min_logic_offset = 0
        self._gap_before = self._rewound_from = -1
        self.queue_tail.max_physical_offset = -1

    def close(self) -> None:
        """Unmap. Deletes and flushes nothing."""
        self.queue_tail.tail = None
        self.files.close()
        if self.ext is not None:
            self.ext.close()

    def _has_remains(self, end: int, last_exit_ok: bool) -> bool:
        """Whether anything but zeros follows `end`. After a clean stop only the next unit is checked."""
        for file in self.files.files:
            if file.from_offset + file.size <= end:
                continue
            start = max(0, end - file.from_offset)
            if has_data_behind(file, start, UNIT_BYTES if last_exit_ok else None):
                return True
        return False

    def _cut(self, end: int, erase: bool) -> None:
        """End the queue at byte `end`; later files are deleted, and a file that would be empty.

        Only an empty first file that does not begin at 0 stays: its name keeps the numbering.
        """
        self.files.truncate_dirty(end)
        last = self.files.last()
        if last is None:
            return
        if last.wrote_position == 0 and (len(self.files.files) > 1 or last.from_offset == 0):
            self.files.delete_last()
        elif erase and not last.is_full:
            last.zero_from(last.wrote_position)

    def _settle(self) -> None:
        """Recompute the queue's state from its units after a truncation."""
        last_unit = self.last_unit()
        self.queue_tail.max_physical_offset = -1 if last_unit is None else last_unit.physical_offset + last_unit.size
        self._gap_before = -1
        self._point_tail()
        if self.ext is not None:
            codes = (unit.tags_code for unit in self._units.backwards())
            address = next((code for code in codes if is_ext_address(code)), None)
            if address is None:
                self.ext.truncate_all()
            else:
                self.ext.truncate_by_max(address)

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic}"


def _last_physical_offset(file: MappedFile) -> int:
    """Where the record of a file's last real unit begins; 0 when it has only blanks, which may be deleted."""
    unit = next(real_units_backwards(readable(file)), None)
    return 0 if unit is None else unit.physical_offset
