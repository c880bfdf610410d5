"""TableFile: where a broker's table of topics or groups is kept: RocketMQ's JSON file, and a journal of late changes.

A small table is written whole at each change, so that the file is always what RocketMQ expects. A large one appends the
change to the journal (`store/table_journal.py`), which costs the same however many entries there are; the file follows
with `flush`, some seconds later and at a clean end.

Invariant: a change that `save` returned from is on disk. Belongs to its table, whose lock guards it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from tiermq.files.os_file_access import OsFileAccess
from tiermq.namesrv.topic_config import DataVersion
from tiermq.store.table_journal import JournalChanges, TableJournal, Version

WHOLE_BYTES_MAX = 16 * 1024
"""A file up to this size, some 70 topics, is written whole at each change."""
FLUSH_PERIOD_S = 5.0
Decoded = TypeVar("Decoded")


class TableFile:
    """See the module."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._access = OsFileAccess()
        self._journal = TableJournal(path, self._access)
        self._base: Version = (0, 0, 0)
        self._bytes = 0

    def read(self, decode: Callable[[bytes], Decoded]) -> Decoded | None:
        """The file, or its backup. Raises StoreDamaged when neither can be read."""
        return self._access.read_config(self.path, decode)

    def changes_since(
        self, version: DataVersion, has: Callable[[str], bool], check: Callable[[str, Any], None]
    ) -> JournalChanges:
        """What a broker that was killed has left in the journal. Whoever takes it over writes the table whole.

        `check(name, entry)` raises a TierMQError for an entry that cannot be. Raises StoreDamaged.
        """
        info = self._access.file_info(self.path)
        self._bytes = 0 if info is None else info.size
        self._base = numbers(version)
        return self._journal.read(self._base, has, check)

    def save(
        self, version: DataVersion, put: Mapping[str, Any], gone: Collection[str], whole: Callable[[], bytes]
    ) -> None:
        """One change: `put` as the file has it, and the names that are gone. Raises OSError."""
        if self._bytes <= WHOLE_BYTES_MAX or self._journal.has_failed:
            self.write(version, whole())
        else:
            self._journal.append(self._base, numbers(version), put, gone)

    def write(self, version: DataVersion, data: bytes) -> None:
        """The whole table. Raises OSError."""
        self._access.make_directories(os.path.dirname(self.path))
        self._access.write_config(self.path, data)
        self._base, self._bytes = numbers(version), len(data)
        self._journal.clear()

    @property
    def is_behind(self) -> bool:
        """Whether the journal has changes that the file lacks."""
        return self._journal.is_open

    def flush(self, version: DataVersion, whole: Callable[[], bytes]) -> bool:
        """Write the file whole where it is behind; whether it was. Raises OSError."""
        if not self.is_behind:
            return False
        self.write(version, whole())
        return True


def numbers(version: DataVersion) -> Version:
    return version.timestamp, version.counter, version.state_version


def version_after(changes: JournalChanges, version: DataVersion, now_ms: int) -> DataVersion:
    """The version of a table with these changes: the journal's, or a new one where another program wrote the file."""
    return version.next(now_ms) if changes.version is None else DataVersion(*changes.version)
