"""What `tiermq tier` shows: times, bars, floods of remarks."""

from __future__ import annotations

import pytest

from tiermq.cli import tier_output
from tiermq.cli.tier_output import FINDINGS_SHOWN_MAX, bar, moment, show_remarks, show_verification
from tiermq.tier.metadata.metadata_values import NEVER_MS
from tiermq.tier.metadata.restore_report import Finding, Remark
from tiermq.tier.verify_report import Problem, VerifyReport


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [(-1, ""), (0, ""), (NEVER_MS, ""), (1_700_000_000_000, "2023-11-14T22:13:20+00:00"), (1 << 61, str(1 << 61))],
)
def test_a_time_that_is_not_known_is_not_shown(timestamp_ms: int, expected: str) -> None:
    assert moment(timestamp_ms) == expected


@pytest.mark.parametrize("watched", [True, False])
def test_a_bar_is_drawn_only_where_somebody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], watched: bool
) -> None:
    monkeypatch.setattr(tier_output, "is_watched", lambda: watched)
    with bar("reading", in_bytes=True) as progress:
        progress(5, 10)
        progress(5, 10)
    with bar("looking", quiet=True) as progress:
        progress(1, 2)
    found = capsys.readouterr()
    assert found.out == ""
    assert bool(found.err) is watched


def test_a_flood_is_cut_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show_remarks([Remark(Finding.HOLE, str(number)) for number in range(FINDINGS_SHOWN_MAX + 3)])
    report = VerifyReport("memory://x")
    for number in range(FINDINGS_SHOWN_MAX + 4):
        report.problem(Problem.HOLE, str(number), "")
    show_verification(report)
    found = capsys.readouterr().out
    assert "and 3 more; --json" in found
    assert "and 4 more; --json" in found
