"""Where a long queue is cut, and where it is not."""

from __future__ import annotations

from itertools import pairwise

from tier.tier_world import TierWorld
from tier.verify_world import bytes_of, log_key, unit_key
from tiermq.consumequeue.unit import PRE_BLANK
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.queue.tier_queue import TierQueue
from tiermq.tier.verify.verify import verify_tier
from tiermq.tier.verify.verify_plan import QueueTask, cuts_of, plan_verify


def test_a_long_queue_is_cut_between_records_and_each_byte_belongs_to_one_task(world: TierWorld) -> None:
    plan = plan_verify(world.driver, TierScope(topic="orders"), task_bytes=700)
    tasks = [task for task in plan.tasks if isinstance(task, QueueTask)]
    assert [task.number for task in tasks] == list(range(len(tasks)))
    assert len(tasks) > 4
    assert plan.size_bytes == sum(info.size for info in world.driver.list_segments() if info.key.topic == "orders")
    for before, after in pairwise(tasks):
        assert (before.log_to, before.unit_to) == (after.log_from, after.unit_from)
        assert before.then is not None
        assert (before.then.log_offset, before.then.queue_offset) == (after.log_from, after.unit_from)
    assert tasks[-1].is_last
    assert max(task.size_bytes for task in tasks) < 1400


def test_a_damaged_place_is_no_place_to_cut(world: TierWorld) -> None:
    whole = len(plan_verify(world.driver, TierScope(topic="orders"), task_bytes=300).tasks)
    data = bytes_of(world, log_key(world, 1))
    data[:] = bytes(len(data))
    assert len(plan_verify(world.driver, TierScope(topic="orders"), task_bytes=300).tasks) < whole


def test_a_queue_with_a_hole_is_not_cut(world: TierWorld) -> None:
    world.driver.delete(log_key(world, 1))
    assert len(plan_verify(world.driver, TierScope(topic="orders"), task_bytes=300).tasks) == 1


def test_blank_units_are_stepped_over_when_a_cut_is_looked_for(world: TierWorld) -> None:
    assert world.file().skip_to(60, "lost before it was uploaded") is not None
    world.write(30)
    world.put_manifests()
    assert bytes_of(world, unit_key(world, -4)).count(PRE_BLANK) > 0
    assert len(plan_verify(world.driver, TierScope(topic="orders"), task_bytes=700).tasks) > 8
    assert verify_tier(world.driver, TierScope(topic="orders"), task_bytes=700).is_clean


def test_nothing_is_cut_out_of_nothing(world: TierWorld) -> None:
    assert cuts_of(TierQueue(world.driver, log_key(world, 0).queue, (), ())) == []
