"""Spark: a source and a sink for DataFrames, topics as tables, and the runner that puts tasks of jobs on executors.

    from tiermq.spark import get_spark, messages, explain_scan

Nothing of Spark is imported before one of these names is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiermq.pipeline import names_from

if TYPE_CHECKING:
    from tiermq.pipeline.scan.explain import ScanExplanation
    from tiermq.spark.attached_history import AttachedHistory, attach
    from tiermq.spark.query_pruning import prune_queries
    from tiermq.spark.session import get_spark
    from tiermq.spark.source.builder import explain_scan, messages
    from tiermq.spark.source.data_source import TierMQDataSource
    from tiermq.spark.source.scan_meter import ScanMeter
    from tiermq.spark.source.stream_offset import StreamLag, stream_lag
    from tiermq.spark.spark_runner import SparkRunner

_HOMES = {
    "attach": "tiermq.spark.attached_history",
    "AttachedHistory": "tiermq.spark.attached_history",
    "get_spark": "tiermq.spark.session",
    "messages": "tiermq.spark.source.builder",
    "prune_queries": "tiermq.spark.query_pruning",
    "explain_scan": "tiermq.spark.source.builder",
    "ScanExplanation": "tiermq.pipeline.scan.explain",
    "ScanMeter": "tiermq.spark.source.scan_meter",
    "StreamLag": "tiermq.spark.source.stream_offset",
    "SparkRunner": "tiermq.spark.spark_runner",
    "stream_lag": "tiermq.spark.source.stream_offset",
    "TierMQDataSource": "tiermq.spark.source.data_source",
}
__all__ = [
    "AttachedHistory",
    "ScanExplanation",
    "ScanMeter",
    "SparkRunner",
    "StreamLag",
    "TierMQDataSource",
    "attach",
    "explain_scan",
    "get_spark",
    "messages",
    "prune_queries",
    "stream_lag",
]
__getattr__ = names_from(__name__, _HOMES)
