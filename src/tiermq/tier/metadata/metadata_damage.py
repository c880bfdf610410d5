"""What a disk did to the tier's metadata: found when they are opened, put away, and read from the tier again.

    closed in order    sealed by a checksum over all of its bytes (`files.file_seal`): one bad bit is found
    not so closed      SQLite's own check of its pages, orders and keys; its journal has checksums besides
    gone               the key index of the tier lies in the directory without it

The bucket has a second copy of all that the file knows, so the file is put away as `<name>.damaged` and made anew by a
restore. That name stays until the restore is through: whoever finds it beside metadata that know nothing goes on.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from tiermq.files import file_seal

DAMAGED, REPLACED = ".damaged", ".replaced"
JOURNAL, SHARED = "-wal", "-shm"


def damage_of(path: Path, index_record: Path) -> str:
    """What is wrong with the metadata, in words; empty when nothing seems to be. `index_record`: what is never there
    without them. A file that cannot be read now (locked, no room) is not damaged: whoever opens it will say so.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return "it is gone, though the key index of the tier is there" if index_record.exists() else ""
    if file_seal.is_broken(str(path), data):
        return "its bytes are not those that were there when it was closed"
    try:
        with closing(sqlite3.connect(path)) as connection:
            [[told], *_] = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        return str(error) if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) else ""
    return "" if told == "ok" else str(told)


def seal(path: str) -> None:
    """Call when the file was closed by the last one who had it open; nothing happens when it was not the last."""
    if os.path.exists(path + JOURNAL):
        return
    with open(path, "rb") as file:
        if file_seal.seal(file.fileno(), file.read()):
            os.fsync(file.fileno())


def put_away(path: Path) -> None:
    """Make room for metadata that are made anew; `is_put_away` tells until `note_replaced`."""
    for suffix in (SHARED, JOURNAL, ""):
        old = path.with_name(path.name + suffix)
        if old.exists():
            os.replace(old, path.with_name(path.name + DAMAGED + suffix))
    path.with_name(path.name + DAMAGED).touch()


def discard(path: Path) -> None:
    """Remove metadata that are closed, with their journal."""
    for suffix in (SHARED, JOURNAL, ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def put_back(path: Path) -> None:
    """Undo `put_away` of metadata that were sound: nothing has replaced them."""
    for suffix in (SHARED, JOURNAL, ""):
        old = path.with_name(path.name + DAMAGED + suffix)
        if old.exists():
            os.replace(old, path.with_name(path.name + suffix))


def is_put_away(path: Path) -> bool:
    return path.with_name(path.name + DAMAGED).exists()


def note_replaced(path: Path) -> None:
    """The metadata know again what the tier has. What was damaged is kept, for whoever wants to look."""
    for suffix in (SHARED, JOURNAL, ""):
        old = path.with_name(path.name + DAMAGED + suffix)
        if old.exists():
            os.replace(old, path.with_name(path.name + REPLACED + suffix))
