"""Header blocks: what the library's encoder writes is read as its own decoder reads it, by both kernels."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.kernel_world import KERNELS
from tiermq.grpc.header_codes import CODES
from tiermq.kernel import BadBlock

BYTES_MAX = 32 * 1024
NAMES = st.sampled_from([b":path", b":method", b"x-mq-client-id", b"content-type", b"authorization"]) | st.binary(
    min_size=1, max_size=40
)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=600), st.booleans()), max_size=12)
both = pytest.mark.parametrize("kernel", KERNELS)


def decoder_of(kernel: Any) -> Any:
    return kernel.HeaderDecoder(BYTES_MAX, CODES)


def read(decoder: Any, block: bytes) -> list[tuple[bytes, bytes]] | None:
    """Its fields, or None if it is refused."""
    try:
        found: list[tuple[bytes, bytes]] = decoder.decode(block)
    except BadBlock:
        return None
    return found


@both
@settings(max_examples=150)
@given(blocks=st.lists(FIELDS, max_size=8), coded=st.booleans(), sizes=st.lists(st.integers(0, 4096), max_size=8))
def test_blocks_in_a_row_are_read_as_the_library_reads_them(
    kernel: ModuleType, blocks: list[list[tuple[bytes, bytes, bool]]], coded: bool, sizes: list[int]
) -> None:
    encoder, theirs, ours = Encoder(), Decoder(max_header_list_size=BYTES_MAX), decoder_of(kernel)
    metadata = decoder_of(kernel)
    for number, fields in enumerate(blocks):
        if number < len(sizes):
            encoder.header_table_size = sizes[number]
        block = encoder.encode(fields, huffman=coded)
        expected = [tuple(field) for field in theirs.decode(block, raw=True)]
        assert ours.decode(block) == expected
        assert metadata.metadata(block) == {
            CODES.kept[name]: value.decode("latin-1") for name, value in expected if name in CODES.kept
        }


@given(block=st.binary(max_size=80))
def test_any_bytes_are_fields_or_refused(block: bytes) -> None:
    theirs = Decoder(max_header_list_size=BYTES_MAX)
    try:
        expected = [tuple(field) for field in theirs.decode(block, raw=True)]
    except HPACKError:
        expected = None
    results = [read(decoder_of(kernel.values[0]), block) for kernel in KERNELS if kernel.values[0] is not None]
    assert all(found == results[0] for found in results)
    assert results[0] in (None, expected)


@both
def test_a_small_block_cannot_mean_many_fields(kernel: ModuleType) -> None:
    encoder, ours = Encoder(), decoder_of(kernel)
    ours.decode(encoder.encode([(b"name", b"v" * 3_000)]))
    with pytest.raises(BadBlock):
        ours.decode(b"\xbe" * 100)


@both
def test_a_number_without_an_end_is_refused(kernel: ModuleType) -> None:
    for block in (b"\xff" * 3, b"\x7f" + b"\xff" * 10, b"\x40\x7f" + b"\x80" * 9, b"\x40\x05abc"):
        with pytest.raises(BadBlock):
            decoder_of(kernel).decode(block)
