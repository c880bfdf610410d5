"""What each file of a store directory is, told from its path, and how offline tools open it.

    commitlog/<20 digits>                             commit log; the name is the file's first physical offset
    consumequeue/<topic>/<queue>/<20 digits>          consume queue; the name is the first byte offset in that queue
    consumequeue_ext/<topic>/<queue>/<20 digits>      ext units
    batchconsumequeue/<topic>/<queue>/<20 digits>     batch units
    index/<17 digits>                                 key index; the name is its creation time
    checkpoint  abort  lock  config/*                 small files

Offline tools only ever read: files are mapped read-only, no lock is taken, and the `lock` file is not even opened,
because closing it would drop the lock of a store that this same process has open.
"""

from __future__ import annotations

import enum
import errno
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tiermq.errors import StoreDamaged
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess
from tiermq.index.index_name import is_index_name
from tiermq.message.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC
from tiermq.message.topic_name import ROCKSDB_HALF_TOPIC
from tiermq.store import clean_marker

_ZEROS = bytes(1 << 20)
_QUEUE_FILE = re.compile(r"[0-9]{20}")


ROCKSDB = {
    "config/topics": "topics",
    "config/subscriptionGroups": "groups",
    "config/consumerOffsets": "consumer offsets",
    "config/metadata": "topics, groups and consumer offsets",
    "config/rdb": "topics, groups and consumer offsets",
    "consumequeue": "queues",
    "consumequeue_rocksdb": "queues",
    "kvStore": "popped messages",
}
"""Directories in which RocketMQ keeps a RocksDB, by its settings, and what is in it. See `_is_rocksdb`."""
ROCKSDB_TRANSACTIONS = "rocksdbstore"
"""Of RocketMQ 5.5.0, which makes it always; open transactions are in it when there are queues of their half topic."""
_MANIFEST_NAME = re.compile(rb"MANIFEST-[0-9]{1,20}\n?")
_MANIFEST_NAME_BYTES_MAX = 64


class FileKind(enum.Enum):
    """What a file of a store directory holds."""

    COMMIT_LOG = "commit_log"
    CONSUME_QUEUE = "consume_queue"
    CONSUME_QUEUE_EXT = "consume_queue_ext"
    BATCH_CONSUME_QUEUE = "batch_consume_queue"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    CONFIG = "config"
    ABORT = "abort"
    LOCK = "lock"
    OTHER = "other"


