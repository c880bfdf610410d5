"""What a verification says of itself."""

from __future__ import annotations

import json

from tiermq.store.readonly.check import FINDINGS_KEPT_MAX
from tiermq.tier.verify.verify_report import Note, Problem, VerifyReport


def test_notes_alone_leave_a_tier_clean() -> None:
    report = VerifyReport("memory://x")
    report.note(Note.TORN_TAIL, "a", "b")
    assert report.is_clean
    report.problem(Problem.CHECKSUM, "a", "b")
    assert not report.is_clean


def test_a_flood_of_findings_is_counted_but_not_kept() -> None:
    report = VerifyReport("memory://x")
    for number in range(FINDINGS_KEPT_MAX + 5):
        report.problem(Problem.HOLE, str(number), "")
        report.note(Note.UNREFERENCED, str(number), "")
    assert (report.problem_count, len(report.problems)) == (FINDINGS_KEPT_MAX + 5, FINDINGS_KEPT_MAX)
    assert (report.note_count, len(report.notes)) == (FINDINGS_KEPT_MAX + 5, FINDINGS_KEPT_MAX)


def test_it_is_plain_values_for_programs() -> None:
    report = VerifyReport("memory://x")
    report.count("records", 3)
    report.problem(Problem.DAMAGED_RECORD, "here", "so")
    values = json.loads(json.dumps(report.to_dict()))
    assert values["clean"] is False
    assert values["counts"]["records"] == 3
    assert values["problems"] == [{"kind": "damaged_record", "where": "here", "text": "so"}]


def test_every_kind_reports_what_it_means() -> None:
    assert all(len(kind.value.split()) >= 3 for kind in (*Problem, *Note))
