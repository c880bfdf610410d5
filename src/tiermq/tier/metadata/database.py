"""One SQLite file: a writing connection behind a lock, a reading one beside it, and transactions that survive a kill.

The file is in WAL mode with `synchronous=FULL`: when a transaction's block is left, its changes are on disk; a process
that dies inside the block leaves the state from before it. Readers never wait for a writer's sync.

    thread A   together(a) ── lock ── BEGIN a COMMIT ── sync ─┐
    thread B   together(b) ── waits for the lock ─────────────┼── BEGIN b c d COMMIT ── one sync for three
    C and D    together(c), together(d) ── wait ──────────────┘

Threads: any thread may call anything. A transaction belongs to the thread that began it; that thread reads its own
changes, every other thread reads the last committed state. What is written `together` is run by whichever of the
waiting threads gets the lock first.

One machine at a time has the file open (`OneMachine`): processes share the index of SQLite's journal in memory, and
those of two machines that share a directory would not see each other's transactions.

Damage of the file is detected when it is opened:

    cleanly closed     a checksum over all bytes (`files.os_file_access`): one bad bit is found
    otherwise          SQLite's integrity check of pages, order and keys; its journal has checksums of its own
    missing            the directory has the tier's key index without it

The tier has a second copy of all its contents, so a damaged file is renamed to `<name>.damaged` and rebuilt by a
restore. That name stays until the restore is finished, so that an interrupted one is continued.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

from tiermq.errors import DiskFull, ReadOnlyStore, StoreClosed, StoreDamaged, StoreError, StoreLocked
from tiermq.files.os_errors import translated
from tiermq.files.os_file_access import is_seal_broken, seal_file
from tiermq.files.system_calls import sync_file

DAMAGED, REPLACED = ".damaged", ".replaced"
JOURNAL, SHARED = "-wal", "-shm"
MACHINE = "tier.machine"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


def this_machine() -> str:
    """The running system that this process belongs to, and its name for people. Containers of a host are one."""
    host = socket.gethostname()
    boot = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else host
    return f"{boot} {host}"


class OneMachine:
    """Held by each process that has a database open: a shared lock on `tier.machine` beside it.

    The file names their machine: the first one writes it, under an exclusive lock. It is the file system that knows who
    holds the lock, so nothing is left behind by a process or a machine that dies; without locks across machines nothing
    is detected.
    """

    def __init__(self, path: str) -> None:
        """Raises StoreLocked when processes of another machine have the database open."""
        self._descriptor = -1
        beside = os.path.join(os.path.dirname(path), MACHINE)
        with translated("open the tier's metadata", beside):
            try:
                self._descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                if error.errno not in _NOT_WRITABLE:
                    raise
                return  # Then SQLite cannot make its journal here either.
            try:
                found = self._share(this_machine())
            except BaseException:
                self.release()
                raise
        if found:
            self.release()
            raise StoreLocked(
                f"{path}: expected that processes of one machine have it open, found that those of {found} have. "
                f"SQLite's files must not be open on two machines. Run this on {found}, end what has it open there, "
                "or copy the broker over the wire: `tiermq pipeline offload --namesrv`"
            )

    def _share(self, mine: str) -> str:
        """Take the lock, as the first one or beside others. Returns the name of their machine if it is another one."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # Others have the database open, or are about to.
        else:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, mine.encode(), 0)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)  # Not in one step: another first one may come between.
        boot, _, host = os.pread(self._descriptor, 1_000, 0).decode("utf-8", "replace").partition(" ")
        return "" if boot == mine.partition(" ")[0] else host or "another machine"

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


