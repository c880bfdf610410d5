"""A queue of the tier, read by its segments alone: units, batches and messages, around holes and damage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tier.tier_world import TierWorld
from tier.verify_world import COUNT, QUEUE, bytes_of, log_key, unit_key
from tier.verify_world import sound_tier as sound_tier
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import SegmentMissing, TierError
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.queue.units import Unit
from tiermq.tier.repair.queue_facts import read_facts


def reader(world: TierWorld) -> TierQueue:
    return read_facts(world.driver, QUEUE).queue(world.driver)


def test_batches_hold_every_message_once_and_end_with_their_segment(world: TierWorld) -> None:
    queue = reader(world)
    found = list(queue.batches())
    assert len(queue.logs) > 2
    assert [n for each in found for n in range(each.first_offset, each.next_offset)] == list(range(COUNT))
    for each in found:
        assert queue.logs.find(each.log_offset, each.log_offset + len(each.data)) is not None
    assert sum(len(each.data) for each in found) == queue.logs.end - queue.logs.begin


def test_a_range_of_the_log_bounds_the_batches(world: TierWorld) -> None:
    queue = reader(world)
    third = queue.unit(3)
    ninth = queue.unit(9)
    assert third is not None
    assert ninth is not None
    found = list(queue.batches(log_from=third.log_offset, log_to=ninth.log_offset))
    assert [n for each in found for n in range(each.first_offset, each.next_offset)] == list(range(3, 9))
    assert list(queue.batches(5, 5)) == []


def test_what_cannot_be_read_is_raised_or_reported_and_left_out(world: TierWorld) -> None:
    queue = reader(world)
    gone = log_key(world, 1)
    lost = {n for each in queue.batches() if each.log_offset >= gone.base for n in [each.first_offset]}
    world.driver.delete(gone)
    with pytest.raises(SegmentMissing):
        list(queue.batches())
    skipped: list[TierError] = []
    found = [each.first_offset for each in queue.batches(skip=skipped.append)]
    assert skipped
    assert len(found) > 0
    assert min(lost) not in found
    assert list(reader(world).batches(skip=skipped.append))  # Also when the listing does not have it.


def test_missing_units_are_raised_too(world: TierWorld) -> None:
    world.driver.delete(unit_key(world, 1))
    with pytest.raises(SegmentMissing, match="expected a segment with the units"):
        list(reader(world).batches())
    assert list(reader(world).batches(skip=lambda _error: None))
    with pytest.raises(SegmentMissing, match=f"units at {COUNT}"):
        list(sound_tail(world))


def sound_tail(world: TierWorld) -> Iterator[object]:
    return reader(world).batches(COUNT, COUNT + 1)


def test_each_offset_gets_its_message_and_damage_costs_one(world: TierWorld) -> None:
    unit = reader(world).unit(4)
    assert unit is not None
    segment = log_key(world, 0)
    bytes_of(world, segment)[unit.log_offset - segment.base + 90] ^= 0xFF
    rows = list(reader(world).messages(0, COUNT))
    assert [row.queue_offset for row in rows] == list(range(COUNT))
    assert [row.queue_offset for row in rows if row.message is None] == [4]
    assert f"log offset {unit.log_offset}" in rows[4].error
    assert [row.message.queue_offset for row in rows if row.message is not None] == [n for n in range(COUNT) if n != 4]


def test_units_that_are_gone_are_rows_with_an_error(world: TierWorld) -> None:
    gone = unit_key(world, 0)
    count = len(bytes_of(world, gone)) // UNIT_BYTES
    world.driver.delete(gone)
    rows = list(reader(world).messages(0, COUNT))
    assert [row.queue_offset for row in rows if row.error] == list(range(count))


def test_a_unit_leads_only_to_its_own_record(world: TierWorld) -> None:
    queue = reader(world)
    unit = queue.unit(7)
    assert unit is not None
    assert queue.leads(unit)
    assert not queue.leads(unit._replace(queue_offset=8))
    assert not queue.leads(unit._replace(size=unit.size + 1))
    assert not queue.leads(unit._replace(log_offset=-1))
    assert not queue.leads(Unit(7, queue.logs.end, 200))
    assert queue.message(unit).message is not None
    assert queue.message(unit._replace(log_offset=unit.log_offset + 1)).error
