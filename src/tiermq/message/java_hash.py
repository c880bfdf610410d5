"""Java's `String.hashCode`, and RocketMQ's key hash and tags code.

h = 31 * h + unit over UTF-16 code units, wrapping at 32 bits, signed. Collisions are expected: after a
lookup of a tag or key by hash, compare the text.
"""

from __future__ import annotations

import sys
from functools import lru_cache

_UTF_16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def java_hash(text: str) -> int:
    """Signed 32-bit hash, as Java computes it."""
    if text.isascii():
        units: bytes | memoryview = text.encode("ascii")
    else:
        units = memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def key_hash(text: str) -> int:
    """The hash of an index key (`topic#key`): never negative; Java's one number without an absolute value becomes 0."""
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


@lru_cache(maxsize=4096)
def tags_code(tags: str | None) -> int:
    """The tags code of a consume-queue unit; 0 for no tag. Cached, since a topic has few tags."""
    return java_hash(tags) if tags else 0
