"""Checksums of an uploaded index file, one for each block, so that a look-up of a few bytes can be trusted.

    companion of the file:   "blocks": {"bytes": 4096, "crc32": "<base64 of 4 bytes each, big-endian>"}

RocketMQ's format has none: a bad bit in a slot or in an item hides a key, and nobody would know. A file has at most
BLOCKS_MAX blocks, so that the companion stays small; a look-up reads the blocks that it touches, not a read more. Files
of RocketMQ's, and of a TierMQ before this, have no sums and are believed.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiermq.errors import CorruptSegment

BLOCK_BYTES_MIN = 4096
BLOCKS_MAX = 65_536
FIELD = "blocks"


@dataclass(frozen=True, slots=True)
class BlockSums:
    """The checksums of a file of `size` bytes. The last block may be shorter."""

    size: int
    block_bytes: int
    crc32s: tuple[int, ...]

    @classmethod
    def of(cls, data: bytes | memoryview) -> BlockSums:
        block = BLOCK_BYTES_MIN
        while block * BLOCKS_MAX < len(data):
            block *= 2
        view = memoryview(data)
        sums = tuple(zlib.crc32(view[start : start + block]) for start in range(0, len(data), block))
        return cls(len(data), block, sums)

    @classmethod
    def told_by(cls, companion: bytes | memoryview, size: int) -> BlockSums | None:
        """What a companion tells of a file of `size` bytes; None when it tells nothing, or of another file."""
        try:
            told = json.loads(bytes(companion))[FIELD]
            block, packed = int(told["bytes"]), base64.b64decode(told["crc32"], validate=True)
            sums = struct.unpack(f">{len(packed) // 4}I", packed)
        except (ValueError, LookupError, TypeError, struct.error):
            return None
        return cls(size, block, sums) if block > 0 and len(sums) == -(-size // block) else None

    def document(self) -> dict[str, Any]:
        packed = struct.pack(f">{len(self.crc32s)}I", *self.crc32s)
        return {"bytes": self.block_bytes, "crc32": base64.b64encode(packed).decode()}

    def read(self, where: str, read: Callable[[int, int], memoryview], position: int, length: int) -> memoryview:
        """Bytes of the file, by `read(position, length)` of whole blocks. Raises CorruptSegment, what `read` raises."""
        block = self.block_bytes
        first, last = position // block, (position + length - 1) // block
        if length <= 0 or last >= len(self.crc32s):
            return read(position, length)
        start = first * block
        data = read(start, min((last + 1) * block, self.size) - start)
        for number in range(first, last + 1):
            at = number * block - start
            if zlib.crc32(data[at : at + block]) != self.crc32s[number]:
                raise CorruptSegment(
                    f"{where}: its bytes from {number * block} on are not those that were written; keys may be hidden "
                    "there: run `tiermq tier repair`, or delete the object and run `tiermq pipeline reindex`"
                )
        return data[position - start : position - start + length]


def summed(companion: bytes, sums: BlockSums | None) -> bytes:
    """A companion that tells the checksums, too."""
    if sums is None:
        return companion
    return json.dumps({**json.loads(companion), FIELD: sums.document()}, separators=(",", ":")).encode()
