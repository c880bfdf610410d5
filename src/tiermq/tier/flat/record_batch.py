"""RecordBatch: a run of one queue's records with their units, as it is appended, committed and indexed.

Invariants: record k of `data` is the one of unit k; records lie end to end from `log_offset` on; their queue offsets
count up from `first_offset` by one.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES

SYS_FLAG_LOW_BYTE_AT = 39
BORN_HOST_IS_V6 = 0x10
_I64 = struct.Struct(">q")


class CollectedRecords(Protocol):
    """What a batch is made of: `tiermq.kernel.Collected`."""

    @property
    def data(self) -> bytes: ...
    @property
    def units(self) -> bytes: ...
    @property
    def count(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def begin_ms(self) -> int: ...
    @property
    def end_ms(self) -> int: ...


def store_time_at(data: bytes | memoryview, position: int) -> int:
    """The store time of the record at `position`; where it stands depends on the shape of the born host."""
    at = 68 if data[position + SYS_FLAG_LOW_BYTE_AT] & BORN_HOST_IS_V6 else 56
    return int(_I64.unpack_from(data, position + at)[0])


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """See the module."""

    data: bytes | memoryview
    units: bytes | memoryview
    first_offset: int
    log_offset: int
    begin_ms: int
    end_ms: int

    @classmethod
    def of(cls, collected: CollectedRecords) -> RecordBatch:
        """The batch that the kernel collected; it must have a record."""
        return cls(
            collected.data,
            collected.units,
            collected.next_offset - collected.count,
            int(UNIT.unpack_from(collected.units)[0]),
            collected.begin_ms,
            collected.end_ms,
        )

    @classmethod
    def of_bytes(cls, data: bytes | memoryview, units: bytes | memoryview, first_offset: int) -> RecordBatch:
        """The batch of those records; its times are read from them."""
        log_offset = int(UNIT.unpack_from(units)[0])
        times = [store_time_at(data, place - log_offset) for place, _, _ in UNIT.iter_unpack(units)]
        return cls(data, units, first_offset, log_offset, min(times), max(times))

    @property
    def count(self) -> int:
        return len(self.units) // UNIT_BYTES

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.count

    def place(self, number: int) -> tuple[int, int]:
        """(position in `data`, size) of one record."""
        place, size, _ = UNIT.unpack_from(self.units, number * UNIT_BYTES)
        return int(place) - self.log_offset, int(size)

    def places(self) -> Iterator[tuple[int, int, int]]:
        """(position in `data`, size, tags code) of each record."""
        for place, size, tags_code in UNIT.iter_unpack(self.units):
            yield place - self.log_offset, size, tags_code

    def end_of(self, count: int) -> int:
        """Where the first `count` records end in `data`."""
        return len(self.data) if count == self.count else self.place(count)[0]

    def stretches(self, messages_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
        """The batch in runs [first, end) of records, each as long as both limits allow, and of one record at least."""
        count, first = self.count, 0
        if count <= messages_max and len(self.data) <= bytes_max:
            yield 0, count
            return
        while first < count:
            limit = self.place(first)[0] + bytes_max
            fitting = bisect_right(range(count + 1), limit, lo=first + 1, key=self.end_of) - 1
            end = max(first + 1, min(fitting, first + messages_max))
            yield first, end
            first = end

    def split(self, room_bytes: int, room_units: int) -> tuple[RecordBatch | None, RecordBatch | None]:
        """The part that fits into so much room, and the rest; None for an empty one."""
        if len(self.data) <= room_bytes and self.count <= room_units:
            return self, None
        taken = 0
        for position, size, _ in self.places():
            if position + size > room_bytes or taken == room_units:
                break
            taken += 1
        if taken == 0:
            return None, self
        cut = int(UNIT.unpack_from(self.units, taken * UNIT_BYTES)[0]) - self.log_offset
        data, units = memoryview(self.data), memoryview(self.units)
        return (
            RecordBatch.of_bytes(data[:cut], units[: taken * UNIT_BYTES], self.first_offset),
            RecordBatch.of_bytes(data[cut:], units[taken * UNIT_BYTES :], self.first_offset + taken),
        )
