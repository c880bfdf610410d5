"""The table that a verification leaves: one row for each queue, and one for each problem, note and repair.

    row         "queue", "problem", "note" or "repair"
    cluster, broker, topic, queueId       whose it is; empty where a finding belongs to no queue
    segments, records, units, bytes       of a queue: what was read
    checksums   of a queue: segments whose checksum is known, and was compared: path, bytes that it covers, crc32
    kind, place, text                     of a finding: its kind, location and text; of a repair: its state and changes

JSON lines or Parquet, by the name of the path. Written whole under another name first: a reader sees all of it or none.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tiermq.errors import BadConfig
from tiermq.tier.names import QueueKey
from tiermq.tier.repair.repair_plan import RepairOutcome, queue_at
from tiermq.tier.verify.verify_plan import QueueTask, VerifyPlan, VerifyResult
from tiermq.tier.verify.verify_report import Finding, VerifyReport

JSON_SUFFIXES = (".jsonl", ".json")
COUNTED = ("records", "units", "index_items", "bytes")
Row = dict[str, Any]


def queue_rows(plan: VerifyPlan, results: Iterable[VerifyResult]) -> list[Row]:
    """One row for each queue of the plan, the key index among them. Without results: what would be read."""
    keys = {task.number: task.key for task in plan.tasks}
    counts: defaultdict[QueueKey, Counter[str]] = defaultdict(Counter)
    for result in {result.task: result for result in results if result.task in keys}.values():
        counts[keys[result.task]].update(result.counts)
    rows = []
    for key in sorted(set(keys.values())):
        tasks = [task for task in plan.tasks if task.key == key]
        infos = {info.key for task in tasks for info in _infos(task)}
        known = {(row.key, row.size): row for task in tasks for row in task.rows if row.crc32 is not None}
        rows.append(
            {
                **_names(key),
                "segments": len(infos),
                "planned_bytes": sum(task.size_bytes for task in tasks),
                **{name: counts[key][name] for name in COUNTED},
                "checksums": [
                    {"path": row.key.path, "size": row.size, "crc32": row.crc32} for _, row in sorted(known.items())
                ],
            }
        )
    return rows


def report_rows(
    plan: VerifyPlan, results: Sequence[VerifyResult], found: VerifyReport, outcomes: Iterable[RepairOutcome] = ()
) -> list[Row]:
    """All rows of the table."""
    rows = [{"row": "queue", **row} for row in queue_rows(plan, results)]
    rows += [_finding_row("problem", finding) for finding in found.problems]
    rows += [_finding_row("note", finding) for finding in found.notes]
    for outcome in outcomes:
        text = "; ".join([*outcome.changes, *outcome.not_possible])
        names = _names(outcome.action.queue)
        rows.append(
            {"row": "repair", **names, "kind": outcome.state.value, "place": outcome.action.where, "text": text}
        )
    return rows


def _finding_row(row: str, finding: Finding) -> Row:
    key = queue_at(finding.where)
    names = _names(key) if key is not None else {}
    return {"row": row, **names, "kind": finding.kind, "place": finding.where, "text": finding.text}


def _names(key: QueueKey) -> Row:
    return {"cluster": key.cluster, "broker": key.broker, "topic": key.topic, "queueId": key.queue_id}


def _infos(task: Any) -> Iterable[Any]:
    return (*task.logs, *task.units) if isinstance(task, QueueTask) else (task.info,)


def write_report(path: str, rows: Sequence[Row]) -> str:
    """Write the table, over one that is there already; where. Raises BadConfig when it cannot be written there."""
    target = Path(path).expanduser()
    try:
        if target.suffix in JSON_SUFFIXES:
            target.parent.mkdir(parents=True, exist_ok=True)
            staged = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
            staged.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        else:
            target.mkdir(parents=True, exist_ok=True)
            target = target / "part-0.parquet"
            staged = target.with_name(f".{uuid.uuid4().hex}.parquet")
            _write_parquet(staged, rows)
        os.replace(staged, target)
    except OSError as error:
        raise BadConfig(f"--report {path}: expected a place for a table, found {error}") from error
    return str(target)


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, number = pa.string(), pa.int64()
    checksum = pa.struct([("path", text), ("size", number), ("crc32", number)])
    fields = [("row", text), ("cluster", text), ("broker", text), ("topic", text), ("queueId", pa.int32())]
    fields += [(name, number) for name in ("segments", "planned_bytes", *COUNTED)]
    fields += [("checksums", pa.list_(checksum)), ("kind", text), ("place", text), ("text", text)]
    pq.write_table(pa.Table.from_pylist(list(rows), schema=pa.schema(fields)), path, compression="zstd")
