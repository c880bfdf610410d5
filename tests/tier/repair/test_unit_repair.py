"""Units rebuilt from records: kept where they are the better witness, blank where nothing is left."""

from __future__ import annotations

from tier.repair.repair_world import RepairWorld
from tier.verify_world import COUNT, QUEUE, UNITS, bytes_of, log_key, unit_key
from tiermq.consumequeue.unit import PRE_BLANK
from tiermq.tier.repair.queue_facts import read_facts
from tiermq.tier.repair.queue_repair import changed_segments, describe_offsets, rebuild_units
from tiermq.tier.repair.repair import run_repair
from tiermq.tier.repair.repair_plan import RepairAction, RepairKind
from tiermq.tier.verify.verify import verify_tier


def test_all_units_follow_from_the_records(made: RepairWorld) -> None:
    expected = b"".join(made.before[segment.key.path] for segment in made.world.segments(UNITS))
    for segment in made.world.segments(UNITS):
        made.world.driver.delete(segment.key)
    facts = read_facts(made.world.driver, QUEUE)
    units = rebuild_units(made.world.driver, facts)
    assert units is not None
    assert (bytes(units.data), units.blanked, units.lost) == (expected, [], [])
    # The rows remember where the segments began, so that the same ones come back.
    assert [base for base, _ in changed_segments(made.world.driver, facts, units)] == [
        segment.key.base for segment in made.world.segments(UNITS)
    ]


def test_a_queue_without_any_trace_of_its_units_gets_one_segment(made: RepairWorld) -> None:
    for segment in made.world.segments(UNITS):
        made.world.driver.delete(segment.key)
    for name in made.world.driver.list_objects():
        made.world.driver.delete_object(name)
    facts = read_facts(made.world.driver, QUEUE)
    units = rebuild_units(made.world.driver, facts)
    assert units is not None
    assert [(base, len(data)) for base, data in changed_segments(made.world.driver, facts, units)] == [(0, COUNT * 20)]


def test_the_unit_of_a_lost_record_is_kept_and_the_loss_is_reported(made: RepairWorld) -> None:
    bytes_of(made.world, log_key(made.world))[100] ^= 1
    units = rebuild_units(made.world.driver, read_facts(made.world.driver, QUEUE))
    assert units is not None
    assert units.lost == [0]
    assert bytes(units.data[:20]) == made.before[unit_key(made.world).path][:20]


def test_where_neither_record_nor_unit_is_left_a_blank_unit_and_a_gap_stand(made: RepairWorld) -> None:
    bytes_of(made.world, log_key(made.world))[100] ^= 1
    bytes_of(made.world, unit_key(made.world))[:20] = bytes(20)
    outcome = run_repair(made.world.driver, RepairAction(RepairKind.UNITS, QUEUE), clock=made.world.clock)
    assert any("a gap for queue offsets 0 to 1" in change for change in outcome.changes)
    assert bytes(bytes_of(made.world, unit_key(made.world))[:20]) == PRE_BLANK
    manifest = read_facts(made.world.driver, QUEUE).manifest
    assert manifest is not None
    assert [(gap.from_offset, gap.to_offset) for gap in manifest.gaps] == [(0, 1)]
    found = {finding.kind for finding in verify_tier(made.world.driver, with_index=False).problems}
    assert found == {"checksum"}  # The record is still damaged, and its segment still has its witness.


def test_a_queue_of_nothing_has_no_units(made: RepairWorld) -> None:
    for info in list(made.world.driver.list_segments()):
        made.world.driver.delete(info.key)
    for name in made.world.driver.list_objects():
        made.world.driver.delete_object(name)
    assert rebuild_units(made.world.driver, read_facts(made.world.driver, QUEUE)) is None


def test_offsets_are_reported_as_ranges() -> None:
    assert describe_offsets([1, 2, 3, 7]) == "1 to 4, 7 to 8"
