"""Pure tasks on executors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tiermq.errors import TierError
from tiermq.spark import SparkRunner

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
    assert SparkRunner(spark).run(abs, [-3, 4, -5, 6]) == [3, 4, 5, 6]


def test_no_tasks_are_no_job(spark: Any) -> None:
    assert SparkRunner(spark).run(abs, []) == []


def test_a_typed_error_comes_back_as_itself(spark: Any) -> None:
    with pytest.raises(TierError, match="task 2 does not like this"):
        SparkRunner(spark).run(fail_with(TierError), [1, 2, 3])


def test_a_worker_that_dies_twice_gives_one_result(spark: Any, tmp_path: Path) -> None:
    assert SparkRunner(spark).run(fail_until_third(str(tmp_path)), [0, 1, 2]) == [0, 10, 20]
    assert len(os.listdir(tmp_path)) == 3


def test_progress_ends_with_all_of_them(spark: Any) -> None:
    reported: list[tuple[int, int]] = []
    SparkRunner(spark).run(abs, [-1, -2, -3], progress=lambda done, total: reported.append((done, total)))
    assert reported[-1] == (3, 3)


def test_a_worker_freezes_what_it_has_imported_once() -> None:
    # In a process of its own: the collector of this one is left alone.
    program = (
        "import gc\nfrom tiermq.spark.spark_runner import freeze_once\n"
        "assert gc.get_freeze_count() == 0\n"
        "freeze_once()\nfrozen = gc.get_freeze_count()\nassert frozen > 0\n"
        "more = [[] for _ in range(1000)]\nfreeze_once()\nassert gc.get_freeze_count() <= frozen\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
