"""Small checksummed documents."""

from __future__ import annotations

import json
import zlib

import pytest

from tiermq.errors import FutureManifest
from tiermq.tier.metadata.document import CorruptManifest, open_document, seal_document


def test_a_document_reads_back_and_equal_ones_are_equal_bytes() -> None:
    data = seal_document({"b": 1, "a": "ü"}, 1)
    assert data == seal_document({"a": "ü", "b": 1}, 1)
    assert open_document(data, "x", 1) == {"a": "ü", "b": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b'{"version":true}',
        b'{"version":0}',
        b'{"version":1}',
        b'{"version":1,"body":[],"crc32":0}',
        b'{"version":1,"body":{"a":"\\ud800"},"crc32":0}',
        b'{"version":1,"body":{"a":NaN},"crc32":0}',
        b'{"version":1,"body":{},"crc32":0}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_document_is_refused_with_its_name(data: bytes) -> None:
    with pytest.raises(CorruptManifest, match="the-name"):
        open_document(data, "the-name", 1)


def test_a_sound_document_of_a_higher_version_is_refused_whatever_is_in_it() -> None:
    data = seal_document({"anything": ["else"]}, 3)
    with pytest.raises(FutureManifest, match="version 2 or older, found 3"):
        open_document(data, "x", 2)
    assert open_document(data, "x", 3) == {"anything": ["else"]}


@pytest.mark.parametrize("crc32", ["of another kind", None, True, zlib.crc32(b"{}")])
def test_a_higher_version_does_not_excuse_a_wrong_checksum(crc32: object) -> None:
    data = json.dumps({"version": 3, "crc32": crc32, "body": {}}).encode()
    with pytest.raises(CorruptManifest, match="version 3"):
        open_document(data, "x", 2)


@pytest.mark.parametrize("written", [1, 2, 12])
@pytest.mark.parametrize("version_max", [1, 2, 12])
def test_a_document_whose_version_went_bad_is_damage_and_no_other_version(written: int, version_max: int) -> None:
    good = seal_document({"a": "ü", "b": [1]}, written)
    for found in {*range(1, 100), 1 << 40, int("9" * 4000)} - {written}:
        bad = good.replace(b'"version":%d' % written, b'"version":%d' % found)
        with pytest.raises(CorruptManifest, match="checksum"):
            open_document(bad, "x", version_max)


def test_version_1_has_the_bytes_that_it_always_had() -> None:
    assert seal_document({"a": 1}, 1) == b'{"body":{"a":1},"crc32":%d,"version":1}' % zlib.crc32(b'{"a":1}')
    assert seal_document({"a": 1}, 2) == b'{"body":{"a":1},"crc32":%d,"version":2}' % zlib.crc32(b'{"a":1}2')


@pytest.mark.parametrize("version", [1, 2])
def test_no_bad_bit_makes_a_document_look_newer_or_say_anything_else(version: int) -> None:
    good = seal_document({"epoch": 7, "owner": "broker-a on host-1"}, version)
    for position in range(len(good) * 8):
        bad = bytearray(good)
        bad[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptManifest):
            open_document(bytes(bad), "x", 1 if version == 1 else 2)
