"""What tables have in common: types without layout, and errors of their libraries."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tiermq.errors import SparkError
from tiermq.tables.table_contract import own_errors, plain_type


def test_structs_are_named_by_their_fields() -> None:
    assert plain_type(pa.struct([("x", pa.large_string())])) == "struct<x: string>"


def test_what_a_library_raises_is_ours_in_one_line_and_what_is_not_named_stays() -> None:
    with pytest.raises(SparkError, match="^delta table: no room left$"), own_errors("delta table", OSError):
        raise OSError("no room\n   left")
    with pytest.raises(KeyError), own_errors("delta table", OSError):
        raise KeyError("x")
