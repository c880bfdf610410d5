"""An index file under verification: its structure, and where its items lead."""

from __future__ import annotations

import struct

import pytest

from tier.tier_world import TierWorld
from tier.verify_world import (
    bytes_of,
    index_key,
    kinds,
)
from tiermq.tier.index.index_item import HEADER_BYTES
from tiermq.tier.verify.verify import verify_tier


@pytest.mark.parametrize(
    ("at", "value", "expected"),
    [
        pytest.param(0, b"\x00", "index_structure", id="magic"),
        pytest.param(3, b"\x89", "index_structure", id="still open"),
        pytest.param(27, b"\x01", "index_structure", id="item count"),
        pytest.param(23, b"\x01", "index_structure", id="slot count"),
        pytest.param(HEADER_BYTES + 11, b"\x01", "index_structure", id="position of a slot"),
        pytest.param(HEADER_BYTES + 7, b"\x05", "index_structure", id="length of a slot"),
        pytest.param(HEADER_BYTES + 56 + 3, b"\x77", "index_item", id="hash of an item"),
        pytest.param(HEADER_BYTES + 56 + 11, b"\x05", None, id="queue id: of no queue, so it is stale"),
        pytest.param(HEADER_BYTES + 56 + 19, b"\x01", "index_item", id="offset of an item"),
        pytest.param(HEADER_BYTES + 56 + 23, b"\x01", "index_item", id="size of an item"),
        pytest.param(HEADER_BYTES + 56 + 25, b"\x05", "index_item", id="time of an item"),
        pytest.param(19, b"\x00", "index_structure", id="newest time"),
    ],
)
def test_damage_of_an_index_file_is_found(world: TierWorld, at: int, value: bytes, expected: str | None) -> None:
    data = bytes_of(world, index_key(world))
    if at == 19:
        data[12:20] = struct.pack(">q", 1)
    else:
        data[at : at + 1] = value
    found = kinds(verify_tier(world.driver))
    assert expected is None or expected in found
    assert found <= {"index_structure", "index_item"}
