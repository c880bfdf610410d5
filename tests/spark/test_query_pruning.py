"""Conditions and columns of Spark's own plans prune what is read, and never a row."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from spark.source_world import SourceWorld
from spark.unpruned import unpruned
from tiermq.history.scan_pruning import ScanPruning
from tiermq.spark import ScanMeter, attach, messages
from tiermq.spark.query_pruning import read_condition, zone_of
from waiting import until


def places(world: SourceWorld) -> dict[str, Any]:
    return dict(world.both)


CONDITIONS = (
    "topic = 'rare'",
    "topic <=> 'rare' and body is not null",
    "topic in ('rare', 'none')",
    "topic = 'none'",
    "lower(topic) = 'RARE' or topic = 'rare'",
    "not topic = 'orders'",
    "topic = 'orders' and queueId = 1",
    "queueId = 1 or topic = 'rare'",
    "queueId in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12) and queueOffset >= 58",
    "queueOffset = 3L and queueId < 2",
    "queueOffset between 57 and 1000000000000",
    "queueOffset > 9223372036854775806",
    "queueId = '1'",
    "topic collate utf8_lcase = 'RARE'",
    "topic = 'ra\\'re' or topic = 'ra\\\\re'",
    "topic = (select max(topic) from whole)",
    "storeTimestamp >= '2000-01-01' and storeTimestamp < timestamp '2200-01-01 00:00:00.123456'",
    "storeTimestamp < '2000-01-01'",
    "tags is null or tags = 'none'",
    "uniqKey = 'none'",
    "array_contains(keys, 'none')",
    "rand() < 2 and topic = 'rare'",
    "properties['topic'] = 'none'",
    "brokerName = 'broker-a' and topic = 'rare'",
)
USES: tuple[Callable[[DataFrame], DataFrame], ...] = (
    lambda frame: frame.groupBy("topic").count(),
    lambda frame: frame.where("topic = 'rare'").union(frame.where("topic = 'orders' and queueId = 1")),
    lambda frame: frame.where("queueId = 0").join(frame.where("queueId = 1"), "queueOffset").select("queueOffset"),
    lambda frame: frame.where("topic = 'rare'").select(functions.length("body")).distinct(),
    lambda frame: frame.select("queueOffset", "topic").where("topic = 'rare'").orderBy("queueOffset").limit(3),
    lambda frame: frame.withColumnRenamed("topic", "queueId2").withColumn("topic", functions.lit("rare"))
    .where("topic = 'rare'").select("queueId2", "topic"),
    lambda frame: frame.alias("a").join(frame.alias("b"), functions.expr("a.queueOffset = b.queueOffset"), "left")
    .where("a.topic = 'rare' and (b.topic is null or b.queueId = 2)").select("a.topic", "b.queueId", "b.queueOffset"),
    lambda frame: frame.selectExpr("topic", "max(queueOffset) over (partition by topic) m").where("topic = 'rare'"),
    lambda frame: frame.select(functions.count("*")),
    lambda frame: frame.where("topic = 'rare'").select(functions.count("*"), functions.max("queueOffset")),
)  # fmt: skip


def test_rows_are_those_of_a_plan_without_pruning(spark: SparkSession, world: SourceWorld) -> None:
    frame = messages(spark, **places(world))
    frame.createOrReplaceTempView("whole")
    key = world.sent["orders", 2][7].keys[0]
    queries = [frame.where(each).select("topic", "queueId", "queueOffset", "body") for each in CONDITIONS]
    queries += [frame.where(functions.array_contains("keys", key)).select("queueId", "queueOffset")]
    queries += [use(frame) for use in USES]
    pruned = [rows(each) for each in queries]
    with unpruned(spark):
        for query, found in zip(queries, pruned, strict=True):
            again = query.select("*")  # A plan of its own.
            assert found == rows(again), query.explain()
    spark.catalog.dropTempView("whole")


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


def test_a_plan_reads_what_its_conditions_leave_wherever_it_comes_from(spark: SparkSession, world: SourceWorld) -> None:
    meter = ScanMeter(spark)
    frame = spark.read.format("tiermq").options(**world.both, scanMeter=meter.option).load()
    history = attach(spark, tier=world.url, store=f"{world.disk}=DefaultCluster/broker-a", meter=meter)
    frame.createOrReplaceTempView("whole")
    reads: tuple[tuple[Callable[[], DataFrame], int], ...] = (
            (lambda: frame.where("topic = 'rare'").select("body"), 5),
            (lambda: frame.where("topic = 'rare' and queueOffset < 2").select("body"), 2),
            (lambda: frame.select("body", "topic").where("topic = 'rare'"), 5),
            (lambda: spark.sql("select body from whole where topic = 'rare'"), 5),
            (lambda: spark.sql("select body from messages where topic = 'orders' and queueId = 1"), 60),
            (lambda: spark.sql("select w.body from whole w join rare r using (queueOffset) where w.queueId = 2"), 60),
            (lambda: spark.sql("select body from tiermq.defaultcluster.orders where queueId = 2"), 60),
            (lambda: spark.table("messages").where("queueId = 3"), 0),
            (lambda: spark.sql("select topic, count(*) from whole group by topic"), 0),
        )  # fmt: skip
    try:
        for read, wanted in reads:
            before = meter.counters.rows_read
            read().collect()
            assert meter.counters.rows_read - before == wanted, read().explain()
    finally:
        history.detach()
        spark.catalog.dropTempView("whole")


def test_a_frame_is_a_snapshot_whatever_conditions_are_put_on_it(spark: SparkSession, world: SourceWorld) -> None:
    frame = messages(spark, **places(world))
    assert frame.where("topic = 'rare'").count() == 5
    world.put(3, "rare", 0)
    world.put(3, "rare", 1)
    world.put(4, "orders", 0)
    assert len(frame.where("topic = 'rare'").select("body").collect()) == 5
    assert frame.where("topic = 'orders'").count() == 194  # First looked at now.
    world.put(2, "orders", 0)
    world.put(1, "third", 0)
    assert frame.count() == 200
    assert frame.where("queueId = 0 and topic = 'orders'").select("body").count() == 74
    assert frame.where("topic = 'third'").count() == 1
    world.put(1, "fourth", 0)
    assert frame.where("topic = 'fourth'").count() == 0
    world.flush_to_tier()
    world.evict_all()
    assert frame.where("queueId = 0").where("topic = 'orders'").count() == 74


def test_a_session_has_the_rule_once(spark: SparkSession) -> None:
    messages(spark, tier="memory://none")
    methods = spark._jsparkSession.experimental()
    names = [
        methods.extraOptimizations().apply(n).getClass().getName() for n in range(methods.extraOptimizations().size())
    ]
    assert names == ["tiermq.PruneMessages"]


def test_a_condition_of_a_plan_is_read_as_that_of_a_query() -> None:
    both = "((topic = 'rare') AND (queueOffset >= 100L))"
    assert read_condition(f"UTC {both}") == ScanPruning(topics=frozenset({"rare"}), begin_offset=100)
    hour = "(storeTimestamp >= TIMESTAMP '2026-01-01 01:00:00')"
    assert read_condition(f"+01:00 {hour}") == read_condition(f"UTC {hour.replace(' 01:', ' 00:')}")
    assert read_condition(f"Mars/Base {hour}") == ScanPruning()
    assert read_condition("UTC (topic = scalarsubquery#12 [])") == ScanPruning()


@pytest.mark.parametrize(
    ("name", "has"), [("Z", True), ("Europe/Berlin", True), ("-03:30", True), ("Mars/Base", False)]
)
def test_zones_are_read_as_spark_names_them(name: str, has: bool) -> None:
    assert (zone_of(name) is not None) == has


def test_the_file_of_a_snapshot_goes_with_its_frame(spark: SparkSession, world: SourceWorld) -> None:
    frame = messages(spark, **places(world))
    assert frame.where("topic = 'rare'").count() == 5
    relation = frame._jdf.queryExecution().optimizedPlan().collectLeaves().head().relation()
    snapshot = Path(relation.options().get("scanSnapshot"))
    assert snapshot.is_file()
    del frame, relation

    def is_gone() -> bool:
        gc.collect()
        spark._jvm.java.lang.System.gc()
        return not snapshot.exists()

    until(is_gone)
