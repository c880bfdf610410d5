"""One SQLite file: a writing connection behind a lock, a reading one beside it, and transactions that survive a kill.

The file is in WAL mode with `synchronous=FULL`: when a transaction's block is left, its changes are on disk; a process
that dies inside the block leaves the state from before it. Readers never wait for a writer's sync.

Threads: any thread may call anything. A transaction belongs to the thread that began it; that thread reads its own
changes, every other thread reads the last committed state.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any

from tiermq.errors import DiskFull, ReadOnlyStore, StoreClosed, StoreDamaged, StoreError, StoreLocked
from tiermq.tier.metadata.schema import APPLICATION_ID, MIGRATIONS

BUSY_TIMEOUT_S = 5.0
"""How long a statement waits for another process, such as a tool that looks at the file while the broker runs."""

Row = tuple[Any, ...]


class Database:
    """The metadata's file. Opening it creates or migrates it; see the module's text for threads and durability."""

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        migrations: Sequence[Sequence[str]] = MIGRATIONS,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.path = fspath(path)
        self._write_lock = threading.RLock()
        self._read_lock = threading.Lock()
        self._depth = 0
        self._owner: int | None = None
        self._closed = False
        with self._translated():
            self._writer = self._connect()
            try:
                self._migrate(migrations)
                self._reader = self._connect()
                self._reader.execute("PRAGMA query_only = ON")
            except BaseException:
                self._writer.close()
                raise
        # Only what callers cause is traced, so that a count of statements is a count per operation.
        self._writer.set_trace_callback(trace)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _migrate(self, migrations: Sequence[Sequence[str]]) -> None:
        (application_id,) = self._writer.execute("PRAGMA application_id").fetchone()
        (tables,) = self._writer.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if application_id != APPLICATION_ID and tables:
            raise StoreDamaged(
                f"{self.path}: expected TierMQ's tier metadata, found another program's SQLite file "
                f"(application id {application_id:#x}); give another path"
            )
        with self.transaction():
            # The version is read inside the transaction: another process may be migrating the same file.
            (version,) = self._writer.execute("PRAGMA user_version").fetchone()
            if version > len(migrations):
                raise StoreDamaged(
                    f"{self.path}: expected a metadata schema up to version {len(migrations)}, found {version}, "
                    f"which a newer TierMQ wrote; open it with that one, or restore a new file from the tier"
                )
            for statement in (statement for step in migrations[version:] for statement in step):
                self._writer.execute(statement)
            self._writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._writer.execute(f"PRAGMA user_version = {len(migrations)}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written inside becomes durable together on leaving, or not at all if an error leaves the block.

        A transaction inside a transaction joins the outer one. Raises DiskFull, StoreLocked, StoreDamaged.
        """
        with self._write_lock, self._translated():
            if self._depth:
                yield
                return
            self._require_open()
            self._writer.execute("BEGIN IMMEDIATE")
            self._depth, self._owner = 1, threading.get_ident()
            try:
                yield
                self._writer.execute("COMMIT")
            except BaseException:
                # SQLite has already rolled back when the disk was full.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            finally:
                self._depth, self._owner = 0, None

    def write(self, statement: str, values: Sequence[object] = ()) -> int:
        """Run one statement, durably unless a transaction is open. Returns the number of rows it changed."""
        if self._owner == threading.get_ident():
            with self._translated():
                return self._writer.execute(statement, values).rowcount
        with self.transaction():
            return self._writer.execute(statement, values).rowcount

    def write_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for each of the rows, in one transaction."""
        if rows:
            with self.transaction():
                self._writer.executemany(statement, rows)

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """All rows of a query."""
        with self._translated():
            if self._owner == threading.get_ident():
                return self._writer.execute(statement, values).fetchall()
            with self._read_lock:
                self._require_open()
                return self._reader.execute(statement, values).fetchall()

    def read_one(self, statement: str, values: Sequence[object] = ()) -> Row | None:
        """The first row of a query, or None."""
        rows = self.read(statement, values)
        return rows[0] if rows else None

    def close(self) -> None:
        """Fold the log into the file and let go of it. Calling it again does nothing."""
        with self._write_lock, self._read_lock:
            if not self._closed:
                self._closed = True
                self._reader.close()
                self._writer.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path}: the tier's metadata is closed; open it again to go on")

    def _translated(self) -> _Translated:
        return _Translated(self.path)


class _Translated:
    """SQLite's errors in the words of our tree. A class, because a commit enters it ten times."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise _translate(error, self._path) from error


def _translate(error: sqlite3.Error, path: str) -> StoreError:
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_FULL"):
        return DiskFull(f"{path}: no room for the tier's metadata ({error}); nothing was written, free some space")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreLocked(f"{path}: another process has been writing for {BUSY_TIMEOUT_S:g} s ({error}); stop it")
    if name.startswith("SQLITE_READONLY"):
        return ReadOnlyStore(f"{path}: this process may not write the tier's metadata ({error})")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreDamaged(
            f"{path}: expected a SQLite file, found damage ({error}); move it away and restore it from the tier"
        )
    return StoreError(
        f"{path}: the tier's metadata could not be read or written: {name or type(error).__name__}: {error}"
    )
