"""How far the messages of each delay level were delivered, in RocketMQ's `delayOffset.json`.

    {"dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},"offsetTable":{1:7,3:12},
     "delayLevelsMs":[1000,5000]}

Levels are bare numbers, as the original writes them; quoted ones are read as well. `delayLevelsMs` is our own
key, which RocketMQ does not read and drops: the delays of the broker's `messageDelayLevel`, for scans and tools.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from tiermq.errors import StoreDamaged
from tiermq.files.config_file import decode_lenient_json
from tiermq.files.os_file_access import OsFileAccess

FILE = "delayOffset.json"
LEVEL_DIGITS_MAX = 9
DELAYS = "delayLevelsMs"


def encode_delay_offsets(
    offsets: Mapping[int, int], counter: int, now_ms: int, delays_ms: tuple[int, ...] = ()
) -> bytes:
    version = json.dumps({"counter": counter, "stateVersion": 0, "timestamp": now_ms}, separators=(",", ":"))
    table = ",".join(f"{level}:{offset}" for level, offset in sorted(offsets.items()))
    delays = f',"{DELAYS}":{json.dumps(delays_ms, separators=(",", ":"))}' if delays_ms else ""
    return f'{{"dataVersion":{version},"offsetTable":{{{table}}}{delays}}}'.encode()


def decode_delay_offsets(data: bytes) -> tuple[dict[int, int], int]:
    """(level → next offset, the version's counter). Raises StoreDamaged for anything else."""
    document = decode_lenient_json(data, FILE)
    table = document.get("offsetTable") if isinstance(document, dict) else None
    if not isinstance(table, dict) or not all(_is_entry(level, offset) for level, offset in table.items()):
        raise StoreDamaged(f"{FILE}: expected an offsetTable of levels and offsets, found {str(document)[:80]}")
    version = document.get("dataVersion")
    counter = version.get("counter", 0) if isinstance(version, dict) else 0
    return {int(level): offset for level, offset in table.items()}, counter if isinstance(counter, int) else 0


def decode_delays_ms(data: bytes) -> tuple[int, ...]:
    """The delay of each level; empty where the file does not have them. Raises StoreDamaged for invalid JSON."""
    document = decode_lenient_json(data, FILE)
    found = document.get(DELAYS) if isinstance(document, dict) else None
    if not isinstance(found, list) or not all(type(each) is int and each >= 0 for each in found):
        return ()
    return tuple(found)


def stored_delays_ms(root: str | os.PathLike[str]) -> tuple[int, ...]:
    """The delays that the broker of a store directory recorded; empty where it did not. Raises StoreDamaged."""
    return OsFileAccess().read_config(os.path.join(root, "config", FILE), decode_delays_ms) or ()


def _is_entry(level: str, offset: Any) -> bool:
    digits = level.removeprefix("-")
    return len(digits) <= LEVEL_DIGITS_MAX and digits.isascii() and digits.isdigit() and type(offset) is int
