"""Avro bodies."""

from __future__ import annotations

import datetime as dt
import io
import json
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import BadBody
from tiermq.tables.body_avro import AvroBodies

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
        {"name": "labels", "type": {"type": "map", "values": "int"}},
        {"name": "first", "type": ["null", "Line"]},
    ],
}  # fmt: skip
ORDER = {
    "id": 5, "note": None, "state": "PAID", "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "key": str(uuid.UUID(int=7)),
    "sum": Decimal("3.50"), "lines": [{"sku": "a"}], "labels": {"x": 1}, "first": {"sku": "b"},
}  # fmt: skip
DECODER = AvroBodies(json.dumps(SCHEMA).encode())


def encoded(order: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, order)
    return stream.getvalue()


def test_a_record_becomes_columns_plain_or_as_a_single_object() -> None:
    body = encoded(ORDER)
    found = DECODER.decode(pa.array([body, b"\xc3\x01" + bytes(8) + body]))
    assert found.reasons is None
    rows = pa.table(found.columns, schema=DECODER.schema).to_pylist()
    assert rows == [{**ORDER, "labels": [("x", 1)]}] * 2


def test_a_body_cut_short_or_with_something_behind_is_bad() -> None:
    body = encoded(ORDER)
    found = DECODER.decode(pa.array([body[:-3], body + b"!", body]))
    assert found.reasons is not None
    assert [reason is None for reason in found.reasons] == [False, False, True]
    assert "1 bytes are left over" in str(found.reasons[1])


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_bytes_are_a_row_or_a_reason(bodies: list[bytes]) -> None:
    found = DECODER.decode(pa.array(bodies, pa.binary()))
    assert all(len(column) == len(bodies) for column in found.columns)


@pytest.mark.parametrize(
    ("schema", "reported"),
    [
        ("{", "as JSON"),
        ('"long"', "of a record"),
        ('{"type": "record", "name": "a", "fields": [{"name": "x", "type": ["int", "string"]}]}', "unions of one type"),
        ('{"type": "record", "name": "a", "fields": [{"name": "x", "type": ["null", "a"]}]}', "recursive"),
        ('{"type": "nothing", "name": "a"}', "Avro schema"),
    ],
)
def test_a_schema_that_makes_no_table_is_refused(schema: str, reported: str) -> None:
    with pytest.raises(BadBody, match=reported):
        AvroBodies(schema.encode())
