"""Binary search over a sequence with holes agrees with looking at everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiermq.consumequeue.hole_search import first_not_below


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40), st.integers(-1, 60), st.data())
def test_the_first_value_not_below_the_target_is_found(
    steps: list[tuple[int, bool]], target: int, data: st.DataObject
) -> None:
    values: list[int | None] = []
    value = 0
    for step, hole in steps:
        value += step
        values.append(None if hole else value)
    low = data.draw(st.integers(0, len(values)))

    def probe(start: int, stop: int) -> tuple[int, int] | None:
        return next(((at, v) for at, v in enumerate(values[start:stop], start) if v is not None), None)

    expected = next((at for at, v in enumerate(values) if at >= low and v is not None and v >= target), len(values))
    assert first_not_below(low, len(values), target, probe) == expected
