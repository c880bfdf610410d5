"""The job that compacts a tier: every key is found at any moment, and a run that was killed is gone on from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.dying_tier import DyingTier, Killed, killed_at_each_change
from pipeline.job_world import INDEX, LOG, QUEUE, JobWorld
from simulation.manual_clock import ManualClock
from tier.tier_world import BROKER, CLUSTER, keys_of
from tiermq.errors import BadConfig
from tiermq.pipeline.compact.job import compact
from tiermq.pipeline.job_report import JobReport
from tiermq.spark import SparkRunner
from tiermq.tier.index.compacted_index import companion_name
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, QueueCoverage
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import SegmentType
from tiermq.tier.tier_view import view_tier
from tiermq.tier.verify.verify import verify_tier

FILES = 4


@pytest.fixture
def made(tmp_path: Path) -> Iterator[JobWorld]:
    world = with_index_files(tmp_path)
    yield world
    world.close()


def with_index_files(path: Path) -> JobWorld:
    """Four index files, each made after some more messages; commit logs of several segments, none sealed."""
    world = JobWorld(path)
    for number in range(FILES):
        world.world.write(5)
        world.world.write(1, "payments", 2)
        world.world.clock.advance_ms(1_357)
        world.world.put_index(slots=5 + 2 * (number % 2))
    world.world.put_manifests()
    return world


def run(made: JobWorld, **options: Any) -> JobReport:
    made.world.clock.advance_ms(120_000)  # The lease of a run that was killed has run out.
    return compact(None, tier=made.tier, clock=made.world.clock, **options)


def assert_every_key_is_found(made: JobWorld) -> None:
    view = view_tier(made.driver)
    for topic, queue_id, count in (("orders", 0, 5 * FILES), ("payments", 2, FILES)):
        for number in range(count):
            for key in keys_of(topic, queue_id, number):
                assert [found.queue_offset for _, found in view.find_by_key(topic, key, 10)] == [number], (topic, key)


@pytest.mark.parametrize("with_store", [True, False])
def test_small_index_files_become_one_with_every_item(made: JobWorld, with_store: bool) -> None:
    options = {"store": made.store} if with_store else {}
    end = made.world.metadata.segments(INDEX)[-1].end
    items = verify_tier(made.driver).counts["index_items"]
    report = run(made, **options)
    assert report.is_clean, report.problems
    assert (report.done["index_files"], report.done["merged_files"]) == (FILES, 1)
    assert made.index_bases() == [end]
    assert_every_key_is_found(made)
    found = verify_tier(made.driver)
    assert found.is_clean, found.problems
    assert found.counts["index_items"] == items
    assert len(made.driver.list_objects(f"{INDEX.directory}/")) == 2  # Its companion and the manifest.
    if with_store:
        with MetadataStore(made.path / "store" / "config" / "tieredStoreMetadata.db") as metadata:
            (row,) = metadata.segments(INDEX)
            assert (row.key.base, row.status) == (end, SegmentStatus.SEALED)
            assert row.crc32 is not None
            assert verify_tier(made.driver, metadata=metadata).is_clean


def test_a_second_run_has_nothing_to_do(made: JobWorld) -> None:
    run(made)
    bases = made.index_bases()
    again = run(made)
    assert again.is_clean
    assert not any(again.planned.values())
    assert made.index_bases() == bases


def test_merged_files_are_merged_again_with_later_ones(made: JobWorld) -> None:
    run(made)
    for row in made.world.metadata.segments(INDEX):
        made.world.metadata.delete_segment(row.key)
    (info,) = [info for info in made.driver.list_segments() if info.key.type is SegmentType.INDEX]
    made.world.metadata.put_segment(Segment(info.key, info.size))
    made.world.put_index(slots=9)
    assert len(made.index_bases()) == 2
    assert run(made).done["merged_files"] == 1
    assert len(made.index_bases()) == 1
    assert_every_key_is_found(made)
    found = verify_tier(made.driver)
    assert found.is_clean, found.problems


def test_files_are_merged_up_to_a_number_of_items_and_large_ones_stay(made: JobWorld) -> None:
    counts = [12, 24, 36, 48]
    large = run(made, items_max=60, small_items=48, dry_run=True)
    assert (large.planned["index_files"], large.planned["merged_files"]) == (2, 1)
    report = run(made, items_max=60, small_items=48)
    assert report.details["merged"][0]["items"] == counts[0] + counts[1]
    assert len(made.index_bases()) == 3
    assert_every_key_is_found(made)
    assert verify_tier(made.driver).is_clean


def test_the_merged_file_reports_what_the_newest_reported_is_indexed(made: JobWorld) -> None:
    newest = made.world.metadata.segments(INDEX)[-1].key
    name = companion_name(newest)
    stored = made.driver.get_object(name)
    assert stored is not None
    files = CoverageRecord.decode(stored.data, name).files
    coverage = Coverage({("orders", 0): QueueCoverage(0, 1234, doubtful_end=500)})
    made.driver.put_object(name, CoverageRecord.of(coverage, files).encode())
    run(made)
    merged = companion_name(INDEX.segment(SegmentType.INDEX, made.index_bases()[0]))
    stored = made.driver.get_object(merged)
    assert stored is not None
    record = CoverageRecord.decode(stored.data, merged)
    assert record.queues == (("orders", 0, 0, 1234, ()),)
    assert record.doubtful == (("orders", 0, 500),)
    assert record.files[0].item_count == 120
    assert record.files[0].topic_ids == files[0].topic_ids


def test_a_dry_run_changes_nothing_and_takes_no_lease(made: JobWorld) -> None:
    before = {info.key.path: info for info in made.driver.list_segments()}
    BrokerLease(made.driver, CLUSTER, BROKER, "somebody", clock=made.world.clock).acquire()
    report = compact(None, tier=made.tier, clock=made.world.clock, dry_run=True)
    assert report.is_clean
    assert (report.planned["index_files"], report.planned["merged_files"]) == (FILES, 1)
    assert report.planned["segments"] == len(report.details["seal"]) > 0
    assert {info.key.path: info for info in made.driver.list_segments()} == before
    with pytest.raises(LeaseHeld, match="somebody"):
        compact(None, tier=made.tier, clock=made.world.clock)


@pytest.mark.parametrize("with_store", [True, False])
def test_what_has_ended_is_sealed_and_what_grows_is_not(made: JobWorld, with_store: bool) -> None:
    options = {"store": made.store} if with_store else {}
    report = run(made, index=False, **options)
    assert report.is_clean, report.problems
    logs = sorted(
        (info for info in made.driver.list_segments() if info.key.queue == QUEUE and info.key.type is LOG),
        key=lambda info: info.key.base,
    )
    assert [info.sealed for info in logs] == [True] * (len(logs) - 1) + [False]
    rows = [row for row in made.manifest().segments if row.key.type is LOG]
    assert [row.status is SegmentStatus.SEALED for row in rows] == [info.sealed for info in logs]
    assert run(made, index=False, **options).planned["segments"] == 0
    assert verify_tier(made.driver).is_clean


def test_a_segment_that_is_not_what_is_known_of_it_is_left_alone_and_reported(made: JobWorld) -> None:
    path = made.root / made.world.segments(LOG)[0].key.path
    path.write_bytes(path.read_bytes()[:-1])
    report = run(made, index=False, store=made.store)
    assert any(path.name in problem for problem in report.problems)
    assert not made.driver.is_sealed(made.world.segments(LOG)[0].key)


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("with_store", [True, False])
def test_a_merge_that_is_killed_at_any_change_loses_no_key_and_is_gone_on_from(
    tmp_path: Path, with_store: bool, after: bool
) -> None:
    for dies_at, world in killed_at_each_change(tmp_path, with_index_files, after=after):
        options: dict[str, Any] = {"store": world.store} if with_store else {}
        with contextlib.suppress(Killed):
            run(world, seal=False, **options)
        assert_every_key_is_found(world)
        world.use(world.driver)
        report = run(world, seal=False, **options)
        assert report.is_clean, (dies_at, report.problems)
        assert_every_key_is_found(world)
        assert len(world.index_bases()) == 1, dies_at
        found = verify_tier(world.driver)
        assert found.is_clean, (dies_at, found.problems)


def test_a_merged_file_that_was_cut_is_made_again(made: JobWorld) -> None:
    dying = DyingTier(made.driver)
    made.use(dying)
    end = made.world.metadata.segments(INDEX)[-1].end
    key = INDEX.segment(SegmentType.INDEX, end)
    made.driver.put_object(companion_name(key), CoverageRecord.of(Coverage(), ()).encode())
    made.driver.write(key, 0, [b"\xbc\xc5\x02\x85 and not much more of it"])
    report = run(made)
    assert report.is_clean, report.problems
    assert_every_key_is_found(made)
    assert verify_tier(made.driver).is_clean


def test_a_damaged_index_file_is_reported_and_the_others_are_merged(made: JobWorld) -> None:
    key = made.world.metadata.segments(INDEX)[1].key
    path = made.root / key.path
    path.chmod(0o644)
    path.write_bytes(b"no index" + path.read_bytes()[8:])
    report = run(made)
    assert [key.path in problem for problem in report.problems] == [True]
    assert report.done["index_files"] == FILES - 1
    assert key.base in made.index_bases()


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadConfig, match="items_max"):
        compact(None, tier="file:///nowhere", items_max=1)


def test_executors_merge_and_seal_as_one_process_does(made: JobWorld, spark: SparkSession) -> None:
    report = compact(SparkRunner(spark), tier=made.tier, clock=ManualClock(made.world.clock.now_ms() + 120_000))
    assert report.is_clean, report.problems
    assert report.done["merged_files"] == 1
    assert report.done["segments"] > 0
    assert_every_key_is_found(made)
    assert verify_tier(made.driver).is_clean
