"""What a stored message offers beyond its fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tiermq.errors import CorruptRecord
from tiermq.message import CompressionType, StoredMessage, TransactionType, compress, decode_record, encode_record


def stored(**fields: Any) -> StoredMessage:
    return decode_record(encode_record(**({"topic": "TopicTest", "body": b"hello"} | fields)))


def test_keys_are_split_on_spaces_without_empty_ones() -> None:
    assert stored(properties={"KEYS": "k1  k2 "}).keys == ["k1", "k2"]
    assert stored().keys == []


def test_tags_and_unique_key_are_properties() -> None:
    message = stored(properties={"TAGS": "TagA", "UNIQ_KEY": "AB"})
    assert (message.tags, message.unique_key) == ("TagA", "AB")
    assert (stored().tags, stored().unique_key) == (None, None)


def test_the_message_id_reports_where_the_record_is() -> None:
    v4 = stored(store_host="192.168.1.10:10911", physical_offset=1024)
    assert v4.message_id == "C0A8010A00002A9F0000000000000400"
    v6 = stored(store_host="[::1]:10911", physical_offset=1024)
    assert v6.message_id == "0000000000000000000000000000000100002A9F0000000000000400"


def test_a_record_that_is_nowhere_has_no_message_id() -> None:
    message = stored(physical_offset=-1)
    with pytest.raises(CorruptRecord, match="physical offset -1"):
        _ = message.message_id
    assert message.to_dict()["message_id"] is None


def test_the_transaction_type_comes_from_the_flags() -> None:
    assert stored(sys_flag=0x08).transaction_type is TransactionType.COMMIT


def test_a_compressed_body_is_given_as_stored_and_as_sent() -> None:
    body = b"hello " * 1000
    packed = compress(body, CompressionType.ZLIB)
    message = stored(body=packed, sys_flag=0x301)
    assert message.body == packed
    assert message.decompressed_body() == body
    with pytest.raises(CorruptRecord, match="at most 100 bytes"):
        message.decompressed_body(max_bytes=100)
    assert stored().decompressed_body() == b"hello"


def test_equal_records_are_equal_messages() -> None:
    assert stored() == stored()
    assert hash(stored()) == hash(stored())
    assert stored() != stored(flag=1)
    assert stored() != "hello"
    assert "TopicTest" in repr(stored())


def test_a_message_can_be_dumped_as_json_whatever_its_bytes() -> None:
    text = stored(body="grüße".encode(), properties={"TAGS": "日本"}).to_dict()
    assert (text["body"], text["body_encoding"]) == ("grüße", "utf-8")
    assert json.loads(json.dumps(text))["properties"] == {"TAGS": "日本"}
    binary = stored(body=b"\xff\x00", properties=b"TAGS\x01\xb2\x02").to_dict()
    assert (binary["body"], binary["body_encoding"]) == ("/wA=", "base64")
    assert json.loads(json.dumps(binary))["properties"] == {"TAGS": "\\xb2"}


def test_properties_that_are_not_utf8_raise_only_when_they_are_asked_for() -> None:
    message = stored(properties=b"TAGS\x01\xb2\x02KEYS\x01k\x02")
    assert message.keys == ["k"]
    with pytest.raises(CorruptRecord):
        _ = message.properties
    with pytest.raises(CorruptRecord):
        _ = message.tags


def test_properties_are_decoded_once() -> None:
    message = stored(properties={"a": "b"})
    assert message.properties is message.properties
