"""Manifests rebuilt, and what their checksums may be made to say."""

from __future__ import annotations

from dataclasses import replace

from tier.tier_world import TierWorld
from tier.verify_world import QUEUE, bytes_of, log_key
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.metadata.metadata_values import Gap
from tiermq.tier.names import QueueKey
from tiermq.tier.repair.manifest_repair import (
    rebuild_manifest,
    says_the_same,
    with_row,
    write_manifest,
    write_metadata,
)
from tiermq.tier.repair.queue_facts import read_facts
from tiermq.tier.verify.verify import verify_tier


def test_a_rebuilt_manifest_reports_of_a_sound_queue_what_the_old_one_reported(world: TierWorld) -> None:
    facts = read_facts(world.driver, QUEUE)
    made = rebuild_manifest(world.driver, facts, world.clock)
    assert facts.manifest is not None
    assert (made.min_offset, made.max_offset, made.topic_id) == (0, 30, facts.manifest.topic_id)
    assert {(row.key, row.size, row.crc32, row.status) for row in made.segments} == {
        (row.key, row.size, row.crc32, row.status) for row in facts.manifest.segments if row.size
    }
    again = rebuild_manifest(world.driver, replace(facts, manifest=made, rows=made.segments), world.clock)
    assert says_the_same(made, again)


def test_a_lost_manifest_learns_of_its_topic_from_metadata_or_siblings(world: TierWorld) -> None:
    world.write(2, "orders", 1)
    world.put_manifests()
    known = read_facts(world.driver, QUEUE).manifest
    assert known is not None
    world.driver.delete_object(manifest_name(QUEUE))
    facts = read_facts(world.driver, QUEUE)
    assert rebuild_manifest(world.driver, facts, world.clock).topic_id == known.topic_id
    assert rebuild_manifest(world.driver, facts, world.clock, world.metadata).topic_id == known.topic_id
    other = QueueKey(QUEUE.cluster, QUEUE.broker, "payments", 2)
    world.driver.delete_object(manifest_name(other))
    assert rebuild_manifest(world.driver, read_facts(world.driver, other), world.clock).topic_id == -1


def test_records_that_lost_their_checksum_keep_it_as_a_witness(world: TierWorld) -> None:
    data = bytes_of(world, log_key(world))
    data[data.index(b"UNIQ_KEY\x01") + 10] ^= 1
    facts = read_facts(world.driver, QUEUE)
    made = rebuild_manifest(world.driver, facts, world.clock)
    row = {row.key: row for row in made.segments}[log_key(world)]
    assert facts.manifest is not None
    assert row == {row.key: row for row in facts.manifest.segments}[log_key(world)]


def test_what_is_written_is_read_by_a_verification_and_by_the_metadata(world: TierWorld) -> None:
    world.driver.put_object(manifest_name(QUEUE), b"{}")
    facts = read_facts(world.driver, QUEUE, world.metadata)
    made = rebuild_manifest(world.driver, facts, world.clock, world.metadata, [Gap(100, 200, "gone", 5)])
    kept = write_manifest(world.driver, facts, made, "a test", None, world.clock, "damaged-1")
    stored = world.driver.get_object(kept)
    assert stored is not None
    assert stored.data == b"{}"
    write_metadata(world.metadata, made)
    write_metadata(world.metadata, made)
    assert [(gap.from_offset, gap.to_offset) for gap in world.metadata.gaps(QUEUE)] == [(100, 200)]
    assert verify_tier(world.driver, metadata=world.metadata).problems == []


def test_one_row_is_put_into_a_manifest_or_replaces_its_own(world: TierWorld) -> None:
    manifest = read_facts(world.driver, QUEUE).manifest
    assert manifest is not None
    row = replace(manifest.segments[0], size=1)
    changed = with_row(manifest, row)
    assert len(changed.segments) == len(manifest.segments)
    assert row in changed.segments
