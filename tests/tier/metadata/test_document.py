"""Small checksummed documents."""

from __future__ import annotations

import json

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


def test_the_version_is_looked_at_before_the_checksum() -> None:
    data = json.dumps({"version": 3, "crc32": "of another kind", "body": 7}).encode()
    with pytest.raises(FutureManifest):
        open_document(data, "x", 2)
