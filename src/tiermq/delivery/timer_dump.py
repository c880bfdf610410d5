"""The files of the timer wheel as plain rows, for `tiermq dump` and for eyes.

    timerwheel          timer_slot        each slot that holds something, of any turn
    timerlog/<offset>   timer_unit        blank where a file ends
    config/timercheck   timer_checkpoint

What a file is, is told from its path. Nothing is written; a file in use is read up to where it has grown.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiermq.delivery.timer.timer_checkpoint import FILE as CHECKPOINT_FILE
from tiermq.delivery.timer.timer_checkpoint import decode_progress
from tiermq.delivery.timer.timer_log import DIRECTORY
from tiermq.delivery.timer.timer_unit import UNIT_BYTES, decode_unit, is_blank
from tiermq.delivery.timer.timer_wheel import FILE as WHEEL_FILE
from tiermq.delivery.timer.timer_wheel import SLOT, SLOT_BYTES
from tiermq.errors import StoreDamaged
from tiermq.store.store_files import ReadOnlyMap, is_zero

Row = dict[str, Any]
TIMER_ROW_KINDS = ("timer_slot", "timer_unit", "blank", "timer_checkpoint", "damage")


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
            # In units of the precision, which the file does not tell.
            yield {"kind": "timer_slot", "number": number, "time": time, "first": first, "last": last, "timers": timers}
    if whole < len(view):
        yield {"kind": "damage", "position": whole, "error": f"{len(view) - whole} bytes behind the last slot"}


def _units(view: memoryview, base: int) -> Iterator[Row]:
    position = 0
    while position + UNIT_BYTES <= len(view):
        unit = decode_unit(view, position)
        if unit is None:
            break
        flags = {"rolls": unit.rolls, "cancels": unit.weight < 0, "slot_ms": unit.slot_ms}
        yield {"kind": "timer_unit", "position": base + position, **unit._asdict(), **flags}
        position += UNIT_BYTES
    if is_blank(view, position):
        yield {"kind": "blank", "position": base + position, "size": len(view) - position}
    elif not is_zero(view, position, len(view)):
        yield {"kind": "damage", "position": base + position, "error": "neither a timer unit nor a blank, nor zeros"}


def _checkpoint(view: memoryview) -> Iterator[Row]:
    try:
        yield {"kind": "timer_checkpoint", **decode_progress(view)._asdict()}
    except StoreDamaged as error:
        yield {"kind": "damage", "error": str(error)}
