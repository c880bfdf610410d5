"""Python values instead of option texts."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

from spark.source_world import SourceWorld
from tiermq.errors import BadOption, UnknownColumn
from tiermq.metrics import Registry
from tiermq.spark import ScanMeter, explain_scan, messages
from tiermq.spark.source.builder import option_texts


def test_values_become_the_texts_of_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = option_texts(
        tier="s3://b", store=["a", Path("/b")], topic="a,b", keys=["x", "y,z"], tags="t", queues=range(3),
        since=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), until=1767225600123, columns=["body"],
        offsets=(5, None), minPartitions=4, failOnDataLoss=False, brokerName=["x", "y"],
    )  # fmt: skip
    assert given == {
        "tier": "s3://b",
        "store": f'["{tmp_path}/a", "/b"]',
        "subscribe": '["a,b"]',
        "keys": '["x", "y,z"]',
        "tags": '["t"]',
        "columns": '["body"]',
        "queueIds": "0,1,2",
        "startingTimestamp": "1767225600000",
        "endingTimestamp": "1767225600123",
        "startingOffsets": "5",
        "minPartitions": "4",
        "failOnDataLoss": "false",
        "brokerName": '["x", "y"]',
    }


def test_offsets_by_queue_are_split_into_both_ends() -> None:
    given = option_texts(tier="s3://b", offsets={"orders": {0: (1, 2), 1: (None, 5)}, "x": {"b": {0: (3, None)}}})
    assert given["startingOffsets"] == '{"orders": {"0": 1}, "x": {"b": {"0": 3}}}'
    assert given["endingOffsets"] == '{"orders": {"0": 2, "1": 5}}'


def test_times_without_a_zone_are_of_the_given_one() -> None:
    zone = ZoneInfo("Europe/Paris")
    for since in ("2026-01-01T01:00:00", dt.datetime(2026, 1, 1, 1)):  # noqa: DTZ001
        assert option_texts(tier="s3://b", since=since, zone=zone)["startingTimestamp"] == "1767225600000"
    assert option_texts(tier="s3://b", since="2026-01-01T00:00:00Z", zone=zone)["startingTimestamp"] == "1767225600000"
    with pytest.raises(BadOption, match="since and until: expected milliseconds"):
        option_texts(tier="s3://b", since="yesterday")


def test_a_pattern_is_a_pattern_and_bad_offsets_are_told() -> None:
    assert option_texts(tier="s3://b", topic=re.compile("a.*"))["subscribePattern"] == "a.*"
    with pytest.raises(BadOption, match="expected .from, to."):
        option_texts(tier="s3://b", offsets=5)


def test_an_explanation_tells_the_plan_and_needs_no_spark(
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


def test_wrong_arguments_are_told_at_once(spark: SparkSession, filled: SourceWorld) -> None:
    with pytest.raises(BadOption, match="did you mean subscribe"):
        messages(spark, tier=filled.url, subscibe="x")
    with pytest.raises(UnknownColumn, match="did you mean 'body'"):
        messages(spark, tier=filled.url, columns="bodi")
