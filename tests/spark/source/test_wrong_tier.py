"""A tier that holds nothing is an error for every reader: a wrong address must never pass for an empty table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark.source_world import SourceWorld, batch_reader, rows_of
from tiermq.errors import BadHistory
from tiermq.spark import explain_scan, messages
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.data_source import TierMQDataSource
from tiermq.spark.source.stream_reader import TierMQStreamReader

NOTHING_THERE = "expected the history of a broker, found none"


def stream_reader(options: dict[str, str]) -> TierMQStreamReader:
    return TierMQStreamReader(SourceOptions.of(options, Use.STREAM), ("body",))


@pytest.mark.parametrize("driver", ["", "?driver=object"])
def test_an_absent_or_empty_prefix_is_an_error_in_batch_and_stream(tmp_path: Path, driver: str) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty"):
        wrong: dict[str, Any] = {"tier": f"file://{tmp_path}/{name}{driver}"}
        with pytest.raises(BadHistory, match=NOTHING_THERE):
            batch_reader(wrong).partitions()
        with pytest.raises(BadHistory, match=NOTHING_THERE):
            stream_reader(wrong).initialOffset()
        with pytest.raises(BadHistory, match=NOTHING_THERE):
            explain_scan(**wrong)


def test_a_wrong_tier_beside_a_store_that_has_only_the_newest_messages_is_an_error(filled: SourceWorld) -> None:
    wrong = {**filled.both, "tier": filled.url + "-typo"}
    with pytest.raises(BadHistory, match=r"only from offset \d+ on\), found none"):
        batch_reader(wrong).partitions()


def test_a_store_whose_broker_uploaded_nothing_yet_is_read_with_its_empty_tier(world: SourceWorld) -> None:
    world.put(3, "orders", 0)
    assert len(rows_of(world.both)) == 3


def test_spark_reports_a_wrong_tier_of_a_frame_and_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    wrong = f"file://{tmp_path}/absent"
    with pytest.raises(Exception, match=NOTHING_THERE):
        messages(spark, tier=wrong).count()
    spark.dataSource.register(TierMQDataSource)
    stream = spark.readStream.format("tiermq").option("tier", wrong).load()
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match=NOTHING_THERE):
        query.awaitTermination()
