"""Records without their bodies: the fixed part and what follows the body, at their places in a buffer of zeros.

    | fixed part | body, left out | topic, properties |

So a scan that wants no bodies moves a few hundred bytes of each large record and not its megabytes, and whoever decodes
the buffer finds every other field where it always is. Zeros that nobody touches take no memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tiermq.history.unit_array import CODA_BYTES, UnitArray
from tiermq.message.layout import FIXED_SIZES, MAGIC_BLANK, SHAPE_MASK, SHAPE_SHIFT, SYS_FLAG_LOW_BYTE_AT

Read = Callable[[int, int], memoryview]
"""(position in the segment, length) -> bytes."""

HEAD_BYTES = CODA_BYTES + max(FIXED_SIZES)
_MAGIC = struct.Struct(">4xi")
_BODY_BYTES = struct.Struct(">i")


def read_around_bodies(read: Read, units: UnitArray, begin: int, end: int, base: int) -> memoryview:
    """The log range [begin, end) of a segment that begins at `base`, of which only the records' other parts are read.

    A record that makes no sense is left as it was found: whoever checks it against its unit will tell.
    """
    buffer: Any = np.zeros(end - begin, dtype=np.uint8)
    view = memoryview(buffer.data).cast("B")
    for place, size in zip(units.places.tolist(), units.sizes.tolist(), strict=True):
        length = min(HEAD_BYTES, end - place)
        head = read(place - base, length)
        view[place - begin : place - begin + length] = head
        behind = _behind_body(head, size)
        if behind is not None:
            tail_at, tail_end = place + behind[0], place + behind[1]
            if tail_at < tail_end <= end:
                view[tail_at - begin : tail_end - begin] = read(tail_at - base, tail_end - tail_at)
    return view.toreadonly()


def _behind_body(head: memoryview, size: int) -> tuple[int, int] | None:
    """Where a record goes on behind its body, and where it ends, counted from its unit's place; None: no sense."""
    at = CODA_BYTES if len(head) >= HEAD_BYTES and _MAGIC.unpack_from(head)[0] == MAGIC_BLANK else 0
    fixed = FIXED_SIZES[(head[at + SYS_FLAG_LOW_BYTE_AT] & SHAPE_MASK) >> SHAPE_SHIFT]
    if len(head) < at + fixed:
        return None
    body_bytes = _BODY_BYTES.unpack_from(head, at + fixed - 4)[0]
    if body_bytes < 0 or fixed + body_bytes > size:
        return None
    return at + fixed + body_bytes, at + size
