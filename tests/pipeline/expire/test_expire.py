"""The job that expires a tier: what goes, what stays, in which order, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.job_world import INDEX, LOG, QUEUE, JobWorld, tiered
from tier.tier_world import BROKER, CLUSTER, HOUR_MS
from tiermq.errors import BadConfig, TierUnavailable
from tiermq.pipeline.expire.job import expire
from tiermq.pipeline.job_report import JobReport
from tiermq.spark import SparkRunner
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import TopicStatus
from tiermq.tier.names import QueueKey, SegmentKey
from tiermq.tier.restore.restore import restore
from tiermq.tier.verify.verify import verify_tier

PAYMENTS = QueueKey(CLUSTER, BROKER, "payments", 2)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[JobWorld]:
    """Orders of an hour ago over several segments, one of them new; payments of now."""
    world = JobWorld(tmp_path)
    world.world.write(30)
    world.world.clock.advance_ms(2 * HOUR_MS)
    world.world.write(3)
    world.world.write(5, "payments", 2)
    world.world.put_index()
    world.world.put_manifests()
    yield world
    world.close()


def run(made: JobWorld, **options: object) -> JobReport:
    return expire(None, tier=made.tier, clock=made.world.clock, **options)  # type: ignore[arg-type]


def listed(made: JobWorld) -> list[str]:
    return [info.key.path for info in made.driver.list_segments()]


def test_without_a_time_nothing_goes(made: JobWorld) -> None:
    before = listed(made)
    report = run(made)
    assert report.is_clean, report.problems
    assert report.planned == {"segments": 0, "bytes": 0}
    assert report.done["segments"] == 0
    assert listed(made) == before


@pytest.mark.parametrize("with_store", [True, False])
def test_old_segments_go_and_the_manifest_reports_where_the_queue_begins(made: JobWorld, with_store: bool) -> None:
    options = {"store": made.store} if with_store else {}
    before = listed(made)
    report = run(made, keep_hours=1, **options)
    assert report.is_clean, report.problems
    gone = set(before) - set(listed(made))
    assert gone
    assert gone == {row["path"] for row in report.details["removed"]}
    assert made.manifest().min_offset > 0
    assert made.manifest(PAYMENTS).min_offset == 0
    found = verify_tier(made.driver)
    assert found.is_clean, found.problems
    if with_store:
        with MetadataStore(made.path / "store" / "config" / "tieredStoreMetadata.db") as metadata:
            queue = metadata.queue(QUEUE)
            assert queue is not None
            assert queue.min_offset == made.manifest().min_offset


def test_a_second_run_finds_nothing_left_to_do(made: JobWorld) -> None:
    run(made, keep_hours=1)
    again = run(made, keep_hours=1)
    assert again.is_clean
    assert (again.done["segments"], again.done["bytes"]) == (0, 0)


def test_a_dry_run_reports_exactly_what_would_go_and_why_and_takes_no_lease(made: JobWorld) -> None:
    before = listed(made)
    BrokerLease(made.driver, CLUSTER, BROKER, "somebody", clock=made.world.clock).acquire()
    report = run(made, keep_hours=1, dry_run=True)
    assert report.is_clean
    assert listed(made) == before
    made.world.clock.advance_ms(120_000)
    really = run(made, keep_hours=1)
    promised = {row["path"] for row in report.details["leaving"]}
    assert promised == {row["path"] for row in really.details["removed"]} == set(before) - set(listed(made))
    assert all("older than 1 h" in row["reason"] for row in report.details["leaving"])


def test_a_topic_s_own_time_comes_first(made: JobWorld) -> None:
    made.world.metadata.update_topic("orders", reserve_time_hours=100)
    made.world.put_manifests()
    assert run(made, keep_hours=1).done["segments"] == 0
    made.world.metadata.update_topic("orders", reserve_time_hours=1)
    made.world.put_manifests()
    assert run(made).done["segments"] > 0


def test_too_many_bytes_of_a_topic_cost_it_its_oldest_segments(made: JobWorld) -> None:
    limit = made.world.metadata.size_of_topic("orders") // 2
    dry = run(made, max_bytes_per_topic=limit, dry_run=True)
    report = run(made, max_bytes_per_topic=limit)
    assert {row["path"] for row in report.details["removed"]} == {row["path"] for row in dry.details["leaving"]}
    assert sum(info.size for info in made.driver.list_segments() if info.key.topic == "orders") <= limit
    assert "the oldest" in dry.details["leaving"][0]["reason"]


def test_a_topic_deletion_that_was_begun_is_finished(made: JobWorld) -> None:
    made.world.metadata.update_topic("orders", status=TopicStatus.DELETING)
    made.world.put_manifests()
    dry = run(made, dry_run=True)
    assert all("is deleted" in row["reason"] for row in dry.details["leaving"])
    report = run(made)
    assert report.done["topics"] == 1
    assert not [path for path in listed(made) if "/orders/" in path]
    assert made.manifest() is None
    assert made.manifest(PAYMENTS) is not None


def test_orphans_go_when_they_are_old_enough(made: JobWorld) -> None:
    store = made.store
    stray = QUEUE.segment(LOG, 1 << 40)
    made.driver.write(stray, 0, [b"stray"])
    assert run(made, store=store, grace_ms=1 << 50).done["orphans"] == 0
    made.world.clock.advance_ms(1 << 41)  # The directory's clock is the machine's, far ahead of this one.
    dry = run(made, store=store, dry_run=True)
    assert [row["path"] for row in dry.details["leaving"]] == [stray.path]
    assert run(made, store=store, orphans=False).done.get("orphans", 0) == 0
    assert run(made, store=store).done["orphans"] == 1
    assert stray.path not in listed(made)


def test_an_index_file_goes_when_no_topic_in_it_keeps_its_messages(made: JobWorld) -> None:
    made.world.clock.advance_ms(5 * HOUR_MS)
    report = run(made, keep_hours=1)
    assert report.done["index_files"] == 1
    assert made.index_bases() == []
    assert INDEX.segment(made.world.metadata.segments(INDEX)[0].key.type, 0).path not in listed(made)


def test_an_index_file_of_topics_that_lost_their_manifests_stays(made: JobWorld) -> None:
    made.world.metadata.update_topic("payments", reserve_time_hours=1000)
    for name in made.driver.list_objects():
        if name.endswith("manifest.tiermq.json"):
            made.driver.delete_object(name)
    made.world.clock.advance_ms(5 * HOUR_MS)
    report = run(made)
    assert report.done["index_files"] == 0
    assert made.index_bases() == [0]


def test_whoever_holds_the_broker_is_named(made: JobWorld) -> None:
    before = listed(made)
    BrokerLease(made.driver, CLUSTER, BROKER, "box:/store", clock=made.world.clock).acquire()
    with pytest.raises(LeaseHeld, match="box:/store"):
        run(made, keep_hours=1)
    assert listed(made) == before


def test_a_broker_in_use_does_not_keep_the_others_from_being_expired(tmp_path: Path) -> None:
    tier, _ = tiered(tmp_path)
    tiered(tmp_path, broker="broker-b")
    driver = open_driver(tier)
    BrokerLease(driver, CLUSTER, "broker-b", "box:/store").acquire()
    before = {info.key.path for info in driver.list_segments() if info.key.broker == "broker-b"}
    report = expire(None, tier=tier, max_bytes_per_topic=1)
    assert [text for text in report.problems if "box:/store" in text and text.startswith(f"{CLUSTER}/broker-b: ")]
    assert len(report.problems) == 1
    assert report.done["segments"] == report.planned["segments"] > 0
    assert {info.key.path for info in driver.list_segments() if info.key.broker == "broker-b"} == before
    assert {row["path"].split("/")[1] for row in report.details["removed"]} == {BROKER}


def test_executors_expire_what_this_process_expires_a_task_for_each_broker(spark: SparkSession, tmp_path: Path) -> None:
    left = []
    for runner in (SparkRunner(spark), None):
        path = tmp_path / ("here" if runner is None else "spark")
        tier, _ = tiered(path)
        tiered(path, broker="broker-b")
        report = expire(runner, tier=tier, max_bytes_per_topic=1)
        assert report.is_clean, report.problems
        left.append((report.done, [(info.key.path, info.size) for info in open_driver(tier).list_segments()]))
    assert left[0] == left[1]


class Killed(BaseException):
    """The end of the process, as far as a test can have it."""


class Dying:
    """A tier that answers no deletion after so many, or takes the job with it."""

    def __init__(self, driver: TierDriver, deletions: int, error: BaseException) -> None:
        self._driver, self._left, self._error = driver, deletions, error

    def __getattr__(self, name: str) -> object:
        return getattr(self._driver, name)

    def delete(self, key: SegmentKey) -> None:
        if self._left == 0:
            raise self._error
        self._left -= 1
        self._driver.delete(key)


@pytest.mark.parametrize("with_store", [True, False])
@pytest.mark.parametrize("deletions", range(6))
def test_a_run_that_was_killed_is_finished_by_the_next(made: JobWorld, deletions: int, with_store: bool) -> None:
    options = {"store": made.store} if with_store else {}
    made.use(Dying(made.driver, deletions, Killed()))  # type: ignore[arg-type]
    with pytest.raises(Killed):
        run(made, keep_hours=1, **options)
    assert verify_tier(made.driver).is_clean
    made.use(made.driver)
    report = run(made, keep_hours=1, **options)
    assert report.is_clean, report.problems
    assert verify_tier(made.driver).is_clean
    assert made.manifest().min_offset > 0


@pytest.mark.parametrize("deletions", range(6))
def test_a_run_that_was_cut_short_is_finished_by_the_next(made: JobWorld, deletions: int) -> None:
    made.use(Dying(made.driver, deletions, TierUnavailable("down")))  # type: ignore[arg-type]
    report = run(made, keep_hours=1)
    assert not report.is_clean
    assert verify_tier(made.driver).is_clean
    made.use(made.driver)
    assert run(made, keep_hours=1, grace_ms=0).is_clean
    assert verify_tier(made.driver).is_clean
    assert made.manifest().min_offset > 0


@pytest.mark.parametrize("with_store", [True, False])
@pytest.mark.parametrize("deletions", [0, 3, 4, 5, 7, 8, 9])
def test_a_queue_that_a_job_empties_and_dies_over_goes_on_counting(
    made: JobWorld, deletions: int, with_store: bool
) -> None:
    made.world.write(2, "payments", 2)  # Not in a manifest yet.
    made.world.clock.advance_ms(100 * HOUR_MS)
    made.use(Dying(made.driver, deletions, Killed("in the middle of it")))  # type: ignore[arg-type]
    with pytest.raises(Killed):
        run(made, keep_hours=1, **({"store": made.store} if with_store else {}))
    with MetadataStore(IN_MEMORY) as metadata:
        restore(made.driver, metadata)
        assert {queue.key: queue.max_offset for queue in metadata.queues()} == {QUEUE: 33, PAYMENTS: 7}
        files = FlatFileStore(made.driver, metadata, CLUSTER, BROKER, made.world.clock)
        assert {file.queue: file.commit_offset for file in files} == {QUEUE: 33, PAYMENTS: 7}


def test_nonsense_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(BadConfig, match="keep_hours"):
        expire(None, tier="file:///nowhere", keep_hours=0)
    with pytest.raises(BadConfig, match="max_bytes"):
        expire(None, tier="file:///nowhere", max_bytes_per_topic=0)
