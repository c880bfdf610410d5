"""Schemas as people write them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tiermq.errors import BadBody
from tiermq.tables.ddl_schema import schema_of_ddl, schema_of_json

UTC = pa.timestamp("us", tz="UTC")


def test_every_type_of_a_ddl_text() -> None:
    text = (
        "id BIGINT NOT NULL COMMENT 'the \\'number\\'', `a b` string, p decimal(12, 2), d dec, v varchar(10), "
        "at timestamp, day date, items array<struct<sku: string, n int>>, labels map<string, array<double>>"
    )
    found = schema_of_ddl(text)
    assert found.names == ["id", "a b", "p", "d", "v", "at", "day", "items", "labels"]
    assert found.types[:7] == [
        pa.int64(), pa.string(), pa.decimal128(12, 2), pa.decimal128(10, 0), pa.string(), UTC, pa.date32(),
    ]  # fmt: skip
    assert found.field("items").type.value_type == pa.struct([("sku", pa.string()), ("n", pa.int32())])
    assert found.field("labels").type.item_type.value_type == pa.float64()


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "the name of a column at ''"),
        ("id", "a type"),
        ("id biggint", "at 'biggint'"),
        ("id int name string", "the end or a comma at 'name string'"),
        ("a array<int", "'>'"),
        ("a map<string>", "','"),
        ("a int, a int", "found a twice"),
        ("1a int", "the name of a column"),
    ],
)
def test_a_text_that_is_no_schema_is_shown_where_it_stops_making_sense(text: str, reported: str) -> None:
    with pytest.raises(BadBody, match=reported):
        schema_of_ddl(text)


def test_a_json_schema_becomes_the_same_types() -> None:
    document = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "inner": {"type": "object", "properties": {"x": {"type": "string", "format": "uuid"}}},
        },
    }
    found = schema_of_json(json.dumps(document))
    assert found.types[:3] == [pa.int64(), pa.float64(), UTC]
    assert found.field("tags").type.value_type == pa.string()
    assert found.field("labels").type.item_type == pa.bool_()
    assert found.field("inner").type == pa.struct([("x", pa.string())])


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("{", "no JSON"),
        ('{"type": "string"}', "of an object"),
        ('{"type": "object"}', "object with properties"),
        ('{"type": "object", "properties": {"a": {"type": ["string", "number"]}}}', "the schema, a: expected a type"),
    ],
)
def test_a_json_schema_that_makes_no_table_is_refused(text: str, reported: str) -> None:
    with pytest.raises(BadBody, match=reported):
        schema_of_json(text)
