"""What the kernel is asked for columns, and in which order the compiled twin counts them."""

from __future__ import annotations

import pytest

from tiermq.kernel import COLUMN_SHAPES, ColumnRequest, DecodedColumns, Shape


def test_a_column_that_no_record_has_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ValueError, match="'bodyy'; there are queueOffset, .*body"):
        ColumnRequest(columns=("flag", "bodyy"), topic=b"T", queue_id=0)


def test_numbers_come_before_strings_and_strings_before_nested_columns() -> None:
    ranks = {Shape.I64: 0, Shape.I32: 1, Shape.TEXT: 2, Shape.BYTES: 2, Shape.LIST: 3, Shape.MAP: 4}
    order = [ranks[shape] for shape in COLUMN_SHAPES.values()]
    assert order == sorted(order)
    assert set(ranks) == set(Shape)


def test_decoded_columns_hold_what_they_were_given() -> None:
    made = DecodedColumns(1, 2, [(0, 1, "why")], {"flag": (None, b"\0\0\0\0")})
    assert (made.rows, made.next_index, made.corrupt, made.buffers["flag"]) == (
        1,
        2,
        [(0, 1, "why")],
        (None, b"\0\0\0\0"),
    )