_QUEUE_FOLDERS = {
    "consumequeue": FileKind.CONSUME_QUEUE,
    "consumequeue_ext": FileKind.CONSUME_QUEUE_EXT,
    "batchconsumequeue": FileKind.BATCH_CONSUME_QUEUE,
}
_BY_NAME = {
    "checkpoint": FileKind.CHECKPOINT,
    "abort": FileKind.ABORT,
    "abort.bak": FileKind.ABORT,
    "lock": FileKind.LOCK,
    clean_marker.NAME: FileKind.CONFIG,
}
_BINARY_CONFIG = {"timercheck"}  # Lies between the JSON files of config/.


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One file: where it is, what it is, and what its path says about its content."""

    path: Path
    kind: FileKind
    base_offset: int = -1
    topic: str = ""
    queue_id: int = -1


def classify(path: Path) -> StoreFile:
    """What the file at `path` is. Only a file named like a log file in a foreign folder is looked into."""
    path = path.absolute()
    name, folders = path.name, path.parts[:-1]
    if _QUEUE_FILE.fullmatch(name):
        base_offset = int(name)
        if len(folders) >= 3 and folders[-3] in _QUEUE_FOLDERS and folders[-1].isdigit():
            return StoreFile(path, _QUEUE_FOLDERS[folders[-3]], base_offset, folders[-2], int(folders[-1]))
        if folders[-1] == "commitlog" or _starts_like_a_log(path):
            return StoreFile(path, FileKind.COMMIT_LOG, base_offset)
        return StoreFile(path, FileKind.OTHER, base_offset)
    if is_index_name(name) and folders[-1] == "index":
        return StoreFile(path, FileKind.INDEX)
    if name in _BY_NAME:
        return StoreFile(path, _BY_NAME[name])
    in_config = folders[-1] == "config" and name.removesuffix(".bak") not in _BINARY_CONFIG
    if in_config or name.removesuffix(".bak").endswith(".json"):
        return StoreFile(path, FileKind.CONFIG)
    return StoreFile(path, FileKind.OTHER)


def _starts_like_a_log(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        start = stream.read(SIZE_AND_MAGIC.size)
    return len(start) == SIZE_AND_MAGIC.size and SIZE_AND_MAGIC.unpack(start)[1] in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)


def is_store(root: Path) -> bool:
    """Whether `root` looks like a store directory at all."""
    return any((root / name).is_dir() for name in ("commitlog", "consumequeue")) or (root / "checkpoint").is_file()


def require_no_rocksdb(root: str, access: FileAccess | None = None) -> None:
    """Refuse a store of which RocketMQ keeps a part in RocksDB: that part would be missing. Raises StoreDamaged."""
    access = access or OsFileAccess()
    found = {name: held for name, held in ROCKSDB.items() if _is_rocksdb(access, f"{root}/{name}")}
    if access.exists(f"{root}/consumequeue/{ROCKSDB_HALF_TOPIC}") and _is_rocksdb(
        access, f"{root}/{ROCKSDB_TRANSACTIONS}"
    ):
        found[ROCKSDB_TRANSACTIONS] = "open transactions"
    if found:
        parts = ", ".join(f"{name} ({held})" for name, held in found.items())
        raise StoreDamaged(
            f"{root}: expected a store in files, found RocksDB of RocketMQ in {parts}, which would be missing. "
            "Let RocketMQ convert it (mqadmin rocksDBConfigToJson), then move these directories away: "
            "docs/compatibility.md says how"
        )


def _is_rocksdb(access: FileAccess, directory: str) -> bool:
    """Whether a RocksDB is in a directory: its file CURRENT names a manifest. A topic may be called CURRENT as well,
    and is a directory in `consumequeue`.
    """
    path = f"{directory}/CURRENT"
    found = access.file_info(path) if access.exists(path) else None
    if found is None or found.size > _MANIFEST_NAME_BYTES_MAX:
        return False
    return _MANIFEST_NAME.fullmatch(access.read_bytes(path)) is not None


def list_store(root: Path, commit_log_paths: Sequence[Path] = ()) -> list[StoreFile]:
    """Every file under `root` and under further commit-log folders, in the order that data flows.

    A file that is deleted while the directory is read is simply not listed.
    """
    order = list(FileKind)
    found = [classify(path) for top in (root, *commit_log_paths) for path in _files_under(top)]
    return sorted(
        {file.path: file for file in found}.values(),
        key=lambda file: (order.index(file.kind), file.topic, file.queue_id, file.base_offset, file.path),
    )


def _files_under(top: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(top):
        for name in names:
            yield Path(folder) / name


class ReadOnlyMap:
    """The bytes of a file, read-only, and seen to change while somebody else writes them.

    Holds no descriptor, so that thousands of files can be mapped at a time. Close it from the thread that reads.
    """

    __slots__ = ("_map", "_path", "view")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        self.view = memoryview(b"")
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size:  # A file without bytes cannot be mapped.
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
                self.view = memoryview(self._map)

    def is_zero_from(self, position: int) -> bool:
        """Whether there are only zeros from `position` on.

        Blocks that were never written are not read: a log file is made at full size, and touching all of its empty
        rest would fill the machine's memory with zeros.
        """
        with self._path.open("rb") as stream:
            while position < len(self.view):
                try:
                    position = os.lseek(stream.fileno(), position, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # No data from here to the end of the file.
                        return True
                    raise
                end = min(position + len(_ZEROS), len(self.view))
                if not is_zero(self.view, position, end):
                    return False
                position = end
        return True

    def close(self) -> None:
        self.view.release()
        if self._map is not None:
            self._map.close()
            self._map = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_zero(view: memoryview, start: int, end: int) -> bool:
    """Whether every byte of a range is zero."""
    step = len(_ZEROS)
    return all(view[at : min(at + step, end)] == _ZEROS[: min(step, end - at)] for at in range(start, end, step))
