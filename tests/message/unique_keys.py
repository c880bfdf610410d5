"""The parts of a client's unique key, read as `tiermq.message.ids` shows them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tiermq.message.hosts import format_host

PARTS = struct.Struct(">HIIH")
"""Behind the address."""


@dataclass(frozen=True)
class UniqueKey:
    """A decoded unique key."""

    address: str
    process_id: int
    process_hash: int
    since_month_start_ms: int
    counter: int


def decode_unique_key(text: str) -> UniqueKey:
    raw = bytes.fromhex(text)
    assert text == raw.hex().upper()
    address = format_host(raw[: -PARTS.size], 0).rpartition(":")[0]
    return UniqueKey(address, *PARTS.unpack_from(raw, len(raw) - PARTS.size))
