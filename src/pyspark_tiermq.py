"""Makes `format("tiermq")` known to Spark: it looks for `DefaultSource` in modules named pyspark_ and something."""

from tiermq.spark.source.data_source import TierMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
