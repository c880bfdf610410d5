"""Header blocks: what the library's encoder writes is read as its own decoder reads it; garbage is refused."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hypothesis import given, settings
from hypothesis import strategies as st

from tiermq.grpc.header_blocks import BadBlock, HeaderDecoder

BYTES_MAX = 32 * 1024
NAMES = st.sampled_from([b":path", b":method", b"x-mq-client-id", b"content-type", b"authorization"]) | st.binary(
    min_size=1, max_size=40
)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=600), st.booleans()), max_size=12)


@settings(max_examples=150)
@given(blocks=st.lists(FIELDS, max_size=8), coded=st.booleans(), sizes=st.lists(st.integers(0, 4096), max_size=8))
def test_blocks_in_a_row_are_read_as_the_library_reads_them(
    blocks: list[list[tuple[bytes, bytes, bool]]], coded: bool, sizes: list[int]
) -> None:
    encoder, theirs, ours = Encoder(), Decoder(max_header_list_size=BYTES_MAX), HeaderDecoder(BYTES_MAX)
    for number, fields in enumerate(blocks):
        if number < len(sizes):
            encoder.header_table_size = sizes[number]
        block = encoder.encode(fields, huffman=coded)
        assert ours.decode(block) == [tuple(field) for field in theirs.decode(block, raw=True)]


@given(block=st.binary(max_size=80))
def test_any_bytes_are_fields_or_refused(block: bytes) -> None:
    ours, theirs = HeaderDecoder(BYTES_MAX), Decoder(max_header_list_size=BYTES_MAX)
    try:
        expected = [tuple(field) for field in theirs.decode(block, raw=True)]
    except HPACKError:
        expected = None
    try:
        found = ours.decode(block)
    except BadBlock:
        return
    assert found == expected


def test_a_small_block_cannot_mean_many_fields() -> None:
    encoder, ours = Encoder(), HeaderDecoder(BYTES_MAX)
    ours.decode(encoder.encode([(b"name", b"v" * 3_000)]))
    with pytest.raises(BadBlock):
        ours.decode(b"\xbe" * 100)


def test_a_number_without_an_end_is_refused() -> None:
    for block in (b"\xff" * 3, b"\x7f" + b"\xff" * 10, b"\x40\x7f" + b"\x80" * 9, b"\x40\x05abc"):
        with pytest.raises(BadBlock):
            HeaderDecoder(BYTES_MAX).decode(block)
