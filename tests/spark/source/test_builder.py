"""Python values instead of option texts."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from spark.source_world import SourceWorld
from tiermq.errors import BadOption, UnknownColumn
from tiermq.metrics import Registry
from tiermq.spark import ScanMeter, explain_scan, messages
from tiermq.spark.source.builder import option_texts


def test_values_and_named_options_become_the_texts_of_options() -> None:
    given = option_texts(tier="s3://b", topic="a,b", columns=["body"], minPartitions=4, failOnDataLoss=False)
    assert given == {
        "tier": "s3://b",
        "subscribe": '["a,b"]',
        "columns": '["body"]',
        "minPartitions": "4",
        "failOnDataLoss": "false",
    }
    assert option_texts(namesrv="a:1", keys=None, columns="body") == {"namesrv": "a:1", "columns": '["body"]'}


def test_an_explanation_shows_the_plan_and_needs_no_spark(
    filled: SourceWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    found = explain_scan(tier=filled.url, store=filled.disk, brokerName="broker-a", topic="orders", queues=0)
    assert found.counters.queues == 1
    assert found.counters.bytes_planned > 0
    assert found.partitions == 1
    shown = capsys.readouterr().out
    assert "planned   1 queue," in shown
    assert "requests" in shown
    narrow = explain_scan(tier=filled.url, topic="orders", keys="key-7", show=False)
    assert narrow.counters.bytes_planned < 1000
    assert narrow.counters.index_files_asked > 0
    assert capsys.readouterr().out == ""


def test_an_explanation_lists_losses(filled: SourceWorld, capsys: pytest.CaptureFixture[str]) -> None:
    explain_scan(tier=filled.url, topic="orders", offsets={"orders": {0: (500, None)}})
    assert "lost      broker-a/orders/0" in capsys.readouterr().out


def test_messages_is_a_frame_with_counters_that_can_be_metrics(spark: SparkSession, filled: SourceWorld) -> None:
    meter = ScanMeter(spark)
    registry = Registry()
    meter.show_in(registry)
    victim = filled.sent["orders", 2][50]
    frame = messages(
        spark, tier=filled.url, store=filled.disk, topic="orders", keys=victim.keys[0], columns=["queueOffset", "body"],
        meter=meter, brokerName="broker-a",
    )  # fmt: skip
    assert [tuple(row) for row in frame.collect()] == [(victim.offset, victim.body)]
    assert meter.counters.rows_given == 1
    assert "rows      1 of " in str(meter)
    assert "tiermq_scan_rows_given_total 1" in registry.render_prometheus()
    # The same conditions, other ones, and none, in one query: no frame takes over what another one asked for.
    one = messages(spark, tier=filled.url, topic="orders", queues=1)
    all_of_it = messages(spark, tier=filled.url, topic="orders")
    assert one.count() == 120
    assert one.union(all_of_it).union(one).count() == 120 + 360 + 120


def test_wrong_arguments_are_reported_at_once(spark: SparkSession, filled: SourceWorld) -> None:
    with pytest.raises(BadOption, match="did you mean subscribe"):
        messages(spark, tier=filled.url, subscibe="x")
    with pytest.raises(UnknownColumn, match="did you mean 'body'"):
        messages(spark, tier=filled.url, columns="bodi")


def test_a_condition_may_name_columns_that_are_not_asked_for(spark: SparkSession, filled: SourceWorld) -> None:
    whole = messages(spark, tier=filled.url, topic="orders")
    some = messages(
        spark, tier=filled.url, topic="orders", columns=["queueId"], where="TAGS = 't1' and `queueOffset` < 20"
    )
    assert some.columns == ["queueId"]
    expected = whole.where("tags = 't1' and queueOffset < 20").select("queueId").collect()
    assert sorted(some.collect()) == sorted(expected) != []
    with pytest.raises(BadOption, match="asks for body"):
        messages(spark, tier=filled.url, columns=["body"], where="queueId = 0", includeBody=False)
