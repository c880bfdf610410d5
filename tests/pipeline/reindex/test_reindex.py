"""The job that builds a key index: afterwards every key is found, whoever wrote the history, and whatever happened."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline.dying_tier import Killed, killed_at_each_change
from pipeline.job_world import INDEX, LOG, JobWorld, tiered
from pipeline.offload.offload_world import OffloadWorld, fill
from simulation.manual_clock import ManualClock
from tier.tier_world import BROKER, CLUSTER, keys_of
from tiermq.errors import BadConfig
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.reindex.job import reindex
from tiermq.spark import SparkRunner
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.index.compacted_index import companion_name
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, Hole, QueueCoverage
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.index.index_request import FragmentBuilder
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import KEYS_STEM, SegmentType
from tiermq.tier.tier_view import view_tier
from tiermq.tier.tiered_store import TieredStore
from tiermq.tier.verify.verify import verify_tier

MANY: dict[str, Any] = {"slots": 7, "items_max": 25, "chunk_bytes": 300}
"""Several files of several chunks each."""


def without_index(path: Path) -> JobWorld:
    world = JobWorld(path)
    for _ in range(6):
        world.world.write(5)
        world.world.write(1, "payments", 2)
        world.world.clock.advance_ms(777)
    world.world.put_manifests()
    return world


@pytest.fixture
def made(tmp_path: Path) -> Iterator[JobWorld]:
    world = without_index(tmp_path)
    yield world
    world.close()


def run(made: JobWorld, **options: Any) -> JobReport:
    made.world.clock.advance_ms(120_000)
    return reindex(None, tier=made.tier, clock=made.world.clock, **{**MANY, **options})


def found_keys(made: JobWorld) -> int:
    """How many of the 72 keys lead to their message, and to no other."""
    view, found = view_tier(made.driver), 0
    for topic, queue_id, count in (("orders", 0, 30), ("payments", 2, 6)):
        for number in range(count):
            for key in keys_of(topic, queue_id, number):
                offsets = [row.queue_offset for _, row in view.find_by_key(topic, key, 10)]
                assert offsets in ([], [number])
                found += len(offsets)
    return found


def index_bytes(made: JobWorld) -> dict[int, bytes]:
    infos = [info for info in made.driver.list_segments() if info.key.queue == INDEX]
    return {info.key.base: bytes(made.driver.read(info.key, 0, info.size)) for info in infos}


def newest(made: JobWorld) -> CoverageRecord:
    name = companion_name(INDEX.segment(SegmentType.INDEX, made.index_bases()[-1]))
    stored = made.driver.get_object(name)
    assert stored is not None
    return CoverageRecord.decode(stored.data, name)


@pytest.mark.parametrize("with_store", [True, False])
def test_history_without_an_index_gets_one_with_every_key(made: JobWorld, with_store: bool) -> None:
    options = {"store": made.store} if with_store else {}
    report = run(made, **options)
    assert report.is_clean, report.problems
    assert (report.done["records"], report.done["keys"]) == (36, 72)
    assert report.done["index_files"] == len(made.index_bases()) == 3
    assert found_keys(made) == 72
    found = verify_tier(made.driver)
    assert found.is_clean, found.problems
    assert found.counts["index_items"] == 72
    assert newest(made).coverage().is_complete()
    if with_store:
        with MetadataStore(made.path / "store" / "config" / "tieredStoreMetadata.db") as metadata:
            rows = metadata.segments(INDEX)
            assert [row.key.base for row in rows] == made.index_bases()
            assert [row.end for row in rows[:-1]] == made.index_bases()[1:]
            assert verify_tier(made.driver, metadata=metadata).is_clean
    again = run(made, **options)
    assert again.planned == {"queues": 0, "ranges": 0, "bytes": 0}
    assert again.done == {}


def test_however_it_is_cut_the_index_is_the_same(made: JobWorld, tmp_path: Path) -> None:
    run(made, items_max=1000, chunk_bytes=1 << 30)
    (tmp_path / "other").mkdir()
    other = without_index(tmp_path / "other")
    run(other, items_max=1000, chunk_bytes=1)
    one, two = (index_bytes(each) for each in (made, other))
    assert one == two
    other.close()


def test_rocketmq_s_index_is_doubtful_and_its_messages_are_indexed_again(made: JobWorld) -> None:
    made.world.put_index()
    for name in made.driver.list_objects(f"{INDEX.directory}/"):
        made.driver.delete_object(name)
    report = run(made)
    assert report.planned["queues"] == 2
    assert report.done["keys"] == 72
    assert newest(made).coverage().is_complete()
    assert found_keys(made) == 72
    assert run(made).planned["queues"] == 0


def test_only_what_is_missing_is_read(made: JobWorld) -> None:
    made.world.put_index()
    made.world.metadata.close()
    made.world.reopen()
    key = INDEX.segment(SegmentType.INDEX, 0)
    end = made.world.segments(LOG)[-1].end
    payments = sum(row.size for row in made.world.segments(LOG, "payments", 2))
    places = made.world.file()
    hole = (
        int.from_bytes(places.units.read_units(10, 1)[:8], "big"),
        int.from_bytes(places.units.read_units(12, 1)[:8], "big"),
    )
    ids = {topic.name: topic.id for topic in made.world.metadata.topics()}
    coverage = Coverage(
        {
            ("orders", 0): QueueCoverage(ids["orders"], end, [Hole(*hole)]),
            ("payments", 2): QueueCoverage(ids["payments"], payments),
        }
    )
    made.driver.put_object(companion_name(key), CoverageRecord.of(coverage, ()).encode())
    dry = run(made, dry_run=True)
    assert dry.details["missing"] == [{"topic": "orders", "queue": 0, "ranges": [hole]}]
    report = run(made)
    assert report.done["bytes"] == hole[1] - hole[0]
    assert report.done["keys"] == 4
    assert newest(made).coverage().is_complete()
    assert found_keys(made) == 72


def test_one_topic_can_be_chosen_and_the_rest_stays_missing(made: JobWorld) -> None:
    report = run(made, topics=["payments"])
    assert report.done["keys"] == 12
    assert found_keys(made) == 12
    assert set(newest(made).coverage().queues) == {("payments", 2)}
    assert run(made).done["keys"] == 60
    assert found_keys(made) == 72


def test_what_the_store_has_indexed_itself_is_not_built_again_nor_claimed_for_the_bucket(made: JobWorld) -> None:
    store = made.store
    directory = made.path / "store" / INDEX_DIRECTORY
    directory.mkdir()
    ids = {topic.name: topic.id for topic in made.world.metadata.topics()}
    half = int.from_bytes(made.world.file().units.read_units(15, 1)[:8], "big")
    local = Coverage({("orders", 0): QueueCoverage(ids["orders"], half)})
    (directory / RECORD_NAME).write_bytes(CoverageRecord.of(local, ()).encode())
    report = run(made, store=store)
    assert report.is_clean
    assert report.done["keys"] == 30 + 12
    end = made.world.segments(LOG)[-1].end
    record = CoverageRecord.decode((directory / RECORD_NAME).read_bytes(), "x").coverage()
    assert record.is_complete()
    assert record.queues["orders", 0].end == end
    assert newest(made).coverage().queues["orders", 0].holes == [Hole(0, half)]
    assert run(made, store=store).done == {}
    assert run(made).done["keys"] == 30, "without the store, its own index does not count"
    assert found_keys(made) == 72


def test_keys_are_staged_in_the_tier_and_nothing_of_that_is_left(made: JobWorld) -> None:
    before = made.driver.list_objects()
    assert run(made).done["keys"] == 72
    assert found_keys(made) == 72
    new = set(made.driver.list_objects()) - set(before)
    assert not [name for name in new if KEYS_STEM in name]


def test_where_no_message_has_a_key_the_newest_file_reports_that_all_is_covered(made: JobWorld) -> None:
    made.world.put_index()
    made.world.put_manifests()
    assert newest(made).coverage().queues == {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FragmentBuilder, "add", lambda _self, _batch: None)
        report = run(made)
    assert (report.done["keys"], report.done["index_files"]) == (0, 0)
    assert newest(made).coverage().is_complete()
    assert run(made).planned["queues"] == 0


def test_a_queue_that_cannot_be_read_is_reported_and_stays_missing(made: JobWorld) -> None:
    key = made.world.segments(LOG, "payments", 2)[0].key
    path = made.root / key.path
    path.write_bytes(path.read_bytes()[:-1])
    report = run(made, store=made.store)
    assert ["payments" in problem for problem in report.problems] == [True]
    assert report.done["keys"] == 60
    assert run(made, store=made.store, dry_run=True).planned["queues"] == 1


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("with_store", [True, False])
def test_a_run_that_is_killed_at_any_change_claims_nothing_that_is_not_there(
    tmp_path: Path, with_store: bool, after: bool
) -> None:
    for dies_at, world in killed_at_each_change(tmp_path, without_index, after=after):
        options: dict[str, Any] = {"store": world.store} if with_store else {}
        with contextlib.suppress(Killed):
            run(world, **options)
        if world.index_bases() and newest(world).coverage().queues:
            assert found_keys(world) == 72, dies_at
        assert verify_tier(world.driver).is_clean
        world.use(world.driver)
        report = run(world, **options)
        assert report.is_clean, (dies_at, report.problems)
        assert found_keys(world) == 72, dies_at
        assert newest(world).coverage().is_complete()
        assert not [name for name in world.driver.list_objects() if KEYS_STEM in name]
        assert run(world, **options).done == {}
        found = verify_tier(world.driver)
        assert found.is_clean, (dies_at, found.problems)


def test_a_dry_run_takes_no_lease_and_whoever_holds_it_is_named(made: JobWorld) -> None:
    BrokerLease(made.driver, CLUSTER, BROKER, "box:/store", clock=made.world.clock).acquire()
    dry = reindex(None, tier=made.tier, clock=made.world.clock, dry_run=True)
    assert dry.planned["queues"] == 2
    with pytest.raises(LeaseHeld, match="box:/store"):
        reindex(None, tier=made.tier, clock=made.world.clock)
    assert made.index_bases() == []


def test_a_store_that_was_lost_finds_every_key_after_a_restore(tmp_path: Path) -> None:
    tier, _ = tiered(tmp_path)
    report = reindex(None, tier=tier, slots=50)
    assert report.is_clean, report.problems
    assert report.done["keys"] >= 60
    settings: dict[str, Any] = {"broker_name": BROKER, "broker_cluster_name": CLUSTER}
    with TieredStore.open(tmp_path / "new", tier=tier, restore=True, background=False, **settings) as store:
        assert store.tier.index is not None
        assert store.tier.index.hole_count == 0
        assert store.tier.index.is_complete
        for number in range(60):
            found = store.query("orders" if number % 3 else "payments", f"key-{number}")
            assert found.complete
            assert [message.body for message in found.messages] == [b"body %d" % number]


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadConfig, match="slots"):
        reindex(None, tier="file:///nowhere", slots=0)


def test_executors_build_what_one_process_builds(made: JobWorld, tmp_path: Path, spark: SparkSession) -> None:
    clock = ManualClock(made.world.clock.now_ms() + 120_000)
    report = reindex(SparkRunner(spark), tier=made.tier, clock=clock, **MANY)
    assert report.is_clean, report.problems
    assert report.done["index_files"] == 3
    assert found_keys(made) == 72
    (tmp_path / "other").mkdir()
    other = without_index(tmp_path / "other")
    run(other)
    files = [index_bytes(each) for each in (made, other)]
    assert files[0] == files[1]
    other.close()


def test_what_was_offloaded_without_an_index_gets_it_later(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    fill(world.store, 120)
    assert world.offload(with_index=False).is_clean
    assert reindex(None, tier=world.tier, store=world.place(), dry_run=True).planned["queues"] == 3
    report = reindex(None, tier=world.tier, store=world.place(), slots=50, items_max=100)
    assert report.is_clean, report.problems
    assert (report.done["records"], report.done["keys"]) == (120, 160)
    assert verify_tier(open_driver(world.tier)).is_clean
    assert world.offload().is_clean, "an offload with an index goes on behind it"
    assert reindex(None, tier=world.tier, store=world.place(), dry_run=True).planned["queues"] == 0
