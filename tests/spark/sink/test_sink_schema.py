"""Which frames can be written."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tiermq.errors import BadSchema
from tiermq.spark.options import SinkOptions
from tiermq.spark.source.data_source import SINK_COLUMNS, check_sink_schema

WITH_TOPIC = SinkOptions.of({"store": "/s", "topic": "T"})
WITHOUT = SinkOptions.of({"store": "/s"})


@pytest.mark.parametrize("choice", [0, -1])
def test_every_column_may_be_of_each_of_its_types(spark: SparkSession, choice: int) -> None:
    check_sink_schema(
        StructType.fromDDL(", ".join(f"{n} {kinds[choice]}" for n, kinds in SINK_COLUMNS.items())), WITHOUT
    )


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("body int", "column body: expected binary or string, found int; cast it"),
        ("body binary, queueId string", "column queueId: expected int or bigint, found string"),
        ("body binary, tag string", "no column tag; did you mean tags?"),
        ("body binary, price double", "no column price. Select some of body, topic"),
        ("topic string", "expected a column body, found topic"),
        ("body binary, properties map<string,int>", "expected map<string,string>, found map<string,int>"),
    ],
)
def test_a_schema_that_does_not_fit_is_reported_what_would(spark: SparkSession, ddl: str, expected: str) -> None:
    with pytest.raises(BadSchema) as raised:
        check_sink_schema(StructType.fromDDL(ddl), WITH_TOPIC)
    assert expected in str(raised.value)


def test_the_topic_must_be_given(spark: SparkSession) -> None:
    check_sink_schema(StructType.fromDDL("body binary"), WITH_TOPIC)
    with pytest.raises(BadSchema, match="a column topic or an option topic"):
        check_sink_schema(StructType.fromDDL("body binary"), WITHOUT)
