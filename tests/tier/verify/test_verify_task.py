"""A verification in tasks: sent away and back, in any order, cut anywhere, it finds what one alone would find."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tier.tier_world import TierWorld
from tier.verify_world import bytes_of, kinds, log_key, sound_world, unit_key
from tiermq.errors import TierError
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.verify.verify import join_verify, run_verify_task, verify_tier
from tiermq.tier.verify.verify_plan import VerifyPlan, VerifyResult, plan_verify
from tiermq.tier.verify.verify_report import VerifyReport


def sent(plan: VerifyPlan) -> VerifyPlan:
    found: VerifyPlan = pickle.loads(pickle.dumps(plan))
    return found


def run_apart(world: TierWorld, task_bytes: int) -> VerifyReport:
    """As a cluster would: tasks and results travel, tasks run in any order, some twice."""
    plan = plan_verify(world.driver, metadata=world.metadata, task_bytes=task_bytes)
    tasks = [*sent(plan).tasks, plan.tasks[0]]
    random.Random(3).shuffle(tasks)
    results: list[VerifyResult] = [pickle.loads(pickle.dumps(run_verify_task(world.driver, task))) for task in tasks]
    return join_verify(plan, results)


@pytest.mark.parametrize("task_bytes", [200, 700, 1 << 30])
def test_tasks_run_apart_find_what_one_run_finds(world: TierWorld, task_bytes: int) -> None:
    alone = verify_tier(world.driver, metadata=world.metadata)
    apart = run_apart(world, task_bytes)
    assert (apart.counts, apart.problems, apart.notes) == (alone.counts, [], [])


def test_the_times_of_all_records_are_reported(world: TierWorld) -> None:
    plan = plan_verify(world.driver, TierScope(topic="orders"), task_bytes=700)
    results = [run_verify_task(world.driver, task) for task in plan.tasks]
    rows = world.segments(log_key(world).type)
    assert min(result.oldest_ms or 0 for result in results) == min(row.begin_ms for row in rows)
    assert max(result.newest_ms or 0 for result in results) == max(row.end_ms for row in rows)


def test_a_result_that_is_missing_is_an_error_and_no_clean_report(world: TierWorld) -> None:
    plan = plan_verify(world.driver)
    with pytest.raises(TierError, match="run those tasks again"):
        join_verify(plan, [run_verify_task(world.driver, task) for task in plan.tasks[1:]])


def test_a_checksum_over_several_tasks_is_compared_when_they_are_joined(world: TierWorld) -> None:
    data = bytes_of(world, log_key(world))
    at = data.index(b"UNIQ_KEY\x01")  # No checksum of the record covers a property.
    data[at + 10] ^= 1
    report = run_apart(world, 300)
    assert "checksum" in kinds(report)
    assert sum(finding.kind == "checksum" for finding in report.problems) == 1


damage = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> TierWorld:
    return sound_world(tmp_path_factory.mktemp("tasks"))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=damage, task_bytes=st.sampled_from([200, 500, 900]))
def test_damage_is_found_however_the_work_is_cut(
    lasting: TierWorld, damage: list[tuple[int, int, int]], task_bytes: int
) -> None:
    keys = [log_key(lasting), log_key(lasting, 1), log_key(lasting, -1), unit_key(lasting), unit_key(lasting, -1)]
    before = {key: bytes(bytes_of(lasting, key)) for key in keys}
    try:
        for which, at, bits in damage:
            target = bytes_of(lasting, keys[which])
            target[at % len(target)] ^= bits
        changed = any(bytes(bytes_of(lasting, key)) != data for key, data in before.items())
        alone = verify_tier(lasting.driver, with_index=False)
        apart = verify_tier(lasting.driver, with_index=False, task_bytes=task_bytes)
        assert alone.is_clean == apart.is_clean == (not changed)
        assert alone.counts["bytes"] == apart.counts["bytes"]
        checksums = [finding for finding in alone.problems if finding.kind == "checksum"]
        assert sorted(f for f in apart.problems if f.kind == "checksum") == sorted(checksums)
    finally:
        for key, data in before.items():
            bytes_of(lasting, key)[:] = data


def test_a_task_that_was_sent_is_written_as_the_one_that_was_made(world: TierWorld) -> None:
    plan = plan_verify(world.driver, metadata=world.metadata)
    assert any("LogPlaces" in repr(task) for task in plan.tasks)
    assert [repr(task) for task in sent(plan).tasks] == [repr(task) for task in plan.tasks]
