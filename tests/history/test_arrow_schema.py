"""The columns of a message: their order, their Arrow types, and the same in Spark's words."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tiermq.errors import UnknownColumn
from tiermq.history.arrow_schema import ALIASES, COLUMNS, arrow_schema, check_columns, spark_schema_ddl

ORDER = [
    "topic", "brokerName", "queueId", "queueOffset", "tags", "keys", "uniqKey", "body", "properties", "flag",
    "sysFlag", "bornTimestamp", "bornHost", "storeTimestamp", "storeHost", "recordId", "msgId", "offsetMsgId",
    "tagsCode",
    "reconsumeTimes", "preparedTransactionOffset", "bodyCrc", "storeSize", "commitLogOffset", "deliverTime",
    "transactionState", "tier", "segment", "_corrupt",
]  # fmt: skip


def spark_types() -> dict[str, object]:
    """Spark's own types by their names in a schema text; made without a JVM."""
    types = pytest.importorskip("pyspark.sql.types")
    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    return {
        "STRING": types.StringType(),
        "BINARY": types.BinaryType(),
        "INT": types.IntegerType(),
        "BIGINT": types.LongType(),
        "TIMESTAMP": types.TimestampType(),
        "ARRAY<STRING>": types.ArrayType(types.StringType()),
        "MAP<STRING, STRING>": types.MapType(types.StringType(), types.StringType()),
        "ARRAY<STRUCT<key: STRING, value: BINARY>>": types.ArrayType(header),
    }


def test_the_default_columns_stand_in_the_promised_order() -> None:
    assert list(COLUMNS) == ORDER
    assert arrow_schema().names == ORDER
    assert not set(COLUMNS) & set(ALIASES)


def test_a_schema_has_the_columns_that_were_asked_for_in_their_order() -> None:
    assert arrow_schema(["value", "queueId"]) == pa.schema([("value", pa.binary()), ("queueId", pa.int32())])
    assert arrow_schema([]).names == []


@pytest.mark.parametrize("name", [*COLUMNS, *ALIASES])
def test_each_column_has_exactly_the_arrow_type_that_spark_expects(name: str) -> None:
    conversion = pytest.importorskip("pyspark.sql.pandas.types")
    types = pytest.importorskip("pyspark.sql.types")
    _, _, text = spark_schema_ddl([name]).partition(" ")
    declared = types.StructType([types.StructField(name, spark_types()[text])])
    expected = conversion.to_arrow_schema(declared, timezone="UTC")
    found = arrow_schema([name])
    assert expected.equals(found, check_metadata=True)
    assert str(expected.field(0).type) == str(found.field(0).type)


def test_the_text_of_a_schema_names_each_column_and_its_type() -> None:
    assert spark_schema_ddl(["topic", "keys", "_corrupt", "timestamp"]) == (
        "topic STRING, keys ARRAY<STRING>, `_corrupt` STRING, `timestamp` TIMESTAMP"
    )
    assert spark_schema_ddl().count(", ") == len(COLUMNS)  # One between the types of the map.


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("storetimestamp", "storeTimestamp"), ("queue_id", "queueId"), ("bodies", "body")]
)
def test_an_unknown_column_is_answered_with_the_nearest_one(wrong: str, nearest: str) -> None:
    with pytest.raises(UnknownColumn, match=f"no column '{wrong}'; did you mean '{nearest}'"):
        arrow_schema(["topic", wrong])


def test_a_column_like_no_other_is_answered_with_all_of_them() -> None:
    with pytest.raises(UnknownColumn, match="no column 'zzzzzz'. There are topic, .*headers"):
        check_columns(["zzzzzz"])


def test_a_column_is_named_once() -> None:
    with pytest.raises(UnknownColumn, match="'topic' is asked for more than once"):
        arrow_schema(["topic", "body", "topic"])
