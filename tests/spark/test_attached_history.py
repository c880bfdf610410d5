"""Topics as tables of a session, and queries that read only what they need. Pruned and unpruned rows are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark.source_world import SourceWorld
from spark.unpruned import unpruned
from tiermq import Message
from tiermq.errors import BadHistory, BadOption
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.sql.query_tables import condition_pruning
from tiermq.spark import ScanMeter, attach, explain_scan, messages
from tiermq.spark.attached_history import AttachedHistory, topic_views
from tiermq.spark.source.builder import PRUNING_OPTION
from tiermq.store.local_store import LocalStore


def places(world: SourceWorld) -> dict[str, Any]:
    return {"tier": world.url, "store": world.disk, "brokerName": "broker-a"}


QUERIES = (
    "select topic, queueId, count(*) from messages group by all",
    "select body from messages where topic = 'rare'",
    "select body from messages where topic = 'no such topic'",
    "select body from orders where queueId = 99",
    "select body from orders where queueOffset >= 58",
    "select body from orders where queueOffset between 1000 and 2000",
    "select a.body from orders a join orders b on a.queueOffset = b.queueOffset where a.queueId = 0 and b.queueId = 1",
    "select a.body, b.body from rare a left join orders b on a.queueOffset = b.queueOffset and b.queueId = 7",
    "with c as (select * from orders) select body from c where queueId = 1 union select body from c where queueId = 2",
    "select body from orders where queueId = 1 or topic = 'orders' and queueId = 2",
    "select count(*) from orders where storeTimestamp >= '2000-01-01' and storeTimestamp < '2200-01-01'",
    "select body from messages m where m.topic in ('rare', 'orders') and not m.queueId = 0",
    "select body from orders where exists (select 1 from rare r where r.queueOffset = orders.queueOffset)",
    "select count(*) from orders o full outer join rare r on o.queueOffset = r.queueOffset where r.topic = 'rare'",
)


def test_every_query_gives_what_unpruned_views_give(spark: SparkSession, world: SourceWorld) -> None:
    history = attach(spark, **places(world))
    try:
        assert history.views == {"orders": "orders", "rare": "rare"}
        for query in QUERIES:
            pruned = sorted(map(tuple, history.sql(query).collect()))
            with unpruned(spark):
                assert pruned == sorted(map(tuple, spark.sql(query).collect())), query
        key = world.sent["orders", 2][7].keys[0]
        (row,) = history.sql(f"select queueOffset from messages where array_contains(keys, '{key}')").collect()
        assert row[0] == 7
    finally:
        history.detach()
    assert not spark.catalog.tableExists("orders")


def test_a_query_reads_what_its_conditions_leave_and_counts_read_nothing(
    spark: SparkSession, world: SourceWorld
) -> None:
    meter = ScanMeter(spark)
    source = places(world)
    history = AttachedHistory(spark, topic_views(**source), source, meter)
    assert len(history.sql("select body from messages where topic = 'rare'").collect()) == 5
    assert meter.counters.rows_read == 5
    assert history.sql("select topic, count(*) n from messages group by topic").count() == 2
    assert (meter.counters.rows_read, meter.counters.rows_given) == (5, 5 + 195)
    assert len(messages(spark, **source, where="topic = 'orders' and queueId = 1", meter=meter).collect()) == 60
    assert meter.counters.rows_read == 65


def test_the_plan_of_a_condition_is_that_of_the_options(world: SourceWorld) -> None:
    key = world.sent["orders", 2][7].keys[0]
    pairs: list[tuple[str, dict[str, Any]]] = [
        ("topic = 'rare'", {"topic": "rare"}),
        ("topic = 'orders' and queueId = 1", {"topic": "orders", "queues": 1}),
        (f"topic = 'orders' and array_contains(keys, '{key}')", {"topic": "orders", "keys": key}),
    ]
    for condition, options in pairs:
        pruning = {PRUNING_OPTION: condition_pruning(condition, None).as_text()}
        found = explain_scan(show=False, tier=world.url, **pruning).counters
        assert found.bytes_planned == explain_scan(show=False, tier=world.url, **options).counters.bytes_planned
        assert found.bytes_planned < explain_scan(show=False, tier=world.url).counters.bytes_planned


def test_a_topic_that_was_named_must_exist_and_one_of_a_condition_need_not(
    spark: SparkSession, world: SourceWorld
) -> None:
    with pytest.raises(BadHistory, match="did you mean 'orders'"):
        attach(spark, topic="order", tier=world.url)
    assert messages(spark, tier=world.url, where="topic = 'order'").count() == 0
    with pytest.raises(Exception, match="did you mean 'orders'"):
        messages(spark, tier=world.url, topic="order", where="queueId = 1").count()


def tables_of(spark: SparkSession) -> set[str]:
    """Also those that other tests of the session left."""
    return {table.name for table in spark.catalog.listTables()}


def test_names_that_differ_in_case_or_punctuation_read_their_own_topics(spark: SparkSession, tmp_path: Path) -> None:
    before = tables_of(spark)
    world = SourceWorld(tmp_path)
    topics = {"Orders": 1, "orders": 2, "a-b": 3, "a_b": 4, "x-y": 5}
    for topic, count in topics.items():
        world.put(count, topic, 0)
    world.flush_to_tier()
    with pytest.warns(UserWarning, match="topics Orders, orders have no views"):
        history = attach(spark, tier=world.url)
    try:
        for topic, count in topics.items():
            assert history.sql(f"select topic from `{topic}`").collect() == [(topic,)] * count
        assert history.sql("select count(*) from Orders").head() == (1,)
        assert history.sql("select count(*) from orders").head() == (2,)
        assert spark.sql("select count(*) from a_b").head() == (4,)
        assert spark.sql("select count(*) from `a-b`").head() == (3,)
        assert spark.sql("select count(*) from x_y").head() == spark.sql("select count(*) from `x-y`").head() == (5,)
        for query in ("select body from ORDERS", "from orders |> select body"):
            with pytest.raises(BadOption, match="Write `Orders` or `orders`"):
                history.sql(query)
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.sql("select body from orders")
    finally:
        history.detach()
        world.bury()
    assert tables_of(spark) == before


def test_views_of_the_sessions_user_are_neither_replaced_nor_dropped(spark: SparkSession, world: SourceWorld) -> None:
    before = tables_of(spark)
    spark.range(7).createOrReplaceTempView("orders")
    with pytest.warns(UserWarning, match="temporary views orders of its own"):
        history = attach(spark, tier=world.url)
    assert spark.sql("select count(*) from orders").head() == (7,)
    assert history.sql("select count(*) from orders").head() == (180,)
    with pytest.raises(BadOption, match="expected no temporary view of that name"):
        history.sql("from orders")
    spark.range(3).createOrReplaceTempView("rare")
    history.detach()
    assert tables_of(spark) == before | {"orders", "rare"}
    for name in ("orders", "rare"):
        spark.catalog.dropTempView(name)


def test_a_second_attach_takes_the_views_of_the_first_which_then_leaves_them(
    spark: SparkSession, world: SourceWorld
) -> None:
    before = tables_of(spark)
    first = attach(spark, tier=world.url)
    second = attach(spark, tier=world.url)
    first.detach()
    assert spark.sql("select count(*) from rare").head() == (5,)
    second.sql("with rare as (select body from rare) select body from rare").collect()
    assert spark.sql("select tags from rare").count() == 5, "a query left a view without its columns"
    second.detach()
    assert tables_of(spark) == before


def test_a_wrong_column_is_answered_with_the_nearest_of_all_columns_and_no_stack(
    spark: SparkSession, world: SourceWorld, capfd: pytest.CaptureFixture[str]
) -> None:
    history = AttachedHistory(spark, topic_views(tier=world.url), {"tier": world.url})
    for query in ("select boddy from orders", "with rare as (select boddy from rare) select 1 from rare"):
        with pytest.raises(AnalysisException, match=r"Did you mean one of the following\? \[`.*body`"):
            history.sql(query)
    assert "SQLQueryContextLogger" not in capfd.readouterr().err
    assert all("_tiermq_" not in table.name for table in spark.catalog.listTables())
    history.detach()


def test_history_is_read_only_in_sql(spark: SparkSession, world: SourceWorld) -> None:
    history = attach(spark, tier=world.url)
    for query in ("insert into orders select * from orders", "delete from messages where queueId = 1"):
        with pytest.raises(BadOption, match="history is read-only"):
            history.sql(query)
    with pytest.raises(AnalysisException, match="history is read-only"):
        spark.sql("insert into orders select * from orders")
    history.detach()


def test_attach_counts_by_a_meter_and_refuses_what_a_query_reports(spark: SparkSession, world: SourceWorld) -> None:
    meter = ScanMeter(spark)
    history = attach(spark, meter=meter, **places(world))
    try:
        assert len(history.sql("select body from rare").collect()) == 5
        assert meter.counters.rows_read == 5
    finally:
        history.detach()
    refused: dict[str, Any] = {"columns": ["body"], "where": "queueId = 0"}
    for name, value in refused.items():
        with pytest.raises(BadOption, match=f"{name} is not an argument of attach"):
            attach(spark, **places(world), **{name: value})


def test_a_topic_is_a_table_of_three_names_in_one_call(spark: SparkSession, world: SourceWorld) -> None:
    databases = {row[0] for row in spark.sql("show databases").collect()}
    history = attach(spark, tier=world.url)
    cluster = next(iter(history.views.clusters))
    name = f"tiermq.{cluster}.orders"
    rows = spark.sql(f"select topic, queueId, queueOffset, body from {name} where queueId = 1").collect()
    assert sorted(map(tuple, rows)) == sorted(
        map(tuple, spark.sql("select topic, queueId, queueOffset, body from orders where queueId = 1").collect())
    )
    assert len(rows) == 60
    joined = f"select count(*) from {name} a join tiermq.{cluster}.rare b on a.queueOffset = b.queueOffset"
    assert spark.sql(joined).head() == history.sql(joined).head() == (15,)
    assert spark.table(name).where("queueOffset >= 58").count() == 6
    tables = {row.tableName for row in spark.sql(f"show tables in tiermq.{cluster}").collect() if not row.isTemporary}
    assert tables == {"orders", "rare"}
    assert {row[0] for row in spark.sql("show databases").collect()} == databases, "other catalogs do not change"
    with pytest.raises(AnalysisException):
        spark.sql(f"insert into {name} select * from {name}")
    history.detach()
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql(f"select count(*) from {name}")


def test_tables_of_a_second_attach_replace_those_of_the_first(
    spark: SparkSession, world: SourceWorld, tmp_path: Path
) -> None:
    first = attach(spark, tier=world.url)
    cluster = next(iter(first.views.clusters))
    other = SourceWorld(tmp_path / "other")
    other.put(3, "orders", 0)
    other.flush_to_tier()
    second = attach(spark, tier=other.url)
    first.detach()
    assert spark.sql(f"select count(*) from tiermq.{cluster}.orders").head() == (3,)
    second.detach()
    other.bury()


def test_a_catalog_of_the_users_own_of_that_name_stays(spark: SparkSession, world: SourceWorld) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.tiermq", "another.Catalog")
    with pytest.warns(UserWarning, match="the session has another catalog tiermq"):
        history = attach(session, tier=world.url)
    assert session.sql("select count(*) from rare").head() == (5,)
    history.detach()


def test_each_cluster_of_a_tier_has_tables_of_its_own_messages(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    for number, names in enumerate(("north/broker-n", "south-east/broker-s"), 1):
        with LocalStore.open(tmp_path / names.replace("/", "-"), background=False) as store:
            for _ in range(number):
                assert store.put(Message("orders", names.encode(), 0)).ok
            store.dispatch_now()
            store.flush()
        offload([f"{tmp_path / names.replace('/', '-')}={names}"], url, index="later")
    history = attach(spark, tier=url)
    assert spark.sql("select string(body) from tiermq.north.orders").collect() == [("north/broker-n",)]
    both = "select count(*) from tiermq.south_east.orders union all select count(*) from orders"
    assert [row[0] for row in spark.sql(both).collect()] == [2, 3]
    history.detach()


def test_clusters_with_one_broker_name_are_read_one_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/tier"
    for cluster in ("north", "south"):
        with LocalStore.open(tmp_path / cluster, background=False) as store:
            assert store.put(Message("orders", cluster.encode(), 0)).ok
            store.dispatch_now()
            store.flush()
        offload([f"{tmp_path / cluster}={cluster}/broker-a"], url, index="later")
    history = attach(spark, tier=url)
    for cluster in ("north", "south"):
        assert spark.sql(f"select string(body) from tiermq.{cluster}.orders").collect() == [(cluster,)]
        chosen = messages(spark, tier=url, topic="orders", cluster=cluster)
        assert chosen.selectExpr("string(body)").collect() == [(cluster,)]
    with pytest.raises(Exception, match="rows of both would have the same recordId"):
        spark.sql("select recordId from orders").collect()
    history.detach()
