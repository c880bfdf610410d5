"""Which segments may go: a table of cases."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tiermq.tier.metadata.metadata_values import NEVER_MS
from tiermq.tier.retention.retention_plan import ExpiryPlan, plan_by_size, plan_by_time, wants_roll


@dataclass
class Facts:
    """A segment of a table: its first byte, its bytes, its times, the messages in it."""

    base: int
    commit_position: int
    begin_ms: int = NEVER_MS
    end_ms: int = NEVER_MS
    begin_offset: int = -1
    end_offset: int = -1
    pending_bytes: int = 0

    @property
    def commit_offset(self) -> int:
        return self.base + self.commit_position


def log(*rows: tuple[int, int, int, int], empty: bool = False, pending: int = 0) -> list[Facts]:
    """Rows of (first message, behind the last, oldest time, newest time), 100 bytes a message."""
    found = [Facts(a * 100, (b - a) * 100, begin, end, a, b) for a, b, begin, end in rows]
    found[-1].pending_bytes = pending
    return [*found, Facts(found[-1].commit_offset, 0)] if empty else found


def units(*rows: tuple[int, int, int, int], empty: bool = False) -> list[Facts]:
    found = [Facts(a * 20, (b - a) * 20, begin, end) for a, b, begin, end in rows]
    return [*found, Facts(found[-1].commit_offset, 0)] if empty else found


TWO = log((0, 5, 10, 19), (5, 9, 20, 29))
UNKNOWN = log((0, 5, 10, 19), (5, 9, 20, 29))
UNKNOWN[0].begin_offset = UNKNOWN[1].begin_offset = -1
UNKNOWN[0].end_offset = UNKNOWN[1].end_offset = -1


@pytest.mark.parametrize(
    ("records", "queue", "threshold_ms", "expected"),
    [
        pytest.param(TWO, units((0, 9, 10, 29)), 10, (0, 0), id="nothing is too old"),
        pytest.param(TWO, units((0, 9, 10, 29)), 19, (0, 0), id="its newest record is just young enough"),
        pytest.param(TWO, units((0, 9, 10, 29)), 20, (0, 1), id="units that are still needed stay"),
        pytest.param(TWO, units((0, 5, 10, 19), (5, 9, 20, 29)), 20, (1, 1), id="both heads"),
        pytest.param(TWO, units((0, 4, 10, 19), (4, 9, 19, 29)), 20, (1, 1), id="units that are half needed stay"),
        pytest.param(TWO, units((0, 9, 10, 29)), 30, (1, 2), id="an idle queue goes wholly"),
        pytest.param(log((0, 5, 10, 19), empty=True), units((0, 5, 10, 19), empty=True), 99, (1, 1), id="8065"),
        pytest.param([Facts(0, 0)], [Facts(200, 0)], 99, (0, 0), id="never written, never expired"),
        pytest.param(log((0, 5, 10, 19), pending=7), units((0, 5, 10, 19)), 99, (1, 0), id="a commit is under way"),
        pytest.param(TWO, units((0, 9, 10, 99)), 30, (1, 2), id="a gap at the end has a later time"),
        pytest.param(UNKNOWN, units((0, 5, 10, 19), (5, 9, 20, 29)), 20, (1, 1), id="RocketMQ wrote it"),
        pytest.param([Facts(900, 0)], units((0, 9, 50, 60)), 30, (1, 0), id="units without any record"),
        pytest.param([], [], 30, (0, 0), id="no segment at all"),
    ],
)
def test_what_goes_by_time(
    records: list[Facts], queue: list[Facts], threshold_ms: int, expected: tuple[int, int]
) -> None:
    assert plan_by_time(records, queue, threshold_ms) == ExpiryPlan(*expected)


@pytest.mark.parametrize(
    ("records", "queue", "expected"),
    [
        pytest.param(TWO, units((0, 9, 10, 29)), (0, 1), id="the oldest records"),
        pytest.param(TWO, units((0, 5, 10, 19), (5, 9, 20, 29)), (1, 1), id="and their units"),
        pytest.param(log((0, 5, 10, 19)), units((0, 5, 10, 19)), (0, 0), id="never the only segment"),
        pytest.param([Facts(0, 0)], [Facts(0, 0)], (0, 0), id="never an empty one"),
    ],
)
def test_what_goes_by_size(records: list[Facts], queue: list[Facts], expected: tuple[int, int]) -> None:
    assert plan_by_size(records, queue) == ExpiryPlan(*expected)


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        (Facts(0, 100, 10, 30), True),
        (Facts(0, 100, 10, 19), False),  # It expires as a whole.
        (Facts(0, 100, 20, 30), False),  # Nothing in it is too old.
        (Facts(0, 100, 10, 30, pending_bytes=1), False),
        (Facts(0, 0), False),
    ],
)
def test_a_growing_segment_is_rolled_when_a_part_of_it_is_too_old(segment: Facts, expected: bool) -> None:
    assert wants_roll(segment, 20) is expected
