"""Upkeep of bundles by tasks: merge those of a broker, and give segments with enough bytes objects of their own.

What is due is decided where bundles are written, or listed; message bytes pass through tasks only. A task that is run
twice makes the same objects.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tiermq.errors import TierError
from tiermq.pipeline.task_runner import JobTasks
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.driver.contract import BundleUpkeep
from tiermq.tier.names import SegmentKey

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpkeepTask:
    """What is to be done to the bundles of the broker with that directory."""

    tier: str
    directory: str
    upkeep: BundleUpkeep


def run_upkeep_task(task: UpkeepTask) -> dict[SegmentKey, int]:
    return driver_of(task.tier).tend_bundles(task.directory, task.upkeep)


def tend_bundles(tasks: JobTasks, tier: str, directories: Iterable[str]) -> int:
    """Do what is due by what this process knows; for how many brokers. A failure delays it."""
    driver = driver_of(tier)
    due = [(each, upkeep) for each in directories if (upkeep := driver.bundle_upkeep(each)) is not None]
    if not due:
        return 0
    try:
        done = tasks.run(run_upkeep_task, [UpkeepTask(tier, *each) for each in due])
    except TierError as error:
        _log.warning("bundles are merged later: %s", error)
        return 0
    for (directory, _), floors in zip(due, done, strict=True):
        driver.bundles_tended(directory, floors)
    return len(due)
