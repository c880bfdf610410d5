"""The uploaded index as a job finds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.job_world import INDEX, JobWorld
from tier.tier_world import BROKER, CLUSTER
from tiermq.pipeline.index_files import (
    encoded_companion,
    queue_tails_of,
    read_index_files,
    remove_index_file,
    write_index_manifest,
)
from tiermq.pipeline.leased_broker import LeasedBroker, homes_of, lease_broker
from tiermq.tier.index.compacted_index import UNREGISTERED, companion_name
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, QueueCoverage
from tiermq.tier.index.index_recovery import INDEX_DIRECTORY, RECORD_NAME
from tiermq.tier.names import SegmentType


@pytest.fixture
def made(tmp_path: Path) -> Iterator[JobWorld]:
    world = JobWorld.filled(tmp_path)
    world.world.put_index()
    yield world
    world.close()


@pytest.fixture
def held(made: JobWorld) -> Iterator[LeasedBroker]:
    (home,) = homes_of(made.driver, store=made.store)
    with lease_broker(made.driver, home, "test", clock=made.world.clock) as held:
        yield held


def record(end: int) -> CoverageRecord:
    return CoverageRecord.of(Coverage({("orders", 0): QueueCoverage(0, end)}), ())


def test_whole_files_and_broken_ones_are_distinguished(made: JobWorld, held: LeasedBroker) -> None:
    end = read_index_files(held).end
    made.driver.write(INDEX.segment(SegmentType.INDEX, end), 0, [b"an upload that was cut"])
    found = read_index_files(held)
    assert [file.key.base for file in found.whole] == made.index_bases()[:2]
    assert [(file.slots, file.item_count) for file in found.whole] == [(7, 70), (7, 70)]
    assert [info.key.base for info in found.broken] == [end]
    assert found.end == end + len(b"an upload that was cut")


def test_the_newest_registered_file_reports_what_is_indexed(made: JobWorld, held: LeasedBroker) -> None:
    first, second = (INDEX.segment(SegmentType.INDEX, base) for base in made.index_bases())
    made.driver.put_object(companion_name(first), record(1).encode())
    made.driver.put_object(companion_name(second), record(2).encode())
    assert read_index_files(held).uploaded_coverage(()).queues[0][3] == 2
    made.driver.put_object(companion_name(second), encoded_companion(record(2), **{UNREGISTERED: True}))
    assert read_index_files(held).uploaded_coverage(()).queues[0][3] == 1


def test_rocketmq_s_file_covers_what_was_committed_but_not_for_certain(made: JobWorld, held: LeasedBroker) -> None:
    for name in made.driver.list_objects(f"{INDEX.directory}/"):
        made.driver.delete_object(name)
    tails = queue_tails_of(held)
    assert {(tail.topic, tail.queue_id) for tail in tails} == {("orders", 0), ("payments", 2)}
    coverage = read_index_files(held).uploaded_coverage(tails).coverage()
    assert {queue.end for queue in coverage.queues.values()} == {tail.committed_end for tail in tails}
    assert not coverage.is_complete()


def test_what_the_store_has_of_its_index_is_seen(made: JobWorld, held: LeasedBroker) -> None:
    directory = made.path / "store" / INDEX_DIRECTORY
    directory.mkdir()
    (directory / "123").write_bytes(b"")
    (directory / RECORD_NAME).write_bytes(CoverageRecord((), (), next_base=1 << 40).encode())
    found = read_index_files(held)
    assert not found.is_free(123)
    assert not found.is_free(found.whole[0].begin_ms)
    assert found.is_free(124)
    assert found.end == 1 << 40


def test_a_file_goes_with_its_companion_and_its_row(made: JobWorld, held: LeasedBroker) -> None:
    key = INDEX.segment(SegmentType.INDEX, 0)
    for _ in range(2):
        remove_index_file(held, key)
        write_index_manifest(held)
    assert 0 not in made.index_bases()
    assert made.driver.get_object(companion_name(key)) is None
    assert held.metadata.segment(key) is None
    manifest = made.manifest(INDEX)
    assert (manifest.key.cluster, manifest.key.broker) == (CLUSTER, BROKER)
    assert [row.key.base for row in manifest.segments] == made.index_bases()
