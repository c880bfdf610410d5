"""cut_log: drops the tail of a closed store's log that its new master does not have, and keeps the bytes aside.

    <store>/cut-tails/<epoch>-<offset>-<end>.log     commit-log bytes [offset, end), as they were in the files

The order makes every step repeatable after a power cut: copy of the tail, abort file, no clean marker, checkpoint, log.
The next start finds an unclean stop, and its recovery takes the units and index entries of the tail away.
"""

from __future__ import annotations

import logging
import os

from tiermq.clock import SystemClock
from tiermq.commitlog.recovery import verify_log
from tiermq.config import StoreConfig
from tiermq.errors import ReplicationError
from tiermq.files.file_access import FileAccess
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.files.os_file_access import OsFileAccess
from tiermq.kernel import Stop, scan
from tiermq.store.checkpoint import Checkpoint, remove_marker
from tiermq.store.wiring import log_files

_log = logging.getLogger(__name__)

DIRECTORY = "cut-tails"


def cut_log(config: StoreConfig, offset: int, epoch: int, access: FileAccess | None = None) -> str:
    """Cut the log of the closed store of `config` at `offset`; the path of the tail's copy, empty if there is no tail.

    `epoch`: in which the tail was written, for the name of the copy. Raises StoreLocked while the store is open,
    ReplicationError with nothing changed when no record ends at `offset`, DiskFull when the copy has no space.
    """
    access = access or OsFileAccess()
    root = str(config.root_path)
    lock = access.lock(f"{root}/lock")
    try:
        files = log_files(config, access, SystemClock(), None)
        files.load()
        try:
            return _cut(access, root, files, offset, epoch)
        finally:
            files.close()
    finally:
        lock.release()


def _cut(access: FileAccess, root: str, files: MappedFileQueue, offset: int, epoch: int) -> str:
    kept_ms = _require_boundary(files, offset)
    behind = [file for file in files.files if file.from_offset + file.size > offset]
    if not behind:
        return ""
    end = verify_log(files.files, files.files.index(behind[0]), crc_mode=0)[0].offset
    if end <= offset:
        return ""
    path = _keep(access, root, behind, max(offset, behind[0].from_offset), end, epoch)
    access.write_bytes(f"{root}/abort", str(os.getpid()).encode())
    remove_marker(access, root)
    checkpoint = Checkpoint(access, os.path.join(root, "checkpoint"))
    checkpoint.physic_msg_timestamp_ms = min(checkpoint.physic_msg_timestamp_ms, kept_ms)
    checkpoint.logics_msg_timestamp_ms = min(checkpoint.logics_msg_timestamp_ms, kept_ms)
    checkpoint.confirm_offset = min(checkpoint.confirm_offset, offset)
    checkpoint.close()
    files.truncate_dirty(offset)
    last = files.last()
    if last is not None and last.from_offset >= offset:
        files.delete_last()  # It would begin with the tail.
    elif last is not None and offset < last.from_offset + last.size:
        last.zero_from(offset - last.from_offset)
    _log.warning("%s: the log was cut at physical offset %d; its tail up to %d is kept in %s", root, offset, end, path)
    return path


def _require_boundary(files: MappedFileQueue, offset: int) -> int:
    """The store time of the last record before `offset`, 0 without one. Raises ReplicationError inside of one, and
    before the first: the log would be empty, and begin where it never began.
    """
    if files.files and offset < files.min_offset:
        raise ReplicationError(
            f"expected to cut a log behind its begin at physical offset {files.min_offset}, found {offset}: nothing of "
            "it would be left. If the master is the right one, move this store away and start with an empty one"
        )
    file = files.find(offset - 1)
    if file is None:
        return 0  # At the begin, or behind the last.
    position, stop, _, _, last_ms, blank = scan(file.view, 0, offset - file.from_offset, 0)
    if file.from_offset + position != offset and not (stop is Stop.BLANK and file.from_offset + file.size == offset):
        raise ReplicationError(
            f"expected the end of a record at physical offset {offset}, found one from {file.from_offset + position} "
            f"on ({stop.name}, {blank}): the log is not cut there"
        )
    return last_ms


def _keep(access: FileAccess, root: str, files: list[MappedFile], begin: int, end: int, epoch: int) -> str:
    """Copy the bytes [begin, end) aside, durably."""
    directory = os.path.join(root, DIRECTORY)
    access.make_directories(directory)
    path = os.path.join(directory, f"{epoch}-{begin}-{end}.log")
    access.remove(path + ".tmp")
    region = access.create(path + ".tmp", end - begin)
    try:
        region.reserve(0, end - begin)
        for file in files:
            first, last = max(begin, file.from_offset), min(end, file.from_offset + file.size)
            if first >= last:
                break
            selected = file.select(first - file.from_offset, last - first)
            assert selected is not None, "a file that was loaded is readable up to its end"
            with selected:
                region.write(first - begin, selected.data)
        region.sync()
    finally:
        region.close()
    access.rename(path + ".tmp", path)
    access.sync_directory(directory)
    access.sync_directory(root)
    return path
