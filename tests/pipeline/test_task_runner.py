"""How works are bundled into tasks, and run where there is no session."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import BadOption
from tiermq.pipeline.task_runner import JobTasks


def test_without_a_session_tasks_run_here_in_order() -> None:
    reported: list[tuple[int, int]] = []
    tasks = JobTasks(None, "test", lambda *numbers: reported.append(numbers))
    assert tasks.run(str, [3, 1, 2]) == ["3", "1", "2"]
    assert reported == [(1, 3), (2, 3), (3, 3)]
    assert (tasks.parallelism, tasks.master) == (1, "")


def test_a_session_in_place_of_a_runner_is_refused_with_what_to_give() -> None:
    with pytest.raises(BadOption, match=r"found object; .* tiermq.spark.SparkRunner\(spark\)"):
        JobTasks(object(), "test")  # type: ignore[arg-type] # What a user may do.


def test_jobs_run_without_spark_being_imported() -> None:
    program = (
        "import pkgutil, sys, tiermq.pipeline\n"
        "for found in pkgutil.walk_packages(tiermq.pipeline.__path__, 'tiermq.pipeline.'):\n"
        "    __import__(found.name)\n"
        "assert 'tiermq.pipeline.export.task' in sys.modules\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'pyspark' or name.startswith('tiermq.spark')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 3000))
def test_every_work_is_in_one_bundle_and_no_bundle_is_much_heavier_than_asked(works: list[int], limit: int) -> None:
    bundles = JobTasks(None, "test").bundles(works, lambda work: work, limit)
    assert sorted(work for bundle in bundles for work in bundle) == sorted(works)
    assert all(sum(bundle) <= 2 * limit + max(works) for bundle in bundles)
    assert all(bundles)
