"""Verification: a sound tier is clean, and damage at every kind of place is found and named."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tier.flat.flat_world import batch
from tier.tier_world import BROKER, CLUSTER, TierWorld, record
from tiermq.errors import TierUnavailable
from tiermq.message.record_head import read_head
from tiermq.tier.driver.faulty import Down, FaultyDriver
from tiermq.tier.index.index_item import HEADER_BYTES
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType, index_queue
from tiermq.tier.tier_listing import TierScope
from tiermq.tier.verify import verify_tier
from tiermq.tier.verify_report import VerifyReport

QUEUE = QueueKey(CLUSTER, BROKER, "orders", 0)
LOG, UNITS, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
COUNT = 30


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TierWorld]:
    """Two queues over several segments, manifests, an index file and a lease."""
    made = TierWorld(tmp_path, log_bytes=1600, unit_bytes=200)
    for _ in range(COUNT // 10):
        made.clock.advance_ms(1000)
        made.write(10)
    made.write(5, "payments", 2)
    made.put_index()
    made.put_manifests()
    BrokerLease(made.driver, CLUSTER, BROKER, "me", clock=made.clock).acquire()
    yield made
    made.close()


def bare(world: TierWorld) -> None:
    """Take manifests away, as RocketMQ has none: then no checksum helps, every flaw must be seen in the bytes."""
    for name in world.driver.list_objects():
        world.driver.delete_object(name)


def bytes_of(world: TierWorld, key: SegmentKey) -> bytearray:
    data = world.driver._place.segments[key].data
    assert isinstance(data, bytearray)
    return data


def log_key(world: TierWorld, number: int = 0) -> SegmentKey:
    return world.segments(LOG)[number].key


def unit_key(world: TierWorld, number: int = 0) -> SegmentKey:
    return world.segments(UNITS)[number].key


def index_key(world: TierWorld) -> SegmentKey:
    return world.metadata.segments(index_queue(CLUSTER, BROKER))[0].key


def kinds(report: VerifyReport) -> set[str]:
    return {finding.kind for finding in report.problems}


def notes(report: VerifyReport) -> set[str]:
    return {finding.kind for finding in report.notes}


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
    assert report.problem_count <= 12  # One flaw is not told as a flood of others.
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


def test_where_the_flaw_lies_is_said_to_the_message(world: TierWorld) -> None:
    bare(world)
    body_bit(world)
    (finding,) = verify_tier(world.driver).problems
    assert finding.where == f"{QUEUE.directory}/COMMIT_LOG"
    assert "queue offset 0, log offset 0" in finding.text


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


def test_a_time_entry_that_is_not_true_is_found(world: TierWorld) -> None:
    entry = world.metadata.time_entries(QUEUE)[0]
    world.metadata.add_time_entries(QUEUE, [type(entry)(entry.queue_offset, entry.store_ms + 1, entry.log_offset)])
    world.put_manifests()
    assert kinds(verify_tier(world.driver)) == {"time_index"}


def test_a_manifest_that_claims_too_much_is_found(world: TierWorld) -> None:
    world.metadata.update_queue(QUEUE, max_offset=COUNT + 9)
    world.put_manifests()
    assert kinds(verify_tier(world.driver)) == {"offsets"}


@pytest.mark.parametrize(
    ("at", "value", "expected"),
    [
        pytest.param(0, b"\x00", "index_structure", id="magic"),
        pytest.param(3, b"\x89", "index_structure", id="still open"),
        pytest.param(27, b"\x01", "index_structure", id="item count"),
        pytest.param(23, b"\x01", "index_structure", id="slot count"),
        pytest.param(HEADER_BYTES + 11, b"\x01", "index_structure", id="position of a slot"),
        pytest.param(HEADER_BYTES + 7, b"\x05", "index_structure", id="length of a slot"),
        pytest.param(HEADER_BYTES + 56 + 3, b"\x77", "index_item", id="hash of an item"),
        pytest.param(HEADER_BYTES + 56 + 11, b"\x05", None, id="queue id: of no queue, so it is stale"),
        pytest.param(HEADER_BYTES + 56 + 19, b"\x01", "index_item", id="offset of an item"),
        pytest.param(HEADER_BYTES + 56 + 23, b"\x01", "index_item", id="size of an item"),
        pytest.param(HEADER_BYTES + 56 + 25, b"\x05", "index_item", id="time of an item"),
        pytest.param(19, b"\x00", "index_structure", id="newest time"),
    ],
)
def test_damage_of_an_index_file_is_found(world: TierWorld, at: int, value: bytes, expected: str | None) -> None:
    data = bytes_of(world, index_key(world))
    if at == 19:
        data[12:20] = struct.pack(">q", 1)
    else:
        data[at : at + 1] = value
    found = kinds(verify_tier(world.driver))
    assert expected is None or expected in found
    assert found <= {"index_structure", "index_item"}


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
    from tiermq.errors import CorruptSegment

    class Broken(FaultyDriver):
        def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
            if key == log_key(world, 1):
                raise CorruptSegment("half an object")
            return super().read(key, position, length)

    assert "unreadable" in kinds(verify_tier(Broken(world.driver), with_index=False))


def test_a_tier_that_cannot_be_reached_raises(world: TierWorld) -> None:
    with pytest.raises(TierUnavailable):
        verify_tier(FaultyDriver(world.driver, Down()))


def test_progress_is_told_in_bytes_and_comes_to_the_total(world: TierWorld) -> None:
    told: list[tuple[int, int]] = []
    verify_tier(world.driver, progress=lambda done, total: told.append((done, total)))
    assert sum(done for done, _ in told) == told[0][1]


def test_records_larger_than_a_window_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("checked_segment", "verify_queue", "unit_cursor", "verify_index"):
        monkeypatch.setattr(f"tiermq.tier.{module}.CHUNK_BYTES", 100)
    world = TierWorld(tmp_path)
    for size in (10, 5000, 1, 900):
        world.write(2, size=size)
    world.put_manifests()
    report = verify_tier(world.driver)
    assert report.problems == report.notes == []
    assert report.counts["records"] == 8
    world.close()
