"""Many messages in one record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.errors import CorruptRecord
from tiermq.message import (
    BatchElement,
    CompressionType,
    StoredMessage,
    compress,
    decode_record,
    encode_client_batch,
    encode_record,
    inner_base,
    inner_num,
    inner_span,
    unwrap_inner_batch,
)
from tiermq.message.client_batch import with_inner_base, with_inner_num

ELEMENTS = [
    BatchElement(flag=index, body=b"body-%d" % index, encoded_properties=b"KEYS\x01k%d\x02" % index)
    for index in range(3)
]


def wrapped(properties: bytes, *, body: bytes | None = None, sys_flag: int = 0xC0) -> StoredMessage:
    body = encode_client_batch(ELEMENTS) if body is None else body
    return decode_record(
        encode_record(
            topic="T", body=body, queue_id=2, queue_offset=100, physical_offset=4096, sys_flag=sys_flag,
            properties=properties, store_host="[::1]:10911", reconsume_times=1,
        )
    )  # fmt: skip


@pytest.mark.parametrize("base", [100, 0, (1 << 63) - 10])
def test_each_message_has_its_own_body_properties_and_queue_offset(base: int) -> None:
    message = wrapped(with_inner_base(with_inner_num(b"UNIQ_KEY\x01U\x02", 3), base))
    inside = unwrap_inner_batch(message)
    assert [one.body for one in inside] == [b"body-0", b"body-1", b"body-2"]
    assert [one.flag for one in inside] == [0, 1, 2]
    assert [one.keys for one in inside] == [["k0"], ["k1"], ["k2"]]
    assert [one.queue_offset for one in inside] == [base, base + 1, base + 2]
    for one in inside:
        assert (one.topic, one.queue_id, one.physical_offset, one.size) == ("T", 2, 4096, message.size)
        assert (one.store_host, one.reconsume_times) == ("[::1]:10911", 1)
        assert unwrap_inner_batch(one) == [one]


def test_without_both_properties_the_records_own_offset_is_the_base() -> None:
    assert [one.queue_offset for one in unwrap_inner_batch(wrapped(b""))] == [100, 101, 102]
    assert inner_span(b"", 7) == (7, 1)
    assert inner_span(b"INNER_NUM\x013\x02", 7) == (7, 1)
    assert inner_span(b"INNER_BASE\x015\x02", 7) == (7, 1)
    assert inner_span(b"INNER_NUM\x013\x02INNER_BASE\x015\x02", 7) == (5, 3)


def test_a_plain_message_is_its_own_only_content() -> None:
    message = wrapped(b"", body=b"plain", sys_flag=0)
    assert unwrap_inner_batch(message) == [message]


def test_a_compressed_batch_is_unwrapped_to_plain_messages() -> None:
    body = compress(encode_client_batch(ELEMENTS), CompressionType.ZSTD)
    inside = unwrap_inner_batch(wrapped(b"", body=body, sys_flag=0xC0 | 0x201))
    assert [one.decompressed_body() for one in inside] == [element.body for element in ELEMENTS]


def test_another_number_of_messages_than_promised_is_damage() -> None:
    for properties in (b"INNER_NUM\x014\x02INNER_BASE\x01100\x02", b"INNER_NUM\x014\x02"):
        with pytest.raises(CorruptRecord):
            unwrap_inner_batch(wrapped(properties))


@given(st.binary(max_size=21).filter(bool))
def test_a_body_that_is_no_batch_is_damage(body: bytes) -> None:
    with pytest.raises(CorruptRecord):
        unwrap_inner_batch(wrapped(b"", body=body))


@pytest.mark.parametrize("value", ["-1", "+1", "x", "1.0", " 1", "32768", "٣", "9" * 30])
def test_a_count_that_is_no_count_is_damage(value: str) -> None:
    with pytest.raises(CorruptRecord, match="INNER_NUM"):
        inner_num(f"INNER_NUM\x01{value}\x02".encode())


def test_a_base_is_any_offset() -> None:
    assert inner_base(with_inner_base(b"", (1 << 63) - 1)) == (1 << 63) - 1
    assert inner_base(b"") is None
    with pytest.raises(CorruptRecord, match="INNER_BASE"):
        inner_base(b"INNER_BASE\x019223372036854775808\x02")
