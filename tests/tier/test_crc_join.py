"""Checksums of pieces give the checksum of the whole."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from tiermq.tier.block_sums import joined_crc


@given(first=st.binary(max_size=300), second=st.binary(max_size=3000))
def test_the_crc_of_two_runs_is_that_of_both_in_one(first: bytes, second: bytes) -> None:
    assert joined_crc(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)
