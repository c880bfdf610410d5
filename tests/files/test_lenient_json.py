"""RocketMQ's not quite JSON files."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import StoreDamaged
from tiermq.files.config_file import _STRING_OR_KEY, decode_lenient_json


def test_integer_keys_may_come_without_quotes() -> None:
    data = b'{"offsetTable":{"T@G":{0:7, 1 : 9,\n-2:3},"U@G":{"0":1}}}'
    assert decode_lenient_json(data, "f") == {"offsetTable": {"T@G": {"0": 7, "1": 9, "-2": 3}, "U@G": {"0": 1}}}


def test_text_that_looks_like_a_key_inside_a_string_stays_text() -> None:
    assert decode_lenient_json(b'{"a":"{0:7,1:8}","b\\",3:":[1,2]}', "f") == {"a": "{0:7,1:8}", 'b",3:': [1, 2]}


@pytest.mark.parametrize("data", [b"", b"{", b'{"a":1', b"{a:1}", b"\xff\xfe", b"{0:7}x"])
def test_anything_else_is_refused_with_the_name_of_the_file(data: bytes) -> None:
    with pytest.raises(StoreDamaged, match="topics.json"):
        decode_lenient_json(data, "topics.json")


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(documents)
def test_strict_json_reads_as_ever(document: object) -> None:
    assert decode_lenient_json(json.dumps(document).encode(), "f") == document


def test_nesting_beyond_reason_is_damage_and_no_exhausted_stack() -> None:
    with pytest.raises(StoreDamaged, match="expected JSON"):
        decode_lenient_json(b'{"a":' * 20_000 + b"1" + b"}" * 20_000, "config.json")


def test_a_string_without_an_end_is_looked_at_once() -> None:
    """Each of its quotes would be tried as the beginning of a string otherwise: seconds for a small file."""
    for text in ('"]\\' * 100, '"]\\' * 100 + "\\", '{"a' + '\\"' * 100):
        assert len(_STRING_OR_KEY.findall(text)) == 1
        with pytest.raises(StoreDamaged, match=r"f\.json: expected JSON"):
            decode_lenient_json(text.encode(), "f.json")
