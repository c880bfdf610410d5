"""History in SQL."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark.source_world import SourceWorld
from tiermq.errors import BadHistory, BadOption
from tiermq.pipeline.sql.topic_views import plain
from tiermq.spark.attached_history import topic_views
from tiermq.spark.sql import sql


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SourceWorld]:
    made = SourceWorld(tmp_path)
    made.put(20, "orders", 0)
    made.put(10, "%RETRY%g", 1)
    made.flush_to_tier()
    made.put(5, "orders", 0)
    yield made
    made.bury()


def places(world: SourceWorld) -> dict[str, Any]:
    return {"tier": world.url, "store": world.disk, "brokerName": "broker-a"}


def test_hot_and_cold_are_counted_by_topic(spark: Any, world: SourceWorld) -> None:
    query = "select topic, count(*) n from messages group by topic order by topic"
    report = sql(spark, query, explain=True, **places(world))
    assert report.details["rows"] == [["%RETRY%g", 10], ["orders", 25]]
    assert report.details["columns"] == [{"name": "topic", "type": "string"}, {"name": "n", "type": "bigint"}]
    assert report.details["columns_read"] == ["topic"]
    assert report.done["messages"] == 0  # Manifests and queues know how many there are.
    assert "rows      35, known without reading a message" in report.details["scan"]["all"]
    assert any("planned" in line for line in report.details["scan"]["all"])


def test_a_topic_is_a_view_under_a_legal_name_and_rows_are_limited(spark: Any, world: SourceWorld) -> None:
    report = sql(spark, "select queueOffset, body from _retry_g order by queueOffset", limit=3, **places(world))
    assert [row[0] for row in report.details["rows"]] == [0, 1, 2]
    assert report.details["rows"][0][1].startswith("%RETRY%g 1")
    assert not spark.catalog.tableExists("_retry_g"), "a query left its view behind"


def test_a_topic_has_the_names_of_catalog_and_cluster_too(spark: Any, world: SourceWorld) -> None:
    cluster = next(iter(topic_views(**places(world)).clusters))
    query = f"select count(*) from tiermq.{cluster}.orders union all select count(*) from `tiermq`.{cluster}._retry_g"
    report = sql(spark, query, **places(world))
    assert report.details["rows"] == [[25], [10]]
    assert spark.sql("show namespaces in tiermq").collect() == [], "a query left its tables behind"


def test_a_query_that_names_nothing_known_is_reported_what_there_is(spark: Any, world: SourceWorld) -> None:
    with pytest.raises(BadOption, match=r"(?s)TABLE_OR_VIEW_NOT_FOUND.*Tables are messages, _retry_g, orders"):
        sql(spark, "select topic from ordres", **places(world))
    with pytest.raises(BadOption, match="PARSE_SYNTAX_ERROR"):
        sql(spark, "selekt topic from orders", **places(world))


def test_a_query_without_a_table_is_reported_which_there_are(world: SourceWorld) -> None:
    report = sql(None, "select 1", dry_run=True, **places(world))
    assert "there are messages, _retry_g, orders" in report.details["notes"][0]
    assert report.planned == {}


def test_a_dry_run_plans_the_scan_without_spark(world: SourceWorld) -> None:
    report = sql(None, "select body from orders", dry_run=True, **places(world))
    assert report.planned["bytes"] > 0
    assert list(report.details["scan"]) == ["orders"]
    assert "rows" not in report.details


def test_without_spark_there_is_no_answer(world: SourceWorld) -> None:
    with pytest.raises(BadOption, match="needs Spark"):
        sql(None, "select 1", **places(world))


def test_views_are_of_the_topics_that_were_asked_for(world: SourceWorld) -> None:
    assert topic_views(topic=["orders"], **places(world)) == {"orders": "orders"}
    with pytest.raises(BadHistory, match="did you mean 'orders'"):
        topic_views(topic=["order"], **places(world))


def test_values_become_what_json_can_hold() -> None:
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    found = plain([b"text", bytearray(b"\xff"), moment, decimal.Decimal("1.5"), {"a": (b"x",)}, None, 3])
    assert found == ["text", "0xff", "2026-01-01T00:00:00+00:00", "1.5", {"a": ["x"]}, None, 3]
