"""What may be put, and which outcomes need no further attempt."""

from __future__ import annotations

from typing import Any

import pytest

from tiermq.tier.index.index_request import IndexRequest, PutOutcome

GOOD = IndexRequest("T", 1, 0, ("k",), 0, 1, 0)


def test_the_smallest_and_the_largest_values_are_legal() -> None:
    assert GOOD.is_legal()
    assert GOOD._replace(queue_id=2**31 - 1, tier_offset=2**63 - 1, size=2**31 - 1, store_ms=2**63 - 1).is_legal()


@pytest.mark.parametrize(
    "change",
    [
        {"topic": ""},
        {"topic": " "},
        {"queue_id": -1},
        {"queue_id": 2**31},
        {"tier_offset": -1},
        {"tier_offset": 2**63},
        {"size": 0},
        {"size": 2**31},
        {"store_ms": -1},
    ],
)
def test_values_that_no_item_holds_are_not(change: dict[str, Any]) -> None:
    assert not GOOD._replace(**change).is_legal()


def test_only_success_and_repetition_are_done() -> None:
    assert [outcome for outcome in PutOutcome if outcome.is_done] == [PutOutcome.SUCCESS, PutOutcome.ALREADY_INDEXED]
