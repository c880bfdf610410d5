"""The decision table: RocketMQ's, less its defects."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.clock import HOUR_MS
from tiermq.tier.dispatch.plan import (
    DispatchConfig,
    Gap,
    Hold,
    Init,
    LocalState,
    Nothing,
    Plan,
    QueueState,
    Reason,
    RetryCommit,
    Roll,
    Upload,
    plan,
)

NOW = 1_700_000_000_000
CONFIG = DispatchConfig()
MIB = 1 << 20
LOST = "gone from the local store before they were copied"
HOLE = "the local queue has no message at these places"

QUEUE = QueueState(commit_offset=150, append_offset=150, log_created_ms=NOW)
LOCAL = LocalState(100, 200, 150, NOW - 31_000, 5_000)
YOUNG = replace(LOCAL, next_ms=NOW - 30_000)
UPLOAD = Upload(150, 50, 4 * MIB, repeat=True)
HELD = Hold("waiting for more messages", NOW + 1)
OLD_LOG = replace(QUEUE, log_created_ms=NOW - 24 * HOUR_MS - 1, log_bytes=16 * MIB)


def at(offset: int, queue: QueueState = QUEUE) -> QueueState:
    return replace(queue, commit_offset=offset, append_offset=offset)


PENDING = replace(QUEUE, commit_offset=140)
TABLE: list[tuple[str, QueueState, LocalState | None, Plan]] = [
    ("bug 3: no epoch, no write", replace(QUEUE, epoch=0), LOCAL, Nothing(Reason.NO_EPOCH)),
    ("bug 3: no epoch, no retry", replace(PENDING, epoch=0), LOCAL, Nothing(Reason.NO_EPOCH)),
    ("4 begins at the oldest local message", QueueState(False, -1, -1), replace(LOCAL, next_offset=100), Init(100)),
    ("4 passes blank places at the beginning", QueueState(False, -1, -1), replace(LOCAL, next_offset=103), Init(103)),
    ("4 nothing to begin with", QueueState(False, -1, -1), LocalState(0, 0), Nothing(Reason.NO_MESSAGES)),
    ("5 a failed commit is repeated first", PENDING, LOCAL, RetryCommit()),
    ("5 also when the local queue is gone", PENDING, None, RetryCommit()),
    ("6 what the index lacks is given to it", replace(QUEUE, unindexed=True), LOCAL, RetryCommit()),
    ("no local queue", QUEUE, None, Nothing(Reason.NO_LOCAL_QUEUE)),
    ("7 bug 2: a gap, history stays", at(60),
     replace(LOCAL, next_offset=100), Gap(60, 100, LOST)),
    ("7 the gap reaches to the first real message", at(60),
     replace(LOCAL, next_offset=104), Gap(60, 104, LOST)),
    ("7 everything local is gone", at(60), LocalState(200, 200), Gap(60, 200, LOST)),
    ("8 the tier is ahead", at(201), LocalState(100, 200), Nothing(Reason.AHEAD_OF_LOCAL)),
    ("9 old and large", OLD_LOG, LOCAL, Roll()),
    ("9 also when nothing waits", at(200, OLD_LOG), LocalState(100, 200), Roll()),
    ("9 not old enough by a millisecond", replace(OLD_LOG, log_created_ms=NOW - 24 * HOUR_MS), LOCAL, UPLOAD),
    ("9 not large enough by a byte", replace(OLD_LOG, log_bytes=16 * MIB - 1), LOCAL, UPLOAD),
    ("10 caught up", at(200), LocalState(100, 200), Nothing(Reason.CAUGHT_UP)),
    ("11 no record yet", QUEUE, LocalState(100, 200), Nothing(Reason.UNREADABLE)),
    ("11 blank places in the middle", QUEUE, replace(LOCAL, next_offset=160), Gap(150, 160, HOLE)),
    ("12 few, small and young", QUEUE, YOUNG, HELD),
    ("12 exactly as many as the limit", QUEUE, replace(YOUNG, max_offset=150 + 4096), HELD),
    ("13 old by a millisecond", QUEUE, replace(LOCAL, next_ms=NOW - 30_001), UPLOAD),
    ("13 one more than the limit", QUEUE, replace(YOUNG, max_offset=151 + 4096), replace(UPLOAD, max_count=4096)),
    ("13 bug 1: large enough by bytes", QUEUE, replace(YOUNG, backlog_bytes=4 * MIB), UPLOAD),
]  # fmt: skip


@pytest.mark.parametrize(("queue", "local", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_decision_table(queue: QueueState, local: LocalState | None, expected: Plan) -> None:
    assert plan(queue, local, CONFIG, NOW) == expected


def test_force_and_no_group_commit_hold_nothing_back() -> None:
    assert plan(QUEUE, YOUNG, CONFIG, NOW, force=True) == UPLOAD
    assert plan(QUEUE, YOUNG, replace(CONFIG, group_commit=False), NOW) == UPLOAD


def test_a_hold_ends_when_it_reports() -> None:
    held = plan(QUEUE, YOUNG, CONFIG, NOW)
    assert isinstance(held, Hold)
    assert isinstance(plan(QUEUE, YOUNG, CONFIG, held.until_ms - 1), Hold)
    assert isinstance(plan(QUEUE, YOUNG, CONFIG, held.until_ms), Upload)


@st.composite
def queue_states(draw: st.DrawFn) -> QueueState:
    """Any state of a file: what is appended and not committed yet is never less than nothing."""
    committed, pending = draw(st.integers(0, 150)), draw(st.integers(0, 150))
    return QueueState(
        draw(st.booleans()), committed, committed + pending, draw(st.integers(0, 2)), draw(st.booleans()),
        draw(st.integers(0, 1 << 30)), draw(st.integers(0, 2 * NOW)),
    )  # fmt: skip


@given(
    queue=queue_states(),
    low=st.integers(0, 150), count=st.integers(0, 150), next_at=st.integers(0, 150) | st.none(),
    force=st.booleans(), next_ms=st.integers(0, 2 * NOW), size=st.integers(0, 1 << 24),
)  # fmt: skip
def test_no_plan_ever_goes_backwards_or_beyond_what_is_there(
    queue: QueueState, low: int, count: int, next_at: int | None, force: bool, next_ms: int, size: int
) -> None:
    high = low + count
    start = max(low, queue.append_offset if queue.initialised else low)
    next_offset = None if next_at is None or start + next_at >= high else start + next_at
    decided = plan(queue, LocalState(low, high, next_offset, next_ms, size), CONFIG, NOW, force=force)
    if queue.epoch <= 0:
        assert isinstance(decided, Nothing)
    if isinstance(decided, Upload):
        assert decided.offset == queue.append_offset == queue.commit_offset == next_offset
        assert decided.offset + decided.max_count <= high
        assert decided.max_count >= 1
    if isinstance(decided, Gap):
        assert queue.append_offset == decided.from_offset < decided.to_offset <= high
    if isinstance(decided, Init):
        assert not queue.initialised
        assert low <= decided.offset < high
