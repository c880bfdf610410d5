"""TableJournal: changes of a configuration table, beside its file, so that one change does not rewrite the whole file.

    topics.json            the whole table, as RocketMQ keeps it, and its data version
    topics.json.journal    lines, oldest first:   <crc32 as 8 hex digits> <JSON>
                           {"base":[timestamp,counter,state]}               the version of the file it belongs to
                           {"v":[…],"put":{"orders":{…}},"gone":["old"]}    one change, and the version after it

Invariants: a change is on disk when `append` returns, also for a power cut. Changes belong to the file whose version is
the base or one of theirs: those behind it are applied, earlier ones are in it already. A file older than the base
(its backup was read, or an older copy put back) gets all changes, since they are later than anything in it. A file that
another program wrote since gets the entries that it lacks, without those that were deleted again, and nothing else.
A torn or damaged line is skipped; a valid line with content that no broker writes raises StoreDamaged.
RocketMQ does not look at the journal: what it holds is in the file after `clear` at the latest, which follows each
whole write.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tiermq.errors import StoreDamaged, TierMQError
from tiermq.files.file_access import FileAccess
from tiermq.files.system_calls import sync_data
from tiermq.settings import LONG_MAX

_log = logging.getLogger(__name__)

SUFFIX = ".journal"
_CRC_CHARACTERS = 8
Version = tuple[int, int, int]
"""Timestamp, counter, state version."""


@dataclass(slots=True)
class JournalChanges:
    """Changes that a journal has beyond its file."""

    version: Version | None = None
    """After the last change; None when the file's own counts."""
    put: dict[str, Any] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    is_of_older: bool = False
    """Whether the file is older than the journal's base."""


class _Line(NamedTuple):
    """A change, or the version that all of them begin with."""

    version: Version
    put: dict[str, Any] | None = None
    gone: frozenset[str] = frozenset()


class TableJournal:
    """See the module. Belongs to the table, whose lock guards it."""

    def __init__(self, path: str, access: FileAccess) -> None:
        """`path` is that of the table's file."""
        self.path = path + SUFFIX
        self._access = access
        self._descriptor = -1
        self.bytes = 0
        """Appended since the file was written."""
        self.has_failed = False
        """Whether an append failed: what follows a torn line would be torn with it, so the file must be written."""

    def read(
        self,
        version: Version,
        has: Callable[[str], bool],
        check: Callable[[str, Any], object] = lambda _name, _entry: None,
    ) -> JournalChanges:
        """The changes to a file of this version, that has these entries.

        `check(name, entry)` raises a TierMQError for an invalid entry. Raises StoreDamaged.
        """
        lines = list(self._lines(check))
        known = {line.version for line in lines}
        changes = JournalChanges()
        is_ours = version in known
        is_older = bool(lines) and version[1] < lines[0].version[1]
        takes_all = is_ours or is_older
        changes.is_of_older = is_older and not is_ours
        if lines and not is_ours:
            added = "all its changes are made" if is_older else "what that lacks is added"
            _log.warning("%s: belongs to another version of its table file; %s", self.path, added)
        for line in lines:
            if line.put is None or (is_ours and line.version[1] <= version[1]):
                continue
            put = {name: each for name, each in line.put.items() if takes_all or not has(name)}
            changes.gone = changes.gone - put.keys() | line.gone
            changes.put.update(put)
            for name in line.gone:
                changes.put.pop(name, None)
            if takes_all:
                changes.version = line.version
        if not takes_all:
            changes.gone.clear()
        return changes

    def _lines(self, check: Callable[[str, Any], object]) -> Iterator[_Line]:
        counter = -1
        for number, text in _texts(self._access, self.path):
            try:
                line = _decoded(text)
                if line.version[1] <= counter:
                    raise ValueError(f"counter {line.version[1]} behind {counter}")
                counter = line.version[1]
                for name, entry in (line.put or {}).items():
                    check(name, entry)
            except (ValueError, TypeError, RecursionError, TierMQError) as error:
                raise StoreDamaged(
                    f"{self.path}, line {number}: expected a change of the table beside it, found {error} in "
                    f"{text[:80]!r}. Restore both files from a backup, or move this one away: the table is then "
                    "that of the other file, without the changes of the last seconds before the broker was killed"
                ) from error
            yield line

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
        sync_data(self._descriptor)
        self.bytes += len(line)
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
        self.bytes = 0
        self.has_failed = False


def _line(value: object) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _texts(access: FileAccess, path: str) -> Iterator[tuple[int, bytes]]:
    """Number and text of each line whose checksum is right."""
    if not access.exists(path):
        return
    lines = access.read_bytes(path).split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        text = line[_CRC_CHARACTERS + 1 :]
        if line[: _CRC_CHARACTERS + 1] != b"%08x " % zlib.crc32(text):
            if number < len(lines):  # A torn end is a change that was not acknowledged.
                _log.error("%s: line %d is damaged; its change is lost", path, number)
            continue
        yield number, text


def _decoded(text: bytes) -> _Line:
    """Raises ValueError or TypeError for what `append` never writes."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__}")
    if "base" in value:
        return _Line(_version(value["base"]))
    put, gone = value.get("put"), value.get("gone", [])
    if not isinstance(put, dict) or not all(isinstance(each, dict) for each in put.values()):
        raise ValueError("no table of entries in put")
    if not isinstance(gone, list) or not all(isinstance(each, str) for each in gone):
        raise ValueError("no list of names in gone")
    return _Line(_version(value.get("v")), put, frozenset(gone))


def _version(value: Any) -> Version:
    if not isinstance(value, list) or len(value) != 3 or not all(type(each) is int for each in value):
        raise ValueError("no version of three numbers")
    if not all(0 <= each <= LONG_MAX for each in value):
        raise ValueError("a version beyond 63 bits")
    return value[0], value[1], value[2]
