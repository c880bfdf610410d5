"""The body of a batch request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.damage import attempt, damaged
from fuzz.records import I32
from tiermq.errors import CorruptRecord, IllegalMessage
from tiermq.message.client_batch import BatchElement, decode_client_batch, encode_client_batch

GOLDEN = bytes.fromhex("0000001f 00000000 00000000 00000000 00000002 6869 0007 4b455953016b02")
ELEMENTS = st.lists(st.builds(BatchElement, I32, st.binary(max_size=200), st.binary(max_size=50)), max_size=6)


def test_a_batch_is_written_and_read_as_clients_do() -> None:
    elements = [BatchElement(flag=0, body=b"hi", encoded_properties=b"KEYS\x01k\x02")]
    assert encode_client_batch(elements) == GOLDEN
    assert decode_client_batch(GOLDEN) == elements
    assert decode_client_batch(GOLDEN * 3) == elements * 3


def test_an_empty_body_is_a_batch_of_nothing() -> None:
    assert decode_client_batch(b"") == []
    assert encode_client_batch([]) == b""


@given(ELEMENTS)
def test_batches_survive_a_round_trip(elements: list[BatchElement]) -> None:
    assert decode_client_batch(encode_client_batch(elements)) == elements


@given(damaged(ELEMENTS.map(encode_client_batch)))
def test_damage_is_found_or_the_elements_are_exactly_what_the_bytes_say(pair: tuple[bytes, bytes]) -> None:
    _, data = pair
    found = attempt(decode_client_batch, data)
    if isinstance(found, CorruptRecord):
        assert "batch element at byte" in str(found)
    else:
        assert encode_client_batch(found) == data


@given(st.binary(min_size=1, max_size=21))
def test_less_than_one_element_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecord, match="at least 22 bytes"):
        decode_client_batch(data)


@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (0, "00000020", "size 32"),
        (0, "0000001e", "do not make 30"),
        (0, "00000015", "size 21"),
        (0, "ffffffff", "size -1"),
        (16, "ffffffff", "body length -1"),
        (16, "00000100", "body length 256"),
        (22, "ffff", "property length -1"),
        (22, "0006", "property length 6"),
    ],
)
def test_lengths_that_do_not_add_up_are_named(at: int, data: str, reason: str) -> None:
    raw = bytes.fromhex(data)
    with pytest.raises(CorruptRecord, match=reason):
        decode_client_batch(GOLDEN[:at] + raw + GOLDEN[at + len(raw) :])


def test_properties_beyond_32767_bytes_are_refused_in_a_batch_too() -> None:
    fits = BatchElement(0, b"", b"p" * 32767)
    assert decode_client_batch(encode_client_batch([fits])) == [fits]
    with pytest.raises(IllegalMessage, match="element 1.*32768"):
        encode_client_batch([fits, BatchElement(0, b"", b"p" * 32768)])


def test_a_flag_that_is_no_int_is_refused() -> None:
    with pytest.raises(IllegalMessage, match="element 0: flag"):
        encode_client_batch([BatchElement(1 << 31, b"", b"")])
