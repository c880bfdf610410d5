"""The power cut of the simulated file system: what must survive, what may, and what it catches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import pytest

from simulation.simulated_files import ENTRY, SimulatedFileAccess
from tiermq.errors import DiskFull
from tiermq.files.file_access import Region


def nothing(path: str, page: int) -> bool:
    return False


def everything(path: str, page: int) -> bool:
    return True


def chosen(choices: Sequence[bool], path: str, page: int) -> bool:
    return choices[page]


def test_synced_bytes_survive_and_unsynced_pages_are_a_choice_each() -> None:
    access = SimulatedFileAccess()
    region: Region = access.create("/s/file", 1024)
    region.reserve(0, 1024)
    region.buffer[0:1024] = b"a" * 1024
    region.sync()
    region.buffer[510:514] = b"bbbb"
    outcomes = set()
    for choices in itertools.product([False, True], repeat=2):
        after = access.crash(partial(chosen, choices))
        outcomes.add(after.read_bytes("/s/file")[508:516])
    assert outcomes == {b"aaaaaaaa", b"aabbaaaa", b"aaaabbaa", b"aabbbbaa"}


def test_a_power_cut_leaves_the_running_file_system_as_it_was() -> None:
    access = SimulatedFileAccess()
    region: Region = access.create("/s/file", 1024)
    region.write(0, b"new")
    after = access.crash(nothing)
    assert (access.read_bytes("/s/file")[:3], after.read_bytes("/s/file")[:3]) == (b"new", bytes(3))
    after.open("/s/file", 1024).write(0, b"abc")
    assert access.read_bytes("/s/file")[:3] == b"new"


def test_creations_survive_and_unsynced_removals_are_a_choice() -> None:
    access = SimulatedFileAccess()
    access.create("/s/a", 10)
    access.create("/s/b", 10)
    access.remove("/s/a")
    access.remove("/s/b")

    def only_b(path: str, page: int) -> bool:
        assert page == ENTRY
        return path == "/s/b"

    assert [info.name for info in access.crash(nothing).list_files("/s")] == ["a", "b"]
    assert [info.name for info in access.crash(only_b).list_files("/s")] == ["a"]
    access.sync_directory("/s")
    assert access.crash(nothing).list_files("/s") == []


def test_a_rename_happens_or_does_not() -> None:
    access = SimulatedFileAccess()
    access.write_bytes("/s/a", b"new")
    access.write_bytes("/s/b", b"old")
    access.rename("/s/a", "/s/b")
    before, after = access.crash(nothing), access.crash(everything)
    assert (before.read_bytes("/s/a"), before.read_bytes("/s/b")) == (b"new", b"old")
    assert (after.exists("/s/a"), after.read_bytes("/s/b")) == (False, b"new")


def test_bytes_stored_where_no_block_was_reserved_are_caught() -> None:
    access = SimulatedFileAccess()
    region: Region = access.create("/s/file", 16_384)
    region.reserve(0, 4096)
    region.buffer[4095:4097] = b"xx"
    with pytest.raises(AssertionError, match="block 1, which was never reserved"):
        region.sync()
    with pytest.raises(AssertionError, match="never reserved"):
        access.crash(nothing)


def test_the_disk_has_a_capacity_and_zeroing_and_removing_give_room_back() -> None:
    access = SimulatedFileAccess(capacity_bytes=2 * 4096)
    region: Region = access.create("/s/file", 16_384)
    with pytest.raises(DiskFull):
        region.reserve(0, 8193)
    assert access.used_bytes == 0
    region.reserve(4095, 2)
    assert (access.used_bytes, access.free_bytes("/s"), access.disk_usage_ratio("/s")) == (8192, 0, 1.0)
    region.zero(0, 16_384)
    assert access.disk_usage_ratio("/s") == 0.0
    region.reserve(0, 8192)
    access.remove("/s/file")
    access.create("/s/other", 8192).reserve(0, 8192)


def test_a_fault_hook_sees_every_call_before_it_happens() -> None:
    calls = []
    access = SimulatedFileAccess(on_call=lambda operation, path: calls.append(operation))
    region: Region = access.create("/s/file", 4096)
    region.reserve(0, 1)
    region.write(0, b"x")
    region.sync()
    access.remove("/s/file")
    access.sync_directory("/s")
    assert calls == [
        "create", "make_directories", "sync_directory", "reserve", "write", "sync", "remove", "sync_directory",
    ]  # fmt: skip
