"""Segments against each other and against what is known of them: a table of cases."""

from __future__ import annotations

import pytest

from tier.tier_world import BROKER, CLUSTER
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.verify.verify_plan import check_layout
from tiermq.tier.verify.verify_report import VerifyReport

QUEUE = QueueKey(CLUSTER, BROKER, "orders", 0)
LOG, UNITS, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
DELETED = SegmentStatus.DELETED


def info(base: int, size: int, kind: SegmentType = LOG, **more: object) -> SegmentInfo:
    values: dict[str, object] = {"sealed": False, "part_count": 0, "modified_ms": 0, **more}
    return SegmentInfo(QUEUE.segment(kind, base), size, **values)  # type: ignore[arg-type]


def row(base: int, size: int, status: SegmentStatus = SegmentStatus.NEW) -> Segment:
    return Segment(QUEUE.segment(LOG, base), size, status)


@pytest.mark.parametrize(
    ("infos", "rows", "problems", "notes"),
    [
        pytest.param([info(0, 10), info(10, 5)], [row(0, 10), row(10, 3)], [], [], id="sound, and grown since"),
        pytest.param([info(0, 10), info(12, 5)], [], ["hole"], [], id="a hole"),
        pytest.param([info(0, 10, INDEX), info(12, 5, INDEX)], [], [], [], id="index files that went one by one"),
        pytest.param([info(0, 10), info(8, 5)], [], ["overlap"], [], id="an overlap"),
        pytest.param([info(0, 10)], [row(0, 12)], ["short_segment"], [], id="cut"),
        pytest.param([info(0, 10)], [row(0, 10), row(10, 5)], ["missing_segment"], [], id="the end is missing"),
        pytest.param([info(10, 5)], [row(0, 10), row(10, 5)], [], ["head_is_gone"], id="the head is missing"),
        pytest.param([], [row(0, 10)], ["missing_segment"], [], id="all of it is missing"),
        pytest.param([], [row(0, 0)], [], [], id="never written"),
        pytest.param([info(0, 10)], [row(0, 10, DELETED)], [], ["being_deleted"], id="being deleted"),
        pytest.param([], [row(0, 10, DELETED)], [], [], id="deleted"),
        pytest.param([info(0, 30, UNITS), info(30, 20, UNITS)], [], ["misaligned", "misaligned"], [], id="units"),
        pytest.param([info(0, 30, UNITS)], [], [], ["torn_tail"], id="a torn unit at the end"),
        pytest.param([info(0, 9, damage="a part is missing")], [], ["damaged_listing"], [], id="parts do not fit"),
        pytest.param([info(0, 9, sealed=True, part_count=3)], [], [], ["parts_left"], id="parts of a sealed segment"),
    ],
)
def test_what_is_reported_of_a_layout(
    infos: list[SegmentInfo], rows: list[Segment], problems: list[str], notes: list[str]
) -> None:
    report = VerifyReport("memory://x")
    check_layout(infos, rows, report)
    assert [finding.kind for finding in report.problems] == problems
    assert [finding.kind for finding in report.notes] == notes
