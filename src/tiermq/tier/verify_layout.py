"""The segments of one file of a queue against each other and against what is known of them. No byte is read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import SegmentType
from tiermq.tier.verify_report import Note, Problem, VerifyReport


def check_layout(infos: Sequence[SegmentInfo], rows: Sequence[Segment], report: VerifyReport) -> None:
    """Segments of one type, sorted by base, and the rows of manifest and metadata about that type."""
    for info in infos:
        _check_one(info, is_last=info is infos[-1], report=report)
    for before, after in pairwise(infos):
        end = before.key.base + before.size
        if end < after.key.base and after.key.type is not SegmentType.INDEX:  # Each index file stands for itself.
            report.problem(Problem.HOLE, after.key.path, f"no segment for offsets {end} to {after.key.base}")
        elif end > after.key.base:
            text = f"the segment at {before.key.base} ends at {end}, the next begins at {after.key.base}"
            report.problem(Problem.OVERLAP, after.key.path, text)
    _check_rows(infos, rows, report)


def _check_one(info: SegmentInfo, *, is_last: bool, report: VerifyReport) -> None:
    if info.damage is not None:
        report.problem(Problem.DAMAGED_LISTING, info.key.path, info.damage)
    if info.sealed and info.part_count:
        report.note(Note.PARTS_LEFT, info.key.path, f"{info.part_count} parts; sealing it again removes them")
    if info.key.type is SegmentType.CONSUME_QUEUE:
        if info.key.base % UNIT_BYTES:
            report.problem(Problem.MISALIGNED, info.key.path, f"its base is no multiple of {UNIT_BYTES}")
        if info.size % UNIT_BYTES:
            text = f"{info.size} bytes, of which {info.size % UNIT_BYTES} are of a unit that was cut"
            if is_last:
                report.note(Note.TORN_TAIL, info.key.path, text)
            else:
                report.problem(Problem.MISALIGNED, info.key.path, text)


def _check_rows(infos: Sequence[SegmentInfo], rows: Sequence[Segment], report: VerifyReport) -> None:
    sizes = {info.key: info.size for info in infos}
    first_base = infos[0].key.base if infos else None
    for row in {row.key: row for row in sorted(rows, key=lambda row: row.size)}.values():
        path, size = row.key.path, sizes.get(row.key, 0)
        if row.status is SegmentStatus.DELETED:
            if size:
                report.note(Note.BEING_DELETED, path, f"{size} bytes")
        elif size >= row.size:
            continue
        elif size:
            report.problem(Problem.SHORT_SEGMENT, path, f"expected {row.size} bytes, found {size}")
        elif first_base is not None and row.key.base < first_base:
            report.note(Note.HEAD_IS_GONE, path, f"{row.size} bytes")
        else:
            report.problem(Problem.MISSING_SEGMENT, path, f"expected {row.size} bytes, found none")
