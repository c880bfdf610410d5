"""Pages of the log are given back when they are many, flushed and old, and their bytes are never lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq import Message
from tiermq.commitlog.flush_services import KEPT_BYTES, WHOLE_TURNS, PageRelease, resident_file_bytes
from tiermq.files.mapped_file_queue import MappedFileQueue
from tiermq.files.os_file_access import OsFileAccess
from tiermq.store.local_store import LocalStore

MIB = 1 << 20
FILE_BYTES = 16 * MIB
on_linux = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell memory by file")


def filled(directory: Path, mebibytes: int) -> MappedFileQueue:
    """A queue of files with so much in it, flushed."""
    files = MappedFileQueue(OsFileAccess(), str(directory), FILE_BYTES, clock=ManualClock(0))
    for number in range(mebibytes):
        file = files.last_or_create()
        assert file.append(bytes([1 + number]) * MIB)
    while not files.flush(0):
        pass
    return files


def resident_of(directory: Path) -> int:
    """What this process has of the files of a directory in its memory."""
    pattern = rf"{re.escape(str(directory))}/\d+\n(?:\w+: .*\n)*?Rss: +(\d+) kB"
    return sum(map(int, re.findall(pattern, Path("/proc/self/smaps").read_text()))) * 1024


@on_linux
def test_flushed_pages_are_given_back_but_for_the_last_and_read_as_before(tmp_path: Path) -> None:
    files = filled(tmp_path, 40)
    before = resident_file_bytes()
    assert resident_of(tmp_path) == 40 * MIB
    release = PageRelease(files, MIB, lambda: 40 * MIB)
    release.run()
    assert resident_of(tmp_path) == KEPT_BYTES
    assert before - resident_file_bytes() > 30 * MIB
    assert release.release_count == 1
    for number in range(40):
        at = number * MIB % FILE_BYTES
        found = files.files[number * MIB // FILE_BYTES].select(at, MIB)
        assert found is not None
        with found:
            assert bytes(found.data) == bytes([1 + number]) * MIB
    files.close()


@on_linux
def test_what_is_not_flushed_stays_and_is_written_by_the_next_flush(tmp_path: Path) -> None:
    files = filled(tmp_path, 8)
    for number in range(6):
        assert files.last_or_create().append(bytes([100 + number]) * MIB)
    PageRelease(files, 1, lambda: 14 * MIB).run()
    assert resident_of(tmp_path) == 14 * MIB  # Flushed are no more than what is kept anyway.
    while not files.flush(0):
        pass
    PageRelease(files, 1, lambda: 14 * MIB).run()
    assert resident_of(tmp_path) == KEPT_BYTES
    files.close()
    assert (tmp_path / ("0" * 20)).read_bytes()[13 * MIB : 14 * MIB] == bytes([105]) * MIB


@on_linux
def test_what_is_not_dispatched_stays_since_it_is_read_soon(tmp_path: Path) -> None:
    files = filled(tmp_path, 30)
    PageRelease(files, 1, lambda: 20 * MIB).run()
    assert resident_of(tmp_path) == 10 * MIB + KEPT_BYTES
    files.close()


@on_linux
def test_what_was_read_again_is_given_back_with_every_tenth_turn(tmp_path: Path) -> None:
    files = filled(tmp_path, 24)
    release = PageRelease(files, 1, lambda: 24 * MIB)
    release.run()
    found = files.files[0].select(0, FILE_BYTES)
    assert found is not None
    with found:
        assert bytes(found.data).count(b"\x01") == MIB
    for _ in range(WHOLE_TURNS - 1):
        release.run()
        assert resident_of(tmp_path) == 24 * MIB
    release.run()
    assert resident_of(tmp_path) == KEPT_BYTES
    files.close()


@pytest.mark.parametrize(("most", "resident"), [(0, 1 << 40), (MIB, MIB), (MIB, 0)])
def test_nothing_is_given_back_while_memory_is_within_bounds(tmp_path: Path, most: int, resident: int) -> None:
    files = filled(tmp_path, 10)
    release = PageRelease(files, most, lambda: 10 * MIB, lambda: resident)
    release.run()
    assert release.release_count == 0
    files.close()


def test_an_empty_log_has_nothing_to_give_back() -> None:
    files = MappedFileQueue(SimulatedFileAccess(), "/log", 4096, clock=ManualClock(0))
    release = PageRelease(files, 1, lambda: 0, lambda: MIB)
    release.run()
    assert release.release_count == 1


@on_linux
def test_a_store_gives_pages_back_once_a_second_and_all_messages_can_be_read(tmp_path: Path) -> None:
    body = bytes(range(256)) * 256
    with LocalStore.open(tmp_path, resident_log_bytes_max=1, background=False) as store:
        for _ in range(20):
            store.put_many(Message("T", body, 0) for _ in range(25))
        store.dispatch_now()
        store.flush()
        assert resident_of(tmp_path / "commitlog") > 31 * MIB
        store._parts.housekeeping.run_once()
        assert resident_of(tmp_path / "commitlog") <= KEPT_BYTES + MIB
        bodies = [message.body for at in range(500) for message in store.get("T", 0, at, 1).messages]
    assert bodies == [body] * 500
