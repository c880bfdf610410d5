"""After a crash: how much of a queue's files in the tier is whole, and what of it still lacks its units.

    metadata knows            units beyond it                  records without units            torn
    |-------------------------|--------------------------------|--------------------------------|~~~~~|
    recorded                  every unit must continue the     whole records get their units    trimmed
                              chain of records                 from their own bytes

The commit log is written before the consume queue, and the metadata's row after both. So what the metadata knows is
durable, and behind it there is at most what the commits since then wrote. Units are accepted as long as they continue
the chain; the first that does not is where a write was torn. Records behind the last unit are accepted as long as they
are whole, intact and in order: nothing is sent twice. What is cut is trimmed away, never anything that the metadata or
a unit knows: if that is missing, the tier lost it, and that is an error to be looked at, not repaired in passing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tiermq.consumequeue.unit import PRE_BLANK, UNIT, UNIT_BYTES
from tiermq.kernel import check_window
from tiermq.message.java_hash import tags_code
from tiermq.message.properties import TAGS, get_property
from tiermq.message.record_head import HeadKind, read_head
from tiermq.tier.metadata.metadata_values import Gap

SCAN_BYTES = 8 * 1024 * 1024
RECORD_BYTES_MIN = 91


@dataclass(frozen=True, slots=True)
class Accepted:
    """How many units of a tail continue the chain, and where the record of the last of them ends."""

    count: int
    log_end: int


def accept_units(
    tail: bytes | memoryview, queue_offset: int, log_offset: int, log_end: int, gaps: Sequence[Gap]
) -> Accepted:
    """The leading units of `tail`, the first of which is that of `queue_offset`, whose record begins at `log_offset`.

    A blank unit is accepted inside of a recorded gap. A record may begin later than the one before ends: an upload of
    RocketMQ that was repeated leaves bytes that no unit knows.
    """
    count = 0
    for place, size, _ in UNIT.iter_unpack(tail):
        number = queue_offset + count
        if tail[count * UNIT_BYTES : (count + 1) * UNIT_BYTES] == PRE_BLANK:
            if not any(gap.from_offset <= number < gap.to_offset for gap in gaps):
                break
        elif place < log_offset or size < RECORD_BYTES_MIN or place + size > log_end:
            break
        else:
            log_offset = place + size
        count += 1
    return Accepted(count, log_offset)


def runs_of_records(units: bytes | memoryview, queue_offset: int) -> Iterator[tuple[int, memoryview]]:
    """The units in runs whose records lie end to end and fit one read, each with the queue offset of its first."""
    view = memoryview(units)
    first = count = length = end = 0
    for number, (place, size, _) in enumerate(UNIT.iter_unpack(view)):
        is_blank = view[number * UNIT_BYTES : (number + 1) * UNIT_BYTES] == PRE_BLANK
        if count and (is_blank or place != end or length + size > SCAN_BYTES):
            yield queue_offset + first, view[first * UNIT_BYTES : (first + count) * UNIT_BYTES]
            count = length = 0
        if is_blank:
            continue
        first = number if count == 0 else first
        count, length, end = count + 1, length + size, place + size
    if count:
        yield queue_offset + first, view[first * UNIT_BYTES : (first + count) * UNIT_BYTES]


def adopt_records(data: bytes | memoryview, log_offset: int, queue_offset: int) -> bytes:
    """The units of the whole records at the start of `data`, which lies at `log_offset` of the queue's commit log.

    The first must be the message with `queue_offset`, each further one the next; the first that is cut, damaged or out
    of order ends the run.
    """
    units = bytearray()
    position = 0
    while position < len(data):
        head = read_head(data, position)
        number = queue_offset + len(units) // UNIT_BYTES
        in_place = head.kind is HeadKind.OK and head.physical_offset == log_offset + position
        if not in_place or head.queue_offset != number:
            break
        properties = bytes(data[head.properties_position : head.properties_position + head.properties_length])
        tag = get_property(properties, TAGS.encode())
        # A tag that is no UTF-8 is read as the local dispatch reads it, so that it gets the same code.
        code = tags_code(None if tag is None else tag.decode("utf-8", "replace"))
        units += UNIT.pack(log_offset + position, head.size, code)
        position += head.size
    whole = check_window(bytes(units), data, log_offset, queue_offset)
    return bytes(units[: whole * UNIT_BYTES])


def intact_units(units: bytes | memoryview, derived: bytes) -> int:
    """How many leading units say what their records say; `derived` are the units that the records would be given.

    A tags code may differ, because it is the one who wrote the unit who chose it; but not by missing its last bytes.
    """
    count = 0
    for at in range(0, min(len(units), len(derived)), UNIT_BYTES):
        unit, expected = bytes(units[at : at + UNIT_BYTES]), derived[at : at + UNIT_BYTES]
        is_torn = unit != expected and expected.startswith(unit.rstrip(b"\0"))
        if is_torn or unit[:12] != expected[:12]:
            break
        count += 1
    return count


def read_window(read: Callable[[int, int], bytes | memoryview], start: int, end: int) -> bytes | memoryview:
    """A stretch of the commit log that begins with a whole record, if there is one; the record may be a huge one."""
    data = read(start, min(SCAN_BYTES, end - start))
    if len(data) < end - start:
        head = read_head(data)
        if head.kind is HeadKind.HALF and len(data) < head.size <= end - start:
            return read(start, head.size)
    return data
