"""A queue under verification: damage at every kind of place is found and named, and nothing else is."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tier.flat.flat_world import batch
from tier.tier_world import TierWorld, record
from tier.verify_world import (
    COUNT,
    LOG,
    QUEUE,
    bare,
    bytes_of,
    kinds,
    log_key,
    notes,
    unit_key,
)
from tiermq.message.record_head import read_head
from tiermq.tier.verify.verify import verify_tier

# Damage. Each case: what is done to the bytes, and what must be said of it even without checksums.

RECORD = 0  # The first record of the first commit-log segment.


def body_bit(world: TierWorld) -> None:
    data = bytes_of(world, log_key(world))
    data[read_head(data, RECORD).body_position] ^= 1


def topic_bit(world: TierWorld) -> None:
    data = bytes_of(world, log_key(world))
    head = read_head(data, RECORD)
    data[head.properties_position - 3] ^= 1


def queue_id(world: TierWorld) -> None:
    struct.pack_into(">i", bytes_of(world, log_key(world)), RECORD + 12, 1)


def queue_offset(world: TierWorld) -> None:
    struct.pack_into(">q", bytes_of(world, log_key(world)), RECORD + 20, 5)


def own_offset(world: TierWorld) -> None:
    struct.pack_into(">q", bytes_of(world, log_key(world)), RECORD + 28, 1)


def record_size(world: TierWorld) -> None:
    data = bytes_of(world, log_key(world))
    struct.pack_into(">i", data, RECORD, read_head(data, RECORD).size + 1)


def magic(world: TierWorld) -> None:
    bytes_of(world, log_key(world))[RECORD + 4] ^= 0xFF


def tag_property(world: TierWorld) -> None:
    data = bytes_of(world, log_key(world))
    at = data.index(b"TAGS\x01t0")
    data[at + 6] = ord("9")


def zeros(world: TierWorld) -> None:
    data = bytes_of(world, log_key(world))
    data[300:900] = bytes(600)


def unit_offset(world: TierWorld) -> None:
    struct.pack_into(">q", bytes_of(world, unit_key(world)), 40, 7)


def unit_offset_forward(world: TierWorld) -> None:
    struct.pack_into(">q", bytes_of(world, unit_key(world)), 40, 1000)


def unit_offset_far(world: TierWorld) -> None:
    struct.pack_into(">q", bytes_of(world, unit_key(world)), 40, 1 << 50)


def unit_size(world: TierWorld) -> None:
    bytes_of(world, unit_key(world))[51] ^= 1


def unit_size_negative(world: TierWorld) -> None:
    struct.pack_into(">i", bytes_of(world, unit_key(world)), 48, -5)


def unit_tag(world: TierWorld) -> None:
    bytes_of(world, unit_key(world))[59] ^= 1


def units_swapped(world: TierWorld) -> None:
    data = bytes_of(world, unit_key(world))
    data[20:40], data[40:60] = data[40:60], data[20:40]


def records_lost(world: TierWorld) -> None:
    data = bytes_of(world, log_key(world, -1))
    del data[len(data) - 100 :]


def middle_cut(world: TierWorld) -> None:
    data = bytes_of(world, log_key(world, 1))
    del data[len(data) - 100 :]


def middle_gone(world: TierWorld) -> None:
    world.driver.delete(log_key(world, 1))


def units_gone(world: TierWorld) -> None:
    world.driver.delete(unit_key(world, 1))


def units_misaligned(world: TierWorld) -> None:
    del bytes_of(world, unit_key(world, 1))[-7:]


def blank_unit(world: TierWorld) -> None:
    bytes_of(world, unit_key(world))[40:60] = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


DAMAGES = [
    (body_bit, {"damaged_record"}),
    (topic_bit, {"foreign_record"}),
    (queue_id, {"foreign_record"}),
    (queue_offset, {"unit_disagrees"}),
    (own_offset, {"damaged_record"}),
    (record_size, {"damaged_record"}),
    (magic, {"damaged_record"}),
    (tag_property, {"unit_disagrees"}),
    (zeros, {"damaged_record"}),
    (unit_offset, {"unit_disagrees"}),
    (unit_offset_forward, {"unit_disagrees"}),
    (unit_offset_far, {"unit_disagrees"}),
    (unit_size, {"unit_disagrees"}),
    (unit_size_negative, {"unit_disagrees"}),
    (unit_tag, {"unit_disagrees"}),
    (units_swapped, {"unit_disagrees"}),
    (records_lost, {"damaged_record"}),
    (middle_cut, {"hole", "damaged_record"}),
    (middle_gone, {"hole", "unit_without_record"}),
    (units_gone, {"hole"}),
    (units_misaligned, {"misaligned", "hole"}),
]


@pytest.mark.parametrize(("damage", "expected"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_damage_is_found_in_the_bytes_alone(world: TierWorld, damage: object, expected: set[str]) -> None:
    bare(world)
    damage(world)  # type: ignore[operator]
    report = verify_tier(world.driver, with_index=False)
    assert expected <= kinds(report), report.problems
    assert not report.is_clean
    assert report.problem_count <= 12  # One flaw is not reported as a flood of others.
    assert all("orders" in finding.where for finding in report.problems)


@pytest.mark.parametrize("damage", [damage for damage, _ in DAMAGES], ids=[damage.__name__ for damage, _ in DAMAGES])
def test_damage_is_found_with_manifests_as_well(world: TierWorld, damage: object) -> None:
    damage(world)  # type: ignore[operator]
    report = verify_tier(world.driver)
    found = kinds(report)
    assert found & {"checksum", "short_segment", "missing_segment"}


def test_a_property_that_no_checksum_of_the_record_covers_is_found_by_the_segments(world: TierWorld) -> None:
    data = bytes_of(world, log_key(world))
    at = data.index(b"UNIQ_KEY\x01")
    data[at + 10] ^= 1
    assert kinds(verify_tier(world.driver)) == {"checksum", "index_item"}


def test_a_blank_unit_outside_of_every_gap_is_found(world: TierWorld) -> None:
    blank_unit(world)
    assert "blank_without_gap" in kinds(verify_tier(world.driver))


def test_blank_units_of_a_recorded_gap_are_as_they_should_be(world: TierWorld) -> None:
    assert world.file().skip_to(COUNT + 5, "lost before it was uploaded") is not None
    world.write(3)
    world.put_manifests()
    report = verify_tier(world.driver)
    assert report.problems == []
    assert report.counts["blank_units"] == 5


def test_a_flaw_is_located_to_the_message(world: TierWorld) -> None:
    bare(world)
    body_bit(world)
    (finding,) = verify_tier(world.driver).problems
    assert finding.where == f"{QUEUE.directory}/COMMIT_LOG"
    assert "queue offset 0, log offset 0" in finding.text


# What is no damage


def test_a_torn_tail_is_a_note(world: TierWorld) -> None:
    world.driver.write(log_key(world, -1), world.segments(LOG)[-1].size, [record("orders", 0, COUNT, 5)[:50]])
    report = verify_tier(world.driver)
    assert (kinds(report), notes(report)) == (set(), {"torn_tail"})


def test_records_that_wait_for_their_units_are_a_note(world: TierWorld) -> None:
    last = world.segments(LOG)[-1]
    data = batch(COUNT, 1, last.end, records=[record("orders", 0, COUNT, 5)]).data
    world.driver.write(last.key, last.size, [data])
    report = verify_tier(world.driver)
    assert (kinds(report), notes(report)) == (set(), {"records_without_units"})


def test_a_repeated_upload_of_rocketmq_is_a_note(tmp_path: Path) -> None:
    world = TierWorld(tmp_path)
    file = world.write(3)
    doubled = [record("orders", 0, 3 + at, 5) for at in range(2)]
    start = file.log.commit_offset
    first, second = batch(3, 2, start, records=doubled), batch(3, 2, start + sum(map(len, doubled)), records=doubled)
    world.driver.write(log_key(world), start, [first.data, second.data])
    world.driver.write(unit_key(world), 60, [second.units])
    report = verify_tier(world.driver)
    assert (kinds(report), notes(report)) == (set(), {"no_manifest", "unreferenced"})
    world.close()


@pytest.mark.parametrize("to_mark", [False, True])
def test_the_end_mark_of_a_sealed_segment_is_stepped_over(tmp_path: Path, to_mark: bool) -> None:
    world = TierWorld(tmp_path)
    file = world.write(2)
    mark = struct.pack(">iIq", 16, 0xCBD43194, 99)
    start = file.log.commit_offset
    more = batch(2, 1, start + 16, records=[record("orders", 0, 2, 5)])
    units = bytearray(more.units)
    if to_mark:
        struct.pack_into(">q", units, 0, start)
    world.driver.write(log_key(world), start, [mark, more.data])
    world.driver.write(unit_key(world), 40, [bytes(units)])
    report = verify_tier(world.driver)
    assert report.problems == []
    assert report.counts["records"] == 3
    world.close()


def test_units_that_outlive_their_records_are_counted(world: TierWorld) -> None:
    first = log_key(world)
    world.metadata.mark_deleted(first)
    world.driver.delete(first)
    world.metadata.delete_segment(first)
    world.put_manifests()
    report = verify_tier(world.driver)
    assert report.problems == []
    assert report.counts["expired_units"] > 0
    assert report.counts["stale_items"] > 0


def test_an_expiry_that_a_crash_kept_from_the_manifest_is_a_note(world: TierWorld) -> None:
    world.driver.delete(log_key(world))
    report = verify_tier(world.driver, with_index=False)
    assert (kinds(report), notes(report)) == (set(), {"head_is_gone"})


def test_messages_newer_than_the_manifest_are_a_note(world: TierWorld) -> None:
    world.write(1)
    report = verify_tier(world.driver)
    assert (kinds(report), notes(report)) == (set(), {"beyond_manifest"})


def test_a_segment_that_is_being_deleted_is_a_note(world: TierWorld) -> None:
    world.metadata.mark_deleted(log_key(world))
    world.put_manifests()
    assert notes(verify_tier(world.driver)) == {"being_deleted"}


def test_records_larger_than_a_window_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("checked_segment", "queue_verifier", "index_verifier"):
        monkeypatch.setattr(f"tiermq.tier.verify.{module}.VERIFY_READ_BYTES", 100)
    monkeypatch.setattr("tiermq.tier.queue.units.CHUNK_UNITS", 5)
    world = TierWorld(tmp_path)
    for size in (10, 5000, 1, 900):
        world.write(2, size=size)
    world.put_manifests()
    report = verify_tier(world.driver)
    assert report.problems == report.notes == []
    assert report.counts["records"] == 8
    world.close()
