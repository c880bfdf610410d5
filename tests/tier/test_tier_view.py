"""A tier from the bucket alone: queues, messages, keys; gaps and damage are reported."""

from __future__ import annotations

import dataclasses

import pytest

from tier.tier_world import TierWorld
from tier.verify_world import COUNT, LOG, QUEUE, bare, bytes_of, log_key, unit_key
from tier.verify_world import sound_tier as sound_tier
from tiermq.errors import TierError
from tiermq.tier.metadata.manifest import manifest_name
from tiermq.tier.names import QueueKey
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.restore.restore_report import Finding
from tiermq.tier.tier_view import TierView, view_tier


def look(world: TierWorld, scope: TierScope | None = None) -> TierView:
    return view_tier(world.driver, scope, clock=world.clock)


@pytest.mark.parametrize("with_manifests", [True, False])
def test_queues_are_shown_as_a_restore_would_find_them(world: TierWorld, with_manifests: bool) -> None:
    if not with_manifests:
        for name in world.driver.list_objects():
            world.driver.delete_object(name)
    view = look(world)
    assert [(q.key.topic, q.key.queue_id, q.min_offset, q.max_offset, q.message_count) for q in view.queues] == [
        ("orders", 0, 0, COUNT, COUNT),
        ("payments", 2, 0, 5, 5),
    ]
    first = view.queues[0]
    assert first.size_bytes == world.metadata.size_of_topic("orders")
    assert first.begin_ms == world.clock.now_ms() - 2000
    assert first.end_ms == world.clock.now_ms()
    assert view.remarks == []
    assert len(view.index) == 1
    assert view.brokers == [("DefaultCluster", "broker-a")]


def test_messages_come_in_order_over_segments_from_any_offset(world: TierWorld) -> None:
    view = look(world)
    queue = view.find("orders", 0)
    assert [row.queue_offset for row in view.messages(queue, 0, 1000)] == list(range(COUNT))
    some = list(view.messages(queue, 7, 15))
    assert [row.message.queue_offset for row in some if row.message is not None] == list(range(7, 22))
    assert list(view.messages(queue, COUNT, 5)) == []


def test_a_gap_is_a_row_without_message_and_does_not_count(world: TierWorld) -> None:
    world.file().skip_to(COUNT + 4, "lost")
    world.write(1)
    view = look(world)
    queue = view.find("orders", 0)
    assert queue.message_count == COUNT + 1
    rows = list(view.messages(queue, COUNT - 1, 10))
    assert [row.message is None for row in rows] == [False, True, True, True, True, False]
    assert not any(row.error for row in rows)


def test_each_message_of_a_damaged_block_is_a_row_with_its_error(world: TierWorld) -> None:
    bytes_of(world, log_key(world))[95] ^= 1
    bytes_of(world, unit_key(world))[51] ^= 1  # The size in the unit of message 2.
    view = look(world)
    rows = list(view.messages(view.find("orders", 0), 0, 5))
    assert [(row.queue_offset, bool(row.error), row.message) for row in rows] == [(n, True, None) for n in range(5)]


def test_a_segment_that_is_lost_costs_its_messages_only(world: TierWorld) -> None:
    world.driver.delete(log_key(world, 1))
    view = look(world)
    assert view.remarks
    rows = list(view.messages(view.find("orders", 0), 0, 100))
    assert [row.queue_offset for row in rows] == list(range(COUNT))
    assert {bool(row.error) for row in rows} == {True, False}


@pytest.mark.parametrize("key", ["k7", "u-orders-0-7"])
def test_messages_are_found_by_key_and_by_unique_id(world: TierWorld, key: str) -> None:
    view = look(world, TierScope(topic="orders"))
    assert found(view, key) == [7]


def test_a_message_that_two_index_files_know_is_found_once(world: TierWorld) -> None:
    world.clock.advance_ms(1)
    world.put_index()
    view = look(world)
    assert len(list(view.find_by_key("orders", "k7", 10))) == 1
    assert list(view.find_by_key("payments", "k7", 10)) == []


def found(view: TierView, key: str) -> list[int | str]:
    """Queue offsets of the messages with a key, and errors."""
    rows = [row for _, row in view.find_by_key("orders", key, 10)]
    return [row.error or row.queue_offset for row in rows]


def test_a_damaged_record_behind_a_key_is_an_error_and_not_nothing(world: TierWorld) -> None:
    bytes_of(world, log_key(world))[95] ^= 1
    damaged = found(look(world), "k0")
    assert len(damaged) == 1
    assert "is not what was written" in str(damaged[0])
    assert found(look(world), f"k{COUNT - 1}") == [COUNT - 1]  # In a segment that is sound.


def test_no_message_of_a_lost_segment_is_silently_missed_by_its_key(world: TierWorld) -> None:
    world.driver.delete(log_key(world, 1))
    rows = [found(look(world), f"k{number}") for number in range(COUNT)]
    assert all(len(each) == 1 for each in rows)
    assert any("expected a segment" in str(each[0]) for each in rows)


def test_messages_that_have_expired_are_not_found_by_key(world: TierWorld) -> None:
    for kind in (log_key, unit_key):
        world.driver.delete(kind(world))
    bare(world)
    view = look(world)
    assert view.find("orders", 0).min_offset > 0
    assert found(view, "k0") == []


def test_keys_of_one_broker_name_in_two_clusters_are_found_in_both(world: TierWorld) -> None:
    for info in list(world.driver.list_segments()):
        copy = dataclasses.replace(info.key, cluster="other")
        world.driver.write(copy, 0, [bytes(world.driver.read(info.key, 0, info.size))])
    bare(world)
    clusters = [queue.key.cluster for queue, _ in look(world).find_by_key("orders", "k7", 10)]
    assert sorted(clusters) == ["DefaultCluster", "other"]


def test_a_queue_that_is_not_there_is_named_with_those_that_are(world: TierWorld) -> None:
    view = look(world)
    with pytest.raises(TierError, match="it has queue 2"):
        view.find("payments", 0)
    with pytest.raises(TierError, match="found none of that name; there are"):
        view.find("refunds", 0)


def test_a_queue_of_two_brokers_must_be_distinguished(world: TierWorld) -> None:
    segment = QueueKey("DefaultCluster", "broker-b", "orders", 0).segment(LOG, 0)
    world.driver.write(segment, 0, [bytes(world.driver.read(log_key(world), 0, 100))])
    with pytest.raises(TierError, match="broker-a, broker-b"):
        look(world).find("orders", 0)


def test_a_manifest_that_cannot_be_read_is_remarked_and_done_without(world: TierWorld) -> None:
    world.driver.put_object(manifest_name(QUEUE), b"broken")
    view = look(world)
    assert Finding.CORRUPT_MANIFEST in {remark.finding for remark in view.remarks}
    assert view.find("orders", 0).message_count == COUNT


def test_looking_changes_nothing(world: TierWorld) -> None:
    before = {key: bytes(segment.data) for key, segment in world.driver._place.segments.items()}
    objects = dict(world.driver._place.objects)
    list(look(world).messages(look(world).find("orders", 0), 0, 100))
    assert {key: bytes(segment.data) for key, segment in world.driver._place.segments.items()} == before
    assert world.driver._place.objects == objects
