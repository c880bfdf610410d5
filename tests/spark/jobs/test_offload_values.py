"""The values between driver and task travel, and say whether a queue must be looked at again."""

from __future__ import annotations

import pickle

import pytest

from tiermq.spark.jobs.offload_values import LeaseClaim, OffloadTask, QueueCommit, Stop, TaskResult
from tiermq.tier.index.index_fragment import IndexFragment
from tiermq.tier.metadata.metadata_values import TimeEntry
from tiermq.tier.names import QueueKey

QUEUE = QueueKey("c", "b", "T", 3)


def commit(stop: Stop) -> QueueCommit:
    fragment = IndexFragment("T", 1, 3, 0, 50, b"x" * 24)
    return QueueCommit(QUEUE, 5, 9, 50, (), (TimeEntry(5, 6, 7),), stop, fragment=fragment)


def test_tasks_and_results_survive_the_way() -> None:
    task = OffloadTask("/s", "file:///t", (), LeaseClaim("me", 3), 100, 200, "")
    result = TaskResult((commit(Stop.TARGET),), 1.5)
    assert pickle.loads(pickle.dumps((task, result))) == (task, result)
    assert result.commits[0].messages == 4


@pytest.mark.parametrize("stop", Stop)
def test_only_a_failure_leaves_doubt_about_what_was_written(stop: Stop) -> None:
    assert commit(stop).is_settled == (stop not in (Stop.UNAVAILABLE, Stop.REFUSED))
