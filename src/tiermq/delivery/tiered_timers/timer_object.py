"""A timer object: tiered timers in one object of the tier, sorted by the time at which they are due.

    0      4        6      8      12         20        28            32          36
    +------+--------+------+------+----------+---------+-------------+-----------+------------------+---------+
    | TMQT | version| zero | count| first due| last due| record bytes| table crc | count × 21 bytes | records |
    +------+--------+------+------+----------+---------+-------------+-----------+------------------+---------+
      table row:  i64 due | u32 offset within the records | u32 size | u32 crc of the record | u8 flags (1: a delete)

Big-endian. The table's checksum is over the first 32 bytes and the table, so the times are as safe as the records;
every record has a checksum of its own, so that damage to one costs that one.

Invariants: rows are sorted by time, records are stored in the order of their rows without gaps, the first and the last
time are those of the first and the last row, there is at least one row, and nothing follows the last record.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.errors import TierError
from tiermq.message.crc import crc32

MAGIC = b"TMQT"
OBJECT_VERSION = 1
HEAD = struct.Struct(
    ">"
    "4s"  # magic
    "H"  # version
    "H"  # zero
    "I"  # count        rows of the table
    "q"  # first_ms     the earliest time
    "q"  # last_ms      the latest time
    "I"  # record bytes
)
CHECKSUM = struct.Struct(">I")
ROW = struct.Struct(
    ">"
    "q"  # due_ms
    "I"  # place        offset of the record, from the first record
    "I"  # size         bytes of the record
    "I"  # crc          of the record
    "B"  # flags
)
TABLE_AT = HEAD.size + CHECKSUM.size
DELETE_FLAG = 1
OVERHEAD_BYTES = TABLE_AT
assert HEAD.size == 32
assert ROW.size == 21


class CorruptTimers(TierError):
    """An object that should hold tiered timers, and is damaged."""


@dataclass(frozen=True, slots=True)
class DamagedTimer:
    """A row whose record is not what was written."""

    due_ms: int
    text: str


def encoded_bytes(timer: TieredTimer) -> int:
    """What one timer adds to an object."""
    return ROW.size + len(timer.record)


def encode_timers(timers: Sequence[TieredTimer]) -> bytes:
    """An object with these timers, of which there is at least one. Those due at the same time keep their order."""
    if not timers:
        raise ValueError("expected at least one timer for an object, found none")
    ordered = sorted(timers, key=lambda timer: timer.deliver_ms)
    table = bytearray()
    place = 0
    for timer in ordered:
        flags = DELETE_FLAG if timer.is_delete else 0
        table += ROW.pack(timer.deliver_ms, place, len(timer.record), crc32(timer.record), flags)
        place += len(timer.record)
    head = HEAD.pack(MAGIC, OBJECT_VERSION, 0, len(ordered), ordered[0].deliver_ms, ordered[-1].deliver_ms, place)
    checksum = CHECKSUM.pack(crc32(table, crc32(head)))
    return b"".join([head, checksum, bytes(table), *(timer.record for timer in ordered)])


class TimerObject:
    """A timer object that was read. Its table is valid; each record is checked when it is read."""

    def __init__(self, data: bytes, name: str) -> None:
        """Raises CorruptTimers when the table cannot be trusted."""
        self.name = name
        self.size_bytes = len(data)
        self._data = memoryview(data)
        if len(data) < TABLE_AT:
            raise self._corrupt(f"at least {TABLE_AT} bytes", str(len(data)))
        magic, version, zero, count, self.first_ms, self.last_ms, record_bytes = HEAD.unpack_from(data)
        if magic != MAGIC:
            raise self._corrupt(f"the mark {MAGIC!r}", repr(magic))
        if (version, zero) != (OBJECT_VERSION, 0):
            raise self._corrupt(
                f"version {OBJECT_VERSION}", f"{version}.{zero}: a newer TierMQ writes here, or it is damaged"
            )
        self._records_at = TABLE_AT + count * ROW.size
        if count == 0 or len(data) != self._records_at + record_bytes:
            raise self._corrupt(f"{self._records_at + record_bytes} bytes for {count} timers", str(len(data)))
        table = self._data[TABLE_AT : self._records_at]
        (checksum,) = CHECKSUM.unpack_from(data, HEAD.size)
        computed = crc32(table, crc32(self._data[: HEAD.size]))
        if checksum != computed:
            raise self._corrupt(f"a table with the checksum {checksum}", str(computed))
        self._rows = list(ROW.iter_unpack(table))
        self._dues = [row[0] for row in self._rows]
        if not self._is_consistent(record_bytes):
            raise self._corrupt("rows by time, records without holes", "others")

    def _is_consistent(self, record_bytes: int) -> bool:
        place = 0
        for _, at, size, _, flags in self._rows:
            if at != place or flags & ~DELETE_FLAG:
                return False
            place += size
        is_sorted = all(a <= b for a, b in zip(self._dues, self._dues[1:], strict=False))
        return is_sorted and place == record_bytes and (self._dues[0], self._dues[-1]) == (self.first_ms, self.last_ms)

    def __len__(self) -> int:
        return len(self._rows)

    def timers(self, from_ms: int, until_ms: int) -> Iterator[TieredTimer | DamagedTimer]:
        """Those due in [from, until), in order; one with a damaged record is returned as damaged."""
        for index in range(bisect_left(self._dues, from_ms), bisect_left(self._dues, until_ms)):
            due_ms, place, size, checksum, flags = self._rows[index]
            record = bytes(self._data[self._records_at + place : self._records_at + place + size])
            if crc32(record) == checksum:
                yield TieredTimer(due_ms, bool(flags & DELETE_FLAG), record)
            else:
                text = f"{self.name}: expected record {index} with the checksum {checksum}, found {crc32(record)}"
                yield DamagedTimer(due_ms, text)

    def _corrupt(self, expected: str, found: str) -> CorruptTimers:
        return CorruptTimers(
            f"{self.name}: expected {expected}, found {found}. Its timers cannot be delivered; it is left where it is."
        )
