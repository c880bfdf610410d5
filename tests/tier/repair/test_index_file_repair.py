"""An index file rebuilt: which messages it covers, and when it cannot be made."""

from __future__ import annotations

import pytest

from tier.tier_world import TierWorld
from tier.verify_world import bare, bytes_of, index_key
from tiermq.tier.index.compacted_index import companion_name
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.repair.index_file_repair import CannotIndex, covered_ranges, rebuild_index, write_index
from tiermq.tier.repair.queue_facts import read_facts
from tiermq.tier.verify.verify import verify_tier


def with_coverage(world: TierWorld, ends: dict[tuple[str, int], int]) -> None:
    name = companion_name(index_key(world))
    stored = world.driver.get_object(name)
    assert stored is not None
    record = CoverageRecord.decode(stored.data, name)
    queues = tuple((topic, 0, queue_id, end, ()) for (topic, queue_id), end in ends.items())
    world.driver.put_object(name, CoverageRecord(record.files, queues).encode())


def test_a_file_covers_what_its_companion_reports_less_what_files_before_it_cover(world: TierWorld) -> None:
    with_coverage(world, {("orders", 0): 900, ("payments", 2): 0})
    second = world.put_index().key
    facts = read_facts(world.driver, second.queue, world.metadata)
    first_ranges = covered_ranges(world.driver, facts, index_key(world), world.metadata)
    assert [(each.queue.topic, each.start, each.stop) for each in first_ranges] == [("orders", 0, 900)]
    ranges = covered_ranges(world.driver, facts, second, world.metadata)
    assert [(each.queue.topic, each.start, each.stop) for each in ranges] == [("orders", 900, -1), ("payments", 0, -1)]


def test_a_rebuilt_file_has_the_items_of_exactly_its_range(world: TierWorld) -> None:
    with_coverage(world, {("orders", 0): 1, ("payments", 2): 0})
    made = rebuild_index(world.driver, index_key(world), world.metadata)
    assert made.facts.item_count == 2  # One message: its key, and its unique key.


def test_without_topic_ids_nothing_can_be_indexed(world: TierWorld) -> None:
    bare(world)
    with pytest.raises(CannotIndex, match="no queue is known"):
        rebuild_index(world.driver, index_key(world))


def test_a_file_without_companion_and_header_takes_what_its_row_reports(world: TierWorld) -> None:
    bytes_of(world, index_key(world))[:28] = bytes(28)
    world.driver.delete_object(companion_name(index_key(world)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiermq.tier.repair.index_file_repair.DEFAULT_SLOTS", 11)
        made = rebuild_index(world.driver, index_key(world), world.metadata)
    write_index(world.driver, made, "damaged-1")
    world.metadata.put_segment(world.metadata.segments(index_key(world).queue)[0])
    assert made.facts.item_count == 70
    assert len(made.data) == 28 + 8 * 11 + 28 * 70
    found = verify_tier(world.driver, metadata=world.metadata)
    assert {finding.kind for finding in found.problems} <= {"short_segment"}


def test_a_file_that_would_no_longer_end_where_the_next_begins_is_left_alone(world: TierWorld) -> None:
    with_coverage(world, {("orders", 0): 1, ("payments", 2): 0})
    world.put_index()
    with pytest.raises(CannotIndex, match="the next file begins"):
        rebuild_index(world.driver, index_key(world), world.metadata)
