"""Rows of the report table: their owners, and both ways to write them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from tiermq.pipeline.verify.job import report_rows, write_report
from tiermq.tier.driver.contract import SegmentInfo
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.repair.repair_plan import RepairAction, RepairKind, RepairOutcome
from tiermq.tier.verify.verify_plan import QueueTask, VerifyPlan, VerifyResult
from tiermq.tier.verify.verify_report import Problem, VerifyReport

KEY = QueueKey("c", "b", "orders", 3)
LOG = SegmentInfo(KEY.segment(SegmentType.COMMIT_LOG, 0), 500, True, 0, 0)


def rows() -> list[dict[str, object]]:
    tasks = tuple(QueueTask(number, KEY, (LOG,), ()) for number in range(2))
    plan = VerifyPlan("x", tasks, VerifyResult(-1))
    results = [VerifyResult(0, {"records": 4}), VerifyResult(1, {"records": 5}), VerifyResult(1, {"records": 5})]
    found = VerifyReport("x")
    found.problem(Problem.HOLE, LOG.key.path, "nothing there")
    found.problem(Problem.MANIFEST, "elsewhere", "no queue's")
    outcome = RepairOutcome.of(
        RepairAction(RepairKind.UNITS, KEY), ["made anew"], [], ["one is lost"], is_dry_run=False
    )
    return report_rows(plan, results, found, [outcome])


def test_a_queue_cut_into_tasks_is_one_row_and_a_task_run_twice_counts_once() -> None:
    queue = rows()[0]
    assert (queue["row"], queue["topic"], queue["queueId"]) == ("queue", "orders", 3)
    assert (queue["records"], queue["segments"]) == (9, 1)


def test_findings_say_whose_they_are_where_that_is_known() -> None:
    _, hole, other, repair = rows()
    assert (hole["topic"], hole["kind"], hole["place"]) == ("orders", "hole", LOG.key.path)
    assert "topic" not in other
    assert (repair["row"], repair["kind"], repair["text"]) == ("repair", "partly", "made anew; one is lost")


def test_both_forms_hold_the_same_rows(tmp_path: Path) -> None:
    lines = Path(write_report(str(tmp_path / "a" / "t.jsonl"), rows())).read_text().splitlines()
    table = pq.read_table(write_report(str(tmp_path / "table"), rows())).to_pylist()
    assert len(table) == len(lines) == 4
    for line, row in zip(lines, table, strict=True):
        assert {name: value for name, value in row.items() if value is not None} == json.loads(line)
    assert [path.name for path in (tmp_path / "table").iterdir()] == ["part-0.parquet"]
