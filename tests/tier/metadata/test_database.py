"""The SQLite file: durability settings, transactions, migrations, and errors in our own words."""

from __future__ import annotations

import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tiermq.errors import DiskFull, StoreClosed, StoreDamaged, StoreLocked
from tiermq.tier.metadata import database as module
from tiermq.tier.metadata.database import MIGRATIONS, Database, damage_of

KILLED_IN_THE_MIDDLE = """
import os, signal, sys
from tiermq.tier.metadata.database import Database
database = Database(sys.argv[1])
with database.transaction():
    database.write("UPDATE counter SET value = 7")
with database.transaction():
    database.write("UPDATE counter SET value = 8")
    database.write("INSERT INTO topic VALUES ('orders', 8, 0, -1, -1, 0)")
    if sys.argv[2] == "inside":
        os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def counter(database: Database) -> int:
    row = database.read_one("SELECT value FROM counter")
    assert row is not None
    return int(row[0])


@pytest.mark.crash
@pytest.mark.parametrize(("moment", "expected"), [("inside", (7, 0)), ("behind", (8, 1))])
def test_a_kill_leaves_the_state_before_or_after_a_transaction(
    tmp_path: Path, moment: str, expected: tuple[int, int]
) -> None:
    path = tmp_path / "tier.db"
    child = subprocess.run([sys.executable, "-c", KILLED_IN_THE_MIDDLE, str(path), moment], check=False)
    assert child.returncode == -signal.SIGKILL
    database = Database(path)
    assert (counter(database), len(database.read("SELECT * FROM topic"))) == expected
    database.close()


OPEN_ON_ANOTHER_MACHINE = """
import sys
from tiermq.tier.metadata import database as module
module.this_machine = lambda: "another-boot vm-2"
module.Database(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_file_that_another_machine_has_open_is_refused_until_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tier.db"
    ours = Database(path)
    Database(path).close()  # Processes of one machine share it.
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(module, "this_machine", lambda: "another-boot vm-2")
        with pytest.raises(StoreLocked, match=rf"those of {socket.gethostname()} have"):
            Database(path)
        ours.close()
        theirs = Database(path)
    for look in (lambda: Database(path), lambda: damage_of(path, path)):
        with pytest.raises(StoreLocked, match="those of vm-2 have.* Run this on vm-2"):
            look()
    theirs.close()
    assert damage_of(path, path) == ""
    Database(path).close()


def test_a_machine_whose_process_died_keeps_no_file_from_others(tmp_path: Path) -> None:
    path = tmp_path / "tier.db"
    command = [sys.executable, "-c", OPEN_ON_ANOTHER_MACHINE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(StoreLocked, match="vm-2"):
            Database(path)
        child.kill()
        child.wait()
    Database(path).close()


def test_what_is_committed_is_synced(tmp_path: Path) -> None:
    database = Database(tmp_path / "tier.db")
    with database.transaction():
        assert database.read_one("PRAGMA journal_mode") == ("wal",)
        assert database.read_one("PRAGMA synchronous") == (2,)  # FULL
    database.close()


def test_an_error_inside_a_transaction_undoes_all_of_it(tmp_path: Path) -> None:
    database = Database(tmp_path / "tier.db")

    def fail_inside() -> None:
        with database.transaction():
            database.write("UPDATE counter SET value = 5")
            with database.transaction():
                database.write("UPDATE counter SET value = 6")
            raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        fail_inside()
    assert counter(database) == -1
    database.close()


def test_other_threads_see_the_last_committed_state_and_do_not_wait(tmp_path: Path) -> None:
    database = Database(tmp_path / "tier.db")
    seen: list[int] = []
    with database.transaction():
        database.write("UPDATE counter SET value = 5")
        assert counter(database) == 5
        reader = threading.Thread(target=lambda: seen.append(counter(database)))
        reader.start()
        reader.join()  # Would hang for ever if readers waited for writers.
    assert seen == [-1]
    assert counter(database) == 5
    database.close()


def test_writers_in_many_threads_take_turns(tmp_path: Path) -> None:
    database = Database(tmp_path / "tier.db")

    def increment() -> None:
        for _ in range(20):
            with database.transaction():
                database.write("UPDATE counter SET value = ?", (counter(database) + 1,))

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter(database) == 79
    database.close()


def test_a_schema_of_an_older_version_is_migrated_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "tier.db"
    old = Database(path)
    old.write("INSERT INTO topic VALUES ('orders', 0, 0, -1, -1, 0)")
    old.close()
    new = Database(path, migrations=[*MIGRATIONS, ["ALTER TABLE topic ADD COLUMN colour TEXT"]])
    assert new.read("SELECT name, colour FROM topic") == [("orders", None)]
    new.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tier.db"
    Database(path).close()
    with pytest.raises(Exception, match="nonsense"):
        Database(path, migrations=[*MIGRATIONS, ["ALTER TABLE topic ADD COLUMN colour TEXT", "nonsense"]])
    again = Database(path)
    assert "colour" not in str(again.read("PRAGMA table_info(topic)"))
    again.close()


def test_a_schema_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tier.db"
    Database(path, migrations=[*MIGRATIONS, ["CREATE TABLE later (x)"]]).close()
    with pytest.raises(StoreDamaged, match="up to version 3, found 4"):
        Database(path)


def test_a_foreign_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as foreign:
        foreign.execute("CREATE TABLE photos (x)")
    foreign.close()
    with pytest.raises(StoreDamaged, match="another program"):
        Database(path)
    with sqlite3.connect(path) as foreign:
        assert [row[0] for row in foreign.execute("SELECT name FROM sqlite_schema")] == ["photos"]
    foreign.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tier.db"
    path.write_bytes(b"this is not a database, it only lies where one should lie" * 20)
    with pytest.raises(StoreDamaged, match="restore it from the tier"):
        Database(path)


def test_a_full_disk_is_reported_to_be_full_and_leaves_the_old_state(tmp_path: Path) -> None:
    database = Database(tmp_path / "tier.db")

    def fill_the_disk() -> None:
        with database.transaction():
            (pages,) = database.read("PRAGMA page_count")
            database.read(f"PRAGMA max_page_count = {pages[0]}")
            database.write("UPDATE counter SET value = 5")
            database.write("INSERT INTO topic VALUES (?, 0, 0, -1, -1, 0)", ("x" * 100_000,))

    with pytest.raises(DiskFull):
        fill_the_disk()
    assert counter(database) == -1
    database.close()


def test_a_closed_database_reports_so(tmp_path: Path) -> None:
    database = Database(tmp_path / "tier.db")
    database.close()
    database.close()
    with pytest.raises(StoreClosed):
        database.read("SELECT 1")
    with pytest.raises(StoreClosed):
        database.write("UPDATE counter SET value = 1")


def test_who_writes_together_shares_one_transaction(tmp_path: Path) -> None:
    statements: list[str] = []
    database = Database(tmp_path / "tier.db", trace=statements.append)
    before = counter(database)
    threads = [
        threading.Thread(
            target=database.together, args=(lambda: database.write("UPDATE counter SET value = value + 1"),)
        )
        for _ in range(8)
    ]
    with database.transaction():  # A thread that comes meanwhile waits.
        statements.clear()
        for thread in threads:
            thread.start()
        while len(database._members) < len(threads):
            pass
    for thread in threads:
        thread.join()
    assert counter(database) == before + 8
    assert [text for text in statements if "UPDATE" not in text] == ["COMMIT", "BEGIN IMMEDIATE", "COMMIT"]
    database.close()


def test_one_who_fails_in_a_shared_transaction_takes_no_other_with_it(tmp_path: Path) -> None:
    database = Database(tmp_path / "tier.db")
    found: list[Exception] = []
    before = counter(database)

    def bad() -> None:
        database.write("UPDATE counter SET value = value + 100")
        raise StoreDamaged("one who fails")

    def good() -> None:
        database.write("UPDATE counter SET value = value + 1")

    def run(work: Callable[[], None]) -> None:
        try:
            database.together(work)
        except StoreDamaged as error:
            found.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in (good, bad, good, bad, good)]
    with database.transaction():
        for thread in threads:
            thread.start()
        while len(database._members) < len(threads):
            pass
    for thread in threads:
        thread.join()
    assert counter(database) == before + 3
    assert [str(error) for error in found] == ["one who fails"] * 2
    database.close()


def test_writing_together_inside_a_transaction_joins_it(tmp_path: Path) -> None:
    database = Database(tmp_path / "tier.db")
    before = counter(database)

    def five() -> None:
        database.write("UPDATE counter SET value = 5")

    def write_and_fail() -> None:
        with database.transaction():
            database.together(five)
            assert counter(database) == 5
            raise StoreDamaged("undo it")

    with pytest.raises(StoreDamaged, match="undo it"):
        write_and_fail()
    assert counter(database) == before
    database.close()


def test_what_is_written_together_is_refused_after_closing(tmp_path: Path) -> None:
    database = Database(tmp_path / "tier.db")
    database.close()
    with pytest.raises(StoreClosed):
        database.together(lambda: None)
