"""Schemas that Spark hands over."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from tiermq.errors import BadSchema, UnknownColumn
from tiermq.history.arrow_schema import ALIASES, COLUMNS, spark_schema_ddl
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.data_source import columns_of_schema


def check(ddl: str, **options: str) -> tuple[str, ...]:
    schema = StructType.fromDDL(ddl)
    return columns_of_schema(schema, SourceOptions.of({"tier": "s3://b", **options}, Use.BATCH))


def test_the_schema_that_the_source_declares_fits_to_the_letter(spark: object) -> None:
    assert check(spark_schema_ddl()) == tuple(COLUMNS)
    assert check(spark_schema_ddl(list(ALIASES))) == tuple(ALIASES)


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("queueId long", "column queueId: expected INT, found BIGINT; declare it as queueId INT"),
        ("body string", "column body: expected BINARY, found STRING"),
        ("keys string", "column keys: expected ARRAY<STRING>, found STRING"),
        ("queueId int not null", "may be null"),
    ],
)
def test_a_column_of_another_type_is_reported_the_right_one(spark: object, ddl: str, expected: str) -> None:
    with pytest.raises(BadSchema) as raised:
        check(ddl)
    assert expected in str(raised.value)


def test_a_column_that_does_not_exist_is_shown_the_nearest(spark: object) -> None:
    with pytest.raises(UnknownColumn, match="did you mean 'queueId'"):
        check("queueID int")


def test_columns_are_reported_once(spark: object) -> None:
    assert check("queueId int, topic string", columns="topic,queueId") == ("queueId", "topic")
    with pytest.raises(BadSchema, match="give one of them"):
        check("queueId int", columns="topic")
