"""The report of a restore."""

from __future__ import annotations

from tiermq.tier.restore.restore_report import HARMLESS, Finding, Remark, RestoreReport


def test_a_remark_reports_where_what_and_the_particulars() -> None:
    assert str(Remark(Finding.TRIMMED, "a/b", "7 bytes")) == (
        "a/b: a torn tail, of which only the whole part counts (7 bytes)"
    )
    assert str(Remark(Finding.MISSING_MANIFEST, "a/b")).endswith("from its records")


def test_only_what_an_ordinary_crash_leaves_is_clean() -> None:
    for finding in Finding:
        report = RestoreReport(remarks=[Remark(finding, "x")])
        assert report.is_clean is (finding in HARMLESS)
        assert report.found(finding) == report.remarks
    assert RestoreReport().is_clean
