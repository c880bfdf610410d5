"""Planning a verification: which tasks there are, and what is found before any record is read."""

from __future__ import annotations

from tier.tier_world import TierWorld
from tier.verify_world import bare, log_key
from tiermq.tier.names import INDEX_TOPIC
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.verify.verify_plan import QueueTask, plan_verify


def test_index_files_are_tasks_of_their_own(world: TierWorld) -> None:
    plan = plan_verify(world.driver)
    assert [task.key.topic for task in plan.tasks if not isinstance(task, QueueTask)] == [INDEX_TOPIC]


def test_a_topic_alone_and_a_run_without_index_have_no_index_tasks(world: TierWorld) -> None:
    for plan in (plan_verify(world.driver, TierScope(topic="orders")), plan_verify(world.driver, with_index=False)):
        assert all(isinstance(task, QueueTask) for task in plan.tasks)


def test_what_the_listing_alone_shows_is_found_by_planning(world: TierWorld) -> None:
    world.driver.delete(log_key(world, 1))
    found = plan_verify(world.driver).found
    assert {finding.kind for finding in found.problems} == {"hole", "missing_segment"}
    assert found.counts["queues"] == 2


def test_a_queue_that_only_the_metadata_knows_is_planned_too(world: TierWorld) -> None:
    bare(world)
    for info in list(world.driver.list_segments()):
        world.driver.delete(info.key)
    assert plan_verify(world.driver).tasks == ()
    found = plan_verify(world.driver, metadata=world.metadata).found
    assert {finding.kind for finding in found.problems} == {"missing_segment"}
