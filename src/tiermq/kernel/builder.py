"""scan, IndexTail and Builder in pure Python: the scan of records that recovery and dispatch share."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from tiermq.kernel.index_reader import ENTRY
from tiermq.kernel.stop_reasons import Stop
from tiermq.kernel.write_cursor import QueueTail, WriteCursor
from tiermq.message.crc import crc32, verify_crc_property
from tiermq.message.java_hash import java_hash, key_hash
from tiermq.message.layout import BODY_CRC_AT, I32, I64, PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tiermq.message.properties import decode_properties
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.message.topic_name import SCHEDULE_TOPIC

PAGE_BYTES = 512
_CHUNK_BYTES = 1 << 20
_SCHEDULE = SCHEDULE_TOPIC.encode()
_ZERO_PAGE = bytes(PAGE_BYTES)
UNKNOWN_LEVEL_DELAY_MS = 1_000
"""The delay of every level where none is defined."""


def due_ms(level: str, store_ms: int, delays_ms: Sequence[int]) -> int | None:
    """When a message of the schedule topic is due, which is the tags code of its unit; None without a delay level."""
    if not (level.isascii() and level.isdigit() and int(level) > 0):
        return None
    return store_ms + (delays_ms[min(int(level), len(delays_ms)) - 1] if delays_ms else UNKNOWN_LEVEL_DELAY_MS)


def body_holds(buffer: Any, position: int, head: RecordHead, crc_mode: int) -> bool:
    if crc_mode == 1:
        (crc,) = I32.unpack_from(buffer, position + BODY_CRC_AT)
        body = buffer[head.body_position : head.body_position + head.body_length]
        return head.body_length == 0 or crc32(body) & 0x7FFFFFFF == crc
    if crc_mode == 2:
        return verify_crc_property(buffer[position : position + head.size])
    return True


def stop_of(buffer: Any, position: int, head: RecordHead, physical_offset: int, crc_mode: int) -> Stop:
    """Stop.END when the scan may continue behind this record: it is whole, undamaged and at its own offset."""
    if head.kind is HeadKind.BLANK:
        return Stop.BLANK
    if head.kind is not HeadKind.OK or head.physical_offset != physical_offset:
        return Stop.CORRUPT
    return Stop.END if body_holds(buffer, position, head, crc_mode) else Stop.CORRUPT


def first_zero_page(data: Any, start: int, stop: int) -> int:
    """Position of the first whole, aligned 512 bytes of zeros in [start, stop); -1 when there are none."""
    pages = memoryview(data)
    at = -(-start // PAGE_BYTES) * PAGE_BYTES
    while at + PAGE_BYTES <= stop:
        chunk = bytes(pages[at : min(stop, at + _CHUNK_BYTES)])
        found = chunk.find(_ZERO_PAGE)
        while found >= 0:
            aligned = -(-found // PAGE_BYTES) * PAGE_BYTES
            if aligned == found:
                return at + found
            found = chunk.find(_ZERO_PAGE, aligned)
        at += _CHUNK_BYTES
    return -1


def scan_units(data: Any, previous_end: int, physical_end_max: int) -> tuple[int, int, bool]:
    """Units of a consume queue from the start of `data` while they are valid, ascend and end at or before
    `physical_end_max`: (their bytes, end of the last real unit's record, whether any is real).
    """
    units = memoryview(data)
    whole = len(units) - len(units) % UNIT_BYTES
    end = previous_end
    has_real = False
    for number, (physical_offset, size, _) in enumerate(UNIT.iter_unpack(units[:whole])):
        if size == PRE_BLANK_SIZE and physical_offset == 0:
            continue
        if size <= 0 or physical_offset < end or physical_offset + size > physical_end_max or size == PRE_BLANK_SIZE:
            return number * UNIT_BYTES, end, has_real
        end = physical_offset + size
        has_real = True
    return whole, end, has_real


def scan(view: WriteCursor, start: int, end: int, crc_mode: int = 1) -> tuple[int, Stop, int, int, int, int]:
    """Scan records from `start` while they are whole and at their own offset.

    (position, stop, records, last record's position or -1, last store time, blank size): `position` is where the scan
    stopped. crc_mode: 0 none, 1 body CRC, 2 the whole-record CRC property.
    """
    buffer = view.buffer
    if buffer is None:
        return start, Stop.CORRUPT, 0, -1, 0, 0
    end = min(end, view.size)
    position, records, last, last_ms = start, 0, -1, 0
    while position < end:
        head = read_head(buffer, position, end - position)
        stop = stop_of(buffer, position, head, view.base + position, crc_mode)
        if stop is not Stop.END:
            return position, stop, records, last, last_ms, head.size if stop is Stop.BLANK else 0
        last, last_ms = position, head.store_timestamp_ms
        records += 1
        position += head.size
    return position, Stop.END, records, last, last_ms, 0


def key_hashes(topic: str, keys: Sequence[str]) -> bytes:
    """The index hashes of `topic#key` for each key, as an array of native 32-bit numbers."""
    return array("i", [key_hash(f"{topic}#{key}") for key in keys]).tobytes()


class IndexTail:
    """The open index file as the kernel sees it. All state is in the file's header; one thread writes."""

    __slots__ = ("buffer", "entries", "entry_limit", "slots")

    def __init__(self, buffer: Any, slots: int, entries: int) -> None:
        if len(buffer) < 40 + 4 * slots + 20 * entries:
            raise ValueError("the buffer is smaller than the index file that it should hold")
        self.buffer: memoryview | None = memoryview(buffer)
        self.slots = slots
        self.entries = entries
        self.entry_limit = 0

    def detach(self) -> None:
        self.entry_limit = 0
        if self.buffer is not None:
            self.buffer.release()
            self.buffer = None

    def room(self) -> int:
        """How many entries fit before the next reservation or file."""
        if self.buffer is None:
            return 0
        return min(self.entries, self.entry_limit) - max(1, int(I32.unpack_from(self.buffer, 36)[0]))

    def put(self, key: int, physical_offset: int, store_ms: int) -> None:
        """Put one entry. The caller has checked `room`."""
        buffer = self.buffer
        assert buffer is not None
        count = max(1, I32.unpack_from(buffer, 36)[0])
        if count <= 1:
            I64.pack_into(buffer, 0, store_ms)
            I64.pack_into(buffer, 16, physical_offset)
        begin_ms = I64.unpack_from(buffer, 0)[0]
        slot_at = 40 + 4 * (key % self.slots)
        previous = I32.unpack_from(buffer, slot_at)[0]
        if previous <= 0 or previous >= count:
            previous = 0
            I32.pack_into(buffer, 32, I32.unpack_from(buffer, 32)[0] + 1)
        seconds = (store_ms - begin_ms) // 1000 if begin_ms > 0 and store_ms > begin_ms else 0
        at = 40 + 4 * self.slots + 20 * count
        ENTRY.pack_into(buffer, at, key, physical_offset, min(seconds, 2**31 - 1), previous)
        I32.pack_into(buffer, 36, count + 1)
        I32.pack_into(buffer, slot_at, count)
        I64.pack_into(buffer, 8, store_ms)
        I64.pack_into(buffer, 24, physical_offset)

    def put_many(self, hashes: Sequence[int], offsets: Sequence[int], timestamps_ms: Sequence[int]) -> int:
        """Put keys given as three arrays of equal length (i32, i64, i64). Returns how many fitted."""
        if not len(hashes) == len(offsets) == len(timestamps_ms):
            raise ValueError("hashes, offsets and timestamps must be equally long")
        fitting = min(len(hashes), max(0, self.room()))
        for at in range(fitting):
            self.put(int(hashes[at]), int(offsets[at]), int(timestamps_ms[at]))
        return fitting


class Builder:
    """Scans the commit log and builds queue units and index entries until a record needs the slow path."""

    __slots__ = ("_delays_ms", "_queues", "_touched", "index", "last_store_timestamp_ms", "records")

    def __init__(self, delays_ms: Sequence[int] = ()) -> None:
        """`delays_ms`: the delay of each level of the schedule topic."""
        self._delays_ms = delays_ms
        self._queues: dict[tuple[bytes, int], QueueTail] = {}
        self._touched: dict[tuple[bytes, int], int] = {}
        self.index: IndexTail | None = None
        self.last_store_timestamp_ms = 0
        self.records = 0

    def add(self, queue: QueueTail) -> None:
        """Let the fast path append to this queue. Only ordinary queues with an ASCII topic may be added."""
        self._queues[(queue.topic.encode(), queue.queue_id)] = queue

    def remove(self, topic: str, queue_id: int) -> None:
        self._queues.pop((topic.encode(), queue_id), None)
        self._touched.pop((topic.encode(), queue_id), None)

    def clear(self) -> None:
        self._queues.clear()
        self._touched.clear()

    def take_touched(self) -> list[tuple[QueueTail, int]]:
        """The queues that got units since the last call, as (QueueTail, next queue offset)."""
        found = [(self._queues[key], next_offset) for key, next_offset in self._touched.items()]
        self._touched.clear()
        return found

    def dispatch(
        self, view: WriteCursor, start: int, end: int, crc_mode: int = 0, budget: int = 1 << 62
    ) -> tuple[int, Stop]:
        """Build units and entries for the records of [start, end) of one file: (position, stop).

        Stop.SLOW: the record at `position` needs the slow path. Stop.BLANK: the file ends there. Stop.END: everything
        up to `end` is done, or at least `budget` bytes.
        """
        buffer = view.buffer
        if buffer is None:
            return start, Stop.CORRUPT
        end = min(end, view.size)
        index_end = -1
        index = self.index if self.index is not None and self.index.buffer is not None else None
        if index is not None and index.buffer is not None:
            # A file without entries has the end of the previous file, so that nothing is indexed twice.
            (index_end,) = I64.unpack_from(index.buffer, 24)
            if index_end == 0 and I32.unpack_from(index.buffer, 36)[0] <= 1:
                index_end = -1
        position = start
        halt = min(end, start + budget)
        while position < halt:
            head = read_head(buffer, position, end - position)
            stop = stop_of(buffer, position, head, view.base + position, crc_mode)
            if stop is not Stop.END:
                return position, stop
            if index is not None and head.physical_offset == index_end:
                return position, Stop.SLOW  # It may be partly indexed: the index service decides.
            if not self._build(buffer, head, index if head.physical_offset > index_end else None):
                return position, Stop.SLOW
            self.last_store_timestamp_ms = head.store_timestamp_ms
            self.records += 1
            position += head.size
        return position, Stop.END

    def _build(self, buffer: Any, head: RecordHead, index: IndexTail | None) -> bool:
        """Append the record's unit and put its keys. False, with nothing done, when the slow path must do it."""
        topic = head.topic
        queue = self._queues.get((topic, head.queue_id))
        if queue is None:
            return False
        encoded = bytes(buffer[head.properties_position : head.properties_position + head.properties_length])
        if b"INNER_MULTI_DISPATCH\x01" in encoded or not encoded.isascii():
            return False
        properties = decode_properties(encoded)
        kind = head.sys_flag & 0x0C
        counted = kind in (0, 8)
        tail = queue.tail
        if counted:
            if tail is None or tail.buffer is None:
                return False
            if head.physical_offset + head.size <= queue.max_physical_offset:
                counted = False  # It has its unit already: a record that is dispatched again.
            elif head.queue_offset * UNIT_BYTES != tail.base + tail.position or tail.position + UNIT_BYTES > tail.limit:
                return False
        if index is not None and kind != 12:
            keys = [key for key in properties.get("KEYS", "").split(" ") if key]
            unique = properties.get("UNIQ_KEY", "")
            if unique:
                keys.insert(0, unique)
            if keys and len(keys) > index.room():
                return False
            for key in keys:
                index.put(key_hash(f"{queue.topic}#{key}"), head.physical_offset, head.store_timestamp_ms)
        if counted and tail is not None and tail.buffer is not None:
            due = due_ms(properties.get("DELAY", ""), head.store_timestamp_ms, self._delays_ms)
            code = due if due is not None and topic == _SCHEDULE else java_hash(properties.get("TAGS", ""))
            UNIT.pack_into(tail.buffer, tail.position, head.physical_offset, head.size, code)
            queue.max_physical_offset = head.physical_offset + head.size
            queue.last_store_timestamp_ms = head.store_timestamp_ms
            tail.position += UNIT_BYTES
            self._touched[(topic, head.queue_id)] = head.queue_offset + 1
        return True
