"""The oracle of compaction: what RocketMQ does, slot by slot along the chains, as plainly as possible."""

from __future__ import annotations

import struct
from typing import Any


def rearrange_by_chain(buffer: Any, slots: int) -> bytes:
    """The compacted form of an open index file; b"" without items."""
    (count,) = struct.unpack_from(">i", buffer, 24)
    if count == 0:
        return b""
    first_item = 28 + 8 * slots
    table, items = b"", b""
    for slot in range(slots):
        start = first_item + len(items)
        (number,) = struct.unpack_from(">i", buffer, 28 + 8 * slot)
        run = b""
        while number:
            at = first_item + 32 * number
            run += bytes(buffer[at : at + 28])
            (number,) = struct.unpack_from(">i", buffer, at + 28)
        table += struct.pack(">ii", start, len(run))
        items += run
    return bytes.fromhex("bcc50285") + bytes(buffer[4:28]) + table + items