def damage_of(path: Path, index_record: Path) -> str:
    """The damage of the metadata as text; empty when none is found. `index_record` never exists without them.

    A file that cannot be read now (locked, disk full) is not damaged: opening it raises the error. Raises StoreLocked
    where another machine has it open.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return "it is missing, although the key index of the tier exists" if index_record.exists() else ""
    if is_seal_broken(str(path), data):
        return "its bytes changed after it was closed"
    try:
        with OneMachine(fspath(path)), closing(sqlite3.connect(path)) as connection:
            [[found], *_] = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        return str(error) if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) else ""
    return "" if found == "ok" else str(found)


def seal(path: str) -> None:
    """Seal the file after its last connection was closed; does nothing while another one is open."""
    if os.path.exists(path + JOURNAL):
        return
    with open(path, "rb") as file:
        if seal_file(file.fileno(), file.read()):
            sync_file(file.fileno())


def put_away(path: Path) -> None:
    """Rename damaged metadata, to rebuild them; `is_put_away` is true until `note_replaced`."""
    for suffix in (SHARED, JOURNAL, ""):
        old = path.with_name(path.name + suffix)
        if old.exists():
            os.replace(old, path.with_name(path.name + DAMAGED + suffix))
    path.with_name(path.name + DAMAGED).touch()


def discard(path: Path) -> None:
    """Delete closed metadata, with their journal."""
    for suffix in (SHARED, JOURNAL, ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.with_name(MACHINE).unlink(missing_ok=True)


def put_back(path: Path) -> None:
    """Undo `put_away` of valid metadata that were not replaced."""
    for suffix in (SHARED, JOURNAL, ""):
        old = path.with_name(path.name + DAMAGED + suffix)
        if old.exists():
            os.replace(old, path.with_name(path.name + suffix))


def is_put_away(path: Path) -> bool:
    return path.with_name(path.name + DAMAGED).exists()


def note_replaced(path: Path) -> None:
    """The metadata were rebuilt. The damaged file is kept for inspection."""
    for suffix in (SHARED, JOURNAL, ""):
        old = path.with_name(path.name + DAMAGED + suffix)
        if old.exists():
            os.replace(old, path.with_name(path.name + REPLACED + suffix))


# The tables of the metadata database, one migration per version of the schema.
#
# `PRAGMA user_version` counts the migrations that a file has had; `PRAGMA application_id` marks it as ours.
# A released migration never changes: a change of the schema is one more entry at the end of MIGRATIONS.
#
#     counter      name -> value            `topic_serial_number`: the last assigned topic id;
#                                           `changes_seen`: the last publication of changed manifests that is in here
#     topic        name -> id, attributes
#     queue        cluster, broker, topic, queue_id -> offsets, epoch
#     gap          queue, from_offset -> to_offset, reason, at_ms
#     time_entry   queue, queue_offset -> store_ms, log_offset
#     owner        cluster, broker          whose metadata they are, also before there is a queue
#     segment      queue, type, base -> size, times, offsets, checksum, checksums of its blocks
#
# The primary keys begin with the topic, because a topic is what users delete, limit and sum up. Every table but `topic`
# is clustered by its key, so that a commit changes a fixed number of pages, however many rows there are.

APPLICATION_ID = 0x54724D51  # "TrMQ"

_QUEUE_COLUMNS = "topic TEXT NOT NULL, queue_id INTEGER NOT NULL, broker TEXT NOT NULL, cluster TEXT NOT NULL"
_QUEUE = "topic, queue_id, broker, cluster"

_FIRST: tuple[str, ...] = (
    "CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO counter VALUES ('topic_serial_number', -1)",
    """CREATE TABLE topic (
        name TEXT PRIMARY KEY,
        topic_id INTEGER NOT NULL UNIQUE,
        status INTEGER NOT NULL,
        reserve_time_hours INTEGER NOT NULL,
        max_bytes INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL)""",
    f"""CREATE TABLE queue (
        {_QUEUE_COLUMNS},
        min_offset INTEGER NOT NULL,
        max_offset INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        PRIMARY KEY ({_QUEUE})) WITHOUT ROWID""",
    f"""CREATE TABLE gap (
        {_QUEUE_COLUMNS},
        from_offset INTEGER NOT NULL,
        to_offset INTEGER NOT NULL,
        reason TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        PRIMARY KEY ({_QUEUE}, from_offset)) WITHOUT ROWID""",
    f"""CREATE TABLE time_entry (
        {_QUEUE_COLUMNS},
        queue_offset INTEGER NOT NULL,
        store_ms INTEGER NOT NULL,
        log_offset INTEGER NOT NULL,
        PRIMARY KEY ({_QUEUE}, queue_offset)) WITHOUT ROWID""",
    f"""CREATE TABLE segment (
        {_QUEUE_COLUMNS},
        type INTEGER NOT NULL,
        base INTEGER NOT NULL,
        size INTEGER NOT NULL,
        status INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        begin_ms INTEGER NOT NULL,
        end_ms INTEGER NOT NULL,
        sealed_ms INTEGER NOT NULL,
        crc32 INTEGER,
        begin_offset INTEGER NOT NULL,
        end_offset INTEGER NOT NULL,
        PRIMARY KEY ({_QUEUE}, type, base)) WITHOUT ROWID""",
    # Deletions that a crash interrupted are looked up at each start, among very many segments that are fine.
    "CREATE INDEX segment_being_deleted ON segment (status) WHERE status = 2",
)

_SECOND: tuple[str, ...] = ("ALTER TABLE segment ADD COLUMN block_sums BLOB",)

_THIRD: tuple[str, ...] = (
    "CREATE TABLE owner (cluster TEXT NOT NULL, broker TEXT NOT NULL, PRIMARY KEY (cluster, broker)) WITHOUT ROWID",
)

MIGRATIONS: Sequence[Sequence[str]] = (_FIRST, _SECOND, _THIRD)
"""Entry n takes a database from version n to n + 1."""


BUSY_TIMEOUT_S = 5.0
"""How long a statement waits for another process, such as a tool that reads the file while the broker runs."""

IN_MEMORY = ":memory:"
"""The path of a database that is no file: for a job whose rows come from the tier, and for its tasks."""

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
        # In memory there is one connection: a reader must wait until another thread's transaction has ended.
        self._read_lock = self._write_lock if self.path == IN_MEMORY else threading.RLock()
        self._owner: int | None = None
        self._members: deque[_Member] = deque()
        self._closed = False
        self._use = None if self.path == IN_MEMORY else OneMachine(self.path)
        try:
            with self._translated():
                self._writer = self._connect()
                try:
                    self._migrate(migrations)
                    # A database in memory belongs to its connection, which must read and write.
                    self._reader = self._writer if self.path == IN_MEMORY else self._connect_reader()
                except BaseException:
                    self._writer.close()
                    raise
        except BaseException:
            self._end_use()
            raise
        # Only what callers cause is traced, so that a count of statements is a count per operation.
        self._writer.set_trace_callback(trace)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_reader(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def data_version(self) -> int:
        """A number that changes when another process, or the writing side of this one, has committed something."""
        if self.path == IN_MEMORY:  # Its only connection does not see its own commits there.
            return self._writer.total_changes
        return int(self.read("PRAGMA data_version")[0][0])

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

    def transaction(self) -> _Transaction:
        """Everything written inside becomes durable together on leaving, or not at all if an error leaves the block.

        A transaction inside a transaction joins the outer one. Raises DiskFull, StoreLocked, StoreDamaged.
        """
        return _Transaction(self)

    def together(self, work: Callable[[], None]) -> None:
        """Run `work` in a transaction that it may share with calls of other threads; durable on return.

        `work` must only read and write this database: another thread may run it, and when one call of a shared
        transaction fails, each is run again alone. Raises what `work` raised; its changes are rolled back, those of the
        other calls are not.
        """
        if self._owner == threading.get_ident():
            work()
            return
        mine = _Member(work)
        self._members.append(mine)
        with self._write_lock:
            if not mine.is_done:
                self._run_members()
        if mine.error is not None:
            raise mine.error

    def _run_members(self) -> None:
        """With the lock held: run all waiting calls in one transaction, or each alone when that fails."""
        members = [self._members.popleft() for _ in range(len(self._members))]
        try:
            _run(self, members)
            if len(members) > 1 and members[0].error is not None:
                for member in members:
                    _run(self, [member])
        except BaseException:  # An interrupt of this thread: each other thread runs its own work.
            self._members.extendleft(member for member in reversed(members) if not member.is_done)
            raise

    def _begin(self) -> bool:
        """Take the lock and begin; False when this thread's transaction is joined."""
        self._write_lock.acquire()
        if self._owner is not None:
            return False
        try:
            self._require_open()
            self._writer.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._write_lock.release()
            raise
        self._owner = threading.get_ident()
        return True

    def _end(self, outermost: bool, commit: bool) -> None:
        """Commit or roll back if this block began the transaction, and release the lock."""
        try:
            if outermost and commit:
                self._writer.execute("COMMIT")
        finally:
            if outermost:
                try:
                    # SQLite has already rolled back when the disk was full.
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                finally:
                    self._owner = None
            self._write_lock.release()

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
        try:
            if self._owner == threading.get_ident():
                return self._writer.execute(statement, values).fetchall()
            with self._read_lock:
                self._require_open()
                return self._reader.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _translate(error, self.path) from error

    def read_one(self, statement: str, values: Sequence[object] = ()) -> Row | None:
        """The first row of a query, or None."""
        rows = self.read(statement, values)
        return rows[0] if rows else None

    def close(self) -> None:
        """Checkpoint the WAL, seal the file and close it. Idempotent."""
        with self._write_lock, self._read_lock:
            if not self._closed:
                self._closed = True
                self._reader.close()
                self._writer.close()
                self._end_use()
                if self.path != IN_MEMORY:
                    with translated("seal the tier's metadata", self.path):
                        seal(self.path)

    def _end_use(self) -> None:
        if self._use is not None:
            self._use.release()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path}: the tier's metadata is closed; open it again to go on")

    def _translated(self) -> _Translated:
        return _Translated(self.path)


class _Member:
    """One call's part of a shared transaction."""

    __slots__ = ("error", "is_done", "work")

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.is_done = False
        self.error: Exception | None = None


def _run(database: Database, members: Sequence[_Member]) -> None:
    error: Exception | None = None
    try:
        with database.transaction():
            for member in members:
                member.work()
    except Exception as found:  # noqa: BLE001 - it is raised again in the thread that it belongs to
        error = found
    for member in members:
        member.is_done, member.error = True, error


class _Transaction:
    """A block of `Database.transaction`. A class, because a generator takes several times as long."""

    __slots__ = ("_database", "_outermost")

    def __init__(self, database: Database) -> None:
        self._database = database
        self._outermost = False

    def __enter__(self) -> None:
        with self._database._translated():
            self._outermost = self._database._begin()

    def __exit__(self, kind: object, error: BaseException | None, _at: object) -> None:
        with self._database._translated():
            self._database._end(self._outermost, kind is None)
        if isinstance(error, sqlite3.Error):
            raise _translate(error, self._database.path) from error


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
        return DiskFull(f"{path}: the disk is full, the tier's metadata were not written ({error}); free some space")
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
