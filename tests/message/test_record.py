"""Whole records: golden bytes, round trips, and damage."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.damage import attempt, damaged
from fuzz.records import record_fields, records
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message import (
    CrcPropertyCheck,
    RecordVersion,
    decode_properties,
    decode_record,
    decode_records,
    encode_blank,
    encode_host,
    encode_record,
    reencode,
    verify_crc_property,
)
from tiermq.message.layout import OVERHEAD_V1_BYTES, V6_EXTRA_BYTES

GOLDEN_FIELDS: dict[str, Any] = {
    "topic": "TopicTest",
    "body": b"hello",
    "queue_id": 3,
    "queue_offset": 7,
    "physical_offset": 1024,
    "born_timestamp_ms": 1700000000000,
    "born_host": "127.0.0.1:10911",
    "store_timestamp_ms": 1700000000123,
    "store_host": "192.168.1.10:10911",
    "properties": {"KEYS": "k1", "TAGS": "TagA"},
}
# Checked against the output of RocketMQ's own encoder.
GOLDEN = bytes.fromhex(
    "0000007bdaa320a73610a68600000003000000000000000000000007000000000000040000000000"
    "0000018bcfe568007f00000100002a9f0000018bcfe5687bc0a8010a00002a9f00000000"
    "0000000000000000"
    "0000000568656c6c6f"
    "09546f70696354657374"
    "00124b455953016b310254414753015461674102"
)
GOLDEN_CRC_PROPERTY = bytes.fromhex("5f5f435243333223013132383333383235383102")


def test_the_golden_record_is_written_byte_for_byte() -> None:
    assert len(GOLDEN) == 123
    assert encode_record(**GOLDEN_FIELDS) == GOLDEN


def test_the_golden_record_is_read_field_by_field() -> None:
    message = decode_record(GOLDEN, expect_physical_offset=1024)
    assert message.topic == "TopicTest"
    assert message.body == b"hello"
    assert message.queue_id == 3
    assert message.flag == 0
    assert message.queue_offset == 7
    assert message.physical_offset == 1024
    assert message.sys_flag == 0
    assert message.born_timestamp_ms == 1700000000000
    assert message.born_host == "127.0.0.1:10911"
    assert message.store_timestamp_ms == 1700000000123
    assert message.store_host == "192.168.1.10:10911"
    assert message.reconsume_times == 0
    assert message.prepared_transaction_offset == 0
    assert message.properties == {"KEYS": "k1", "TAGS": "TagA"}
    assert message.body_crc == 907060870
    assert message.size == 123
    assert message.version is RecordVersion.V1


def test_the_golden_record_with_a_crc_property_is_written_byte_for_byte() -> None:
    record = encode_record(**GOLDEN_FIELDS, crc_property=True)
    assert len(record) == 143
    assert record[:4] == struct.pack(">i", 143)
    assert record[103:105] == struct.pack(">h", 38)
    assert record[-20:] == GOLDEN_CRC_PROPERTY
    assert verify_crc_property(record)
    assert decode_record(record, crc_property=CrcPropertyCheck.REQUIRE).properties["__CRC32#"] == "1283382581"


def test_the_smallest_blank_record_is_eight_bytes() -> None:
    assert encode_blank(8).hex() == "00000008cbd43194"
    with pytest.raises(ValueError, match="at least 8"):
        encode_blank(7)


@pytest.mark.parametrize(
    ("born_host", "store_host", "sys_flag", "overhead"),
    [
        ("1.2.3.4:1", "1.2.3.4:1", 0x00, 91),
        ("[::1]:1", "1.2.3.4:1", 0x10, 103),
        ("1.2.3.4:1", "[::1]:1", 0x20, 103),
        ("[::1]:1", "[::1]:1", 0x30, 115),
    ],
)
def test_each_ipv6_host_adds_twelve_bytes_and_its_bit(
    born_host: str, store_host: str, sys_flag: int, overhead: int
) -> None:
    record = encode_record(topic="T", body=b"b", born_host=born_host, store_host=store_host, sys_flag=0x30)
    assert len(record) == overhead + 2
    message = decode_record(record)
    assert (message.sys_flag, message.born_host, message.store_host) == (sys_flag, born_host, store_host)
    assert overhead == OVERHEAD_V1_BYTES + V6_EXTRA_BYTES * ((sys_flag >> 4 & 1) + (sys_flag >> 5))


def test_a_topic_of_128_bytes_makes_a_v2_record() -> None:
    short = encode_record(topic="t" * 127, body=b"")
    long = encode_record(topic="t" * 128, body=b"")
    assert (len(short), len(long)) == (91 + 127, 92 + 128)
    assert decode_record(short).version is RecordVersion.V1
    assert decode_record(long).version is RecordVersion.V2
    assert long[4:8].hex() == "daa320ab"


def test_a_hundred_chinese_characters_make_a_readable_record() -> None:
    """RocketMQ chooses the version by characters but writes bytes, and could not read this one back."""
    topic = "主" * 100
    message = decode_record(encode_record(topic=topic, body=b"x"))
    assert (message.topic, message.version) == (topic, RecordVersion.V2)


def test_a_topic_too_long_for_a_v1_record_is_refused_when_v1_is_asked_for() -> None:
    with pytest.raises(IllegalMessage, match="128 bytes"):
        encode_record(topic="t" * 128, body=b"", version=RecordVersion.V1)


@given(record_fields())
def test_every_record_survives_a_round_trip(fields: dict[str, Any]) -> None:
    record = encode_record(**fields)
    check = CrcPropertyCheck.REQUIRE if fields["crc_property"] else CrcPropertyCheck.IF_PRESENT
    message = decode_record(record, expect_physical_offset=fields["physical_offset"], crc_property=check)
    assert message.size == len(record)
    for name in (
        "topic", "body", "queue_id", "flag", "queue_offset", "physical_offset", "born_timestamp_ms",
        "store_timestamp_ms", "reconsume_times", "prepared_transaction_offset",
    ):  # fmt: skip
        assert getattr(message, name) == fields[name], name
    assert encode_host(message.born_host) == encode_host(fields["born_host"])
    assert encode_host(message.store_host) == encode_host(fields["store_host"])
    assert message.sys_flag & ~0x30 == fields["sys_flag"] & ~0x30
    properties = dict(message.properties)
    assert (properties.pop("__CRC32#", None) is not None) == fields["crc_property"]
    assert properties == {name: value for name, value in fields["properties"].items() if name != "__CRC32#"}
    assert reencode(message) == record


def test_another_topic_and_other_properties_take_their_places_and_nothing_else_changes() -> None:
    message = decode_record(encode_record(topic="short", body=b"body", queue_id=3, reconsume_times=2, properties=b""))
    topic = "%RETRY%" + "t" * 200
    again = decode_record(reencode(message, topic=topic, properties=b"a\x01b\x02"))
    assert (again.topic, again.encoded_properties) == (topic, b"a\x01b\x02")
    assert reencode(again, topic="short", properties=b"") == reencode(message)


@given(st.lists(records(), max_size=5))
def test_records_in_a_row_are_read_in_order_from_any_kind_of_buffer(rows: list[bytes]) -> None:
    whole = b"".join(rows)
    messages = list(decode_records(whole))
    assert [reencode(message) for message in messages] == rows
    assert list(decode_records(memoryview(bytearray(whole)))) == messages
    position = 0
    for message in messages:
        assert decode_record(whole, position) == message
        position += message.size


def test_bytes_that_follow_the_last_whole_record_are_reported_with_their_place() -> None:
    messages = decode_records(GOLDEN + GOLDEN[:50])
    assert next(messages).size == 123
    with pytest.raises(CorruptRecord, match="byte 123.*50 bytes are left"):
        next(messages)


@given(damaged(records()))
def test_damage_is_found_or_the_value_is_exactly_what_the_bytes_say(pair: tuple[bytes, bytes]) -> None:
    original, data = pair
    whole = decode_record(original)
    for check_crc in (False, True):
        found = attempt(decode_record, data, check_crc=check_crc)
        if isinstance(found, CorruptRecord):
            assert "byte 0" in str(found)
            continue
        assert reencode(found) == data[: found.size]
        if check_crc:
            assert found.body == whole.body or found.body_crc != whole.body_crc


@given(records(), st.data())
def test_any_change_of_the_body_is_caught(record: bytes, draw: st.DataObject) -> None:
    body_length = len(decode_record(record).body)
    body_at = 88 + 12 * bin(record[39] & 0x30).count("1")
    data = bytearray(record)
    if body_length:
        data[body_at + draw.draw(st.integers(0, body_length - 1))] ^= draw.draw(st.integers(1, 255))
        with pytest.raises(CorruptRecord, match="CRC"):
            decode_record(data)
        decode_record(data, check_crc=False)


@given(records(crc_property=True), st.data())
def test_with_a_required_crc_property_any_flipped_byte_is_caught(record: bytes, draw: st.DataObject) -> None:
    data = bytearray(record)
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(CorruptRecord):
        decode_record(data, crc_property=CrcPropertyCheck.REQUIRE)


@given(st.binary(max_size=300), st.integers(-5, 305))
def test_noise_is_never_a_record(data: bytes, position: int) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(data, position)


@given(records(), st.data())
def test_a_record_cut_anywhere_is_refused(record: bytes, draw: st.DataObject) -> None:
    with pytest.raises(CorruptRecord):
        decode_record(record[: draw.draw(st.integers(0, len(record) - 1))])


def patched(at: int, data: bytes) -> bytes:
    return GOLDEN[:at] + data + GOLDEN[at + len(data) :]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "only 0 bytes"),
        (bytes(123), "nothing but zeros"),
        (patched(4, b"\xda\xa3\x20\xa8"), "magic 0xdaa320a8"),
        (encode_blank(123) + bytes(115), "blank record of size 123"),
        (encode_blank(8), "blank record of size 8"),
        (patched(0, b"\x00\x00\x00\x7c"), "size 124, but only 123"),
        (patched(0, b"\x00\x00\x00\x7a"), "makes 123 bytes of size 122"),
        (patched(0, b"\x00\x00\x00\x5a"), "at least 91 bytes, found size 90"),
        (patched(0, b"\xff\xff\xff\xff"), "found size -1"),
        (patched(84, b"\xff\xff\xff\xff"), "body length -1"),
        (patched(84, b"\x7f\xff\xff\xff"), "body length 2147483647"),
        (patched(93, b"\xff"), "topic length -1"),
        (patched(93, b"\x7f"), "topic length 127"),
        (patched(103, b"\xff\xff"), "property length -1"),
        (patched(103, b"\x00\x13"), "property length 19"),
        (patched(39, b"\x30"), "body length"),
        (patched(94, b"\xff"), "topic in UTF-8"),
        (patched(52, b"\x00\x01"), "port is above 65535"),
        (patched(68, b"\xff\xff"), "port is above 65535"),
        (patched(88, b"j"), "body CRC: the record has 907060870"),
    ],
)  # fmt: skip
def test_each_kind_of_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecord, match=reason):
        decode_record(data)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (encode_record(topic="t" * 128, body=b"", version=RecordVersion.V2), "topic length -128"),
        (encode_record(topic="", body=b"", properties=b"p" * 32767), "property length -32768"),
    ],
)
def test_a_length_with_its_sign_bit_set_is_damage_even_where_it_would_add_up(record: bytes, reason: str) -> None:
    data = bytearray(record)
    if "topic" in reason:
        data[4:8] = GOLDEN[4:8]
        del data[88]  # What is left of the two bytes is 0x80.
        data[0:4] = struct.pack(">i", len(data))
    else:
        data[89:91] = b"\x80\x00"
        data += b"p"
        data[0:4] = struct.pack(">i", len(data))
    with pytest.raises(CorruptRecord, match=reason):
        decode_record(data)


def test_an_empty_body_with_a_crc_is_damage() -> None:
    record = encode_record(topic="T", body=b"", body_crc=1)
    with pytest.raises(CorruptRecord, match="body CRC"):
        decode_record(record)
    assert decode_record(record, check_crc=False).body_crc == 1


def test_a_record_at_the_wrong_place_is_refused_when_the_place_is_known() -> None:
    with pytest.raises(CorruptRecord, match="expected physical offset 2048, found 1024"):
        decode_record(GOLDEN, expect_physical_offset=2048)


def test_the_place_of_the_damage_is_in_the_error() -> None:
    with pytest.raises(CorruptRecord, match="record at byte 123"):
        decode_record(GOLDEN + bytes(100), 123)
    with pytest.raises(CorruptRecord, match="byte -1"):
        decode_record(GOLDEN, -1)


def test_a_stale_crc_property_can_be_ignored() -> None:
    """Records in the tier have another physical offset than the one the property was computed with."""
    record = bytearray(encode_record(**GOLDEN_FIELDS, crc_property=True))
    record[28:36] = struct.pack(">q", 99)
    with pytest.raises(CorruptRecord, match="CRC property"):
        decode_record(record)
    assert decode_record(record, crc_property=CrcPropertyCheck.IGNORE).physical_offset == 99


def test_a_missing_crc_property_is_damage_only_when_it_is_required() -> None:
    decode_record(GOLDEN)
    with pytest.raises(CorruptRecord, match="found none"):
        decode_record(GOLDEN, crc_property=CrcPropertyCheck.REQUIRE)


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        (b"", b""),
        (b"a\x011\x02", b"a\x011\x02"),
        (b"a\x011", b"a\x011\x02"),
        (b"__CRC32#\x010000000000\x02", b""),
        (b"a\x011\x02__CRC32#\x010000000000\x02b\x012", b"a\x011\x02b\x012\x02"),
    ],
)
def test_the_crc_property_replaces_an_older_one_and_is_always_separated(properties: bytes, kept: bytes) -> None:
    message = decode_record(encode_record(topic="T", body=b"b", properties=properties, crc_property=True))
    assert message.encoded_properties[:-20] == kept
    assert message.encoded_properties[-20:].startswith(b"__CRC32#\x01")
    assert decode_properties(message.encoded_properties).keys() == decode_properties(kept).keys() | {"__CRC32#"}


def test_a_crc_property_that_a_client_made_up_does_not_make_its_record_look_damaged() -> None:
    message = decode_record(encode_record(topic="T", body=b"b", properties={"a": "1", "__CRC32#": "0000000000"}))
    assert message.properties == {"a": "1"}


def test_properties_of_32767_bytes_fit_and_one_more_is_refused() -> None:
    full = b"a\x01" + b"v" * 32764 + b"\x02"
    assert len(full) == 32767
    assert decode_record(encode_record(topic="t" * 127, body=b"", properties=full)).encoded_properties == full
    with pytest.raises(IllegalMessage, match="32768"):
        encode_record(topic="T", body=b"", properties=full + b"\x02")
    with pytest.raises(IllegalMessage, match="32787"):
        encode_record(topic="T", body=b"", properties=full, crc_property=True)


@pytest.mark.parametrize(
    "field",
    [
        {"queue_id": 1 << 31},
        {"queue_offset": 1 << 63},
        {"flag": "1"},
        {"sys_flag": 1 << 31},
        {"born_timestamp_ms": 1.5},
        {"topic": "\ud800"},
        {"topic": "t" * 32768},
        {"born_host": "somewhere:1"},
    ],
)
def test_values_that_no_record_can_hold_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(IllegalMessage):
        encode_record(**(GOLDEN_FIELDS | field))
