"""Orphans: what nothing refers to is found and nothing else, and goes only by request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tier.tier_world import BROKER, CLUSTER, HOUR_MS, TierWorld
from tiermq.tier.index.compacted_index import companion_name
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import QueueKey, SegmentType, index_queue
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.retention.orphans import OrphanKind, OrphanReport, clean, find_orphans

QUEUE = QueueKey(CLUSTER, BROKER, "orders", 0)
LOG = SegmentType.COMMIT_LOG


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TierWorld]:
    made = TierWorld(tmp_path, log_bytes=700, unit_bytes=100)
    made.write(20)
    made.put_index()
    made.put_manifests()
    made.clock.advance_ms(48 * HOUR_MS)
    yield made
    made.close()


def found(world: TierWorld, metadata: MetadataStore | None = None, **more: Any) -> OrphanReport:
    return find_orphans(world.driver, metadata, clock=world.clock, **more)


@pytest.mark.parametrize("with_metadata", [True, False])
def test_a_tier_in_use_has_no_orphans(world: TierWorld, with_metadata: bool) -> None:
    world.write(20)  # Behind the manifests.
    world.clock.advance_ms(48 * HOUR_MS)
    assert found(world, world.metadata if with_metadata else None).is_clean


def test_a_segment_that_is_not_known_is_an_orphan_once_it_is_old_enough(world: TierWorld) -> None:
    stray = QUEUE.segment(LOG, 1 << 40)
    world.driver.write(stray, 0, [b"stray"])
    assert found(world, world.metadata).is_clean
    world.clock.advance_ms(24 * HOUR_MS)
    report = found(world, world.metadata)
    assert [(orphan.kind, orphan.path, orphan.size) for orphan in report.orphans] == [
        (OrphanKind.SEGMENT, stray.path, 5)
    ]
    assert report.size_bytes == 5
    assert clean(world.driver, report.orphans, world.metadata) == [stray.path]
    assert found(world, world.metadata).is_clean


def test_from_the_bucket_alone_only_what_the_manifest_rules_out_is_an_orphan(world: TierWorld) -> None:
    first = world.segments(LOG)[0].key
    world.metadata.mark_deleted(first)
    world.metadata.delete_segment(first)  # An expiry whose object came back from a listing that was behind.
    world.put_manifests()
    beyond = QUEUE.segment(LOG, 1 << 40)
    world.driver.write(beyond, 0, [b"the manifest may be behind"])
    world.clock.advance_ms(48 * HOUR_MS)
    assert [orphan.path for orphan in found(world).orphans] == [first.path]


def test_a_deletion_that_was_not_finished_is_found(world: TierWorld) -> None:
    first = world.segments(LOG)[0].key
    world.metadata.mark_deleted(first)
    world.put_manifests()
    for metadata in (world.metadata, None):
        assert [(orphan.kind, orphan.path) for orphan in found(world, metadata).orphans] == [
            (OrphanKind.DELETED, first.path)
        ]
    clean(world.driver, found(world, world.metadata).orphans, world.metadata)
    assert world.metadata.segment(first) is None
    assert first not in world.listed()


@pytest.mark.parametrize("with_metadata", [True, False])
def test_rows_without_objects_are_missing(world: TierWorld, with_metadata: bool) -> None:
    lost, cut = world.segments(LOG)[1], world.segments(LOG)[2]
    world.driver.delete(lost.key)
    world.driver.trim(cut.key, 10)
    report = found(world, world.metadata if with_metadata else None)
    source = "metadata" if with_metadata else "manifest"
    assert [(m.path, m.expected_bytes, m.found_bytes, m.known_to) for m in report.missing] == [
        (lost.key.path, lost.size, 0, source),
        (cut.key.path, cut.size, 10, source),
    ]


def test_what_came_to_be_known_meanwhile_is_not_deleted(world: TierWorld) -> None:
    stray = QUEUE.segment(LOG, 1 << 40)
    world.driver.write(stray, 0, [b"stray"])
    world.clock.advance_ms(48 * HOUR_MS)
    orphans = found(world, world.metadata).orphans
    world.metadata.add_segment(stray)
    assert clean(world.driver, orphans, world.metadata) == []
    assert stray in world.listed()


def test_the_manifest_of_a_queue_that_is_gone_is_an_orphan(world: TierWorld) -> None:
    world.files.destroy("orders", 0)
    report = found(world, world.metadata)
    assert [(orphan.kind, orphan.path) for orphan in report.orphans] == [(OrphanKind.MANIFEST, manifest_name(QUEUE))]
    clean(world.driver, report.orphans)
    assert manifest_name(QUEUE) not in world.driver.list_objects()


def test_the_companion_of_an_index_file_that_is_gone_is_an_orphan_but_not_that_of_one_to_come(world: TierWorld) -> None:
    world.clock.advance_ms(1)
    world.put_index()
    queue = index_queue(CLUSTER, BROKER)
    first, last = world.metadata.segments(queue)
    to_come = queue.segment(SegmentType.INDEX, last.end)
    world.driver.put_object(companion_name(to_come), b"{}")
    world.driver.delete(first.key)
    world.metadata.mark_deleted(first.key)
    world.metadata.delete_segment(first.key)
    world.put_manifests()
    world.clock.advance_ms(48 * HOUR_MS)
    report = found(world, world.metadata)
    assert [(orphan.kind, orphan.path) for orphan in report.orphans] == [
        (OrphanKind.COMPANION, companion_name(first.key))
    ]


def test_a_queue_whose_manifest_cannot_be_read_is_left_alone(world: TierWorld) -> None:
    world.driver.put_object(manifest_name(QUEUE), b"no manifest")
    world.driver.write(QUEUE.segment(LOG, 1 << 40), 0, [b"who knows"])
    world.clock.advance_ms(48 * HOUR_MS)
    report = found(world, world.metadata)
    assert (report.orphans, report.unread) == ([], [manifest_name(QUEUE)])


def test_other_brokers_are_nobodys_orphans(world: TierWorld) -> None:
    world.driver.write(QueueKey(CLUSTER, "broker-b", "orders", 0).segment(LOG, 0), 0, [b"theirs"])
    world.clock.advance_ms(48 * HOUR_MS)
    scope = TierScope(CLUSTER, BROKER)
    assert find_orphans(world.driver, world.metadata, scope, clock=world.clock).is_clean
