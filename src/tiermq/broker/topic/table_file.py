"""StoredTable and TableFile: a broker's table of topics or groups, in RocketMQ's JSON file and a journal of changes.

A small table is written whole at each change, so that the file is always what RocketMQ expects. A large one appends the
change to the journal (`store/table_journal.py`), which costs the same however many entries there are; the file follows
with `flush`, some seconds later and at a clean end.

Invariant: a change that `save` returned from is on disk. A TableFile belongs to its table, whose lock guards it.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from tiermq.clock import Clock
from tiermq.files.os_file_access import OsFileAccess
from tiermq.namesrv.topic_config import NO_VERSION, DataVersion
from tiermq.remoting.command import RemotingCommand, int32_field
from tiermq.remoting.json_dialect import decode_object
from tiermq.store.table_journal import JournalChanges, TableJournal, Version

TABLE_ENTRIES_MAX = 5_000
"""Topics or groups of one request that makes them."""

WHOLE_BYTES_MAX = 16 * 1024
"""A file up to this size, some 70 topics, is written whole at each change."""
FLUSH_PERIOD_S = 5.0
Decoded = TypeVar("Decoded")
Entry = TypeVar("Entry", bound="TableEntry")


class TableFile:
    """See the module."""

    def __init__(self, path: str, whole_bytes_max: int = WHOLE_BYTES_MAX) -> None:
        """A file of up to `whole_bytes_max` is written whole at each change."""
        self.path = path
        self.bytes = 0
        """Of the file."""
        self._access = OsFileAccess()
        self._journal = TableJournal(path, self._access)
        self._base: Version = (0, 0, 0)
        self._whole_bytes_max = whole_bytes_max

    def read(self, decode: Callable[[bytes], Decoded]) -> Decoded | None:
        """The file, or its backup. Raises StoreDamaged when neither can be read."""
        return self._access.read_config(self.path, decode)

    def changes_since(
        self, version: DataVersion, has: Callable[[str], bool], check: Callable[[str, Any], object]
    ) -> JournalChanges:
        """The journal of a killed broker. The caller that applies it writes the whole table.

        `check(name, entry)` raises a TierMQError for an entry that cannot be. Raises StoreDamaged.
        """
        info = self._access.file_info(self.path)
        self.bytes = 0 if info is None else info.size
        self._base = numbers(version)
        return self._journal.read(self._base, has, check)

    def save(
        self, version: DataVersion, put: Mapping[str, Any], gone: Collection[str], whole: Callable[[], bytes]
    ) -> None:
        """One change: `put` as the file has it, and the deleted names. Raises OSError."""
        if self.bytes <= self._whole_bytes_max or self._journal.has_failed:
            self.write(version, whole())
        else:
            self._journal.append(self._base, numbers(version), put, gone)

    def write(self, version: DataVersion, data: bytes) -> None:
        """The whole table. Raises OSError."""
        self._access.make_directories(os.path.dirname(self.path))
        self._access.write_config(self.path, data)
        self._base, self.bytes = numbers(version), len(data)
        self._journal.clear()

    @property
    def is_behind(self) -> bool:
        """Whether the journal has changes that the file lacks."""
        return self._journal.is_open

    @property
    def journal_bytes(self) -> int:
        return self._journal.bytes

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


def page_of(
    command: RemotingCommand, noun: str, table: Mapping[str, Entry], version: DataVersion
) -> tuple[Mapping[str, Entry], dict[str, str]]:
    """The part of a table that a request asks for (RocketMQ 5.5: topicSeq, maxTopicNum, dataVersion), and the fields of
    its answer. All of it if the request names no part; from the beginning on if it knows another version.

    Raises RequestRefused.
    """
    begin, most = int32_field(command, f"{noun.lower()}Seq", -1), int32_field(command, f"max{noun}Num", 0)
    if begin < 0 or most <= 0:
        return table, {}
    known = command.ext.get("dataVersion")
    if not known or DataVersion.from_json(decode_object(known.encode())) != version:
        begin = 0
    return dict(islice(table.items(), begin, begin + most)), {f"total{noun}Num": str(len(table))}


@dataclass(frozen=True, slots=True)
class TableChange:
    """One change of a table: entries as JSON, deleted names, and the versions before and after it."""

    base: DataVersion
    version: DataVersion
    put: Mapping[str, Any]
    gone: Collection[str] = ()


def is_older(version: DataVersion, other: DataVersion) -> bool:
    """Whether a master made `other` later, or a later master did."""
    return (version.state_version, version.counter) < (other.state_version, other.counter)


class TableEntry(Protocol):
    def to_json(self) -> dict[str, Any]: ...


class StoredTable(ABC, Generic[Entry]):
    """Entries by name, in a TableFile. Any thread may read; changes are made under `_lock`, one at a time."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._file = TableFile(path)
        self._lock = threading.Lock()
        self._table: dict[str, Entry] = {}
        self.data_version = NO_VERSION
        self.on_change: Callable[[TableChange], None] = lambda _change: None
        """Called under the lock with each change that was made here, in order."""
        self.is_followed = False
        """Of a slave: the table is its master's. What is created here (a group at a heartbeat) is in memory, and has no
        version.
        """
        self._logged = NO_VERSION

    @abstractmethod
    def _encoded(self, table: Mapping[str, Entry], version: DataVersion) -> bytes:
        """The file with this table."""

    @abstractmethod
    def _decoded_entry(self, name: str, value: object) -> Entry:
        """An entry of the journal. Raises RequestRefused for one that cannot be."""

    def decoded(self, entries: Mapping[str, Any]) -> dict[str, Entry]:
        """Entries of the journal, or of a master's log. Raises RequestRefused for one that cannot be."""
        return {name: self._decoded_entry(name, each) for name, each in entries.items()}

    def get(self, name: str) -> Entry | None:
        return self._table.get(name)

    @property
    def table(self) -> Mapping[str, Entry]:
        """A copy of all entries."""
        return self._table.copy()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def is_behind(self) -> bool:
        """Whether the file lacks changes that are in the journal."""
        return self._file.is_behind

    def flush(self) -> bool:
        """Write the file whole where it is behind; whether it was. Raises OSError."""
        with self._lock:
            return self._file.flush(self.data_version, lambda: self._encoded(self._table, self.data_version))

    def _change(self, put: Mapping[str, Entry], gone: Collection[str] = ()) -> None:
        """Durable first, then visible. Under the lock."""
        if self.is_followed:
            self._show(put, gone)
            return
        base, version = self.data_version, self.data_version.next(self._clock.now_ms())
        change = TableChange(base, version, {name: each.to_json() for name, each in put.items()}, tuple(gone))
        self._store(change, put)
        self.on_change(change)

    def _store(self, change: TableChange, put: Mapping[str, Entry]) -> None:
        version, gone = change.version, change.gone

        def whole() -> bytes:
            table = {**self._table, **put}
            return self._encoded({name: each for name, each in table.items() if name not in gone}, version)

        self._file.save(version, change.put, gone, whole)
        self._show(put, gone)
        self.data_version = version

    def _show(self, put: Mapping[str, Entry], gone: Collection[str]) -> None:
        self._table.update(put)
        for name in gone:
            self._table.pop(name, None)

    def read_all(self, see: Callable[[Mapping[str, Entry], DataVersion], None]) -> None:
        """Let `see` have the table and its version, while nothing changes."""
        with self._lock:
            see(self._table, self.data_version)

    def _take_change(self, change: TableChange) -> bool | None:
        """Make a change that a master made, of its log; under the lock. None: it is in this table already. False: this
        table is not the one that was changed, so that it lacks other changes. Raises RequestRefused and OSError.
        """
        own = self.data_version
        if not is_older(own, change.version):
            return None
        put = self.decoded(change.put)
        if change.base != own:
            self._show(put, change.gone)
            self._file.write(own, self._encoded(self._table, own))
            return False
        self._store(change, put)
        self._logged = change.version
        return True

    def _is_stale(self, version: DataVersion) -> bool:
        """Whether a master's table was read before a change that this table has, by the log."""
        return is_older(version, self._logged)

    def _take_over(self, table: Mapping[str, Entry], version: DataVersion) -> None:
        """Replace everything by a master's table. Durable first, then visible. Under the lock."""
        self._file.write(version, self._encoded(table, version))
        self._table = dict(table)
        self.data_version = version

    def _replay(self) -> None:
        """Apply the journal of a broker that was killed."""
        changes = self._file.changes_since(self.data_version, self._table.__contains__, self._decoded_entry)
        if changes.put or changes.gone:
            for name in changes.gone:
                self._table.pop(name, None)
            self._table.update({name: self._decoded_entry(name, each) for name, each in changes.put.items()})
            self.data_version = version_after(changes, self.data_version, self._clock.now_ms())
            self._file.write(self.data_version, self._encoded(self._table, self.data_version))
