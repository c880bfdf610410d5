"""Messages: every value is checked when a message is made, and what no record can hold is an IllegalMessage."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import IllegalMessage
from tiermq.kernel import Message
from tiermq.kernel.message import merge_properties, offset_message_id, prepare_message

PIECES = [
    b"KEYS\x01a",
    b"WAIT\x01true",
    b"WAIT\x01",
    b"WAIT\x01false",
    b"a\x01INNER_NUM",
    b"INNER_NUM\x011",
    b"\0",
    b"x",
]
PIECES += [b"__CRC32#\x011234567890", b"a\x01b__CRC32#", b"", b"WAIT\x01TRUE", b"INNER", b"_"]
PROPERTIES = st.builds(
    lambda pieces, end: b"\x02".join(pieces) + end,
    st.lists(st.sampled_from(PIECES), max_size=4),
    st.sampled_from([b"", b"\x02"]),
)
USUAL = st.fixed_dictionaries(
    {
        "encoded_properties": st.one_of(st.none(), PROPERTIES),
        "queue_id": st.sampled_from([0, 3, 2**31 - 1]),
        "flag": st.sampled_from([0, -1, -(2**31)]),
        "sys_flag": st.sampled_from([0, 8, 0x80]),
        "reconsume_times": st.sampled_from([0, 16]),
        "born_timestamp_ms": st.sampled_from([0, 2**63 - 1]),
        "prepared_transaction_offset": st.sampled_from([0, -(2**63)]),
        "born_host": st.sampled_from([b"", bytes(8), bytes(20)]),
    }
)
ODD_NUMBERS = [-1, 2**31, 2**63, -(2**63) - 1, True, 1.0, "0", None]
NAMES = ["queue_id", "flag", "sys_flag", "reconsume_times", "born_timestamp_ms", "prepared_transaction_offset"]
ODD = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(ODD_NUMBERS)),
    st.tuples(st.just("born_host"), st.sampled_from([bytes(7), bytearray(8), "1.2.3.4:5", "nowhere", None])),
    st.tuples(st.just("topic"), st.sampled_from(["", None, b"T"])),
    st.tuples(st.just("body"), st.sampled_from([bytearray(b"body"), "body"])),
    st.tuples(st.just("encoded_properties"), PROPERTIES.map(bytearray)),
)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": ""},
        {"topic": None},
        {"topic": b"T"},
        {"body": "text"},
        {"body": None},
        {"body": 5},
        {"queue_id": -1},
        {"queue_id": 2**31},
        {"queue_id": True},
        {"queue_id": "0"},
        {"queue_id": 1.0},
        {"flag": 2**31},
        {"flag": -(2**31) - 1},
        {"flag": 1.5},
        {"flag": "1"},
        {"flag": None},
        {"sys_flag": 2**31},
        {"sys_flag": 0.0},
        {"reconsume_times": 2**31},
        {"reconsume_times": "1"},
        {"born_timestamp_ms": 2**63},
        {"born_timestamp_ms": 1.5},
        {"prepared_transaction_offset": -(2**63) - 1},
        {"prepared_transaction_offset": None},
        {"born_host": "localhost:1"},
        {"born_host": "1.2.3.4"},
        {"born_host": b"1234567"},
        {"born_host": 7},
        {"tags": "a\x01b"},
        {"tags": 5},
        {"keys": ["a\x02b"]},
        {"keys": [5]},
        {"keys": 5},
        {"properties": {"": "v"}},
        {"properties": {"k": 5}},
        {"properties": {"k\x01": "v"}},
        {"properties": ["k"]},
        {"tags": "\ud800"},
        {"encoded_properties": "text"},
        {"encoded_properties": b"a\x01b\x00\x02"},
        {"properties": {"a": "b\x00"}},
        {"encoded_properties": 5},
        {"encoded_properties": b"", "tags": "a"},
        {"encoded_properties": b"", "keys": "a"},
        {"encoded_properties": b"", "properties": {"a": "b"}},
    ],
    ids=repr,
)
def test_a_value_that_no_record_can_hold_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(IllegalMessage):
        Message(**{"topic": "T", "body": b"", **fields})


@given(USUAL, st.one_of(st.none(), ODD))
def test_the_short_way_to_a_message_takes_and_refuses_what_the_long_one_does(
    usual: dict[str, Any], odd: tuple[str, Any] | None
) -> None:
    fields = {"topic": "T", "body": b"body", **usual, **dict([odd] if odd is not None else [])}
    try:
        expected = prepare_message(**fields, keys=(), tags="", properties=None)
    except IllegalMessage:
        with pytest.raises(IllegalMessage):
            Message(**fields)
        return
    made = Message(**fields)
    assert expected == (
        made.topic, made.body, made.encoded_properties, made.born_host, made.waits_for_store, made.needs_offset,
    )  # fmt: skip
    assert {name: getattr(made, name) for name in NAMES} == {name: fields[name] for name in NAMES}


def test_the_largest_and_smallest_values_are_accepted() -> None:
    for low_or_high in (-1, 1):
        edge32 = 2**31 - 1 if low_or_high > 0 else -(2**31)
        edge64 = 2**63 - 1 if low_or_high > 0 else -(2**63)
        message = Message(
            "T", b"", 2**31 - 1, flag=edge32, sys_flag=edge32, reconsume_times=edge32, born_timestamp_ms=edge64,
            prepared_transaction_offset=edge64,
        )  # fmt: skip
        assert (message.flag, message.sys_flag, message.reconsume_times) == (edge32,) * 3
        assert (message.born_timestamp_ms, message.prepared_transaction_offset) == (edge64,) * 2


@pytest.mark.parametrize("body", [b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(bytearray(b"abc"))])
def test_a_body_is_copied_when_it_could_change_later(body: Any) -> None:
    message = Message("T", body)
    assert message.body == b"abc"
    assert type(message.body) is bytes


def test_keys_and_tags_become_properties_behind_the_given_ones() -> None:
    message = Message("T", b"", keys=["a", "b"], tags="t", properties={"x": "y"})
    assert message.encoded_properties == b"x\x01y\x02KEYS\x01a b\x02TAGS\x01t\x02"
    assert message.properties == {"x": "y", "KEYS": "a b", "TAGS": "t"}


def test_a_message_reports_what_it_is_without_its_body() -> None:
    assert repr(Message("T", b"secret", 3)) == "Message(topic='T', queue_id=3, body=<6 bytes>)"


@pytest.mark.parametrize(
    ("value", "waits"), [(None, True), ("true", True), ("TRUE", True), ("false", False), ("no", False)]
)
def test_wait_false_is_the_only_way_not_to_wait(value: str | None, waits: bool) -> None:
    properties = {} if value is None else {"WAIT": value}
    assert Message("T", b"", properties=properties).waits_for_store is waits


def test_a_crc_property_of_an_older_record_is_dropped() -> None:
    assert merge_properties((), "", None, b"a\x01b\x02__CRC32#\x011234567890\x02") == b"a\x01b\x02"


def test_a_born_host_may_be_text_or_encoded() -> None:
    assert Message("T", b"", born_host="1.2.3.4:5").born_host == bytes([1, 2, 3, 4, 0, 0, 0, 5])
    assert Message("T", b"", born_host="[::1]:5").born_host == bytes(15) + b"\x01" + bytes([0, 0, 0, 5])
    assert Message("T", b"", born_host=bytes(20)).born_host == bytes(20)
    assert Message("T", b"").born_host == b""


def test_only_inner_batches_and_messages_with_inner_properties_are_special() -> None:
    assert not Message("T", b"INNER_").needs_offset
    assert Message("T", b"", sys_flag=0x80).needs_offset
    assert Message("T", b"", properties={"INNER_NUM": "1"}).needs_offset
    assert Message("T", b"", properties={"INNER_MULTI_DISPATCH": "a"}).needs_offset


def test_an_offset_message_id_is_upper_case_hex_of_host_and_offset() -> None:
    host = bytes([0xC0, 0xA8, 1, 10]) + (10911).to_bytes(4, "big")
    assert offset_message_id(host, 1024) == "C0A8010A00002A9F0000000000000400"
