"""How far is read ahead: additive increase, multiplicative decrease, and a jump starts again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiermq.tier.fetch.read_ahead import (
    DEPTH_MAX,
    DEPTH_MIN,
    SINGLE_WINDOW,
    WINDOW_MIN,
    WINDOW_STEP,
    Asked,
    ReadAhead,
)


def reading(ahead: ReadAhead, times: int, *, start: int = 0, step: int = 32) -> ReadAhead:
    for number in range(times):
        ahead.on_read(start + number * step, start + (number + 1) * step)
    return ahead


def test_a_first_read_is_no_sequence_and_gets_the_smallest_window() -> None:
    ahead = reading(ReadAhead(4096), 1)
    assert (ahead.window, ahead.is_sequential) == (WINDOW_MIN, False)


def test_each_sequential_read_adds_one_step_up_to_the_maximum() -> None:
    assert [reading(ReadAhead(32_768), n).window for n in (2, 3)] == [
        WINDOW_MIN + WINDOW_STEP,
        WINDOW_MIN + 2 * WINDOW_STEP,
    ]
    assert reading(ReadAhead(4096), 50).window == 4096
    assert reading(ReadAhead(4096), 2).is_sequential


def test_a_jump_starts_again() -> None:
    ahead = reading(ReadAhead(4096), 9)
    ahead.on_miss(ahead.next_offset)
    ahead.planned_end, ahead.plan_at, ahead.asked = 10_000, 300, Asked(9_000, 10_000, 64, 100)
    ahead.on_read(5_000, 5_032)
    assert ahead == ReadAhead(4096, next_offset=5_032)


def test_unread_messages_halve_window_and_depth_but_never_below_the_smallest() -> None:
    ahead = reading(ReadAhead(4096), 50)
    ahead.depth = DEPTH_MAX
    ahead.on_unread()
    assert (ahead.window, ahead.depth) == (2048, DEPTH_MAX // 2)
    for _ in range(20):
        ahead.on_unread()
    assert (ahead.window, ahead.depth) == (WINDOW_MIN, DEPTH_MIN)


def test_one_who_reads_in_order_and_has_to_wait_gets_more_ahead() -> None:
    ahead = reading(ReadAhead(4096), 2)
    for _ in range(20):
        ahead.on_miss(ahead.next_offset)
    assert ahead.depth == DEPTH_MAX


def test_one_who_jumps_gets_nothing_more_ahead_for_it() -> None:
    ahead = reading(ReadAhead(4096), 2)
    ahead.on_miss(77_777)
    assert ahead.depth == DEPTH_MIN
    first = ReadAhead(4096)
    first.on_miss(0)
    assert first.depth == DEPTH_MIN


def test_a_failed_fetch_may_be_asked_for_again() -> None:
    ahead = reading(ReadAhead(4096), 2)
    ahead.planned_end, ahead.plan_at, ahead.asked = 1_000, 500, Asked(800, 1_000, 64, 100)
    ahead.on_failure(600)
    found: tuple[int, int, object] = ahead.planned_end, ahead.plan_at, ahead.asked
    assert found == (600, -1, None)


def test_one_who_had_to_wait_plans_again_at_once() -> None:
    ahead = reading(ReadAhead(4096), 2)
    ahead.plan_at = 10_000
    ahead.on_miss(ahead.next_offset)
    assert ahead.plan_at <= ahead.next_offset


def test_a_look_up_of_one_message_fetches_32() -> None:
    assert ReadAhead(4096).size_for(1) == SINGLE_WINDOW == 32
    assert ReadAhead(8).size_for(1) == 8


def test_a_fetch_covers_what_was_asked_for_within_the_threshold() -> None:
    assert ReadAhead(4096).size_for(100) == 100
    assert ReadAhead(4096).size_for(4) == WINDOW_MIN
    assert ReadAhead(32).size_for(100) == 32


@given(
    st.integers(1, 8192),
    st.lists(st.tuples(st.sampled_from(["read", "jump", "miss", "unread", "fail"]), st.integers(0, 10**6))),
)
def test_window_and_depth_stay_within_their_bounds_whatever_happens(
    max_window: int, events: list[tuple[str, int]]
) -> None:
    ahead = ReadAhead(max_window)
    for event, number in events:
        if event == "read":
            ahead.on_read(ahead.next_offset, ahead.next_offset + 1 + number % 64)
        elif event == "jump":
            ahead.on_read(number, number + 1)
        elif event == "miss":
            ahead.on_miss(ahead.next_offset)
        elif event == "unread":
            ahead.on_unread()
        else:
            ahead.on_failure(number)
        assert WINDOW_MIN <= ahead.window <= max(max_window, WINDOW_MIN)
        assert DEPTH_MIN <= ahead.depth <= DEPTH_MAX
        assert 1 <= ahead.size_for(1 + number) <= max_window
