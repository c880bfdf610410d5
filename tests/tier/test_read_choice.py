"""Which store answers: the decision table of `tieredStorageLevel`, row by row and exhaustively."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tiermq.errors import BadConfig
from tiermq.status import GetStatus
from tiermq.tier.tier_config import StorageLevel
from tiermq.tier.tiered_reading import ReadFacts, Source, choose, falls_back, joint_earliest_time, joint_min_offset

LOCAL, TIER = Source.LOCAL, Source.TIER
HERE = ReadFacts(
    tiered_topic=True,
    in_tier=True,
    tier_commit_offset=200,
    local_is_empty=False,
    offset_in_local=True,
    offset_in_memory=True,
)


@pytest.mark.parametrize(
    ("value", "level"),
    [
        ("DISABLE", 0), ("NOT_IN_DISK", 1), ("not_in_mem", 2), (" FORCE ", 3),
        ("0", 0), ("1", 1), (2, 2), (3, 3),
    ],
)  # fmt: skip
def test_a_level_is_a_name_or_a_number(value: str | int, level: int) -> None:
    assert StorageLevel.parse(value) is StorageLevel(level)


@pytest.mark.parametrize("value", ["", "ALWAYS", 4, "-1", "1.0", "²", None])
def test_a_level_that_is_none_is_refused_and_not_taken_for_disable(value: object) -> None:
    with pytest.raises(BadConfig, match="tieredStorageLevel is one of DISABLE, NOT_IN_DISK, NOT_IN_MEM, FORCE"):
        StorageLevel.parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("level", "offset", "facts", "source"),
    [
        # 1: FORCE asks the tier, whatever is known
        (3, 100, HERE, TIER),
        (3, 100, replace(HERE, in_tier=False), TIER),
        (3, 500, HERE, TIER),
        # 2: DISABLE never does
        (0, 100, replace(HERE, offset_in_local=False, local_is_empty=True), LOCAL),
        # 3, 4: what the tier does not have
        (1, 100, replace(HERE, in_tier=False, offset_in_local=False), LOCAL),
        (2, 200, replace(HERE, offset_in_local=False), LOCAL),
        (2, 199, replace(HERE, offset_in_local=False), TIER),
        # 5, 6: what the local store does not have
        (1, 100, replace(HERE, local_is_empty=True), TIER),
        (1, 100, replace(HERE, offset_in_local=False), TIER),
        (2, 100, replace(HERE, offset_in_local=False), TIER),
        # 7: what it does not have in memory
        (1, 100, replace(HERE, offset_in_memory=False), LOCAL),
        (2, 100, replace(HERE, offset_in_memory=False), TIER),
        # 8: otherwise
        (1, 100, HERE, LOCAL),
        (2, 100, HERE, LOCAL),
        # A topic that is not tiered is local at every level.
        *[(level, 100, replace(HERE, tiered_topic=False, offset_in_local=False), LOCAL) for level in range(4)],
    ],
)
def test_the_first_row_that_fits_decides(level: int, offset: int, facts: ReadFacts, source: Source) -> None:
    assert choose(StorageLevel(level), offset, facts) is source


def test_every_combination_follows_the_table() -> None:
    either = (False, True)
    facts_of = itertools.product(either, either, either, either, either)
    for level, offset, booleans in itertools.product(StorageLevel, (199, 200), facts_of):
        tiered, in_tier, empty, in_local, in_memory = booleans
        facts = ReadFacts(tiered, in_tier, 200, empty, in_local, in_memory)
        rows = [
            (not tiered, LOCAL),
            (level == 3, TIER),
            (level == 0, LOCAL),
            (not in_tier, LOCAL),
            (offset >= 200, LOCAL),
            (level >= 1 and empty, TIER),
            (level >= 1 and not in_local, TIER),
            (level >= 2 and not in_memory, TIER),
            (True, LOCAL),
        ]
        assert choose(level, offset, facts) is next(source for fits, source in rows if fits), (level, offset, facts)


@pytest.mark.parametrize("status", GetStatus)
@pytest.mark.parametrize("in_local", [True, False])
def test_only_what_the_tier_could_not_answer_falls_back_and_only_to_a_message_that_is_there(
    status: GetStatus, in_local: bool
) -> None:
    unanswered = status in (GetStatus.OFFSET_FOUND_NULL, GetStatus.NO_MATCHED_LOGIC_QUEUE)
    assert falls_back(status, in_local) is (unanswered and in_local)


@pytest.mark.parametrize(
    ("local", "tier", "joint"), [(100, 50, 50), (50, 100, 50), (0, 7, 0), (100, -1, 100), (-1, -1, -1)]
)
def test_the_smaller_minimum_offset_wins(local: int, tier: int, joint: int) -> None:
    assert joint_min_offset(local, tier) == joint


def test_bug_15_a_local_minimum_of_minus_one_is_no_offset() -> None:
    assert joint_min_offset(-1, 50) == 50


@pytest.mark.parametrize(
    ("local", "tier", "joint"), [(100, 50, 50), (50, 100, 50), (-1, 9, 9), (9, -1, 9), (-1, -1, -1)]
)
def test_the_earliest_time_is_that_of_the_older_store(local: int, tier: int, joint: int) -> None:
    assert joint_earliest_time(local, tier) == joint
