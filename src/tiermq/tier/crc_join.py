"""The CRC-32 of two runs of bytes, one behind the other, from the CRC of each: for runs that were read apart.

A CRC is linear: appending n bytes to a run multiplies what its bits stand for by x^(8n), modulo the polynomial. The
power is built by squaring, so that a gigabyte costs thirty steps.
"""

from __future__ import annotations

from functools import lru_cache

POLYNOMIAL = 0xEDB88320  # CRC-32 (IEEE), bits reversed: the highest bit stands for x^0.
ONE = 0x80000000
EIGHT = 0x00800000  # x^8
CRC_BITS = 32


def joined_crc(first: int, second: int, second_length: int) -> int:
    """The CRC of both runs; `second` is that of `second_length` bytes, begun anew."""
    return _multiplied(first, _shift(second_length)) ^ second


@lru_cache(maxsize=256)
def _shift(length: int) -> int:
    """x^(8 * length), modulo the polynomial."""
    power, square = ONE, EIGHT
    while length:
        if length & 1:
            power = _multiplied(power, square)
        square = _multiplied(square, square)
        length >>= 1
    return power


def _multiplied(left: int, right: int) -> int:
    """The product of two polynomials of 32 bits, modulo the CRC's."""
    product = 0
    for _ in range(CRC_BITS):
        if left & ONE:
            product ^= right
        left = left << 1 & 0xFFFFFFFF
        right = right >> 1 ^ (POLYNOMIAL if right & 1 else 0)
    return product
