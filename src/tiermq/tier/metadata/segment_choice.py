"""Which of the segments that a listing shows make up a queue's file, and how much of each counts.

The listing is the truth about what exists and how long it is; the manifest knows what was meant. A segment that the
manifest has marked as deleted, or that lies before everything the manifest still names, is an orphan: an expiry was
interrupted. A segment that reaches into the next one is clipped there: whoever began the next one had decided so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.metadata.restore_report import Finding, Remark
from tiermq.tier.names import SegmentKey, SegmentType


@dataclass(slots=True)
class Choice:
    """The live segments of one type in order, what is to be deleted, and whether the manifest may be believed."""

    live: list[Segment]
    deleted: list[Segment]
    remarks: list[Remark]
    agrees: bool


def choose_segments(infos: Sequence[SegmentInfo], manifest: QueueManifest | None, segment_type: SegmentType) -> Choice:
    """Compare a listing of one queue and type, in whatever order, with the manifest."""
    rows = {row.key: row for row in (manifest.segments if manifest else ()) if row.key.type is segment_type}
    meant = [row for row in rows.values() if row.status is not SegmentStatus.DELETED]
    first_meant = min((row.key.base for row in meant), default=-1)
    choice = Choice([], [], [], agrees=manifest is not None)
    # A listing is sorted by path, and paths begin with a hash.
    for info in sorted(infos, key=lambda info: info.key.base):
        row = rows.get(info.key)
        if info.damage is not None:
            choice.remarks.append(Remark(Finding.DAMAGED_SEGMENT, info.key.path, info.damage))
        if row is not None and row.status is SegmentStatus.DELETED:
            choice.deleted.append(replace(row, size=info.size))
            choice.remarks.append(Remark(Finding.ORPHAN, info.key.path, "its deletion was interrupted"))
        elif row is None and info.key.base + info.size <= first_meant:
            choice.remarks.append(Remark(Finding.ORPHAN, info.key.path, "older than everything in the manifest"))
        elif segment_type is SegmentType.CONSUME_QUEUE and info.key.base % UNIT_BYTES:
            choice.agrees = False
            choice.remarks.append(Remark(Finding.ORPHAN, info.key.path, f"its base is no multiple of {UNIT_BYTES}"))
        else:
            choice.live.append(_segment(info, row))
    _compare(choice, meant, {info.key: info.size for info in infos})
    _clip(choice)
    return choice


def _segment(info: SegmentInfo, row: Segment | None) -> Segment:
    """The segment as the listing has it, with the particulars of the manifest's row as far as they still hold."""
    if row is None:
        segment = Segment(info.key, info.size, created_ms=info.modified_ms)
    else:
        segment = row if row.size == info.size else replace(row.cut(info.size), crc32=None, size=info.size)
    if info.sealed and segment.status is SegmentStatus.NEW:
        segment = replace(segment, status=SegmentStatus.SEALED, sealed_ms=info.modified_ms)
    return segment


def _compare(choice: Choice, meant: Sequence[Segment], sizes: dict[SegmentKey, int]) -> None:
    """Does the tier have at least what the manifest says?"""
    first_live = choice.live[0].key.base if choice.live else None
    for row in meant:
        size = sizes.get(row.key, 0)
        if size >= row.size:
            continue
        if size:
            choice.agrees = False
            text = f"{size} bytes where the manifest has {row.size}"
            choice.remarks.append(Remark(Finding.MANIFEST_DISAGREES, row.key.path, text))
            continue
        at_head = first_live is None or row.key.base < first_live
        # A missing head is what an expiry leaves that died before it could write the manifest.
        choice.agrees = choice.agrees and at_head
        text = f"{row.size} bytes, " + ("at the head: expired or lost" if at_head else "in the middle: lost")
        choice.remarks.append(Remark(Finding.MISSING_SEGMENT, row.key.path, text))


def _clip(choice: Choice) -> None:
    """Let no segment reach into the next one, and say where offsets are covered by none."""
    for index in range(len(choice.live) - 1):
        segment, following = choice.live[index], choice.live[index + 1]
        room = following.key.base - segment.key.base
        if segment.size > room:
            text = f"{segment.size} bytes, but the next segment begins after {room}"
            choice.remarks.append(Remark(Finding.OVERLAP, segment.key.path, text))
            choice.live[index] = segment.cut(room)
        elif segment.size < room:
            text = f"offsets {segment.end} to {following.key.base}"
            choice.remarks.append(Remark(Finding.HOLE, segment.key.path, text))
