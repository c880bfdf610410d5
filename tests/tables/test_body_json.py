"""JSON bodies: what is decoded together and what is decoded one by one must be the same."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from tiermq.tables.body_format import JsonBodies, decode_each

VALUES = st.none() | st.booleans() | st.integers(-(1 << 66), 1 << 66) | st.floats(allow_nan=False) | st.text(max_size=5)
BODIES = st.lists(
    st.one_of(
        st.fixed_dictionaries({}, optional={"id": VALUES, "name": VALUES, "x": VALUES, "in": st.just({"a": 1})}).map(
            lambda value: json.dumps(value).encode()
        ),
        st.binary(max_size=8),
        st.sampled_from([b"", b"  ", b"{}", b"{}{}", b"{}\n{}", b"[]", b"null", b'{"id": 1}\n']),
    ),
    max_size=6,
)  # fmt: skip
DECODER = JsonBodies("id bigint, name string, in struct<a: int>")


def decoded(schema: str, *bodies: bytes) -> tuple[list[dict[str, Any]], list[str | None]]:
    decoder = JsonBodies(schema)
    found = decoder.decode(pa.array(bodies, pa.binary()))
    table = pa.table(found.columns, schema=decoder.schema)
    return table.to_pylist(), found.reasons or [None] * len(bodies)


@examples(50)
@given(BODIES)
def test_together_and_one_by_one_give_the_same(bodies: list[bytes]) -> None:
    array = pa.array(bodies, pa.binary())
    found, wanted = DECODER.decode(array), decode_each(array, DECODER.schema, DECODER._row)
    assert (found.reasons is None) == (wanted.reasons is None)
    assert [column.to_pylist() for column in found.columns] == [column.to_pylist() for column in wanted.columns]


def test_fields_that_are_missing_are_null_and_others_are_left_out() -> None:
    rows, reasons = decoded("a int, b string", b'{"a": 1, "c": {"d": 2}}', b'{"b": "x"}')
    assert rows == [{"a": 1, "b": None}, {"a": None, "b": "x"}]
    assert reasons == [None, None]


@pytest.mark.parametrize(
    ("schema", "body", "value"),
    [
        ("v timestamp", '"2026-01-31T10:00:00Z"', dt.datetime(2026, 1, 31, 10, tzinfo=dt.UTC)),
        ("v date", '"2026-01-31"', dt.date(2026, 1, 31)),
        ("v decimal(5,2)", '"12.50"', decimal.Decimal("12.50")),
        ("v map<string, int>", '{"a": 1}', [("a", 1)]),
        ("v array<double>", "[1, 2.5]", [1.0, 2.5]),
        ("v binary", '"x"', b"x"),
        ("v boolean", "true", True),
    ],
)
def test_values_of_every_type(schema: str, body: str, value: Any) -> None:
    rows, reasons = decoded(schema, f'{{"v": {body}}}'.encode())
    assert (rows, reasons) == ([{"v": value}], [None])


@pytest.mark.parametrize(
    ("schema", "body", "reported"),
    [
        ("v int", b'{"v": 3000000000}', "field v: expected int32, found a number 3000000000"),
        ("v int", b'{"v": 1.5}', "found a number 1.5"),
        ("v int", b'{"v": true}', "found a truth value"),
        ("v double", b'{"v": "1"}', "found a text"),
        ("v timestamp", b'{"v": "soon"}', "expected timestamp"),
        ("v array<int>", b'{"v": [1, "x"]}', r"field v\[\]"),
        ("v struct<a: int>", b'{"v": {"a": []}}', "field v.a: expected int32, found a list"),
        ("v decimal(5,2)", b'{"v": "x"}', "expected decimal"),
        ("v int", b"[1]", "expected a JSON object, found a list"),
        ("v int", b"\xff", "no JSON"),
        ("v int", b"[" * 100_000, "no JSON"),
    ],
)
def test_a_body_that_does_not_fit_reports_why_and_spares_its_neighbours(
    schema: str, body: bytes, reported: str
) -> None:
    rows, reasons = decoded(schema, b'{"v": null}', body)
    assert rows == [{"v": None}, {"v": None}]
    assert reasons[0] is None
    with pytest.raises(ValueError, match=reported):
        raise ValueError(reasons[1])
