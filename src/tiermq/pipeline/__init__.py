"""Batch jobs over stores and tiers: offload, compact, expire, verify, export, reindex, replay, plans of SQL queries.

    from tiermq.pipeline.export import export

Each job plans in this process, runs pure tasks by a `TaskRunner`, and commits in this process. Without a runner tasks
run here; `tiermq.spark.SparkRunner` puts them on executors. Nothing in here imports Spark. A package imports its job
when that is asked for: executors need its tasks alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names_from(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: each name from the module that is its home, imported when it is asked for."""

    def found(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return found
