"""`format("tiermq")` through a real session: batches, SQL, streams, errors as users see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.source_world import SourceWorld
from tiermq.history.arrow_schema import COLUMNS, spark_schema_ddl
from tiermq.spark import stream_lag

ROW = ("topic", "queueId", "queueOffset", "body")


def load(spark: SparkSession, options: dict[str, str], **more: str) -> DataFrame:
    return spark.read.format("tiermq").options(**options, **more).load()


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*ROW).collect())


def test_the_format_is_known_without_registration_and_hot_and_cold_are_one_table(
    spark: SparkSession, filled: SourceWorld
) -> None:
    frame = load(spark, filled.both)
    assert frame.columns == list(COLUMNS)
    assert rows(frame) == filled.wanted()
    sides = {row["tier"]: row["count"] for row in frame.groupBy("tier").count().collect()}
    assert sides == {"cold": 400, "hot": 35}


def test_every_column_of_every_row_comes_through_spark_as_it_is_decoded(
    spark: SparkSession, filled: SourceWorld
) -> None:
    from spark.source_world import batch_reader
    from tiermq.history.scan_values import ScanCounters
    from tiermq.spark.source.batch_reader import read_partition

    parts = batch_reader({**filled.both, "subscribe": "returns"}).partitions()
    decoded = [batch for part in parts for batch in read_partition(part, ScanCounters())]
    import pyarrow as pa

    expected = spark.createDataFrame(pa.Table.from_batches(decoded), schema=spark_schema_ddl())
    assertDataFrameEqual(load(spark, filled.both, subscribe="returns"), expected)


def test_the_columns_of_kafka_can_be_had(spark: SparkSession, filled: SourceWorld) -> None:
    assert "headers" not in load(spark, filled.both, subscribe="returns", kafkaColumns="true").columns
    frame = load(spark, filled.both, subscribe="returns", kafkaColumns="true", includeHeaders="true")
    sent = filled.sent["returns", 0][0]
    row = frame.orderBy("partition", "offset").head()
    assert row is not None
    assert (row.topic, row.partition, row.offset, bytes(row.value)) == ("returns", 0, sent.offset, sent.body)
    assert bytes(row.key).decode().split(" ") == list(sent.keys)
    assert {header.key for header in row.headers} >= {"KEYS", "TAGS"}


def test_a_schema_of_the_user_narrows_the_columns(spark: SparkSession, filled: SourceWorld) -> None:
    frame = spark.read.format("tiermq").options(**filled.both).schema("queueId int, topic string").load()
    assert frame.columns == ["queueId", "topic"]
    assert frame.count() == len(filled.wanted())
    assert frame.where("topic = 'returns'").count() == 40


def test_sql_reads_a_view_and_many_tasks_read_one_queue(spark: SparkSession, filled: SourceWorld) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW seen_orders USING tiermq OPTIONS (tier '{filled.url}', "
        f"store '{filled.disk}', brokerName 'broker-a', subscribe 'orders')"
    )
    found = spark.sql("select queueId, count(*) n, max(queueOffset) last from seen_orders group by 1 order by 1")
    assert [tuple(row) for row in found.collect()] == [(0, 150, 149), (1, 120, 119), (2, 120, 119), (3, 5, 4)]
    split = load(spark, filled.both, subscribe="orders", queueIds="0", minPartitions="4", maxBytesPerPartition="2k")
    assert split.rdd.getNumPartitions() >= 4
    assert rows(split) == filled.wanted(("orders", 0))


def test_a_frame_that_is_used_twice_gives_right_rows_with_any_filter(spark: SparkSession, filled: SourceWorld) -> None:
    frame = load(spark, filled.both, subscribe="orders")
    assert frame.filter("queueId = 1").count() == 120
    assert frame.count() == 395
    both = frame.filter("queueId = 1").union(frame.filter("queueId = 3"))
    assert sorted({row.queueId for row in both.select("queueId").collect()}) == [1, 3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subscibe": "orders"}, "there is no option subscibe; did you mean subscribe?"),
        ({"subscribe": "orderz"}, "did you mean 'orders'"),
        ({"startingOffsets": '{"orders": {"0": 1'}, "at character 19"),
        ({"columns": "boddy"}, "did you mean 'body'"),
        ({"maxOffsetsPerTrigger": "5"}, "is for streams only"),
        ({"subscribe": "orders", "endingOffsets": '{"orders": {"0": 999}}'}, "beyond the end"),
        ({"tier": "s4://x"}, "s4"),
    ],
)
def test_bad_input_is_reported_on_the_driver(
    spark: SparkSession, filled: SourceWorld, options: dict[str, str], expected: str
) -> None:
    with pytest.raises(AnalysisException) as raised:
        load(spark, {**filled.both, **options}).count()
    assert expected in str(raised.value)


def stream(spark: SparkSession, options: dict[str, str], out: Path, **more: str) -> Any:
    frame = spark.readStream.format("tiermq").options(**options, **more).load().select(*ROW)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(out / "checkpoint"))
    return writer.option("path", str(out / "rows"))


def test_a_stream_with_available_now_reads_each_message_once_over_restarts(
    spark: SparkSession, filled: SourceWorld, tmp_path: Path
) -> None:
    for _ in range(2):
        query = stream(
            spark, filled.both, tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="200"
        ).trigger(availableNow=True).start()  # fmt: skip
        query.awaitTermination()
        assert rows(spark.read.parquet(str(tmp_path / "rows"))) == filled.wanted()
        sizes = [progress.numInputRows for progress in query.recentProgress]
        assert all(size <= 200 for size in sizes)
        filled.put(30, "orders", 2)
        filled.put(30, "new", 0)
    query = stream(spark, filled.both, tmp_path, startingOffsets="earliest").trigger(availableNow=True).start()
    query.awaitTermination()
    assert rows(spark.read.parquet(str(tmp_path / "rows"))) == filled.wanted()
    behind = query.lastProgress.sources[0]
    assert behind.latestOffset is not None


def test_a_checkpoint_of_another_tier_ends_the_stream_with_both_names(
    spark: SparkSession, filled: SourceWorld, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    query = stream(spark, filled.both, tmp_path, startingOffsets="earliest").trigger(availableNow=True).start()
    query.awaitTermination()
    other = SourceWorld(tmp_path_factory.mktemp("other"))
    try:
        other.put(10)
        other.flush_to_tier()
        query = stream(spark, other.both, tmp_path).trigger(availableNow=True).start()
        with pytest.raises(PySparkException, match="expected a checkpoint of tier file:"):
            query.awaitTermination()
    finally:
        other.bury()


def test_a_table_of_the_catalog_reports_why_it_cannot_be_and_what_to_use(
    spark: SparkSession, filled: SourceWorld
) -> None:
    options = f"options (tier '{filled.url}', subscribe 'orders')"
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"create table kept using tiermq {options}")
    spark.sql(
        f"create table declared (queueId int) using tiermq {options}"
    )  # Spark asks nothing where there is a schema.
    try:
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            spark.sql("select count(*) from declared").collect()
    finally:
        spark.sql("drop table declared")
    spark.sql(f"create temporary view seen using tiermq {options}")
    try:
        assert spark.sql("select queueId from seen where queueId = 0").count() == 120
    finally:
        spark.catalog.dropTempView("seen")


def test_the_lag_of_a_stream_can_be_read_from_its_progress(spark: SparkSession, filled: SourceWorld) -> None:
    source = spark.readStream.format("tiermq").options(**filled.both, subscribe="orders", startingOffsets="earliest")
    frame = source.option("maxOffsetsPerTrigger", 100).load()
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    behind = [stream_lag(progress).total for progress in query.recentProgress]
    assert behind[:4] == [295, 195, 95, 0]
    assert stream_lag(query).as_metrics()["maxOffsetsBehindLatest"] == 0.0
