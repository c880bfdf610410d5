"""The files of the timer wheel as plain rows, for `tiermq dump`.

    timerwheel          timer_slot        each slot that is not empty, of any rotation
    timerlog/<offset>   timer_unit        blank where a file ends
    config/timercheck   timer_checkpoint

The path determines the type of a file. Nothing is written; a file in use is read up to where it has grown.

Files about tiered timers in a tier that is a directory, as rows for `tiermq dump`.

far_manifest   which timer objects count
far_timer      one timer of an object: when it is due, and its message
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiermq.delivery.tiered_timers.timer_name import (
    NEVER_MS,
    decode_timer_manifest,
    encode_timer_manifest,
)
from tiermq.delivery.tiered_timers.timer_object import CorruptTimers, DamagedTimer, TimerObject
from tiermq.delivery.timer.timer_checkpoint import FILE as CHECKPOINT_FILE
from tiermq.delivery.timer.timer_checkpoint import decode_progress
from tiermq.delivery.timer.timer_log import DIRECTORY, TIMER_UNIT_BYTES, decode_unit, is_blank
from tiermq.delivery.timer.timer_wheel import FILE as WHEEL_FILE
from tiermq.delivery.timer.timer_wheel import SLOT, SLOT_BYTES
from tiermq.errors import CorruptRecord, FutureManifest, StoreDamaged
from tiermq.message.record import decode_record
from tiermq.store.readonly.mapped_run import ReadOnlyMap, is_zero
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.names import OBJECT_SUFFIX, TIMERS_DIRECTORY, TIMERS_SUFFIX

Row = dict[str, Any]
TIMER_ROW_KINDS = ("timer_slot", "timer_unit", "blank", "timer_checkpoint", "damage")
TIERED_TIMER_ROW_KINDS = ("far_manifest", "far_timer", "damage")


def is_timer_file(path: Path) -> bool:
    is_log = path.parent.name == DIRECTORY and path.name.isdigit() and len(path.name) == 20
    return is_log or path.name == WHEEL_FILE or (path.name == CHECKPOINT_FILE and path.parent.name == "config")


def dump_timer_file(path: Path, name: str) -> Iterator[Row]:
    """Rows of one timer file, called `name` in them."""
    with ReadOnlyMap(path) as opened:
        view = opened.view
        if path.name == WHEEL_FILE:
            rows = _slots(view)
        elif path.name == CHECKPOINT_FILE:
            rows = _checkpoint(view)
        else:
            rows = _units(view, int(path.name))
        for row in rows:
            yield {"kind": row.pop("kind"), "file": name, **row}


def _slots(view: memoryview) -> Iterator[Row]:
    whole = len(view) - len(view) % SLOT_BYTES
    for number, (time, first, last, timers, magic) in enumerate(SLOT.iter_unpack(view[:whole])):
        if time or first or last or timers or magic:
            # In units of the precision, which the file does not hold.
            yield {"kind": "timer_slot", "number": number, "time": time, "first": first, "last": last, "timers": timers}
    if whole < len(view):
        yield {"kind": "damage", "position": whole, "error": f"{len(view) - whole} bytes behind the last slot"}


def _units(view: memoryview, base: int) -> Iterator[Row]:
    position = 0
    while position + TIMER_UNIT_BYTES <= len(view):
        unit = decode_unit(view, position)
        if unit is None:
            break
        flags = {"rolls": unit.rolls, "cancels": unit.weight < 0, "slot_ms": unit.slot_ms}
        yield {"kind": "timer_unit", "position": base + position, **unit._asdict(), **flags}
        position += TIMER_UNIT_BYTES
    if is_blank(view, position):
        yield {"kind": "blank", "position": base + position, "size": len(view) - position}
    elif not is_zero(view, position, len(view)):
        yield {"kind": "damage", "position": base + position, "error": "neither a timer unit nor a blank, nor zeros"}


def _checkpoint(view: memoryview) -> Iterator[Row]:
    try:
        yield {"kind": "timer_checkpoint", **decode_progress(view)._asdict()}
    except StoreDamaged as error:
        yield {"kind": "damage", "error": str(error)}


def is_tiered_timer_file(path: Path) -> bool:
    """Whether a path is that of a timer object or of a manifest of them. Checks the name only."""
    if path.name == f"manifest{OBJECT_SUFFIX}":
        return path.parent.name == TIMERS_DIRECTORY
    return path.name.endswith(TIMERS_SUFFIX)


def dump_tiered_timer_file(path: Path, name: str) -> Iterator[Row]:
    """The rows of one file; what is damaged is a row with "error"."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return  # It was delivered or rewritten since the listing.
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
