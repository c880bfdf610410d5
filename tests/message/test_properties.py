"""The property string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.damage import damaged
from fuzz.records import PROPERTIES, PROPERTY_TEXT
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.properties import (
    decode_properties,
    delete_property,
    encode_properties,
    get_property,
    get_text_property,
    index_keys,
    waits_for_store,
    with_property,
)

# Strings over a tiny alphabet meet every edge case of the separators.
SCRAPS = st.lists(st.sampled_from([b"a", b"b", b"ab", b"\x01", b"\x02", b"\xc3\xa9"]), max_size=14).map(b"".join)
NAMES = st.sampled_from([b"a", b"b", b"ab", b"aa", b"\xc3\xa9", b"", b"a\x01", b"\x02a"])


def rocketmq_decode(text: str) -> dict[str, str]:
    """RocketMQ's reading rule, spelled out with indexes."""
    found: dict[str, str] = {}
    index = 0
    while index < len(text):
        stop = text.find("\x02", index)
        if stop == -1:
            stop = len(text)
        if stop - index >= 3:
            separator = text.find("\x01", index)
            if index < separator < stop - 1:
                found[text[index:separator]] = text[separator + 1 : stop]
        index = stop + 1
    return found


def test_entries_are_written_in_order_each_with_both_separators() -> None:
    assert encode_properties({"KEYS": "k1", "TAGS": "TagA"}) == bytes.fromhex("4b455953016b310254414753015461674102")


def test_no_properties_are_no_bytes() -> None:
    assert encode_properties({}) == b""
    assert decode_properties(b"") == {}


def test_values_of_none_are_left_out() -> None:
    assert encode_properties({"a": None, "b": "1"}) == b"b\x011\x02"


def test_empty_names_and_values_are_dropped_and_the_last_separator_may_be_missing() -> None:
    assert decode_properties(b"a\x01\x02b\x011\x02\x01x\x02c\x012") == {"b": "1", "c": "2"}


def test_an_empty_value_is_written_and_gone_when_read() -> None:
    assert encode_properties({"a": ""}) == b"a\x01\x02"
    assert decode_properties(encode_properties({"a": "", "b": "1"})) == {"b": "1"}


def test_the_last_of_equal_names_wins_and_an_empty_one_does_not_count() -> None:
    assert decode_properties(b"a\x011\x02a\x012\x02") == {"a": "2"}
    assert get_property(b"a\x011\x02a\x012\x02", b"a") == b"2"
    assert get_property(b"a\x011\x02a\x012\x02a\x01\x02", b"a") == b"2"


@pytest.mark.parametrize("bad", ["x\x01y", "x\x02y", "\x01", "\x02"])
def test_separators_inside_text_are_refused(bad: str) -> None:
    with pytest.raises(IllegalMessage, match="separate"):
        encode_properties({bad: "v"})
    with pytest.raises(IllegalMessage, match="separate"):
        encode_properties({"n": bad})


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(IllegalMessage, match="name"):
        encode_properties({"": "v"})


def test_text_without_an_utf8_form_is_refused() -> None:
    with pytest.raises(IllegalMessage, match="UTF-8"):
        encode_properties({"n": "\ud800"})


def test_values_that_are_not_text_are_refused() -> None:
    with pytest.raises(IllegalMessage, match="text"):
        encode_properties({"n": 1})  # type: ignore[dict-item]


@given(PROPERTIES)
def test_properties_survive_a_round_trip_in_order(properties: dict[str, str]) -> None:
    encoded = encode_properties(properties)
    assert list(decode_properties(encoded).items()) == list(properties.items())
    for name, value in properties.items():
        assert get_property(encoded, name.encode()) == value.encode()
        assert get_text_property(bytearray(encoded), name) == value


@given(SCRAPS)
def test_reading_follows_rocketmqs_rule_on_any_bytes(encoded: bytes) -> None:
    assert decode_properties(encoded) == rocketmq_decode(encoded.decode())


@given(SCRAPS, NAMES)
def test_one_property_is_the_same_whether_read_alone_or_with_all(encoded: bytes, name: bytes) -> None:
    expected = decode_properties(encoded).get(name.decode())
    assert get_property(encoded, name) == (None if expected is None else expected.encode())


