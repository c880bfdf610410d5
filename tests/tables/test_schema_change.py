"""Whether an export fits a table's schema, and what the schema becomes when it may change."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tiermq.errors import BadSchema
from tiermq.tables.schema_change import differ, fitting_schema, is_wider

OURS = pa.schema(
    [("a", pa.string()), ("b", pa.list_(pa.field("element", pa.int32()))), ("c", pa.map_(pa.string(), pa.string()))]
)


def test_the_layout_of_texts_and_names_inside_of_lists_do_not_matter() -> None:
    theirs = pa.schema([
        ("c", pa.map_(pa.large_string(), pa.large_string())),
        ("b", pa.large_list(pa.field("item", pa.int32()))),
        ("a", pa.large_string()),
    ])  # fmt: skip
    fitting_schema(theirs, OURS, "here", merge=False, refusals={})


def test_every_difference_is_reported() -> None:
    theirs = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.int32())), ("d", pa.int8())])
    with pytest.raises(BadSchema) as error:
        fitting_schema(theirs, OURS, "here", merge=False, refusals={})
    reported = str(error.value)
    assert "column a: the table has int64, the export string" in reported
    assert "column c: only the export has it" in reported
    assert "column d: only the table has it" in reported
    assert "column b" not in reported


def test_new_columns_follow_those_of_the_table_and_absent_ones_stay() -> None:
    theirs = pa.schema([("id", pa.int64()), ("old", pa.string())])
    ours = pa.schema([("new", pa.float64()), ("id", pa.int32())])
    made = fitting_schema(theirs, ours, "here", merge=True, refusals={})
    assert made == pa.schema([("id", pa.int64()), ("old", pa.string()), ("new", pa.float64())])
    assert differ(theirs, made)
    assert not differ(made, made)


def test_columns_of_messages_and_of_keys_never_change() -> None:
    with pytest.raises(BadSchema, match="column tags: only the table has it"):
        fitting_schema(pa.schema([("tags", pa.string())]), pa.schema([]), "here", merge=True, refusals={})
    with pytest.raises(BadSchema, match="column tags: only the export has it"):
        fitting_schema(pa.schema([]), pa.schema([("tags", pa.string())]), "here", merge=True, refusals={})
    key = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    with pytest.raises(BadSchema, match="rows before it would have no key"):
        fitting_schema(pa.schema([]), key, "here", merge=True, refusals={})


@pytest.mark.parametrize(
    ("wide", "narrow", "found"),
    [
        (pa.int64(), pa.int32(), True),
        (pa.int32(), pa.int64(), False),
        (pa.float64(), pa.float32(), True),
        (pa.float64(), pa.int32(), False),
        (pa.decimal128(12, 2), pa.decimal128(10, 2), True),
        (pa.decimal128(12, 3), pa.decimal128(10, 2), False),
        (pa.string(), pa.int32(), False),
    ],
)
def test_a_type_is_wider_when_it_has_every_value_of_the_other(
    wide: pa.DataType, narrow: pa.DataType, found: bool
) -> None:
    assert is_wider(wide, narrow) is found
