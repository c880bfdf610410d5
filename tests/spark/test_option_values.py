"""Texts of options as values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.clock import time_ms
from tiermq.spark import option_values as values


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (values.read_text, " s3://b ", "s3://b"),
        (values.read_texts, "a, b,a", ("a", "b")),
        (values.read_texts, '["a,b", "c"]', ("a,b", "c")),
        (values.read_tags, "a || b", ("a", "b")),
        (values.read_tags, "a,b", ("a", "b")),
        (values.read_tags, "*", ()),
        (values.read_bool, " True ", True),
        (values.read_bool, "false", False),
        (values.read_count, "12", 12),
        (values.read_queue_ids, "0, 2,5-7", (0, 2, 5, 6, 7)),
        (values.read_bytes, "12", 12),
        (values.read_bytes, "64m", 64 << 20),
        (values.read_bytes, "1 GiB", 1 << 30),
        (values.read_duration_ms, "20", 20),
        (values.read_duration_ms, "20s", 20_000),
        (values.read_duration_ms, "15 min", 900_000),
        (values.read_duration_ms, "2 hours", 7_200_000),
        (values.read_time_ms, "1767225600000", 1767225600000),
        (values.read_time_ms, "2026-01-01T00:00:00Z", 1767225600000),
        (values.read_time_ms, "2026-01-01T02:00:00.123+02:00", 1767225600123),
    ],
)
def test_a_text_is_read_as_the_value_it_means(read: Callable[[str], Any], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (values.read_text, "  ", "not empty"),
        (values.read_texts, "a,,b", "without empty entries"),
        (values.read_texts, '["a"', "at character 5"),
        (values.read_texts, '["a", 1]', "entries are texts"),
        (values.read_bool, "yes", "true or false"),
        (values.read_count, "0", "1 or more"),
        (values.read_count, "ten", "1 or more"),
        (values.read_queue_ids, "7-5", "0,2,5-7"),
        (values.read_queue_ids, "a", "0,2,5-7"),
        (values.read_bytes, "64x", "64m"),
        (values.read_bytes, "0", "1 byte or more"),
        (values.read_duration_ms, "soon", "20s"),
        (values.read_time_ms, "yesterday", "2026-01-31T12:00:00Z"),
        (values.read_time_ms, "2026-01-01T00:00:00", "with its zone"),
    ],
)
def test_a_text_that_means_nothing_is_reported_what_was_expected(
    read: Callable[[str], Any], text: str, expected: str
) -> None:
    with pytest.raises(ValueError) as raised:
        read(text)
    assert expected in str(raised.value)


@given(st.integers(min_value=0, max_value=253402300799999))
def test_times_are_exact_to_the_millisecond(moment_ms: int) -> None:
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=moment_ms)
    assert time_ms(moment) == moment_ms
    assert values.read_time_ms(moment.isoformat()) == moment_ms
