"""Medians of pairs, spreads, goals in both directions, and what changed since a kept run."""

from __future__ import annotations

import pytest

from benchmarks.compare import against, ratios, wording
from benchmarks.compare.against import Change
from benchmarks.compare.ratios import Ratio
from benchmarks.compare.work import LIMIT, ROCKETMQ, TIERMQ, Goal, Kind
from compare_fakes import outcome, point, whole_run


def test_a_ratio_is_the_median_of_pairs_so_a_slow_minute_of_the_machine_does_not_move_it() -> None:
    made = point(1, [1.0, 8.0, 1.0, 8.0, 8.0], [2.0, 16.0, 2.0, 16.0, 16.0])
    assert ratios.ratio(made, Kind.RATE) == Ratio(2.0, 2.0, 2.0)


def test_the_range_of_a_ratio_is_that_of_its_pairs() -> None:
    found = ratios.ratio(point(1, [1.0, 1.0, 1.0], [2.0, 3.0, 0.5]), Kind.RATE)
    assert found == Ratio(2.0, 0.5, 3.0)


def test_of_seconds_the_smaller_is_the_better_and_the_ratio_is_not_turned_round() -> None:
    assert ratios.ratio(point(1, [1.0], [4.0]), Kind.SECONDS) == Ratio(0.25, 0.25, 0.25)
    assert ratios.ratio(point(1, [1.0], [4.0]), Kind.RATE) == Ratio(4.0, 4.0, 4.0)


def test_the_spread_of_a_side_is_half_its_range_over_its_median() -> None:
    found = ratios.figure(point(1, [0.5, 1.0, 2.0], [1.0, 1.0, 1.0]), Kind.RATE, TIERMQ)
    assert found is not None
    assert found.median == 1000.0
    assert found.spread == pytest.approx((2000 - 500) / 2 / 1000)


def test_the_limit_is_compared_like_a_side_and_may_be_missing() -> None:
    assert ratios.limit_ratio(point(1, [1.0, 1.0], [1.0, 1.0], [0.25, 0.5]), Kind.RATE) == Ratio(0.375, 0.25, 0.5)
    assert ratios.limit_ratio(point(1, [1.0], [1.0]), Kind.RATE) is None
    assert ratios.figure(point(1, [1.0], [1.0]), Kind.RATE, LIMIT) is None


def test_processor_time_is_compared_over_all_rounds_together() -> None:
    assert ratios.cpu_ratio(point(1, [1.0, 3.0], [8.0, 8.0]), Kind.RATE) == pytest.approx(4.0)
    assert ratios.cpu_ratio(point(1, [1.0], [8.0]), Kind.SECONDS) is None


def test_memory_is_compared_by_peaks_of_all_and_of_what_is_their_own() -> None:
    made = point(1, [1.0], [1.0])
    assert ratios.memory_ratio(made) == 0.25
    assert ratios.memory_ratio(made, own=True) == 0.1
    del made.memory[ROCKETMQ]
    assert ratios.memory_ratio(made) is None


@pytest.mark.parametrize(
    ("goal", "kind", "theirs", "met", "shortfall"),
    [
        (Goal(1.5), Kind.RATE, 1.5, True, None),
        (Goal(1.5), Kind.RATE, 1.2, False, 0.2),
        (Goal(0.5, at_most=True), Kind.SECONDS, 2.0, True, None),
        (Goal(0.5, at_most=True), Kind.SECONDS, 1.6, False, 0.25),
        (Goal(own=1.0), Kind.SECONDS, 0.1, True, None),
        (Goal(own=0.8), Kind.SECONDS, 9.0, False, 0.25),
        (None, Kind.RATE, 0.1, None, None),
    ],
)
def test_goals_are_at_least_for_rates_and_at_most_for_times(
    goal: Goal | None, kind: Kind, theirs: float, met: bool | None, shortfall: float | None
) -> None:
    made = outcome("work", point(1, [1.0], [theirs]), goal=goal, kind=kind)
    assert ratios.is_met(made) is met
    assert ratios.shortfall(made) == (None if shortfall is None else pytest.approx(shortfall))


def test_a_verdict_reports_in_how_many_pairs_the_goal_was_met_unless_they_agree() -> None:
    theirs = {"yes": [1.5, 2.0, 1.6], "yes, in 2 of 3 pairs": [1.4, 2.0, 1.6], "**no**": [1.0, 1.1, 1.2]}
    theirs["**no**, in 1 of 3 pairs"] = [1.0, 1.1, 1.6]
    for words, seconds in theirs.items():
        assert wording.verdict(outcome("work", point(1, [1.0] * 3, seconds), goal=Goal(1.5))) == words
    assert wording.verdict(outcome("work", point(1, [1.0], [1.0]))) == ""


def test_a_goal_without_a_measurement_is_neither_met_nor_missed() -> None:
    assert ratios.is_met(outcome("work", goal=Goal(1.0))) is None


@pytest.mark.parametrize(
    ("then", "now", "higher_is_better", "what"),
    [
        (Ratio(2.0, 1.9, 2.1), Ratio(1.5, 1.4, 1.6), True, Change.WORSE),
        (Ratio(2.0, 1.9, 2.1), Ratio(1.5, 1.4, 1.6), False, Change.BETTER),
        (Ratio(1.5, 1.4, 1.6), Ratio(2.0, 1.9, 2.1), True, Change.BETTER),
        (Ratio(2.0, 1.4, 2.1), Ratio(1.5, 1.4, 1.6), True, Change.SAME),
        (Ratio(2.0, 1.9, 2.1), Ratio(1.5, 1.4, 2.6), True, Change.SAME),
    ],
)
def test_a_ratio_has_changed_only_when_each_median_is_outside_the_other_s_range(
    then: Ratio, now: Ratio, higher_is_better: bool, what: Change
) -> None:
    assert against.change(then, now, higher_is_better) is what


def test_a_run_against_a_kept_one_names_what_got_worse() -> None:
    kept, new = whole_run(), whole_run()
    new.outcomes["put_slow"].points[1] = point(1, [2.0, 2.0, 2.1], [1.0, 1.0, 1.0])
    new.outcomes["start"].points[1] = point(1, [0.1, 0.1, 0.1], [2.0, 2.0, 2.0])
    del kept.outcomes["read_free"]
    moved = {(each.name, each.scale, each.grown): each.change for each in against.compare(kept, new)}
    assert moved == {
        ("put_fast", 1, False): Change.SAME,
        ("put_fast", 1, True): Change.SAME,
        ("put_fast", 4, True): Change.SAME,
        ("put_slow", 1, False): Change.WORSE,
        ("start", 1, False): Change.BETTER,
    }
    new.outcomes["put_slow"].points[1].quick = True
    assert "put_slow" not in {each.name for each in against.compare(kept, new)}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (1234567, "1,230,000"),
        (123.4, "123"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.1234, "0.12"),
        (0.0123, "0.012"),
    ],
)
def test_figures_have_three_digits_that_count(value: float, shown: str) -> None:
    assert wording.digits(value) == shown


def test_figures_have_units_and_durations_look_like_a_clock() -> None:
    assert wording.value(1500.0, Kind.RATE) == "1,500/s"
    assert wording.value(0.25, Kind.SECONDS) == "0.25 s"
    assert wording.value(85_000_000, Kind.BYTES) == "85.0 MB"
    assert wording.megabytes(2.5e9) == "2.50 GB"
    assert (wording.duration(59.6), wording.duration(3725)) == ("1:00", "1:02:05")
