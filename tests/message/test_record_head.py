"""The head of a record, as a walk over the log reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.damage import attempt, damaged
from fuzz.records import records
from tiermq.errors import CorruptRecord
from tiermq.message import HeadKind, decode_record, encode_blank, encode_record, read_head

RECORD = encode_record(topic="T", body=b"hello", queue_id=3, queue_offset=7, physical_offset=1024)


@given(st.binary(max_size=20), records(), st.binary(max_size=20))
def test_a_head_reports_what_the_whole_record_reports(before: bytes, record: bytes, after: bytes) -> None:
    message = decode_record(record)
    data = memoryview(before + record + after)
    head = read_head(data, len(before))
    assert head.kind is HeadKind.OK
    assert head.size == len(record)
    assert head.version is message.version
    assert head.topic == message.topic.encode()
    for name in (
        "queue_id", "queue_offset", "physical_offset", "store_timestamp_ms", "sys_flag", "prepared_transaction_offset",
    ):  # fmt: skip
        assert getattr(head, name) == getattr(message, name), name
    assert bytes(data[head.body_position :][: head.body_length]) == message.body
    assert bytes(data[head.properties_position :][: head.properties_length]) == message.encoded_properties


@given(damaged(records()))
def test_a_head_is_ok_exactly_when_the_record_decodes_but_for_crc_ports_and_topic(pair: tuple[bytes, bytes]) -> None:
    _, data = pair
    head = read_head(data)
    found = attempt(decode_record, data, check_crc=False)
    if isinstance(found, CorruptRecord):
        assert head.kind is not HeadKind.OK or "port" in str(found) or "UTF-8" in str(found)
    else:
        assert (head.kind, head.size) == (HeadKind.OK, found.size)


@given(st.binary(max_size=200), st.integers(0, 210), st.none() | st.integers(-5, 300))
def test_noise_never_raises(data: bytes, position: int, available: int | None) -> None:
    assert read_head(data, position, available).kind is not HeadKind.OK


@given(st.integers(0, len(RECORD) - 1))
def test_a_record_whose_end_is_not_there_is_half(available: int) -> None:
    for head in (read_head(RECORD, 0, available), read_head(RECORD[:available])):
        assert head.kind is HeadKind.HALF
        assert head.size == (len(RECORD) if available >= 8 else 0)
        assert f"{available} bytes are left" in head.reason


def test_the_rest_of_a_file_is_blank() -> None:
    head = read_head(RECORD + encode_blank(5000), len(RECORD))
    assert (head.kind, head.size) == (HeadKind.BLANK, 5000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytes(16), "nothing but zeros"),
        (b"\x00\x00\x00\x07\xcb\xd4\x31\x94", "at least 8 bytes, found size 7"),
        (b"\xff\xff\xff\xff\xcb\xd4\x31\x94", "found size -1"),
        (b"\x00\x00\x00\x5b\x12\x34\x56\x78", "magic 0x12345678"),
        (b"\x00\x00\x00\x10\xda\xa3\x20\xa7", "at least 91 bytes, found size 16"),
    ],
)
def test_what_is_no_record_is_corrupt_and_gives_no_size_to_skip(data: bytes, reason: str) -> None:
    head = read_head(data)
    assert (head.kind, head.size) == (HeadKind.CORRUPT, 0)
    assert reason in head.reason
    assert reason in repr(head)


def test_a_record_whose_lengths_do_not_add_up_gives_the_size_to_skip() -> None:
    data = bytearray(RECORD)
    data[87] += 1
    head = read_head(data)
    assert (head.kind, head.size) == (HeadKind.CORRUPT, len(RECORD))


def test_hosts_larger_than_the_record_are_damage() -> None:
    data = bytearray(encode_record(topic="", body=b""))
    data[39] = 0x30
    head = read_head(data)
    assert (head.kind, head.size) == (HeadKind.CORRUPT, 91)
    assert "hosts" in head.reason


def test_a_negative_position_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="negative"):
        read_head(RECORD, -1)
