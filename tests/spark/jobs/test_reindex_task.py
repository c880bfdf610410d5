"""The tasks of a reindex by themselves: pure, over segments of any cut, with errors told and not raised."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.jobs.job_world import INDEX, LOG, QUEUE, UNITS, JobWorld
from tiermq.errors import SegmentMissing
from tiermq.spark.jobs.reindex_plan import Stretch
from tiermq.spark.jobs.reindex_task import BuildTask, FoundKeys, KeyTask, KeyWork, run_build_task, run_key_task
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord
from tiermq.tier.names import SegmentType

NOTHING = CoverageRecord.of(Coverage(), ()).encode()


@pytest.fixture
def made(tmp_path: Path) -> Iterator[JobWorld]:
    world = JobWorld.filled(tmp_path)
    yield world
    world.close()


def work(made: JobWorld, stretch: Stretch) -> KeyWork:
    logs, units = made.world.segments(LOG), made.world.segments(UNITS)
    return KeyWork(QUEUE, 7, stretch, tuple(logs), tuple(units))


def place(made: JobWorld, offset: int) -> int:
    return int.from_bytes(made.world.file().read_units(offset, 1)[:8], "big")


def collected(made: JobWorld, stretch: Stretch) -> FoundKeys:
    (found,) = run_key_task(pickle.loads(pickle.dumps(KeyTask(made.tier, INDEX, (work(made, stretch),)))))
    return found


def test_keys_of_a_stretch_are_those_of_its_range_whatever_units_were_read(made: JobWorld) -> None:
    whole = collected(made, Stretch(0, 30, 0, made.world.segments(LOG)[-1].end))
    assert (whole.count, whole.records, whole.error) == (60, 30, "")
    assert whole.end == made.world.segments(LOG)[-1].end
    part = collected(made, Stretch(0, 30, place(made, 8), place(made, 23)))
    assert (part.count, part.end) == (30, place(made, 23))
    assert part.keys == whole.keys[16 * 24 : 46 * 24]


def test_a_segment_that_is_missing_is_told_for_that_stretch_alone(made: JobWorld) -> None:
    good, bad = work(made, Stretch(0, 5, 0, place(made, 5))), work(made, Stretch(0, 5, 0, place(made, 5)))
    bad = KeyWork(bad.queue, bad.topic_id, bad.stretch, (), bad.units)
    first, second = run_key_task(KeyTask(made.tier, INDEX, (good, bad)))
    assert (first.count, first.error) == (10, "")
    assert "expected a segment" in second.error


def test_a_build_run_twice_makes_one_file_of_the_size_that_was_promised(made: JobWorld) -> None:
    found = collected(made, Stretch(0, 30, 0, place(made, 20)))
    key = INDEX.segment(SegmentType.INDEX, 1 << 30)
    task = BuildTask(made.tier, key, 1_700_000_000_001, 5, (found,), NOTHING)
    once = run_build_task(task)
    assert run_build_task(pickle.loads(pickle.dumps(task))) == once
    assert made.driver.size(key) == task.size == once.size
    assert (once.facts.item_count, once.facts.topic_ids) == (40, frozenset({7}))


def test_staged_keys_that_are_gone_end_the_build(made: JobWorld) -> None:
    found = FoundKeys(work(made, Stretch(0, 5, 0, 100)), 3, staged=f"{INDEX.directory}/reindex-x.tiermq.json")
    key = INDEX.segment(SegmentType.INDEX, 1 << 30)
    with pytest.raises(SegmentMissing, match="staged keys"):
        run_build_task(BuildTask(made.tier, key, 1, 5, (found,), NOTHING))