@given(damaged(PROPERTIES.map(encode_properties)))
def test_damaged_properties_are_refused_or_read_by_the_rule(pair: tuple[bytes, bytes]) -> None:
    _, data = pair
    try:
        text = data.decode()
    except UnicodeDecodeError:
        with pytest.raises(CorruptRecord, match="UTF-8"):
            decode_properties(data)
        decode_properties(data, errors="replace")
        return
    assert decode_properties(data) == rocketmq_decode(text)


def test_a_value_that_is_not_utf8_is_still_there_as_bytes() -> None:
    encoded = b"TAGS\x01\xb2\xe2\x02KEYS\x01k\x02"
    assert get_property(encoded, b"TAGS") == b"\xb2\xe2"
    assert get_text_property(encoded, "KEYS") == "k"
    with pytest.raises(CorruptRecord, match="TAGS"):
        get_text_property(encoded, "TAGS")


@pytest.mark.parametrize(
    ("encoded", "name", "expected"),
    [
        (b"", b"a", b""),
        (b"a\x011\x02", b"a", b""),
        (b"a\x011", b"a", b""),
        (b"a\x01\x02", b"a", b""),
        (b"a\x01", b"a", b""),
        (b"a\x011\x02b\x012\x02", b"a", b"b\x012\x02"),
        (b"a\x011\x02b\x012\x02", b"b", b"a\x011\x02"),
        (b"a\x011\x02b\x012", b"b", b"a\x011\x02"),
        (b"a\x011\x02b\x012", b"a", b"b\x012"),
        (b"aa\x011\x02a\x012\x02", b"a", b"aa\x011\x02"),  # A name that ends with the name.
        (b"ab\x011\x02a\x012\x02", b"a", b"ab\x011\x02"),  # A name that starts with the name.
        (b"b\x01a\x02a\x01b\x02", b"a", b"b\x01a\x02"),  # A value that is the name.
        (b"a\x011\x02b\x012\x02a\x013\x02", b"a", b"b\x012\x02"),  # Twice.
        (b"a\x02b\x012\x02", b"a", b"a\x02b\x012\x02"),  # No value separator.
        (b"a", b"a", b"a"),
        (b"\x02a\x011", b"a", b"\x02"),
        (b"\x02\x02a\x011\x02", b"a", b"\x02\x02"),
        (b"a\x011\x02", b"", b"a\x011\x02"),
        (b"a\x011\x02", b"c", b"a\x011\x02"),
    ],
)
def test_deleting_a_property_removes_exactly_its_entries(encoded: bytes, name: bytes, expected: bytes) -> None:
    assert delete_property(encoded, name) == expected


@given(SCRAPS, st.sampled_from([b"a", b"b", b"ab", b"\xc3\xa9"]))
def test_after_deleting_only_that_property_is_gone(encoded: bytes, name: bytes) -> None:
    expected = decode_properties(encoded)
    expected.pop(name.decode(), None)
    assert decode_properties(delete_property(encoded, name)) == expected


@given(SCRAPS, PROPERTY_TEXT)
def test_a_property_that_was_set_is_read_back_and_the_others_stay(encoded: bytes, value: str) -> None:
    changed = with_property(encoded, "a", value)
    assert decode_properties(changed) == decode_properties(encoded) | {"a": value}
    assert changed.endswith(b"\x02")


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"", True),
        (b"WAIT\x01true\x02", True),
        (b"WAIT\x01TRUE\x02", True),
        (b"WAIT\x01True", True),
        (b"WAIT\x01\x02", True),  # An empty value is no value.
        (b"WAIT\x01false\x02", False),
        (b"WAIT\x01yes\x02", False),
        (b"WAIT\x01true \x02", False),
        (b"KEYS\x01k\x02WAIT\x01false\x02", False),
        (b"AWAIT\x01false\x02", True),
    ],
)
def test_a_producer_waits_unless_it_reports_otherwise(encoded: bytes, expected: bool) -> None:
    assert waits_for_store(encoded) is expected


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
