"""After a crash: how much of a queue's files in the tier is whole, and what of it still lacks its units.

The commit log is written before the consume queue. So behind the last record that has a unit there may be whole
records without one (the crash came between the two writes) and, on a back end that can tear a write, a cut record or a
cut unit. Whole records get their units now, from their own bytes: nothing is sent twice. What is cut is trimmed away.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.message.java_hash import tags_code
from tiermq.message.properties import TAGS, get_text_property
from tiermq.message.record_head import HeadKind, read_head

SCAN_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Adopted:
    """Records found behind the last unit: their units, where they end, and their times."""

    units: bytes
    end_offset: int
    begin_ms: int
    end_ms: int


def adopt_records(data: bytes | memoryview, log_offset: int, queue_offset: int) -> Adopted:
    """The units of the whole records at the start of `data`, which lies at `log_offset` of the queue's commit log.

    The first must be the message with `queue_offset`, each further one the next; the first that is cut, damaged or out
    of order ends the run.
    """
    units = bytearray()
    position = 0
    begin_ms = end_ms = 0
    while position < len(data):
        head = read_head(data, position)
        number = queue_offset + len(units) // UNIT_BYTES
        in_place = head.kind is HeadKind.OK and head.physical_offset == log_offset + position
        if not in_place or head.queue_offset != number:
            break
        properties = bytes(data[head.properties_position : head.properties_position + head.properties_length])
        code = tags_code(get_text_property(properties, TAGS))
        begin_ms = head.store_timestamp_ms if not units else min(begin_ms, head.store_timestamp_ms)
        end_ms = max(end_ms, head.store_timestamp_ms)
        units += UNIT.pack(log_offset + position, head.size, code)
        position += head.size
    return Adopted(bytes(units), log_offset + position, begin_ms, end_ms)
