"""TableJournal: changes of a configuration table, beside its file, so that one change does not rewrite the whole.

    topics.json            the whole table, as RocketMQ keeps it, and its data version
    topics.json.journal    lines, oldest first:   <crc32 as 8 hex digits> <JSON>
                           {"base":[timestamp,counter,state]}               the version of the file it belongs to
                           {"v":[…],"put":{"orders":{…}},"gone":["old"]}    one change, and the version after it

Invariants: a change is on disk when `append` returns, also for a power cut. Changes belong to the file whose version is
the base or one of theirs: those behind it are applied, the others are in it already. Where the file has another version
(another program has written it, or its backup was read) entries that it lacks are added, and nothing else is changed.
A line that is torn or damaged is passed over. RocketMQ does not look at the journal: what it holds is in the file after
`clear` at the latest, which follows each whole write.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiermq.files.file_access import FileAccess

_log = logging.getLogger(__name__)

SUFFIX = ".journal"
_CRC_CHARACTERS = 8
Version = tuple[int, int, int]
"""Timestamp, counter, state version."""


@dataclass(slots=True)
class JournalChanges:
    """What a journal says beyond its file."""

    version: Version | None = None
    """After the last change; None when the file's own counts."""
    put: dict[str, Any] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


class TableJournal:
    """See the module. Belongs to the table, whose lock guards it."""

    def __init__(self, path: str, access: FileAccess) -> None:
        """`path` is that of the table's file."""
        self.path = path + SUFFIX
        self._access = access
        self._descriptor = -1
        self.has_failed = False
        """Whether an append failed: what follows a torn line would be torn with it, so the file must be written."""

    def read(self, version: Version, has: Callable[[str], bool]) -> JournalChanges:
        """The changes to a file of this version, that has these entries."""
        lines = list(_lines(self._access, self.path))
        known = {_version(line.get("base") or line.get("v")) for line in lines}
        changes = JournalChanges()
        is_ours = version in known
        if lines and not is_ours:
            _log.warning("%s: belongs to another state of its file; what that lacks is added", self.path)
        for line in lines:
            after = _version(line.get("v"))
            if after is None or (is_ours and after[1] <= version[1]):
                continue
            put = {name: each for name, each in line.get("put", {}).items() if is_ours or not has(name)}
            changes.put.update(put)
            if is_ours:
                gone = set(line.get("gone", ()))
                changes.gone = changes.gone - put.keys() | gone
                changes.put = {name: each for name, each in changes.put.items() if name not in gone}
                changes.version = after
        return changes

    def append(self, base: Version, version: Version, put: Mapping[str, Any], gone: Iterable[str]) -> None:
        """One change. Raises OSError: it does not count then, and the file must be written before the next one."""
        change: dict[str, Any] = {"v": version, "put": dict(put)}
        if gone := list(gone):
            change["gone"] = gone
        line = _line(change)
        self.has_failed = True
        if self._descriptor < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o644)
            line = _line({"base": base}) + line
            self._access.sync_directory(os.path.dirname(self.path))
        if os.write(self._descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, f"{self.path}: expected to write {len(line)} bytes, wrote less")
        os.fdatasync(self._descriptor)
        self.has_failed = False

    @property
    def is_open(self) -> bool:
        """Whether it holds changes that are not in the file."""
        return self._descriptor >= 0

    def clear(self) -> None:
        """The file has everything."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._access.remove(self.path)
        self.has_failed = False


def _line(value: object) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _lines(access: FileAccess, path: str) -> Iterator[dict[str, Any]]:
    if not access.exists(path):
        return
    lines = access.read_bytes(path).split(b"\n")
    for number, line in enumerate(lines):
        if not line:
            continue
        text = line[_CRC_CHARACTERS + 1 :]
        if line[: _CRC_CHARACTERS + 1] != b"%08x " % zlib.crc32(text):
            if number < len(lines) - 1:  # A torn end is a change that was not acknowledged.
                _log.error("%s: line %d is damaged, what it says is lost", path, number + 1)
            continue
        yield json.loads(text)


def _version(value: Any) -> Version | None:
    return (value[0], value[1], value[2]) if isinstance(value, list) and len(value) == 3 else None
