"""Index files by tasks: keys are staged, builds may run twice, files have the size that was planned."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.job_world import INDEX, QUEUE, JobWorld
from tiermq.errors import CorruptSegment, SegmentMissing, TierUnavailable
from tiermq.pipeline import index_build
from tiermq.pipeline.index_build import BuildTask, KeyStage, StagedKeys, grouped, run_build_task, unstage
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord
from tiermq.tier.index.index_request import _KEY
from tiermq.tier.names import SegmentType

NOTHING = CoverageRecord.of(Coverage(), ()).encode()
TARGET = INDEX.segment(SegmentType.INDEX, 1 << 30)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[JobWorld]:
    world = JobWorld(tmp_path)
    yield world
    world.close()


def keys(first: int, count: int) -> bytes:
    return b"".join(_KEY.pack(number, number * 100, 100, 1_700_000_000_000) for number in range(first, first + count))


def staged(made: JobWorld, *counts: int) -> tuple[StagedKeys, ...]:
    stage, at = KeyStage(made.driver, INDEX), 0
    for count in counts:
        stage.add(QUEUE, 7, at * 100, (at + max(1, count)) * 100, keys(at, count))
        at += max(1, count)
    return stage.finish()


def build(made: JobWorld, found: tuple[StagedKeys, ...]) -> BuildTask:
    return BuildTask(made.tier, TARGET, 1_700_000_000_001, 5, found, NOTHING)


def test_the_keys_of_a_task_are_one_object_and_ranges_without_keys_are_reported_too(made: JobWorld) -> None:
    found = staged(made, 3, 0, 4)
    assert [(each.start, each.stop, each.count, each.position) for each in found] == [
        (0, 300, 3, 0),
        (300, 400, 0, 72),
        (400, 800, 4, 72),
    ]
    assert len(made.driver.list_objects(INDEX.directory)) == 1
    assert found[1].name == ""
    unstage(made.driver, INDEX)
    assert made.driver.list_objects(INDEX.directory) == []


def test_many_keys_are_several_objects_and_one_that_could_not_be_put_is_put_later(
    made: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "STAGE_BYTES", 100)
    real, calls = made.driver.put_object, list[str]()

    def put(name: str, data: bytes) -> str:
        calls.append(name)
        if len(calls) == 1:
            raise TierUnavailable("down")
        return real(name, data)

    monkeypatch.setattr(made.driver, "put_object", put)
    found = staged(made, 5, 6, 2)
    assert len({each.name for each in found}) == 2
    assert run_build_task(build(made, found)).facts.item_count == 13


def test_a_build_run_twice_makes_one_file_of_the_size_that_was_planned(made: JobWorld) -> None:
    task = build(made, staged(made, 30, 10))
    once = run_build_task(task)
    assert run_build_task(pickle.loads(pickle.dumps(task))) == once
    assert made.driver.size(TARGET) == task.size == once.size
    assert (once.facts.item_count, once.facts.topic_ids) == (40, frozenset({7}))


def test_two_attempts_that_staged_the_same_keys_make_the_same_file(made: JobWorld) -> None:
    first, second = staged(made, 30, 10), staged(made, 30, 10)
    assert first[0].name != second[0].name
    assert run_build_task(build(made, first)) == run_build_task(build(made, second))


def test_staged_keys_that_are_gone_or_damaged_end_the_build(made: JobWorld) -> None:
    found = staged(made, 3)
    with pytest.raises(CorruptSegment, match="not what was written"):
        run_build_task(build(made, (replace(found[0], crc32=1),)))
    unstage(made.driver, INDEX)
    with pytest.raises(SegmentMissing, match="staged keys"):
        run_build_task(build(made, found))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([], []),
        ([0, 0], []),
        ([3, 0, 7], [[(0, 3), (72, 7)]]),
        ([3, 8], [[(0, 3), (72, 7)], [(240, 1)]]),
        ([25], [[(0, 10)], [(240, 10)], [(480, 5)]]),
    ],
)
def test_keys_are_grouped_into_files_of_a_maximum(
    counts: list[int], expected: list[list[tuple[int, int]]], made: JobWorld
) -> None:
    groups = grouped(staged(made, *counts), 10)
    assert [[(each.position, each.count) for each in group] for group in groups] == expected
