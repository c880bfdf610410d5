"""Verification of a whole tier: what is read, what is reported, what it takes to fail."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from servers.faulty_driver import Down, FaultyDriver
from tier.tier_world import BROKER, CLUSTER, TierWorld
from tier.verify_world import (
    COUNT,
    INDEX,
    QUEUE,
    bare,
    bytes_of,
    index_key,
    kinds,
    log_key,
    notes,
    unit_key,
)
from tiermq.errors import CorruptSegment, TierUnavailable
from tiermq.tier.driver.tier_url import bare_driver, open_driver
from tiermq.tier.names import SegmentKey
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.verify.verify import verify_tier


def test_a_sound_tier_is_clean_and_every_byte_was_read(world: TierWorld) -> None:
    report = verify_tier(world.driver)
    assert report.problems == report.notes == []
    assert report.counts["bytes"] == sum(info.size for info in world.driver.list_segments())
    assert (report.counts["records"], report.counts["units"], report.counts["queues"]) == (35, 35, 2)
    assert (report.counts["index_files"], report.counts["index_items"], report.counts["stale_items"]) == (1, 70, 0)


def test_a_tier_without_manifests_is_sound_too_but_its_index_names_unknown_topics(world: TierWorld) -> None:
    bare(world)
    report = verify_tier(world.driver)
    assert report.problems == []
    assert notes(report) == {"no_manifest"}
    assert report.counts["stale_items"] == 70


def test_the_metadata_of_a_broker_knows_what_the_index_means(world: TierWorld) -> None:
    bare(world)
    report = verify_tier(world.driver, metadata=world.metadata)
    assert report.problems == []
    assert report.counts["stale_items"] == 0


def test_one_topic_can_be_verified_alone(world: TierWorld) -> None:
    bytes_of(world, log_key(world))[100] ^= 1
    assert verify_tier(world.driver, TierScope(topic="payments")).is_clean
    report = verify_tier(world.driver, TierScope(CLUSTER, BROKER, "orders"))
    assert kinds(report) >= {"checksum", "damaged_record"}
    assert report.counts["index_files"] == 0


def test_the_tier_of_another_broker_is_not_looked_at(world: TierWorld) -> None:
    assert verify_tier(world.driver, TierScope(broker="broker-b")).counts["queues"] == 0


def test_a_tier_that_the_real_rocketmq_wrote_is_sound() -> None:
    root = Path(__file__).parent.parent.parent / "golden" / "rocketmq-5.3.3-tier" / "tier"
    report = verify_tier(open_driver(root.as_uri()))
    assert report.problems == []
    assert notes(report) == {"no_manifest"}
    assert (report.counts["records"], report.counts["index_files"], report.counts["index_items"]) == (116, 5, 280)


def test_every_single_bit_of_a_queue_matters(world: TierWorld) -> None:
    chance = random.Random(7)
    keys = [log_key(world), log_key(world, 1), unit_key(world), index_key(world)]
    for _ in range(40):
        key = chance.choice(keys)
        data = bytes_of(world, key)
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        data[at] ^= bit
        report = verify_tier(world.driver, metadata=world.metadata)
        if key.type is not INDEX:  # The index's manifest row has no checksum in this world.
            assert "checksum" in kinds(report)
        data[at] ^= bit
    assert verify_tier(world.driver).is_clean


# Small objects, index


@pytest.mark.parametrize("part", ["manifest", "lease", "INDEX"])
def test_a_small_object_that_cannot_be_read_is_found(world: TierWorld, part: str) -> None:
    name = next(
        name for name in world.driver.list_objects() if part in name.rsplit("/", 2)[-1 if part != "INDEX" else 1]
    )
    world.driver.put_object(name, b"{}")
    report = verify_tier(world.driver)
    assert [(finding.kind, finding.where) for finding in report.problems if finding.kind == "manifest"] == [
        ("manifest", name)
    ]


@pytest.mark.parametrize(
    ("later_ms", "further", "expected"), [(1, 0, {"time_index"}), (0, 1, {"time_index"}), (-1, 0, set())]
)
def test_a_time_entry_that_would_mislead_a_search_is_found(
    world: TierWorld, later_ms: int, further: int, expected: set[str]
) -> None:
    entry = world.metadata.time_entries(QUEUE)[0]
    changed = type(entry)(entry.queue_offset, entry.store_ms + later_ms, entry.log_offset + further)
    world.metadata.add_time_entries(QUEUE, [changed])
    world.put_manifests()
    assert kinds(verify_tier(world.driver)) == expected


def test_a_manifest_that_claims_too_much_is_found(world: TierWorld) -> None:
    world.metadata.update_queue(QUEUE, max_offset=COUNT + 9)
    world.put_manifests()
    assert kinds(verify_tier(world.driver)) == {"offsets"}


# A tier that changes or fails meanwhile


def test_a_segment_that_expires_while_it_is_read_is_a_note(world: TierWorld) -> None:
    class Expiring(FaultyDriver):
        def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
            if key == log_key(world):
                self.inner.delete(key)
            return super().read(key, position, length)

    report = verify_tier(Expiring(world.driver), with_index=False)
    assert "changed_meanwhile" in notes(report)
    assert kinds(report) <= {"unit_without_record"}


def test_bytes_that_the_tier_lists_and_does_not_give_are_a_problem(world: TierWorld) -> None:
    class Broken(FaultyDriver):
        def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
            if key == log_key(world, 1):
                raise CorruptSegment("half an object")
            return super().read(key, position, length)

    assert "unreadable" in kinds(verify_tier(Broken(world.driver), with_index=False))


def test_a_tier_that_cannot_be_reached_raises(world: TierWorld) -> None:
    with pytest.raises(TierUnavailable):
        verify_tier(FaultyDriver(world.driver, Down()))


def test_progress_is_reported_in_bytes_and_comes_to_the_total(world: TierWorld) -> None:
    reported: list[tuple[int, int]] = []
    verify_tier(world.driver, progress=lambda done, total: reported.append((done, total)))
    assert sum(done for done, _ in reported) == reported[0][1]


def test_a_tier_in_an_object_store_is_verified_over_its_parts(tmp_path: Path) -> None:
    driver = bare_driver(f"memory://{tmp_path.name}?driver=object", {})
    world = TierWorld(tmp_path, driver, log_bytes=1600, unit_bytes=200)
    for _ in range(10):
        world.write(3)
    world.put_manifests()
    parts = sum(info.part_count for info in driver.list_segments())
    assert parts > 10
    for segment in world.file().log.unsealed():
        world.file().log.seal(segment)
    assert sum(info.part_count for info in driver.list_segments()) < parts
    report = verify_tier(driver)
    assert (report.problems, report.counts["records"]) == ([], 30)
    world.close()
