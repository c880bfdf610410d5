"""Opening the local index files after a stop of any kind.

* `compacting/` is deleted: its files are created again.
* `0000` and `1111`, names of an old RocketMQ, become the begin time in their header; without one they are deleted.
* A file whose begin time has a row in the metadata is in the tier: the crash came before it was removed.
* With a coverage record: a listed file is cut to its recorded item count; any other file was created later, and is
  deleted: its records will be indexed again.
* Without one the files are RocketMQ's: each is adopted, torn items dropped.
* A damaged coverage record, or a listed file that is missing or damaged: the contents of the local files are unknown.
  That is logged, all of them are deleted, and what was indexed since the last upload is indexed again from the tier,
  as after the loss of a disk.
* A file without items is deleted (RocketMQ uploads it as an empty object).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from dataclasses import dataclass

from tiermq.errors import CorruptRecord, StoreDamaged
from tiermq.files.file_access import FileAccess
from tiermq.tier.index.index_coverage import CoverageDamaged, CoverageRecord, open_sealed
from tiermq.tier.index.index_item import HEADER_BYTES, decode_header, open_file_bytes
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile

log = logging.getLogger(__name__)

INDEX_DIRECTORY = "tiered_index_file"
COMPACTING_DIRECTORY = "compacting"
RECORD_NAME = "coverage.tiermq.json"
LEGACY_NAMES = ("0000", "1111")


def sealed_record_path(directory: str, begin_ms: int) -> str:
    """Where it is kept what was indexed when a file was sealed, until the file is in the tier."""
    return os.path.join(directory, f"{begin_ms}.{RECORD_NAME}")


@dataclass(frozen=True, slots=True)
class RecoveredFiles:
    """The local files, oldest first, and the record that they were opened by (None: there was none)."""

    record: CoverageRecord | None
    files: tuple[IndexWriteFile, ...]
    sealed_records: dict[int, CoverageRecord]  # By begin time, of the files that were sealed.
    had_files: bool  # Whether there was any local index file at all, also one that was dropped.


def recover_files(
    access: FileAccess, directory: str, uploaded: Collection[int], slots: int, capacity: int
) -> RecoveredFiles:
    """Bring the directory into order and open what is in it. Changes are durable on return.

    `uploaded` are the begin times that have a row; slots and capacity are those of files without a record.
    """
    access.make_directories(directory)
    _clear(access, os.path.join(directory, COMPACTING_DIRECTORY))
    legacy = _rename_legacy(access, directory, slots, capacity)
    try:
        record, sealed = _read_records(access, directory)
    except CoverageDamaged as error:
        return _start_empty(access, directory, str(error))
    begins = sorted(int(info.name) for info in access.list_files(directory) if _is_file_name(info.name))
    for facts in record.files if record else ():
        if facts.item_count and facts.begin_ms not in begins and facts.begin_ms not in uploaded:
            missing = (
                f"index file {facts.begin_ms} in {directory}: expected {facts.item_count} items of it, found neither "
                "the file nor a row of it in the metadata"
            )
            return _start_empty(access, directory, missing)
    files: list[IndexWriteFile] = []
    try:
        for begin_ms in begins:
            if begin_ms in uploaded:
                access.remove(os.path.join(directory, str(begin_ms)))
                continue
            file = _open(access, directory, begin_ms, None if begin_ms in legacy else record, slots, capacity)
            if file is not None:
                files.append(file)
    except BaseException as error:
        for file in files:
            file.close()
        if isinstance(error, StoreDamaged):
            return _start_empty(access, directory, str(error))
        raise
    access.sync_directory(directory)
    sealed_records = _of_kept_files(access, directory, sealed, {file.begin_ms: file.facts() for file in files})
    return RecoveredFiles(record, tuple(files), sealed_records, bool(begins))


def _open(
    access: FileAccess, directory: str, begin_ms: int, record: CoverageRecord | None, slots: int, capacity: int
) -> IndexWriteFile | None:
    """The file; None when it was removed, or is not ours to touch."""
    if record is None:
        try:
            file = IndexWriteFile.adopt(access, directory, str(begin_ms), slots, capacity)
        except StoreDamaged as error:
            log.exception("an index file that cannot be adopted is left alone", exc_info=error)
            return None
    else:
        facts = next((facts for facts in record.files if facts.begin_ms == begin_ms), None)
        if facts is None or facts.item_count == 0:
            access.remove(os.path.join(directory, str(begin_ms)))
            return None
        file = IndexWriteFile.open(access, directory, facts)
    if file.header.item_count == 0:
        file.destroy()
        return None
    return file


def _read_records(access: FileAccess, directory: str) -> tuple[CoverageRecord | None, dict[int, CoverageRecord]]:
    """The record, and those of sealed files by their begin time. Raises CoverageDamaged, StoreDamaged."""
    record, sealed = None, {}
    for name in [info.name for info in access.list_files(directory)]:
        path = os.path.join(directory, name)
        begin = name.removesuffix("." + RECORD_NAME)
        if name == RECORD_NAME:
            record = open_sealed(access.read_bytes(path), path)
        elif begin != name and _is_file_name(begin):
            sealed[int(begin)] = open_sealed(access.read_bytes(path), path)
    return record, sealed


def _start_empty(access: FileAccess, directory: str, damage: str) -> RecoveredFiles:
    """Remove what cannot be understood any more: the records last, so that a crash in between is the same again."""
    log.error(
        "%s. What is not in the tier's index is indexed again from the tier; key queries lack it until then", damage
    )
    names = [info.name for info in access.list_files(directory)]
    for some in (
        [name for name in names if _is_file_name(name)],
        [name for name in names if name.endswith(RECORD_NAME)],
    ):
        for name in some:
            access.remove(os.path.join(directory, name))
        access.sync_directory(directory)
    return RecoveredFiles(None, (), {}, had_files=False)


def _of_kept_files(
    access: FileAccess, directory: str, sealed: dict[int, CoverageRecord], kept: dict[int, FileFacts]
) -> dict[int, CoverageRecord]:
    """The records of sealed files; those of files that are gone are removed.

    A record with more items than its file was cut to was written right before a crash: then the file is not sealed, and
    the record does not count.
    """
    found: dict[int, CoverageRecord] = {}
    for begin_ms, record in sealed.items():
        facts = kept.get(begin_ms)
        if facts is None:
            access.remove(sealed_record_path(directory, begin_ms))
        elif facts in record.files:
            found[begin_ms] = record
    return found


def _rename_legacy(access: FileAccess, directory: str, slots: int, capacity: int) -> set[int]:
    """Give files of the old names their begin time as a name. Returns those times."""
    renamed: set[int] = set()
    for name in LEGACY_NAMES:
        path = os.path.join(directory, name)
        if access.file_info(path) is None:
            continue
        begin_ms = _begin_of(access, path, open_file_bytes(slots, capacity))
        if begin_ms <= 0:
            access.remove(path)
        elif access.exists(os.path.join(directory, str(begin_ms))):
            log.warning("%s is left alone: another index file begins at %d too", path, begin_ms)
        else:
            access.rename(path, os.path.join(directory, str(begin_ms)))
            renamed.add(begin_ms)
    if renamed:
        access.sync_directory(directory)
    return renamed


def _begin_of(access: FileAccess, path: str, size: int) -> int:
    """The begin time in the header, 0 when there is no header."""
    info = access.file_info(path)
    if info is None or info.size != size:
        return 0
    region = access.open(path, size, writable=False)
    try:
        return decode_header(bytes(memoryview(region.buffer)[:HEADER_BYTES])).begin_ms
    except CorruptRecord:
        return 0
    finally:
        region.close()


def _clear(access: FileAccess, directory: str) -> None:
    for info in access.list_files(directory):
        access.remove(os.path.join(directory, info.name))


def _is_file_name(name: str) -> bool:
    return name.isascii() and name.isdigit() and name not in LEGACY_NAMES and str(int(name)) == name
