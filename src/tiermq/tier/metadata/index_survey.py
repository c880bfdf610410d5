"""The uploaded index files of a broker: their time ranges, and the topic ids that their entries carry.

    0      4          12         20      24      28
    +------+----------+----------+-------+-------+-----------------+------------------------+
    | magic| begin ms | end ms   | slots | items | slots, 8 B each | items, 28 B each       |
    +------+----------+----------+-------+-------+-----------------+------------------------+

An item has the topic's id at byte 4. How many slots there are is not in the header; it follows from the size.
The full format belongs to `tier.index`, which this room may not know; a test holds the two together.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.metadata.restore_report import Finding, Remark
from tiermq.tier.metadata.segment_choice import choose_segments
from tiermq.tier.names import SegmentType

HEADER = struct.Struct(
    ">"
    "I"  # magic
    "q"  # begin_ms    creation of the file
    "q"  # end_ms      newest store time in it
    "i"  # slot_count  in use
    "i"  # item_count
)
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 28
MAGIC_END = 0xBCC50285
SLOT_BYTES = 8
ITEM_BYTES = 28
READ_BYTES = 150_000 * ITEM_BYTES


def survey_index(
    driver: TierDriver, infos: Sequence[SegmentInfo], manifest: QueueManifest | None
) -> tuple[list[Segment], list[Remark]]:
    """The index segments with the times from their headers, and what is wrong with them."""
    choice = choose_segments(infos, manifest, SegmentType.INDEX)
    segments, remarks = [], list(choice.remarks)
    for segment in choice.live:
        found = _read_header(driver, segment)
        if isinstance(found, str):
            # It is kept, so that retention can find it; its times are those of its object.
            remarks.append(Remark(Finding.DAMAGED_SEGMENT, segment.key.path, found))
            segments.append(replace(segment, begin_ms=segment.created_ms, end_ms=segment.created_ms))
        else:
            begin_ms, end_ms, _ = found
            segments.append(replace(segment, begin_ms=begin_ms, end_ms=end_ms, status=SegmentStatus.SEALED))
    return segments + choice.deleted, remarks


def topic_ids_in_index(driver: TierDriver, segments: Sequence[Segment]) -> Counter[int]:
    """How many entries carry which topic id. Reads every entry; wanted only when ids are in doubt."""
    counts: Counter[int] = Counter()
    for segment in segments:
        found = _read_header(driver, segment) if segment.status is not SegmentStatus.DELETED else ""
        if isinstance(found, str):
            continue
        position = segment.size - found[2] * ITEM_BYTES
        while position < segment.size:
            length = min(READ_BYTES, segment.size - position)
            fields = struct.unpack(">" + "4xi20x" * (length // ITEM_BYTES), driver.read(segment.key, position, length))
            counts.update(fields)
            position += length
    return counts


def _read_header(driver: TierDriver, segment: Segment) -> tuple[int, int, int] | str:
    """(begin_ms, end_ms, item_count), or what is wrong."""
    if segment.size < HEADER_BYTES:
        return f"an index file has at least {HEADER_BYTES} bytes, found {segment.size}"
    magic, begin_ms, end_ms, _, item_count = HEADER.unpack(driver.read(segment.key, 0, HEADER_BYTES))
    slots_bytes = segment.size - HEADER_BYTES - item_count * ITEM_BYTES
    if magic != MAGIC_END:
        return f"expected magic {MAGIC_END:#010x}, found {magic:#010x}"
    if item_count < 0 or slots_bytes <= 0 or slots_bytes % SLOT_BYTES:
        return f"{item_count} items do not fit its {segment.size} bytes"
    return begin_ms, max(begin_ms, end_ms), item_count
