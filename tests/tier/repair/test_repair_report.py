"""What a repair says of itself."""

from __future__ import annotations

import json

import pytest

from tier.verify_world import QUEUE
from tiermq.tier.repair.repair_plan import RepairAction, RepairKind, RepairOutcome, RepairReport, RepairState

ACTION = RepairAction(RepairKind.UNITS, QUEUE, None, ("hole",))


@pytest.mark.parametrize(
    ("changes", "impossible", "dry", "state"),
    [
        ([], [], False, RepairState.UNCHANGED),
        (["c"], [], False, RepairState.DONE),
        (["c"], [], True, RepairState.PLANNED),
        (["c"], ["n"], False, RepairState.PARTLY),
        ([], ["n"], False, RepairState.NOT_POSSIBLE),
    ],
)
def test_the_state_follows_from_what_was_done(
    changes: list[str], impossible: list[str], dry: bool, state: RepairState
) -> None:
    assert RepairOutcome.of(ACTION, changes, [], impossible, is_dry_run=dry).state is state


def test_a_repair_is_complete_when_a_verification_reports_so() -> None:
    assert RepairReport("u", False).is_complete
    assert RepairReport("u", False, 3, 0).is_complete
    assert not RepairReport("u", False, 3, 1).is_complete
    assert not RepairReport("u", False, 3).is_complete
    dry = RepairReport("u", True, 3)
    assert dry.is_complete
    dry.outcomes.append(RepairOutcome.of(ACTION, [], [], ["n"], is_dry_run=True))
    assert not dry.is_complete


def test_a_report_is_plain_values() -> None:
    report = RepairReport("u", False, 1, 0, [RepairOutcome.of(ACTION, ["c"], ["k"], [], is_dry_run=False)])
    values = json.loads(json.dumps(report.to_dict()))
    assert values["actions"][0] == {
        "kind": "units", "where": QUEUE.directory, "reasons": ["hole"], "state": "done", "changes": ["c"],
        "kept": ["k"], "not_possible": [],
    }  # fmt: skip
    assert RepairReport("u", True).to_dict()["problems_after"] is None
