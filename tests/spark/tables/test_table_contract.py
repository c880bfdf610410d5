"""Whether a table's schema fits."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tiermq.errors import BadSchema, SparkError
from tiermq.spark.tables.table_contract import own_errors, plain_type, require_same_schema

OURS = pa.schema(
    [("a", pa.string()), ("b", pa.list_(pa.field("element", pa.int32()))), ("c", pa.map_(pa.string(), pa.string()))]
)


def test_the_layout_of_texts_and_names_inside_of_lists_do_not_matter() -> None:
    theirs = pa.schema([
        ("c", pa.map_(pa.large_string(), pa.large_string())),
        ("b", pa.large_list(pa.field("item", pa.int32()))),
        ("a", pa.large_string()),
    ])  # fmt: skip
    require_same_schema(theirs, OURS, "here")


def test_every_difference_is_told() -> None:
    theirs = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.int32())), ("d", pa.int8())])
    with pytest.raises(BadSchema) as error:
        require_same_schema(theirs, OURS, "here")
    told = str(error.value)
    assert "column a: the table has int64, the export string" in told
    assert "column c: only the export has it" in told
    assert "column d: only the table has it" in told
    assert "column b" not in told


def test_structs_are_told_by_their_fields() -> None:
    assert plain_type(pa.struct([("x", pa.large_string())])) == "struct<x: string>"


def test_what_a_library_raises_is_ours_in_one_line_and_what_is_not_named_stays() -> None:
    with pytest.raises(SparkError, match="^delta table: no room left$"), own_errors("delta table", OSError):
        raise OSError("no room\n   left")
    with pytest.raises(KeyError), own_errors("delta table", OSError):
        raise KeyError("x")
