"""What a job says of itself."""

from __future__ import annotations

import json

import pytest

from tiermq.pipeline.job_report import JobReport


def test_numbers_of_one_name_add_up() -> None:
    report = JobReport("offload", "memory://a")
    report.add(messages=2, bytes=10)
    report.add(messages=3)
    assert report.done == {"messages": 5, "bytes": 10}


def test_the_time_counts_also_when_the_work_fails() -> None:
    report = JobReport("offload", "memory://a")
    with pytest.raises(KeyError), report.timed():
        raise KeyError("gone")
    assert report.took_s >= 0
    assert "took" in report.lines()[-1]


def test_a_dry_run_reports_that_nothing_was_written_and_problems_are_shown() -> None:
    report = JobReport("expire", "memory://a", dry_run=True, planned={"segments": 1200}, problems=["one is damaged"])
    text = "\n".join(report.lines())
    assert "nothing was written" in text
    assert "1,200 segments" in text
    assert "one is damaged" in text
    assert not report.is_clean


def test_a_report_can_be_written_as_json() -> None:
    report = JobReport("verify", "memory://a", details={"rows": [1, 2]})
    assert json.loads(json.dumps(report.as_dict()))["details"] == {"rows": [1, 2]}


def test_a_run_that_found_nothing_to_do_reports_so() -> None:
    for dry_run in (False, True):
        idle = JobReport("compact", "memory://a", dry_run, planned={"segments": 0}, done={"bytes": 0})
        assert "  nothing to do" in idle.lines()
    for busy in (
        JobReport("compact", "memory://a", done={"bytes": 1}),
        JobReport("compact", "memory://a", dry_run=True, planned={"segments": 1}),
        JobReport("compact", "memory://a", problems=["one is damaged"]),
    ):
        assert "  nothing to do" not in busy.lines()


def test_a_report_is_in_words_with_units_and_without_what_did_not_happen() -> None:
    report = JobReport("offload", "memory://a", took_s=22.9)
    report.done = {"queues": 1, "index_files": 2, "bytes": 1_234, "task_cpu_s": 0.0221, "gaps": 0}
    assert report.lines()[1:] == ["  done: 1 queue, 2 index files, 1.2 KiB, 0.0221 s of task CPU", "  took 22.9 s"]
    report.done["bytes"] = 50_000_000
    report.took_s = 200.0
    assert report.lines()[-1] == "  took 3 min 20 s (244.1 KiB/s)"
    report.took_s = 2.0
    assert report.lines()[-1] == "  took 2.0 s (23.8 MiB/s)"
