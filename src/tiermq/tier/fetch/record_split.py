"""Which bytes of the log the units of a window point to, and which of the records in them are good.

Units of a queue point forward through its commit log, each record behind the one before:

    units     | u0 | u1 | u2 | gap | u3 |
    log       | record 0 | record 1 | end mark | record 2 | record 3 |

An *end mark* (16 bytes, RocketMQ's coda of a sealed segment) may stand before a record, and a unit may point to it
instead of to the record behind it. A *gap* is a pre-blank unit: there never was a record.

A unit may be damaged and point anywhere. `quick_reach` believes the first and the last unit; when the records then do
not fit, `careful_reach` takes the longest chain of units that point forward, so that one bad unit costs one message.
A record is good when it is whole, its body has its CRC, and it says of itself that it is the message of this queue
and this offset, at this place. Everything else is damage: never served, and never passed over.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

from tiermq.consumequeue.unit import PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from tiermq.errors import CorruptRecord
from tiermq.message.layout import MAGIC_BLANK, RECORD_BYTES_MIN, ReadableBuffer
from tiermq.message.record import CrcPropertyCheck, decode_record

CODA_BYTES = 16
_SIZE_MAGIC = struct.Struct(">ii")


class Reach(NamedTuple):
    """The first `kept` units of a run, and the bytes [start, end) of the log that they point to; -1, -1: none."""

    kept: int
    start: int
    end: int


class Place(NamedTuple):
    """Where one good message lies in a window's data."""

    queue_offset: int
    start: int
    size: int
    tags_code: int


def quick_reach(units: ReadableBuffer, log_min: int, log_end: int, bytes_max: int) -> Reach | None:
    """What whole, ordered units reach: at most so many bytes, at least one record. None when they look otherwise."""
    count = len(units) // UNIT_BYTES
    start, first_size, _ = UNIT.unpack_from(units, 0)
    place, size, _ = UNIT.unpack_from(units, (count - 1) * UNIT_BYTES)
    end = place + size
    in_log = log_min <= start <= place and end <= log_end
    if not in_log or first_size < RECORD_BYTES_MIN or size < RECORD_BYTES_MIN or start + first_size > end:
        return None
    if end - start > bytes_max:
        # Records of a queue are mostly alike, but a few huge ones are enough: find the cut by halving.
        low, high = 1, count
        while high - low > 1:
            middle = (low + high) // 2
            if UNIT.unpack_from(units, middle * UNIT_BYTES)[0] - start > bytes_max:
                high = middle
            else:
                low = middle
        count = low
        place, size, _ = UNIT.unpack_from(units, (count - 1) * UNIT_BYTES)
        end = place + size
    if end - start < count * RECORD_BYTES_MIN or end > log_end:
        return None
    return Reach(count, start, end)


def careful_reach(units: ReadableBuffer, log_min: int, log_end: int, bytes_max: int) -> Reach:
    """The same when some units are gaps or damaged: those stay in the count and add nothing to the range."""
    chain = _longest_chain(units, log_min, log_end)
    if not chain:
        return Reach(len(units) // UNIT_BYTES, -1, -1)
    start = UNIT.unpack_from(units, chain[0] * UNIT_BYTES)[0]
    end = start
    for number, index in enumerate(chain):
        place, size, _ = UNIT.unpack_from(units, index * UNIT_BYTES)
        if number and place + size - start > bytes_max:
            return Reach(index, start, end)
        end = place + size
    return Reach(len(units) // UNIT_BYTES, start, end)


def _longest_chain(units: ReadableBuffer, log_min: int, log_end: int) -> list[int]:
    """Numbers of units, as many as possible, each of which points behind the end of the one before."""
    ends: list[int] = []  # The smallest end of a chain of each length.
    tails: list[int] = []  # The unit with which it ends.
    before: dict[int, int] = {}
    for index, (place, size, _) in enumerate(UNIT.iter_unpack(units)):
        if size == PRE_BLANK_SIZE or size < RECORD_BYTES_MIN or place < log_min or place + size > log_end:
            continue
        length = bisect_right(ends, place)
        if length:
            before[index] = tails[length - 1]
        if length == len(ends):
            ends.append(place + size)
            tails.append(index)
        elif place + size < ends[length]:
            ends[length] = place + size
            tails[length] = index
    chain: list[int] = []
    at = tails[-1] if tails else -1
    while at >= 0:
        chain.append(at)
        at = before.get(at, -1)
    return chain[::-1]


def points_to_coda(data: ReadableBuffer, start: int) -> bool:
    """Whether an end mark lies at `start`, where a record was expected."""
    return start + 8 <= len(data) and _SIZE_MAGIC.unpack_from(data, start)[1] == MAGIC_BLANK


def split(
    units: ReadableBuffer,
    data: ReadableBuffer,
    log_offset: int,
    first_offset: int,
    owner: tuple[str, int] | None = None,
) -> tuple[list[Place], list[int]]:
    """The good messages behind units, in order, and the queue offsets of the damaged ones. `data` begins at
    `log_offset`; `owner`: the topic and the queue, where they are known."""
    found: list[Place] = []
    damaged: list[int] = []
    for index, (place, size, tags_code) in enumerate(UNIT.iter_unpack(units)):
        if size == PRE_BLANK_SIZE and place == 0:
            continue
        start = _start_of_good(data, place, size, log_offset, first_offset + index, owner)
        if start < 0:
            damaged.append(first_offset + index)
        else:
            found.append(Place(first_offset + index, start, size, tags_code))
    return found, damaged


def _start_of_good(
    data: ReadableBuffer, place: int, size: int, log_offset: int, queue_offset: int, owner: tuple[str, int] | None
) -> int:
    """Where the record of one unit begins in `data`; -1 when it is not whole, not intact or not its own."""
    start = place - log_offset
    if start < 0 or size < RECORD_BYTES_MIN or start + size > len(data):
        return -1
    if points_to_coda(data, start):
        start += CODA_BYTES
    try:
        message = decode_record(
            data[start : start + size],
            expect_physical_offset=log_offset + start,
            crc_property=CrcPropertyCheck.IGNORE,
        )
    except CorruptRecord:
        return -1
    if owner is not None and (message.topic, message.queue_id) != owner:
        return -1
    return start if message.size == size and message.queue_offset == queue_offset else -1
