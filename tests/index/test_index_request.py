"""Which keys of a record are indexed, and in which order."""

from __future__ import annotations

import pytest

from tiermq.index.index_request import index_keys


@pytest.mark.parametrize(
    ("unique_key", "keys", "expected"),
    [
        ("U1", "a b", ("U1", "a", "b")),
        (None, " a  b ", ("a", "b")),
        ("U1", None, ("U1",)),
        ("", "", ()),
        (None, None, ()),
        ("a", "a a", ("a", "a", "a")),
        (None, "a\tb", ("a\tb",)),
    ],
)
def test_the_unique_key_comes_first_then_each_piece_between_single_spaces(
    unique_key: str | None, keys: str | None, expected: tuple[str, ...]
) -> None:
    assert index_keys(unique_key, keys) == expected
