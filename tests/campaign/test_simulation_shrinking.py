"""Shrinking: what is left still fails, and nothing of it can be left out."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from campaign.simulation.shrinking import fewest, simplest
from campaign.simulation.steps import Step


@given(st.integers(1, 60), st.sets(st.integers(0, 59), max_size=5))
def test_exactly_what_is_needed_is_left(count: int, needed: set[int]) -> None:
    needed = {each % count for each in needed}

    def fails(items: Sequence[int]) -> bool:
        return needed <= set(items)

    assert fewest(range(count), fails) == sorted(needed)


def test_steps_are_made_plainer_as_long_as_they_fail() -> None:
    inner = Step("put_many", (30,), 1)
    steps = [Step("flush", (), 2), Step("disk_error", (4, 0.5), 3, inner), Step("cut_power", (5, 0.0), 4, inner)]

    def fails(tried: Sequence[Step]) -> bool:
        return {"disk_error", "cut_power"} <= {step.kind for step in tried}

    left = simplest(steps, fails)
    assert [step.kind for step in left] == ["disk_error", "cut_power"]
    assert left[0].inner == Step("put_many", (1,), 1)
    assert left[1].inner is None
