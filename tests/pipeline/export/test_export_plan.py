"""What an export has to do: what history has and the table has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark.source_world import SourceWorld
from tiermq.errors import DataLoss
from tiermq.history.catalog import read_catalog
from tiermq.history.open_history import open_history
from tiermq.pipeline.export import plan as export_plan
from tiermq.pipeline.export.plan import ExportPlan, plan_export
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.tables.commit_journal import ExportedRanges
from tiermq.tier.names import QueueKey

QUEUE = QueueKey("DefaultCluster", "broker-a", "orders", 0)


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = SourceWorld(tmp_path)
    made.put(40)
    yield made
    made.bury()


def planned(
    world: SourceWorld, exported: ExportedRanges | None = None, more: Any = None, **settings: Any
) -> ExportPlan:
    spec = SourceOptions.of({**world.both, **(more or {})}, Use.BATCH).scan
    with open_history(spec.place) as history:
        return plan_export(history, spec, ("body",), exported or ExportedRanges(), **settings)


def ranges_of(plan: ExportPlan) -> list[tuple[int, int]]:
    return [(task.from_offset, task.to_offset) for bundle in plan.bundles for task in bundle.tasks]


def test_holes_of_the_table_are_filled_and_nothing_else(world: SourceWorld) -> None:
    world.flush_to_tier()
    plan = planned(world, ExportedRanges({QUEUE: [(0, 5), (10, 20), (30, 40)]}))
    assert sorted(ranges_of(plan)) == [(5, 10), (20, 30)]
    assert plan.wanted == ExportedRanges({QUEUE: [(5, 10), (20, 30)]})
    assert plan.messages == 15
    assert planned(world, ExportedRanges({QUEUE: [(0, 40)]})).bundles == ()


def test_hot_and_cold_are_one_queue(world: SourceWorld) -> None:
    world.flush_to_tier()
    world.put(10)
    plan = planned(world, ExportedRanges({QUEUE: [(0, 35)]}))
    assert sum(end - begin for begin, end in ranges_of(plan)) == 15
    assert plan.wanted == ExportedRanges({QUEUE: [(35, 50)]})


def test_a_table_that_knows_more_than_this_history_is_notified_of(world: SourceWorld) -> None:
    plan = planned(world, ExportedRanges({QUEUE: [(0, 90)]}))
    assert plan.bundles == ()
    assert "the table has messages up to 90, this history ends at 40" in plan.notes[0]


def test_processors_get_files_of_their_own_but_no_tiny_ones(
    world: SourceWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(planned(world, parallelism=4).bundles) == 1
    monkeypatch.setattr(export_plan, "FILE_BYTES_MIN", 500)
    monkeypatch.setattr("tiermq.history.planning.TASK_COST_BYTES", 0)
    plan = planned(world, parallelism=4)
    assert len(plan.bundles) >= 3
    assert plan.messages == 40


def test_what_expired_before_it_was_exported_is_an_error_unless_allowed(world: SourceWorld) -> None:
    world.flush_to_tier()
    world.expire()
    world.put(200)
    world.flush_to_tier()
    options = SourceOptions.of(world.cold, Use.BATCH).scan
    with open_history(options.place) as history:
        (queue,) = read_catalog(history).queues()
        first = queue.min_offset
        assert 10 < first <= 40
        exported = ExportedRanges({QUEUE: [(0, 10)]})
        with pytest.raises(DataLoss, match=f"offsets 10 to {first}.*--allow-loss"):
            plan_export(history, options, ("body",), exported)
        plan = plan_export(history, options, ("body",), exported, allow_loss=True)
        assert plan.wanted == ExportedRanges({QUEUE: [(10, 240)]})
        assert (plan.messages, len(plan.losses)) == (240 - first, 1)
        assert plan_export(history, options, ("body",), ExportedRanges()).messages == 240 - first


def test_times_are_offsets_by_the_time_a_plan_is_made(world: SourceWorld) -> None:
    world.clock.advance_ms(60_000)
    moment_ms = world.clock.now_ms()
    world.put(10)
    late = planned(world, more={"startingTimestamp": str(moment_ms)})
    assert ranges_of(late) == [(40, 50)]
    early = planned(world, more={"endingTimestamp": str(moment_ms)})
    assert ranges_of(early) == [(0, 40)]
    assert all(task.request.begin_ms == 0 for bundle in late.bundles for task in bundle.tasks)
