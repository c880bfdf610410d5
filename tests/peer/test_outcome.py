"""What counts as a passed class of RocketMQ's tests; no Java is needed."""

from __future__ import annotations

import pytest

from peer.suite import Outcome


def test_a_class_passes_when_a_method_passed_and_none_failed() -> None:
    assert Outcome(passed=["a"], not_applicable={"b": "why"}, ignored=["c"]).trouble() == ""


def test_a_failed_method_fails_its_class() -> None:
    assert Outcome(passed=["a"], failed={"b": "expected 1"}).trouble() == "b: expected 1"


@pytest.mark.parametrize(
    ("outcome", "reported"),
    [
        (Outcome(), "found none"),
        (Outcome(ignored=["b"]), "ignored by RocketMQ: b"),
        (Outcome(not_applicable={"b": "no Linux"}), "not applicable: b: no Linux"),
    ],
)
def test_a_class_of_which_nothing_passed_fails_and_reports_what_became_of_it(outcome: Outcome, reported: str) -> None:
    assert reported in outcome.trouble()
