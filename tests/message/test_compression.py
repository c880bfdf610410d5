"""Compressed bodies."""

from __future__ import annotations

import zlib

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compressed_flag import with_compression
from fuzz.damage import attempt, damaged
from tiermq.errors import CorruptRecord
from tiermq.message.compression import compress, decompress, zstd
from tiermq.message.system_flag import CompressionType

KINDS = st.sampled_from(list(CompressionType))
BODIES = st.binary(max_size=2000) | st.binary(min_size=1, max_size=20).map(lambda piece: piece * 100)


@given(BODIES, KINDS)
def test_bodies_survive_every_compression(body: bytes, kind: CompressionType) -> None:
    packed = compress(body, kind)
    assert decompress(packed, with_compression(0, kind)) == body
    assert decompress(packed, with_compression(0, kind), max_bytes=len(body)) == body


@given(BODIES.filter(bool), KINDS)
def test_one_byte_more_than_allowed_is_refused(body: bytes, kind: CompressionType) -> None:
    with pytest.raises(CorruptRecord, match="at most"):
        decompress(compress(body, kind), with_compression(0, kind), max_bytes=len(body) - 1)


@given(st.tuples(BODIES, KINDS), st.data())
def test_a_cut_body_is_refused(case: tuple[bytes, CompressionType], draw: st.DataObject) -> None:
    body, kind = case
    packed = compress(body, kind)
    cut = packed[: draw.draw(st.integers(0, len(packed) - 1))]
    with pytest.raises(CorruptRecord):
        decompress(cut, with_compression(0, kind))


@pytest.mark.parametrize("kind", list(CompressionType))
@given(data=st.data())
def test_damaged_bodies_raise_nothing_but_corrupt_record(kind: CompressionType, data: st.DataObject) -> None:
    _, broken = data.draw(damaged(BODIES.map(lambda body: compress(body, kind))))
    found = attempt(decompress, broken, with_compression(0, kind), max_bytes=1 << 20)
    assert isinstance(found, CorruptRecord) or len(found) <= 1 << 20


@given(st.binary(max_size=200), KINDS)
def test_noise_raises_nothing_but_corrupt_record(body: bytes, kind: CompressionType) -> None:
    found = attempt(decompress, body, with_compression(0, kind), max_bytes=1 << 20)
    assert isinstance(found, CorruptRecord) or len(found) <= 1 << 20


def test_bodies_that_are_not_compressed_are_given_back_untouched() -> None:
    body = b"plain"
    assert decompress(body, 0x300) is body


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_an_unknown_compression_type_is_refused(number: int) -> None:
    with pytest.raises(CorruptRecord, match=f"compression type {number}"):
        decompress(b"x", number << 8 | 1)


def test_lz4_frames_have_independent_blocks_because_java_refuses_linked_ones() -> None:
    packed = compress(b"x" * 10_000_000, CompressionType.LZ4)
    assert packed[:4] == bytes.fromhex("04224d18")
    assert packed[4] & 0x20, "block independence bit of the frame descriptor"
    assert lz4.frame.get_frame_info(packed)["block_linked"] is False


def test_a_frame_as_javas_lz4_stream_writes_it_is_read() -> None:
    """4 MiB blocks, independent, no sizes or checksums: FLG 0x60, BD 0x70, one raw block, end mark."""
    header = bytes.fromhex("04224d186070") + b"\x73"
    frame = header + (5 | 1 << 31).to_bytes(4, "little") + b"hello" + bytes(4)
    assert decompress(frame, 0x101) == b"hello"


@pytest.mark.parametrize("kind", [CompressionType.LZ4, CompressionType.ZSTD])
def test_frames_in_a_row_are_read_as_one_body(kind: CompressionType) -> None:
    packed = compress(b"hello ", kind) + compress(b"world", kind)
    assert decompress(packed, with_compression(0, kind)) == b"hello world"


def test_bytes_after_a_zlib_stream_are_refused() -> None:
    with pytest.raises(CorruptRecord, match="2 foreign bytes"):
        decompress(compress(b"hello", CompressionType.ZLIB) + b"!!", 0x301)


def test_a_zstd_stream_without_a_content_size_is_read_as_java_writes_it() -> None:
    stream = zstd.ZstdCompressor(options={zstd.CompressionParameter.content_size_flag: 0})
    packed = stream.compress(b"hello " * 1000) + stream.flush()
    assert decompress(packed, 0x201) == b"hello " * 1000


@pytest.mark.parametrize("kind", list(CompressionType))
def test_a_bomb_is_refused_before_it_fills_the_memory(kind: CompressionType) -> None:
    bomb = compress(bytes(50_000_000), kind)
    assert len(bomb) < 250_000
    with pytest.raises(CorruptRecord, match="at most 100000 bytes"):
        decompress(bomb, with_compression(0, kind), max_bytes=100_000)


def test_the_level_is_honoured_by_zlib() -> None:
    body = bytes(range(256)) * 100
    assert compress(body, CompressionType.ZLIB, 0) == zlib.compress(body, 0)
    assert len(compress(body, CompressionType.ZLIB, 9)) < len(compress(body, CompressionType.ZLIB, 0))
