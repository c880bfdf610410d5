"""Hot and cold read as one: each message once, in order, whatever went where; what is lost is reported."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from history.history_world import HistoryWorld, as_sent, read_all, read_plan, sent_of
from scenarios.broker_world import HOUR_MS
from tiermq.errors import DataLoss
from tiermq.history.planning import plan_scan
from tiermq.history.scan_values import Loss, LossReason, OffsetBounds, ScanCounters, ScanRequest, Side
from tiermq.tier.names import QueueKey, SegmentType

ORDERS = QueueKey("DefaultCluster", "broker-a", "orders", 0)


@pytest.mark.parametrize(("tier", "store", "expected"), [(True, False, 100), (False, True, 130), (True, True, 130)])
def test_a_tier_a_store_and_both_give_what_they_have_in_queue_order(
    world: HistoryWorld, tier: bool, store: bool, expected: int
) -> None:
    world.put(100)
    world.flush_to_tier()
    world.put(30)
    found = read_all(world.catalog(tier=tier, store=store), max_bytes_per_partition=3000)
    assert as_sent(found["orders", 0]) == sent_of(world.sent["orders", 0][:expected])


def test_hot_and_cold_meet_where_the_tier_ends(world: HistoryWorld) -> None:
    world.put(100)
    world.flush_to_tier()
    world.put(30)
    plan = plan_scan(world.catalog(), ScanRequest())
    assert [(task.side, task.from_offset, task.to_offset) for task in plan.tasks] == [
        (Side.COLD, 0, 100),
        (Side.HOT, 100, 130),
    ]
    counters = ScanCounters()
    read_plan(world.histories[-1], plan, counters)
    assert counters.rows_read == 130
    assert counters.hot_bytes_read > 0
    assert counters.cold_bytes_read > 0


def test_what_the_broker_deletes_after_the_plan_is_read_from_the_tier(world: HistoryWorld) -> None:
    world.put(400)
    catalog = world.catalog()
    plan = plan_scan(catalog, ScanRequest())
    assert {task.side for task in plan.tasks} == {Side.HOT}
    world.flush_to_tier()
    assert world.evict_old() > 0
    fresh = world.history()
    assert as_sent(read_plan(fresh, plan)["orders", 0]) == sent_of(world.sent["orders", 0])


def test_what_is_deleted_and_in_no_tier_is_a_loss_and_the_rest_is_read(world: HistoryWorld) -> None:
    world.put(400)
    plan = plan_scan(world.catalog(tier=False), ScanRequest(), loss_is_error=False)
    world.flush_to_tier()
    assert world.evict_old() > 0
    left = world.store.local.min_offset("orders", 0)
    losses: list[Loss] = []
    found = read_plan(world.history(tier=False), plan, losses=losses)
    assert as_sent(found["orders", 0]) == sent_of(world.sent["orders", 0][left:])
    assert [(loss.from_offset, loss.to_offset, loss.reason) for loss in losses] == [(0, left, LossReason.EXPIRED)]


def test_a_segment_that_expires_between_plan_and_read_is_a_loss_of_its_messages_only(world: HistoryWorld) -> None:
    world.put(100)
    world.flush_to_tier()
    world.clock.advance_ms(100 * HOUR_MS)
    world.put(100)
    world.flush_to_tier()
    catalog = world.catalog(store=False)
    strict = plan_scan(catalog, ScanRequest())
    lenient = plan_scan(catalog, ScanRequest(), loss_is_error=False)
    world.store.expire_now()
    left = world.store.tier.files.find("orders", 0).min_offset  # type: ignore[union-attr]
    assert left > 0
    losses: list[Loss] = []
    found = read_plan(world.histories[-1], lenient, losses=losses)
    assert as_sent(found["orders", 0]) == sent_of(world.sent["orders", 0][left:])
    assert sum(loss.to_offset - loss.from_offset for loss in losses) == left
    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        read_plan(world.histories[-1], strict)


@pytest.mark.usefixtures("without_sums")
@pytest.mark.parametrize("where", ["unit place", "unit size", "magic", "queue offset"])
def test_damage_is_a_loss_and_never_a_wrong_row(world: HistoryWorld, where: str) -> None:
    world.put(20)
    world.flush_to_tier()
    plan = plan_scan(world.catalog(store=False), ScanRequest(), loss_is_error=False)
    memory = world.driver.inner._place.segments
    log = next(key for key in memory if key.type is SegmentType.COMMIT_LOG)
    units = next(key for key in memory if key.type is SegmentType.CONSUME_QUEUE)
    place = int.from_bytes(memory[units].data[7 * 20 : 7 * 20 + 8], "big")
    key, at = {
        "unit place": (units, 7 * 20 + 6),
        "unit size": (units, 7 * 20 + 11),
        "magic": (log, place + 5),
        "queue offset": (log, place + 27),
    }[where]
    memory[key].data[at] ^= 0x55
    losses: list[Loss] = []
    found = read_plan(world.histories[-1], plan, losses=losses)
    expected = [sent for sent in sent_of(world.sent["orders", 0]) if sent[0] != 7]
    assert as_sent(found["orders", 0]) == expected
    assert [(loss.from_offset, loss.to_offset, loss.reason) for loss in losses] == [(7, 8, LossReason.CORRUPT)]


def test_tags_read_only_the_records_whose_code_fits(world: HistoryWorld) -> None:
    world.put(60, size=3000)
    world.flush_to_tier()
    request = ScanRequest(tags=frozenset({"t1"}))
    places: tuple[dict[str, Any], ...] = ({"store": False}, {"tier": False})
    for which in places:
        catalog = world.catalog(**which)
        counters = ScanCounters()
        found = read_plan(catalog.history, plan_scan(catalog, request), counters)
        assert as_sent(found["orders", 0]) == sent_of(s for s in world.sent["orders", 0] if s.tags == "t1")
        assert counters.rows_read == 20


def test_two_topics_of_one_store_are_not_mixed_up(world: HistoryWorld) -> None:
    for _ in range(50):
        world.put(1, "orders")
        world.put(1, "orderz")
    found = read_all(world.catalog(tier=False))
    for topic in ("orders", "orderz"):
        assert as_sent(found[topic, 0]) == sent_of(world.sent[topic, 0])


def test_bounds_are_kept_on_both_sides(world: HistoryWorld) -> None:
    world.put(50)
    world.flush_to_tier()
    world.put(50)
    request = ScanRequest(bounds={ORDERS: OffsetBounds(20, 70)})
    found = read_all(world.catalog(), request, min_partitions=7)
    assert as_sent(found["orders", 0]) == sent_of(world.sent["orders", 0][20:70])


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_read_back_what_was_put_once_and_in_order(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    world = HistoryWorld(tmp_path)
    world.open()
    try:
        for _ in range(chance.randint(4, 14)):
            topic, queue_id = chance.choice(["orders", "payments", "Orders"]), chance.randint(0, 2)
            world.put(chance.choice([1, 7, 60]), topic, queue_id, size=chance.choice([10, 60, 900]))
            world.clock.advance_ms(chance.choice([1, 1000, HOUR_MS]))
            if chance.random() < 0.4:
                world.flush_to_tier()
            if chance.random() < 0.2:
                world.evict_old()
            if chance.random() < 0.15:
                world.store.expire_now()
            if chance.random() < 0.1:
                world.close()
                world.open()
        size = chance.choice([500, 5_000, 64 << 20])
        places: tuple[dict[str, Any], ...] = ({}, {"tier": False}, {"store": False})
        for which in places:
            catalog = world.catalog(**which)
            found = read_all(catalog, max_bytes_per_partition=size, min_partitions=chance.choice([0, 9]))
            for queue in catalog.queues():
                key = (queue.key.topic, queue.key.queue_id)
                sent = world.sent[key][queue.min_offset : queue.max_offset]
                assert as_sent(found.get(key, [])) == sent_of(sent)
            if which == {}:
                for key, messages in world.sent.items():
                    assert catalog.find(*key).max_offset == len(messages)
    finally:
        world.bury()


def test_a_time_prunes_the_hot_side_too_and_keeps_every_message_of_it(world: HistoryWorld) -> None:
    for _ in range(5):
        world.put(1000, size=1)
        world.clock.advance_ms(1000)
    sent = world.sent["orders", 0]
    request = ScanRequest(begin_ms=sent[2500].store_ms, end_ms=sent[2500].store_ms)
    catalog = world.catalog(request, tier=False)
    counters = ScanCounters()
    found = as_sent(read_plan(catalog.history, plan_scan(catalog, request), counters)["orders", 0])
    assert counters.rows_read <= 4000
    assert set(sent_of(sent[2000:3000])) <= set(found)
    world.put(1000, size=1)
    catalog.refresh()
    late = ScanRequest(begin_ms=world.clock.now_ms())
    found = as_sent(read_plan(catalog.history, plan_scan(catalog, late))["orders", 0])
    assert set(sent_of(world.sent["orders", 0][5000:])) <= set(found)
    assert len(found) <= 2100
