"""Bodies as Java writes and reads them."""

from __future__ import annotations

import contextlib
import enum
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import RequestRefused
from tiermq.remoting.json_dialect import (
    AT_ONCE_BYTES,
    NESTING_MAX,
    PART_CHARACTERS,
    ObjectKeyed,
    as_bool,
    as_int,
    as_name,
    decode_body,
    decode_object,
    encode_body,
)

QUEUE = {"topic": "T", "brokerName": "b", "queueId": 0}


class Model(enum.IntEnum):
    BROADCASTING = 0
    CLUSTERING = 1


@dataclass(frozen=True)
class Row:
    topic: str
    counter: int
    absent: str | None = None


def test_fields_are_alphabetical_absent_ones_left_out_and_enums_named() -> None:
    assert encode_body({"b": Model.CLUSTERING, "a": None, "c": Row("é", 1)}) == (
        '{"b":"CLUSTERING","c":{"counter":1,"topic":"é"}}'.encode()
    )


def test_maps_keyed_by_a_queue_have_the_object_as_the_key() -> None:
    body = encode_body({"offsetTable": ObjectKeyed([(QUEUE, {"maxOffset": 7}), ({**QUEUE, "queueId": 1}, 9)])})
    assert body == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":7},'
        b'{"brokerName":"b","queueId":1,"topic":"T"}:9}}'
    )
    read = decode_body(body)["offsetTable"]
    assert [(json.loads(key)["queueId"], value) for key, value in read.items()] == [(0, {"maxOffset": 7}), (1, 9)]


def test_integer_keys_are_written_with_quotes_and_read_with_and_without() -> None:
    assert encode_body({"brokerAddrs": {0: "10.0.0.1:10911"}}) == b'{"brokerAddrs":{"0":"10.0.0.1:10911"}}'
    assert decode_body(b'{"brokerAddrs":{0:"x", 1 : "{2:3}"}, "a":[1, {-2:true}]}') == {
        "brokerAddrs": {"0": "x", "1": "{2:3}"},
        "a": [1, {"-2": True}],
    }


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=12,
)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@given(VALUES)
def test_what_is_written_is_json_and_reads_back(value: Any) -> None:
    assert json.loads(encode_body(value)) == without_nulls(value)
    keyed = encode_body(ObjectKeyed([({"a": value}, value)]))
    ((key, read),) = decode_body(keyed).items()
    assert (json.loads(key), read) == (without_nulls({"a": value}), without_nulls(value))


@given(st.binary(max_size=40) | st.text('{}[]:,"0a\\ ', max_size=40).map(str.encode))
def test_garbage_is_refused_or_read_but_nothing_else_happens(body: bytes) -> None:
    with contextlib.suppress(RequestRefused):
        decode_body(body)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{0}", b"{0:}", b'{"a":1', b"[1", b"[1 2]", b"{1:2}x", b"{1:2 3:4}", b"\xff", b"{:1}"]
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(RequestRefused, match="JSON body"):
        decode_body(body)


def test_nesting_has_a_limit() -> None:
    with pytest.raises(RequestRefused, match="nesting"):
        decode_body(b"{0:" * (NESTING_MAX + 2))
    with pytest.raises(RequestRefused, match="nesting"):
        decode_body(b"[" * 100_000)


def test_a_body_that_must_be_an_object_is_one() -> None:
    assert decode_object(b'{"a":1}') == {"a": 1}
    with pytest.raises(RequestRefused, match="object"):
        decode_object(b"[1]")


def test_values_are_understood_however_they_were_written() -> None:
    assert [as_int(value, 5) for value in (None, "", "7", 7, True)] == [5, 5, 7, 7, 1]
    assert [as_bool(value) for value in (None, "true", "1", 1, "0", "false", 0, False)] == [
        False,
        *[True] * 3,
        *[False] * 4,
    ]
    assert [as_name(value, Model, Model.CLUSTERING) for value in ("BROADCASTING", 0, "0", None, "?", 9)] == [
        *[Model.BROADCASTING] * 3,
        *[Model.CLUSTERING] * 3,
    ]
    with pytest.raises(RequestRefused):
        as_int("x")


@pytest.mark.parametrize("levels", [4, 40, 5_000])
def test_objects_as_keys_within_keys_are_refused_before_their_text_grows(levels: int) -> None:
    body = b"{" * levels + b'"a":1' + b"}:1" * (levels - 1) + b"}"
    with pytest.raises(RequestRefused, match="nesting"):
        decode_body(body)


def test_standard_json_is_limited_in_its_nesting_too() -> None:
    assert decode_body(b"[" * NESTING_MAX + b"]" * NESTING_MAX) is not None
    with pytest.raises(RequestRefused, match="nesting"):
        decode_body(b"[" * 500 + b"]" * 500)


def test_an_enum_written_as_infinity_is_the_default() -> None:
    assert as_name(float("inf"), Model, Model(0)) is Model(0)


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just("x" * 2_000)
TREE = st.recursive(LEAF, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=60)


@given(TREE)
def test_a_long_body_reads_as_a_short_one(value: Any) -> None:
    padded = json.dumps({"value": value}).encode() + b" " * AT_ONCE_BYTES
    assert decode_body(padded) == {"value": value}


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_long_body_is_refused_for_its_nesting_too(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    for levels, around in ((NESTING_MAX, ""), (NESTING_MAX + 1, "x" * PART_CHARACTERS)):
        text = opening * levels + json.dumps(around) + closing * levels + " " * AT_ONCE_BYTES
        if levels == NESTING_MAX:
            decode_body(text.encode())
            continue
        with pytest.raises(RequestRefused, match="nesting"):
            decode_body(text.encode())


def test_a_long_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(RequestRefused, match="expected a JSON body"):
        decode_body(b'{"a":[1,2' + b" " * AT_ONCE_BYTES)
