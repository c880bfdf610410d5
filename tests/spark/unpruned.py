"""A session without the rule of its optimizer, as what pruned queries are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession


@contextmanager
def unpruned(spark: SparkSession) -> Iterator[None]:
    """Inside, plans read everything that options say."""
    methods: Any = spark._jsparkSession.experimental()
    jvm: Any = spark._jvm
    rules = methods.extraOptimizations()
    assign = getattr(methods, "extraOptimizations_$eq")
    assign(jvm.PythonUtils.toSeq([]))
    try:
        yield
    finally:
        assign(rules)
