"""The data pipeline on Spark: a source and a sink for DataFrames, and the jobs that move and tend the history.

    from tiermq.spark import get_spark, messages, explain_scan

Nothing of Spark is imported before one of these names is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiermq.spark.attached_history import AttachedHistory, attach
    from tiermq.spark.session import get_spark
    from tiermq.spark.source.builder import ScanExplanation, explain_scan, messages
    from tiermq.spark.source.data_source import TierMQDataSource
    from tiermq.spark.source.scan_meter import ScanMeter
    from tiermq.spark.source.stream_offset import StreamLag, stream_lag

_HOMES = {
    "attach": "tiermq.spark.attached_history",
    "AttachedHistory": "tiermq.spark.attached_history",
    "get_spark": "tiermq.spark.session",
    "messages": "tiermq.spark.source.builder",
    "explain_scan": "tiermq.spark.source.builder",
    "ScanExplanation": "tiermq.spark.source.builder",
    "ScanMeter": "tiermq.spark.source.scan_meter",
    "StreamLag": "tiermq.spark.source.stream_offset",
    "stream_lag": "tiermq.spark.source.stream_offset",
    "TierMQDataSource": "tiermq.spark.source.data_source",
}
__all__ = [
    "AttachedHistory",
    "ScanExplanation",
    "ScanMeter",
    "StreamLag",
    "TierMQDataSource",
    "attach",
    "explain_scan",
    "get_spark",
    "messages",
    "stream_lag",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
