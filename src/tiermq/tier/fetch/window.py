"""Window: consecutive messages of one queue as they came from the tier, checked once, served many times.

In the tier a queue's records lie side by side, so a page of messages is one slice of the window's bytes.

    units   | u0 | u1 | u2 | ... |            20 bytes each, from queue offset `first_offset` on
    data    | record 0 | record 1 | ... |     from log offset `log_offset` on

A window is *plain* when every unit is followed by exactly its record (the kernel checked places, sizes, numbers and
body CRCs). Otherwise (a gap, an end mark of a sealed segment, damage) it keeps the list of the places that are good: a
damaged record is counted and never served.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tiermq.errors import CorruptRecord
from tiermq.kernel import check_window
from tiermq.message.layout import MAGIC_BLANK
from tiermq.message.message_filter import MessageFilter
from tiermq.message.record import CrcPropertyCheck, decode_record

CODA_BYTES = 16
OVERHEAD_BYTES = 256
_FIRST_LONG = struct.Struct(">q")
_SIZE_MAGIC = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one good message of a window that is not plain lies in its data."""

    queue_offset: int
    start: int
    size: int
    tags_code: int


@dataclass(slots=True)
class Slice:
    """A piece of a page: whole records, how many, and where to go on."""

    data: bytes
    count: int
    next_offset: int


class Window:
    """See the module. Immutable after it is made."""

    __slots__ = ("corrupt_count", "count", "data", "first_offset", "log_offset", "places", "units")

    def __init__(self, first_offset: int, units: bytes, data: bytes, log_offset: int) -> None:
        self.first_offset = first_offset
        self.units = units
        self.data = data
        self.log_offset = log_offset
        self.count = len(units) // UNIT_BYTES
        self.corrupt_count = 0
        self.places: list[Place] | None = None
        if check_window(units, data, log_offset, first_offset) != self.count:
            self.places = self._good_places()

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.count

    @property
    def weight(self) -> int:
        """The bytes that keeping this window costs."""
        return len(self.units) + len(self.data) + OVERHEAD_BYTES

    def _good_places(self) -> list[Place]:
        found = []
        for index, (log_offset, size, tags_code) in enumerate(UNIT.iter_unpack(self.units)):
            if size == PRE_BLANK_SIZE and log_offset == 0:
                continue  # A gap: there never was a record.
            place = self._checked(self.first_offset + index, log_offset - self.log_offset, size, tags_code)
            if place is None:
                self.corrupt_count += 1
            else:
                found.append(place)
        return found

    def _checked(self, queue_offset: int, start: int, size: int, tags_code: int) -> Place | None:
        """The place of one message if its record is whole and its own; an end mark before it is stepped over."""
        if start < 0 or size <= 0 or start + size > len(self.data):
            return None
        if _SIZE_MAGIC.unpack_from(self.data, start)[1] == MAGIC_BLANK:
            start += CODA_BYTES
        try:
            message = decode_record(memoryview(self.data)[start : start + size], crc_property=CrcPropertyCheck.IGNORE)
        except CorruptRecord:
            return None
        return Place(queue_offset, start, size, tags_code) if message.queue_offset == queue_offset else None

    def take(self, offset: int, max_messages: int, max_bytes: int) -> Slice:
        """Messages from `offset` on, as many as the limits allow, the first one in any case."""
        if self.places is not None:
            return self._take_places(offset, max_messages, max_bytes, None)
        index = offset - self.first_offset
        count = min(max_messages, self.count - index)
        start = _FIRST_LONG.unpack_from(self.units, index * UNIT_BYTES)[0] - self.log_offset
        end = self._end_of(index + count)
        while end - start > max_bytes and count > 1:
            # Guess from the mean size, then settle one by one: records of a queue are mostly alike.
            count = max(1, min(count - 1, count * max_bytes // (end - start)))
            end = self._end_of(index + count)
        return Slice(self.data[start:end], count, offset + count)

    def _end_of(self, index: int) -> int:
        if index >= self.count:
            return len(self.data)
        return int(_FIRST_LONG.unpack_from(self.units, index * UNIT_BYTES)[0]) - self.log_offset

    def take_matching(self, offset: int, max_messages: int, max_bytes: int, chosen: MessageFilter) -> Slice:
        """The same with a filter: by the unit first, then by the record."""
        return self._take_places(offset, max_messages, max_bytes, chosen)

    def _take_places(self, offset: int, max_messages: int, max_bytes: int, chosen: MessageFilter | None) -> Slice:
        parts: list[bytes] = []
        total = 0
        next_offset = self.end_offset
        for place in self._places_from(offset):
            if parts and (len(parts) >= max_messages or total + place.size > max_bytes):
                next_offset = place.queue_offset
                break
            if chosen is not None and not chosen.matches_unit(place.tags_code, None):
                continue
            record = self.data[place.start : place.start + place.size]
            if chosen is not None and not chosen.matches_record(record):
                continue
            parts.append(record)
            total += place.size
        return Slice(b"".join(parts), len(parts), next_offset)

    def _places_from(self, offset: int) -> list[Place]:
        if self.places is not None:
            return [place for place in self.places if place.queue_offset >= offset]
        index = offset - self.first_offset
        return [
            Place(self.first_offset + at, log_offset - self.log_offset, size, tags_code)
            for at, (log_offset, size, tags_code) in enumerate(
                UNIT.iter_unpack(memoryview(self.units)[index * UNIT_BYTES :]), index
            )
        ]

    def store_time_of(self, offset: int) -> int:
        """Store time of one message; -1 when it is not in the window or not good."""
        for place in self._places_from(offset)[:1]:
            if place.queue_offset == offset:
                record = self.data[place.start : place.start + place.size]
                return decode_record(record, check_crc=False, crc_property=CrcPropertyCheck.IGNORE).store_timestamp_ms
        return -1

    def store_times(self) -> list[tuple[int, int]]:
        """(queue offset, store time) of every good message."""
        return [
            (
                place.queue_offset,
                decode_record(
                    memoryview(self.data)[place.start : place.start + place.size],
                    check_crc=False,
                    crc_property=CrcPropertyCheck.IGNORE,
                ).store_timestamp_ms,
            )
            for place in self._places_from(self.first_offset)
        ]
