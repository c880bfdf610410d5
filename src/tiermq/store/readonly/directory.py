"""A store directory: the kind of each file, judged by its path, and whether another process has it open.

    commitlog/<20 digits>                             commit log; the name is the file's first physical offset
    consumequeue/<topic>/<queue>/<20 digits>          consume queue; the name is the first byte offset in that queue
    consumequeue_ext/<topic>/<queue>/<20 digits>      ext units
    batchconsumequeue/<topic>/<queue>/<20 digits>     batch units
    index/<17 digits>                                 key index; the name is its creation time
    checkpoint  abort  lock  config/*                 small files

States:

    abort file   lock                          state
    none         free                          CLOSED      closed in order, or never opened
    none         held                          RECOVERING  being opened (or being closed: it is CLOSED in a moment)
    there        free                          CRASHED     its process died; the files were not checked since
    there        held by its writer            RUNNING
    there        held by another process       RECOVERING  opened after a crash, the check is not finished

A store writes its process id into its abort file once it has recovered. Where the id of the lock's holder is unknown
(another machine, another container) or the abort file has none (old brokers), a held lock means RUNNING.

The lock is queried, never taken. A store that this process has open is known from a table, and its lock file is never
opened: closing it would drop the lock.
"""

from __future__ import annotations

import enum
import fcntl
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiermq.errors import StoreDamaged, StoreNotRecovered
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess
from tiermq.files.store_lock import LOCKED_BYTES, is_held_here
from tiermq.files.system_calls import ON_LINUX
from tiermq.index.index_file import is_index_name
from tiermq.message.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC
from tiermq.message.topic_name import ROCKSDB_HALF_TOPIC
from tiermq.store.checkpoint import CLEAN_MARKER

_QUEUE_FILE = re.compile(r"[0-9]{20}")


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
    CLEAN_MARKER: FileKind.CONFIG,
}
_BINARY_CONFIG = {"timercheck"}  # Is among the JSON files of config/.


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One file: its path and kind, and what the path shows of its content."""

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


class LockQuestion:
    """struct flock of 64 bits: whether, and by which process, the lock is held."""

    __slots__ = ("_fields", "_names")

    def __init__(self, is_linux: bool = ON_LINUX) -> None:
        names, codes = _LINUX_FLOCK if is_linux else _BSD_FLOCK
        self._names, self._fields = names.split(), struct.Struct(codes)

    def encode(self) -> bytes:
        # A shared lock is enough: it collides with the exclusive one, and needs no right to write.
        values = {"type": fcntl.F_RDLCK, "whence": os.SEEK_SET, "start": 0, "length": LOCKED_BYTES, "process": 0}
        return self._fields.pack(*(values[name] for name in self._names))

    def decode(self, answer: bytes) -> tuple[int, int]:
        """F_UNLCK or the kind of lock that is held, and the process that holds it."""
        values = dict(zip(self._names, self._fields.unpack_from(answer), strict=True))
        return values["type"], values["process"]


_LINUX_FLOCK = ("type whence start length process", "hhqqi")
_BSD_FLOCK = ("start length process type whence", "qqihh")  # macOS, too.
_NO_HOLDER = 0
_UNKNOWN_HOLDER = -1


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


class StoreState(enum.Enum):
    """See the module."""

    RUNNING = "running"
    CLOSED = "closed"
    CRASHED = "crashed"
    RECOVERING = "recovering"


def store_state(root: Path) -> StoreState:
    """The state by the directory's files at this moment."""
    holder = _lock_holder(root / "lock")
    owner = _abort_owner(root / "abort")
    if owner is None:
        return StoreState.CLOSED if holder == _NO_HOLDER else StoreState.RECOVERING
    if holder == _NO_HOLDER:
        return StoreState.CRASHED
    return StoreState.RUNNING if holder == _UNKNOWN_HOLDER or owner in (0, holder) else StoreState.RECOVERING


def require_recovered(root: Path) -> StoreState:
    """The state, if the files can be trusted. Raises StoreNotRecovered."""
    state = store_state(root)
    if state is StoreState.CRASHED:
        raise StoreNotRecovered(
            f"{root}: expected a store that runs or was closed, found one whose process died: the ends of its files "
            "were not checked since. Open it once (start its broker, or use --recover), then try again"
        )
    if state is StoreState.RECOVERING:
        raise StoreNotRecovered(
            f"{root}: expected a store that runs or was closed, found one that is being opened; try again when it runs"
        )
    return state


def _abort_owner(path: Path) -> int | None:
    """The process that the abort file names, 0 when it names none, None when there is no such file."""
    try:
        text = path.read_bytes()[:20].strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else 0


def _lock_holder(path: Path) -> int:
    """The process that holds the lock, or one of the two constants."""
    if is_held_here(str(path)):
        return os.getpid()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _NO_HOLDER
    except PermissionError:
        return _UNKNOWN_HOLDER  # No permission to read the file.
    try:
        question = LockQuestion()
        kind, process = question.decode(fcntl.fcntl(descriptor, fcntl.F_GETLK, question.encode()))
    finally:
        os.close(descriptor)
    if kind == fcntl.F_UNLCK:
        return _NO_HOLDER
    return process if process > 0 else _UNKNOWN_HOLDER


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
            "see docs/compatibility.md"
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
