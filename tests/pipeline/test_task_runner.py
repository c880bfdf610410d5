"""How works are bundled into tasks, and run where there is no session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiermq.spark.jobs.job_tasks import JobTasks


def test_without_a_session_tasks_run_here_in_order() -> None:
    told: list[tuple[int, int]] = []
    tasks = JobTasks(None, "test", lambda *numbers: told.append(numbers))
    assert tasks.run(str, [3, 1, 2]) == ["3", "1", "2"]
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert (tasks.parallelism, tasks.master) == (1, "")


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 3000))
def test_every_work_is_in_one_bundle_and_no_bundle_is_much_heavier_than_asked(works: list[int], limit: int) -> None:
    bundles = JobTasks(None, "test").bundles(works, lambda work: work, limit)
    assert sorted(work for bundle in bundles for work in bundle) == sorted(works)
    assert all(sum(bundle) <= 2 * limit + max(works) for bundle in bundles)
    assert all(bundles)
