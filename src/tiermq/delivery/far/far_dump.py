"""Files about far timers in a tier that is a directory, as rows for `tiermq dump`.

far_manifest   which timer objects count
far_timer      one timer of an object: when it is due, and its message
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiermq.delivery.far.timer_buckets import NEVER_MS
from tiermq.delivery.far.timer_manifest import decode_timer_manifest, encode_timer_manifest
from tiermq.delivery.far.timer_names import DIRECTORY
from tiermq.delivery.far.timer_object import CorruptTimers, DamagedTimer, TimerObject
from tiermq.errors import CorruptRecord, FutureManifest
from tiermq.message.record import decode_record
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.names import OBJECT_SUFFIX, TIMERS_SUFFIX

FAR_ROW_KINDS = ("far_manifest", "far_timer", "damage")
Row = dict[str, Any]


def is_far_file(path: Path) -> bool:
    """Whether a path is that of a timer object or of a manifest of them. Only the name is looked at."""
    if path.name == f"manifest{OBJECT_SUFFIX}":
        return path.parent.name == DIRECTORY
    return path.name.endswith(TIMERS_SUFFIX)


def dump_far_file(path: Path, name: str) -> Iterator[Row]:
    """The rows of one file; what is damaged is a row with "error"."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return  # It was delivered, or written anew, between the listing and now.
    try:
        if path.name.endswith(OBJECT_SUFFIX):
            body = json.loads(encode_timer_manifest(decode_timer_manifest(data, name)))["body"]
            yield {"kind": "far_manifest", "file": name, **body}
        else:
            yield from _timers(TimerObject(data, name), name)
    except (CorruptTimers, CorruptManifest, FutureManifest) as error:
        yield {"kind": "damage", "file": name, "error": str(error)}


def _timers(found: TimerObject, name: str) -> Iterator[Row]:
    for timer in found.timers(-NEVER_MS, NEVER_MS):
        if isinstance(timer, DamagedTimer):
            yield {"kind": "damage", "file": name, "due_ms": timer.due_ms, "error": timer.text}
            continue
        row: Row = {"kind": "far_timer", "file": name, "due_ms": timer.deliver_ms, "is_delete": timer.is_delete}
        try:
            yield {**row, **decode_record(timer.record).to_dict()}
        except CorruptRecord as error:
            yield {**row, "error": str(error)}
