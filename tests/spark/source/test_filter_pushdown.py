"""Why this source has no `pushFilters`: Spark 4.3 gives wrong rows for a DataFrame that is used twice.

The filtered plan is remembered in the relation, so a second use of the DataFrame gets the filters of the first.
The first test is to fail when Spark has been repaired: then filters of SQL can be pushed down to the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class PrunedReader(DataSourceReader):  # type: ignore[misc] # PySpark is not followed by the checker.
    """Twelve rows in four groups; a filter on the group prunes, and is still left to Spark to apply."""

    def __init__(self) -> None:
        self.group: int | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for each in filters:
            if isinstance(each, EqualTo) and each.attribute == ("q",):
                self.group = each.value
            yield each

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        return ((n % 4, n) for n in range(12) if self.group in (None, n % 4))


class PrunedSource(DataSource):  # type: ignore[misc] # PySpark is not followed by the checker.
    """The smallest source that takes a filter."""

    @classmethod
    def name(cls) -> str:
        return "pruned"

    def schema(self) -> str:
        return "q int, n int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrunedReader()


def test_spark_still_gives_wrong_rows_when_a_frame_with_pushed_filters_is_used_twice(spark: SparkSession) -> None:
    spark.dataSource.register(PrunedSource)
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = spark.read.format("pruned").load()
        assert frame.filter("q = 1").count() == 3
        repaired = "Spark gives right rows now: let the source push filters down to segments and the index"
        assert frame.count() == 3, repaired  # There are twelve.
        both = frame.filter("q = 1").union(frame.filter("q = 2"))
        assert {row.q for row in both.collect()} != {1, 2}, repaired
    finally:
        spark.conf.unset(PUSHDOWN)


def test_separate_loads_with_pushed_filters_are_right(spark: SparkSession) -> None:
    spark.dataSource.register(PrunedSource)
    spark.conf.set(PUSHDOWN, "true")
    try:
        assert spark.read.format("pruned").load().filter("q = 1").count() == 3
        assert spark.read.format("pruned").load().count() == 12
    finally:
        spark.conf.unset(PUSHDOWN)
