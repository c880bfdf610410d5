"""Units of a consume queue as arrays, and records in memory checked against them, all at once.

A unit that counts points at a record of at least 91 bytes. A *blank* unit stands for a message that is missing for
good. A unit may point at the end mark of a sealed segment instead of at the record behind it (`records.CODA_BYTES`).

A record belongs to its unit when its magic, size, queue id, queue offset and physical offset match. Bytes of a damaged
unit, or overwritten ones, do not match, and are never taken for a message. The decoder checks body and topic.

The rules are those of `units`, `segments` and `records`; a test compares the two forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT_BYTES
from tiermq.message.java_hash import tags_code
from tiermq.message.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from tiermq.tier.queue.records import CODA_BYTES

Int64s: TypeAlias = Any  # numpy arrays; the type checker does not follow numpy here.
Bools: TypeAlias = Any
_UNIT = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_HEAD = np.dtype(
    {
        "names": ["size", "magic", "queue_id", "queue_offset", "log_offset"],
        "formats": [">i4", ">i4", ">i4", ">i8", ">i8"],
        "offsets": [0, 4, 12, 20, 28],
        "itemsize": 36,
    }
)
assert _UNIT.itemsize == UNIT_BYTES


@dataclass(slots=True)
class UnitArray:
    """Consecutive units from queue offset `first_offset` on, or a choice of such."""

    queue_offsets: Int64s
    log_offsets: Int64s
    sizes: Int64s
    codes: Int64s

    def __len__(self) -> int:
        return len(self.log_offsets)

    @property
    def is_blank(self) -> Bools:
        blank: Bools = (self.log_offsets == 0) & (self.sizes == PRE_BLANK_SIZE)
        return blank

    @property
    def is_sound(self) -> Bools:
        """Whether the unit can be that of a record; blank ones are not."""
        sound: Bools = (self.log_offsets >= 0) & (self.sizes >= RECORD_BYTES_MIN) & (self.sizes < PRE_BLANK_SIZE)
        return sound

    @property
    def ends(self) -> Int64s:
        return self.log_offsets + self.sizes

    def runs(self, which: Bools) -> Iterator[tuple[int, int]]:
        """The queue offsets of some of the units, as ranges [begin, end)."""
        offsets = self.queue_offsets[which]
        if len(offsets):
            for some in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
                yield int(some[0]), int(some[-1]) + 1

    def choose(self, which: Any) -> UnitArray:
        """Some of them: a mask, a slice or numbers."""
        return UnitArray(self.queue_offsets[which], self.log_offsets[which], self.sizes[which], self.codes[which])


def decode_units(data: Any, first_offset: int) -> UnitArray:
    """The whole units in `data`."""
    count = len(data) // UNIT_BYTES
    fields = np.frombuffer(data, dtype=_UNIT, count=count)
    return UnitArray(
        np.arange(first_offset, first_offset + count, dtype=np.int64),
        fields["log_offset"].astype(np.int64),
        fields["size"].astype(np.int64),
        fields["code"].astype(np.int64),
    )


class RecordLocation(Protocol):
    """Where a record is in its log, and how long it is."""

    @property
    def log_offset(self) -> int: ...
    @property
    def size(self) -> int: ...


def segments_of(units: UnitArray, bases: Sequence[int], ends: Sequence[int]) -> tuple[Int64s, Bools]:
    """The number of the segment that each unit's record begins in, and whether that has all of it.

    `bases` and `ends` are of the log's segments, ascending. As `SegmentList.covers`, for all units at once.
    """
    numbers: Int64s = np.searchsorted(np.array(bases, dtype=np.int64), units.log_offsets, side="right") - 1
    behind = np.array(ends or [0], dtype=np.int64)
    inside: Bools = (numbers >= 0) & (units.ends <= behind[np.maximum(numbers, 0)])
    return numbers, inside


def units_of_locations(locations: Iterable[RecordLocation]) -> UnitArray:
    """Units for exact locations, their queue offsets not known yet (-1). What cannot be a record's is dropped."""
    sound = [each for each in locations if each.size >= RECORD_BYTES_MIN and each.log_offset >= 0]
    count = len(sound)
    return UnitArray(
        np.full(count, -1, dtype=np.int64),
        np.fromiter((each.log_offset for each in sound), np.int64, count),
        np.fromiter((each.size for each in sound), np.int64, count),
        np.zeros(count, dtype=np.int64),
    )


def _fields_at(buffer: Any, dtype: Any, positions: Int64s) -> Any:
    """A value at each of some positions of a buffer; all must be within it."""
    count = max(0, len(buffer) - np.dtype(dtype).itemsize + 1)
    return np.ndarray(count, dtype, buffer, strides=(1,))[positions]


def locate(
    units: UnitArray, buffer: Any, base: int, queue_id: int | None, *, trust_offsets: bool = False
) -> tuple[Int64s, Bools]:
    """Where the records of units begin in a buffer that begins at log offset `base`, and which of them are theirs.

    Units must be sound. A record behind an end mark begins 16 bytes behind the offset of its unit. `trust_offsets`: the
    units were made of locations and do not know their queue offsets. Without a queue id, any will do: a light queue
    points at records of other queues.
    """
    starts = units.log_offsets - base
    inside = (starts >= 0) & (starts + units.sizes <= len(buffer))
    if len(buffer) < RECORD_BYTES_MIN or not inside.any():
        return starts, np.zeros(len(units), dtype=bool)
    heads = _fields_at(buffer, _HEAD, np.where(inside, starts, 0))
    coda = inside & (heads["magic"] == MAGIC_BLANK) & (starts + CODA_BYTES + units.sizes <= len(buffer))
    if coda.any():
        starts = np.where(coda, starts + CODA_BYTES, starts)
        heads = _fields_at(buffer, _HEAD, np.where(inside, starts, 0))
    good: Bools = (
        inside
        & ((heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2))
        & (heads["size"] == units.sizes)
        & (heads["log_offset"] == starts + base)
    )
    if queue_id is not None:
        good &= heads["queue_id"] == queue_id
    if not trust_offsets:
        good &= heads["queue_offset"] == units.queue_offsets
    return starts, good


def claimed_offsets(buffer: Any, starts: Int64s, good: Bools) -> Int64s:
    """The queue offsets in valid records; -1 for invalid ones."""
    found: Int64s = np.full(len(starts), -1, dtype=np.int64)
    found[good] = _fields_at(buffer, _HEAD, starts[good])["queue_offset"]
    return found


_LOW, _HIGH = -(1 << 31), (1 << 31) - 1


def wanted_by_tags(units: UnitArray, tags: AbstractSet[str]) -> Bools:
    """Which units can have one of the tags; all without tags.

    A code outside 32 bits is no hash but a delivery time or the address of an ext unit: such a unit stays. Hashes
    collide: the rows decide.
    """
    if not tags:
        return np.ones(len(units), dtype=bool)
    codes = np.array(sorted(tags_code(tag) for tag in tags), dtype=np.int64)
    wanted: Bools = np.isin(units.codes, codes) | (units.codes < _LOW) | (units.codes > _HIGH)
    return wanted
