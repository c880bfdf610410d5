"""One task of an export: a file, a file of bad rows, and an account of every offset."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from spark.source_world import SourceWorld
from tiermq.errors import DataLoss
from tiermq.history.open_history import open_history
from tiermq.history.scan_values import ScanBundle
from tiermq.pipeline.export.plan import plan_export
from tiermq.pipeline.export.task import ExportTask, export_schema, write_export
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.tables.body_format import BodyFormat
from tiermq.tables.commit_journal import ExportedRanges
from tiermq.tables.data_place import DataPlace
from tiermq.tables.file_of_rows import _plain
from tiermq.tables.table_files import RANGES

COLUMNS = ("queueOffset", "storeTimestamp", "body")


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = SourceWorld(tmp_path)
    made.put(10, "orders", 0)
    made.put(10, "orders", 1)
    yield made
    made.bury()


def task_of(world: SourceWorld, place: Path, body: BodyFormat | None = None) -> ExportTask:
    options = SourceOptions.of(world.both, Use.BATCH).scan
    with open_history(options.place) as history:
        plan = plan_export(history, options, COLUMNS, ExportedRanges())
    (bundle,) = plan.bundles
    return ExportTask(bundle, DataPlace.of(str(place)), "data/", "bad/", "part-1", COLUMNS, body)


def test_a_task_writes_one_file_for_all_its_queues(world: SourceWorld, tmp_path: Path) -> None:
    task = pickle.loads(pickle.dumps(task_of(world, tmp_path / "t")))
    result = write_export(task)
    assert (result.rows, result.bad, result.losses) == (20, None, ())
    assert result.file is not None
    path = tmp_path / "t" / result.file.name
    assert path.stat().st_size == result.file.size
    table = pq.read_table(path)
    assert table.schema.equals(task.schema)
    assert sorted(table.column("body").to_pylist()) == sorted(body for *_, body in world.wanted())
    assert (result.file.least["queueOffset"], result.file.most["queueOffset"]) == (0, 9)
    assert result.file.least["storeTimestamp"].endswith("Z")


def test_two_attempts_write_two_files_with_the_same_rows(world: SourceWorld, tmp_path: Path) -> None:
    task = task_of(world, tmp_path / "t")
    names = [result.file.name for result in (write_export(task), write_export(task)) if result.file is not None]
    assert len(set(names)) == 2
    first, second = (pq.read_table(tmp_path / "t" / name) for name in names)
    assert first.equals(second)


def test_small_row_groups_hold_the_same_rows(world: SourceWorld, tmp_path: Path) -> None:
    result = write_export(replace(task_of(world, tmp_path / "t"), row_group_bytes=1))
    assert result.file is not None
    assert pq.read_metadata(tmp_path / "t" / result.file.name).num_row_groups == 2
    assert result.rows == 20


def test_a_damaged_record_is_no_row_and_stays_open(world: SourceWorld, tmp_path: Path) -> None:
    world.flush_to_tier()
    world.evict_all()
    log = next(path for path in sorted((tmp_path / "tier").rglob("COMMIT_LOG/*")) if path.is_file())
    data = bytearray(log.read_bytes())
    at = data.index(world.wanted()[0][3])
    data[at] ^= 0xFF
    log.write_bytes(data)
    result = write_export(task_of(world, tmp_path / "t"))
    # All ten messages of that queue are in one block, and the block is not what was written.
    assert (result.rows, result.bad_rows, result.bad) == (10, 0, None)
    [damage] = result.damaged
    assert (damage.queue.topic, damage.from_offset, damage.to_offset) == ("orders", 0, 10)
    assert "its block of" in damage.detail
    assert result.file is not None
    footer = pq.read_metadata(tmp_path / "t" / result.file.name).metadata[RANGES]
    assert list(json.loads(footer).values()) == [[[0, 10]]]


def test_only_bad_rows_make_only_a_bad_file(world: SourceWorld, tmp_path: Path) -> None:
    result = write_export(task_of(world, tmp_path / "t", BodyFormat.of("json", "n string")))
    assert (result.file, result.rows, result.bad_rows) == (None, 0, 20)
    assert "no JSON" in result.reason


def test_a_row_that_is_missing_without_a_word_fails_the_task(
    world: SourceWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(world, tmp_path / "t")
    longer = ScanBundle((*task.bundle.tasks[:-1], replace(task.bundle.tasks[-1], to_offset=11, loss_is_error=False)))
    monkeypatch.setattr("tiermq.pipeline.export.task._Export._batches", _without_last)
    with pytest.raises(DataLoss, match="expected 21 messages, found"):
        write_export(replace(task, bundle=longer))


def _without_last(_self: Any) -> Any:
    return iter(())


def test_columns_of_bodies_follow_those_of_messages() -> None:
    schema = export_schema(("topic", "body"), BodyFormat.of("json", "a int", prefix="p_"))
    assert schema.names == ["topic", "body", "p_a"]


def test_times_of_statistics_are_whole_milliseconds_and_never_too_narrow() -> None:
    moment = dt.datetime(2026, 1, 1, 0, 0, 0, 1500, tzinfo=dt.UTC)
    assert _plain({"t": moment, "n": 5}, up=False) == {"t": "2026-01-01T00:00:00.001Z", "n": 5}
    assert _plain({"t": moment}, up=True) == {"t": "2026-01-01T00:00:00.002Z"}
