"""Numbers for eyes, and an account that keeps what was found."""

from __future__ import annotations

import json

import pytest

from cli.demo_cases import account_of, timeline_of
from tiermq.cli.demo_account import rate, seconds, size
from tiermq.cli.demo_orders import Tally


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1_000, "0.977 KiB"), (1_536, "1.5 KiB"), (145 << 20, "145 MiB"), (3 << 40, "3 TiB")],
)
def test_a_size_has_three_digits_and_a_unit(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(("count", "shown"), [(0.0421, "42 ms"), (1.26, "1.3 s"), (61.4, "61 s")])
def test_seconds_are_as_exact_as_they_are_short(count: float, shown: str) -> None:
    assert seconds(count) == shown


def test_a_rate_is_by_the_second() -> None:
    assert (rate(500, 2), rate(10**6, 2), rate(1, 0)) == ("250/s", "500k/s", "1,000,000k/s")


def test_a_check_says_whether_it_agrees_and_is_kept() -> None:
    account = account_of(timeline_of())
    assert account.check("twice", Tally(2, 5), Tally(2, 5))
    assert not account.check("once", Tally(1, 5), Tally(2, 5))
    assert [(check.by, check.agrees) for check in account.checks[-2:]] == [("twice", True), ("once", False)]


def test_a_fact_of_a_step_that_was_left_out_is_nothing() -> None:
    account = account_of(timeline_of(), without_spark="no Java")
    assert account.fact("sql", "rows") == 0
    assert not account.has("sql")
    assert account.fact("copy", "copied") == 900


def test_an_account_can_be_told_to_programs() -> None:
    told = json.loads(json.dumps(account_of(timeline_of()).as_dict()))
    assert told["steps"][0]["facts"] == {"messages_per_s": 500.0}
    assert told["sql"][0]["messages"] == 900
