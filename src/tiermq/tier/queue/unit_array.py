"""Units of a consume queue as arrays, and records in memory checked against them, all at once.

A unit that counts points at a record of at least 91 bytes. A *blank* unit stands for a message that is missing for
good. A unit may point at the end mark (CODA, 16 bytes) of a sealed segment instead of at the record behind it.

A record is the one of its unit when it says so itself: its magic, its size, its queue, its queue offset and its own
place. What lies behind a unit that was damaged, or was overwritten, says otherwise, and is never taken for a message.
Whether its body is whole, and of which topic it is, is found out by whoever decodes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT_BYTES
from tiermq.history.scan_values import RecordPlace
from tiermq.message.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

Int64s: TypeAlias = Any  # numpy arrays; the type checker does not follow numpy here.
Bools: TypeAlias = Any
CODA_BYTES = 16
_UNIT = np.dtype([("place", ">i8"), ("size", ">i4"), ("code", ">i8")])
_HEAD = np.dtype(
    {
        "names": ["size", "magic", "queue_id", "queue_offset", "place"],
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
    places: Int64s
    sizes: Int64s
    codes: Int64s

    def __len__(self) -> int:
        return len(self.places)

    @property
    def is_blank(self) -> Bools:
        blank: Bools = (self.places == 0) & (self.sizes == PRE_BLANK_SIZE)
        return blank

    @property
    def is_sound(self) -> Bools:
        """Whether the unit can be that of a record; blank ones are not."""
        sound: Bools = (self.places >= 0) & (self.sizes >= RECORD_BYTES_MIN) & (self.sizes < PRE_BLANK_SIZE)
        return sound

    @property
    def ends(self) -> Int64s:
        return self.places + self.sizes

    def runs(self, which: Bools) -> Iterator[tuple[int, int]]:
        """The queue offsets of some of the units, as ranges [begin, end)."""
        offsets = self.queue_offsets[which]
        if len(offsets):
            for some in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1):
                yield int(some[0]), int(some[-1]) + 1

    def choose(self, which: Any) -> UnitArray:
        """Some of them: a mask, a slice or numbers."""
        return UnitArray(self.queue_offsets[which], self.places[which], self.sizes[which], self.codes[which])


def decode_units(data: Any, first_offset: int) -> UnitArray:
    """The whole units in `data`."""
    count = len(data) // UNIT_BYTES
    fields = np.frombuffer(data, dtype=_UNIT, count=count)
    return UnitArray(
        np.arange(first_offset, first_offset + count, dtype=np.int64),
        fields["place"].astype(np.int64),
        fields["size"].astype(np.int64),
        fields["code"].astype(np.int64),
    )


def units_of_places(places: Sequence[RecordPlace]) -> UnitArray:
    """Units for exact places, their queue offsets not known yet (-1). What cannot be a record's place is dropped."""
    sound = [place for place in places if place.size >= RECORD_BYTES_MIN and place.log_offset >= 0]
    count = len(sound)
    return UnitArray(
        np.full(count, -1, dtype=np.int64),
        np.fromiter((place.log_offset for place in sound), np.int64, count),
        np.fromiter((place.size for place in sound), np.int64, count),
        np.zeros(count, dtype=np.int64),
    )


def _fields_at(buffer: Any, dtype: Any, positions: Int64s) -> Any:
    """A value at each of some positions of a buffer; all must lie within it."""
    count = max(0, len(buffer) - np.dtype(dtype).itemsize + 1)
    return np.ndarray(count, dtype, buffer, strides=(1,))[positions]


def locate(
    units: UnitArray, buffer: Any, base: int, queue_id: int | None, *, trust_offsets: bool = False
) -> tuple[Int64s, Bools]:
    """Where the records of units begin in a buffer that begins at log offset `base`, and which of them are theirs.

    Units must be sound. A record behind an end mark begins 16 bytes later than its unit says. `trust_offsets`: the
    units were made of places and do not know their queue offsets. Without a queue id, any will do: a light queue points
    at records of other queues.
    """
    starts = units.places - base
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
        & (heads["place"] == starts + base)
    )
    if queue_id is not None:
        good &= heads["queue_id"] == queue_id
    if not trust_offsets:
        good &= heads["queue_offset"] == units.queue_offsets
    return starts, good


def claimed_offsets(buffer: Any, starts: Int64s, good: Bools) -> Int64s:
    """The queue offsets that good records say of themselves; -1 for the others."""
    found: Int64s = np.full(len(starts), -1, dtype=np.int64)
    found[good] = _fields_at(buffer, _HEAD, starts[good])["queue_offset"]
    return found
