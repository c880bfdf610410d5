"""Files whose names become durable together and later: which directories are synced, when, and how often."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import ENTRY, LENGTH, SimulatedFileAccess
from tiermq.files.file_access import DirectorySync
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.files.os_file_access import OsFileAccess

SIZE = 4096
NAME = "00000000000000000000"


def synced_in(access: SimulatedFileAccess) -> list[str]:
    """The directories that are synced from now on."""
    seen: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation == "sync_directory":
            seen.append(path)

    access.on_call = note
    return seen


def queue_on(access: SimulatedFileAccess, names: DirectorySync, directory: str) -> MappedFileQueue:
    return MappedFileQueue(access, directory, SIZE, clock=access.clock, reserve_bytes=512, names=names)


def test_making_files_syncs_nothing_and_a_directory_of_many_is_synced_once() -> None:
    access = SimulatedFileAccess()
    names = DirectorySync(access, "/s")
    synced = synced_in(access)
    for number in range(3):
        names.create(f"/s/q/T/{number}/{NAME}", SIZE)
    assert synced == []
    for number in range(3):
        names.sync(f"/s/q/T/{number}/{NAME}")
    assert synced == ["/s/q/T/0", "/s/q/T", "/s/q", "/s", "/s/q/T/1", "/s/q/T/2"]
    assert names.changed == frozenset()


def test_a_name_that_was_made_after_a_sync_is_synced_again() -> None:
    access = SimulatedFileAccess()
    names = DirectorySync(access, "/s")
    names.create("/s/T/0/a", SIZE)
    names.sync("/s/T/0/a")
    names.create("/s/T/1/a", SIZE)
    synced = synced_in(access)
    names.sync("/s/T/0/a")
    assert synced == ["/s/T", "/s"]
    names.sync("/s/T/1/a")
    assert synced == ["/s/T", "/s", "/s/T/1"]


def test_a_directory_that_could_not_be_synced_is_tried_again() -> None:
    access = SimulatedFileAccess()
    names = DirectorySync(access, "/s")
    names.create("/s/T/a", SIZE)

    def fail(operation: str, path: str) -> None:
        if (operation, path) == ("sync_directory", "/s/T"):
            raise OSError("disk")

    access.on_call = fail
    with pytest.raises(OSError, match="disk"):
        names.sync("/s/T/a")
    assert names.changed == {"/s/T", "/s"}


def test_a_directory_that_is_gone_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = DirectorySync(OsFileAccess(), ".")  # Relative, as a store's root may be.
    names.create("T/0/a", SIZE).close()
    assert names.changed == {str(tmp_path / "T" / "0"), str(tmp_path / "T"), str(tmp_path)}
    os.unlink("T/0/a")
    os.rmdir("T/0")
    names.sync("T/0/a")
    assert names.changed == frozenset()


@pytest.mark.parametrize("survives", [(), (ENTRY,), (ENTRY, LENGTH)])
def test_before_the_first_flush_a_power_cut_leaves_a_queue_that_loads(survives: tuple[int, ...]) -> None:
    access = SimulatedFileAccess()
    queue = queue_on(access, DirectorySync(access, "/s"), "/s/T/0")
    queue.last_or_create().append(b"x" * 100)
    after = access.crash(lambda path, page: page in survives)
    again = queue_on(after, DirectorySync(after, "/s"), "/s/T/0")
    again.load()
    assert len(again.files) == (1 if survives == (ENTRY, LENGTH) else 0)


def test_flushed_bytes_are_there_after_any_power_cut() -> None:
    access = SimulatedFileAccess()
    queue = queue_on(access, DirectorySync(access, "/s"), "/s/T/0")
    queue.last_or_create().append(b"x" * 100)
    while not queue.flush(0):
        pass
    after = access.crash(lambda path, page: False)
    assert after.read_bytes(f"/s/T/0/{NAME}")[:100] == b"x" * 100


def test_a_file_without_bytes_gets_its_name_by_a_flush_too() -> None:
    access = SimulatedFileAccess()
    queue = queue_on(access, DirectorySync(access, "/s"), "/s/T/0")
    queue.last_or_create()
    assert queue.flush(2)
    assert not access.crash(lambda path, page: False).exists(f"/s/T/0/{NAME}")
    queue.flush(0)
    assert access.crash(lambda path, page: False).exists(f"/s/T/0/{NAME}")


@pytest.mark.parametrize("seed", range(20))
def test_a_second_file_never_outlives_the_first(seed: int) -> None:
    access = SimulatedFileAccess()
    queue = queue_on(access, DirectorySync(access, "/s"), "/s/T/0")
    queue.last_or_create().append(b"x" * SIZE)
    queue.create_next().append(b"y")
    chance = random.Random(seed)
    after = access.crash(lambda path, page: chance.random() < 0.5)
    again = queue_on(after, DirectorySync(after, "/s"), "/s/T/0")
    again.load()  # Raises StoreDamaged for a hole, and for an empty file that is not the last.
    assert again.files[0].from_offset == 0


def test_a_file_that_a_dead_process_left_gets_its_name_by_the_next_flush() -> None:
    access = SimulatedFileAccess()
    queue_on(access, DirectorySync(access, "/s"), "/s/T/0").last_or_create()
    again = queue_on(access, DirectorySync(access, "/s"), "/s/T/0")
    again.load()
    again.files[0].set_positions(0)
    again.doubt_names()
    again.flush(0)
    assert access.crash(lambda path, page: False).exists(f"/s/T/0/{NAME}")


def test_without_names_a_file_is_durable_when_it_is_made() -> None:
    access = SimulatedFileAccess()
    queue = MappedFileQueue(access, "/s/T/0", SIZE, clock=ManualClock())
    assert not queue.last_or_create().name_is_due
    queue.doubt_names()
    assert not queue.files[0].name_is_due
    assert access.crash(lambda path, page: False).exists(f"/s/T/0/{NAME}")
