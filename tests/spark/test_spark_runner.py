"""Pure tasks on executors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tiermq.errors import TierError
from tiermq.spark.jobs.task_runner import run_here, run_tasks

pytestmark = pytest.mark.xdist_group("spark")


def fail_with(kind: type[BaseException]) -> Any:
    def task(number: int) -> int:
        if number == 2:
            raise kind("task 2 does not like this")
        return number

    return task


def fail_until_third(marks: str) -> Any:
    def task(number: int) -> int:
        """Dies twice, hard, and then works; marks on disk count the attempts, since memory dies too."""
        if number == 1:
            attempts = len(os.listdir(marks))
            Path(marks, str(attempts)).touch()
            if attempts < 2:
                os._exit(7)
        return number * 10

    return task


def test_results_come_in_the_order_of_the_tasks(spark: Any) -> None:
    assert run_tasks(spark, abs, [-3, 4, -5, 6]) == [3, 4, 5, 6]


def test_no_tasks_are_no_job(spark: Any) -> None:
    assert run_tasks(spark, abs, []) == []


def test_a_typed_error_comes_back_as_itself(spark: Any) -> None:
    with pytest.raises(TierError, match="task 2 does not like this"):
        run_tasks(spark, fail_with(TierError), [1, 2, 3])


def test_a_worker_that_dies_twice_gives_one_result(spark: Any, tmp_path: Path) -> None:
    assert run_tasks(spark, fail_until_third(str(tmp_path)), [0, 1, 2]) == [0, 10, 20]
    assert len(os.listdir(tmp_path)) == 3


def test_progress_ends_with_all_of_them(spark: Any) -> None:
    told: list[tuple[int, int]] = []
    run_tasks(spark, abs, [-1, -2, -3], progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (3, 3)


def test_the_same_without_spark_gives_the_same() -> None:
    told: list[int] = []
    assert run_here(abs, [-1, 2], progress=lambda done, _total: told.append(done)) == [1, 2]
    assert told == [1, 2]
