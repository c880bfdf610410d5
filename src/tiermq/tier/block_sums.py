"""Checksums of a file in the tier, one for each block, so that a read of a few bytes can be verified.

    companion of an index file:  "blocks": {"bytes": 4096, "crc32": "<base64 of 4 bytes each, big-endian>"}
    segment in a manifest:       "blocks": {"bytes": 262144, "crc32": "…", "size": <bytes that they cover>}

RocketMQ's formats have none: a record's own CRC covers its body alone, and a bad bit in a slot or in an item of an
index file hides a key. An index file has at most BLOCKS_MAX blocks, so that the companion stays small; a segment has
blocks of LOG_BLOCK_BYTES or UNITS_BLOCK_BYTES, and its sums grow with it. A reader reads whole blocks, in one request:
`range_to_read`, the read, then `checked`. Files of RocketMQ, and of older TierMQ versions, have no sums and are not
verified.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tiermq.errors import CorruptSegment
from tiermq.message.crc import crc32
from tiermq.tier.names import SegmentType

# The CRC-32 of two adjacent byte ranges, from the CRC of each: for ranges that were read separately.
#
# A CRC is linear: appending n bytes to a range multiplies its polynomial by x^(8n), modulo the CRC's polynomial. The
# power is built by squaring, so that a gigabyte costs thirty steps.

POLYNOMIAL = 0xEDB88320  # CRC-32 (IEEE), bits reversed: the highest bit stands for x^0.
ONE = 0x80000000
EIGHT = 0x00800000  # x^8
CRC_BITS = 32


def joined_crc(first: int, second: int, second_length: int) -> int:
    """The CRC of both ranges; `second` is that of `second_length` bytes alone."""
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


BLOCK_BYTES_MIN = 4096
BLOCK_BYTES_MAX = (1 << 32) - 1
BLOCKS_MAX = 65_536
LOG_BLOCK_BYTES = 256 * 1024
UNITS_BLOCK_BYTES = 16 * 1024
FIELD = "blocks"
INDEX_DAMAGE_ADVICE = (
    "keys may be hidden there: run `tiermq tier repair`, or delete the object and run `tiermq pipeline reindex`"
)
_HEAD = struct.Struct(
    ">"
    "Q"  # size         bytes that the sums cover
    "I"  # block_bytes
)


@dataclass(frozen=True, slots=True)
class BlockSums:
    """The checksums of the first `size` bytes of a file. The last block may be shorter."""

    size: int
    block_bytes: int
    crc32s: tuple[int, ...]

    @classmethod
    def of(cls, data: bytes | memoryview) -> BlockSums:
        """Of an index file."""
        block = BLOCK_BYTES_MIN
        while block * BLOCKS_MAX < len(data):
            block *= 2
        return cls(0, block, ()).extended(data)

    @classmethod
    def of_nothing(cls, segment_type: SegmentType) -> BlockSums:
        """Of an empty segment."""
        return cls(0, UNITS_BLOCK_BYTES if segment_type is SegmentType.CONSUME_QUEUE else LOG_BLOCK_BYTES, ())

    @classmethod
    def of_companion(cls, companion: bytes | memoryview, size: int) -> BlockSums | None:
        """The sums in the companion of a file of `size` bytes; None when it has none, or those of another file."""
        try:
            found = json.loads(bytes(companion))[FIELD]
        except (ValueError, LookupError, TypeError):
            return None
        return cls.from_document(found, size)

    @classmethod
    def from_document(cls, found: Any, size: int) -> BlockSums | None:
        try:
            block, packed = int(found["bytes"]), base64.b64decode(found["crc32"], validate=True)
            sums = struct.unpack(f">{len(packed) // 4}I", packed)
        except (ValueError, LookupError, TypeError, struct.error):
            return None
        return cls(size, block, sums) if 0 < block <= BLOCK_BYTES_MAX and len(sums) == -(-size // block) else None

    def document(self) -> dict[str, Any]:
        return {"bytes": self.block_bytes, "crc32": base64.b64encode(self._packed()).decode()}

    @classmethod
    def unpacked(cls, data: bytes | None) -> BlockSums | None:
        """The inverse of `packed`; None for None."""
        if data is None:
            return None
        size, block = _HEAD.unpack_from(data)
        return cls(size, block, struct.unpack_from(f">{-(-size // block)}I", data, _HEAD.size))

    def packed(self) -> bytes:
        return _HEAD.pack(self.size, self.block_bytes) + self._packed()

    def _packed(self) -> bytes:
        return struct.pack(f">{len(self.crc32s)}I", *self.crc32s)

    def extended(self, data: bytes | bytearray | memoryview) -> BlockSums:
        """The sums of the file with `data` behind its end."""
        if not len(data):
            return self
        block, view = self.block_bytes, memoryview(data)
        sums = list(self.crc32s)
        at = -self.size % block  # Free bytes of the last block.
        if at:
            sums[-1] = crc32(view[:at], sums[-1])
        sums += [crc32(view[start : start + block]) for start in range(at, len(view), block)]
        return BlockSums(self.size + len(view), block, tuple(sums))

    def whole(self) -> int:
        """The CRC-32 of all bytes that are covered."""
        crc = 0
        for number, block_crc in enumerate(self.crc32s):
            crc = joined_crc(crc, block_crc, min(self.block_bytes, self.size - number * self.block_bytes))
        return crc

    def cut(self, size: int) -> BlockSums:
        """The sums of a shorter file, of whole blocks only."""
        if size >= self.size:
            return self
        count = size // self.block_bytes
        return BlockSums(count * self.block_bytes, self.block_bytes, self.crc32s[:count])

    def part(self, start: int, stop: int) -> tuple[int, int]:
        """Begin and end of the whole blocks that hold the bytes [start, stop)."""
        block = self.block_bytes
        low, high = start // block * block, -(-stop // block) * block
        return low, max(stop, min(high, self.size))

    def bad_blocks(self, data: memoryview, start: int) -> list[tuple[int, int]]:
        """Begin and end of each corrupt block in `data`, which begins at block boundary `start`.

        Blocks that are not covered, or only partly in `data`, are skipped.
        """
        block, found = self.block_bytes, []
        for number in range(start // block, len(self.crc32s)):
            low, high = number * block, min((number + 1) * block, self.size)
            if high > start + len(data):
                break
            if crc32(data[low - start : high - start]) != self.crc32s[number]:
                found.append((low, high))
        return found

    def range_to_read(self, position: int, length: int) -> tuple[int, int]:
        """Position and length of the one read for [position, position + length): whole blocks where there are sums."""
        if length <= 0 or position >= self.size:
            return position, length
        low, high = self.part(position, position + length)
        return low, high - low

    def verified(
        self, data: bytes | memoryview, low: int, position: int, length: int
    ) -> tuple[memoryview, list[tuple[int, int]]]:
        """Bytes [position, position + length) of what was read, which begins at `low`; and the corrupt blocks."""
        view = memoryview(data)
        if length <= 0 or position >= self.size:
            return view, []
        found = view[position - low : position - low + length]
        # A view would keep the whole blocks in memory.
        return found if 2 * length >= len(view) else memoryview(bytes(found)), self.bad_blocks(view, low)

    def checked(
        self,
        data: bytes | memoryview,
        low: int,
        position: int,
        length: int,
        where: object,
        advice: str = INDEX_DAMAGE_ADVICE,
    ) -> memoryview:
        """The same bytes. Raises CorruptSegment when one of their blocks is not what was written; `where`: the file."""
        found, bad = self.verified(data, low, position, length)
        if bad:
            raise CorruptSegment(f"{where}: {bad_block_words(*bad[0])}; {advice}")
        return found


def bad_block_words(begin: int, end: int) -> str:
    """Error text for a corrupt block of a segment."""
    return f"its block of {end - begin} bytes at {begin} is not what was written"


def summed(companion: bytes, sums: BlockSums | None) -> bytes:
    """A companion with the checksums added."""
    if sums is None:
        return companion
    return json.dumps({**json.loads(companion), FIELD: sums.document()}, separators=(",", ":")).encode()
