"""The files of a run, listed when they can have changed and mapped when they are read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from simulation.descriptor_limit import descriptors_below
from tiermq.store.readonly import mapped_run
from tiermq.store.readonly.mapped_run import CLOCK_TICK_NS, Listing, MappedRun, ReadOnlyMap, RunFile


def write(directory: Path, base: int, data: bytes) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{base:020d}"
    path.write_bytes(data)
    return path


def settle(directory: Path) -> None:
    """Let a directory look as if it had last changed long ago."""
    os.utime(directory, ns=(10**18, 10**18))


def test_a_directory_is_listed_again_only_when_it_can_have_changed(tmp_path: Path) -> None:
    listing = Listing([tmp_path, tmp_path / "missing"])
    settle(tmp_path)
    assert listing.changed() == []
    assert listing.changed() is None
    (tmp_path / "a").touch()
    assert [entry.name for entry in listing.changed() or ()] == ["a"]


def test_a_directory_that_has_just_changed_is_not_trusted_to_stay_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = Listing([tmp_path])
    (tmp_path / "a").touch()
    changed_ns = tmp_path.stat().st_mtime_ns
    monkeypatch.setattr(mapped_run, "time", SimpleNamespace(time_ns=lambda: changed_ns + CLOCK_TICK_NS - 1))
    assert listing.changed() is not None
    assert listing.changed() is not None
    settle(tmp_path)
    assert listing.changed() is not None
    assert listing.changed() is None


def test_files_come_in_order_and_one_that_is_being_made_is_not_there_yet(tmp_path: Path) -> None:
    for base, size in ((200, 100), (100, 100), (300, 10), (400, 0)):
        write(tmp_path, base, b"x" * size)
    (tmp_path / "lock").write_bytes(b"lock")
    run = MappedRun([tmp_path])
    assert run.refresh()
    assert [file.base for file in run.files] == [100, 200]
    assert (run.min_offset, run.size_end, run.file_size) == (100, 300, 100)
    assert not run.refresh()
    write(tmp_path, 300, b"y" * 100)
    assert run.refresh()
    assert run.segments().read(299, 1) == b"x"
    assert run.segments().read(300, 2) == b"yy"


def test_a_file_that_gets_its_length_long_after_its_name_is_seen(tmp_path: Path) -> None:
    """Its directory does not change then, and had been taken for one that shows it."""
    for size_before in (0, 10):
        write(tmp_path, 0, b"x" * 100)
        write(tmp_path, 100, b"y" * size_before)
        run = MappedRun([tmp_path])
        settle(tmp_path)
        assert run.refresh()
        assert run.size_end == 100
        write(tmp_path, 100, b"y" * 100)
        settle(tmp_path)
        assert run.refresh()
        assert run.size_end == 200


def test_bytes_that_another_process_writes_are_seen_and_nothing_written_here_reaches_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, 0, bytes(100))
    run = MappedRun([tmp_path])
    run.refresh()
    segments = run.segments()
    with path.open("r+b") as stream:
        stream.write(b"hello")
    assert segments.read(0, 5) == b"hello"
    tail = segments.views[0]
    tail.position, tail.limit = 50, 100
    tail.append(b"oops")
    assert path.read_bytes() == b"hello" + bytes(95)


def test_a_deleted_file_stays_readable_for_its_readers_and_is_gone_for_others(tmp_path: Path) -> None:
    path = write(tmp_path, 0, b"a" * 10)
    write(tmp_path, 10, b"b" * 10)
    run = MappedRun([tmp_path])
    run.refresh()
    held = run.segments()
    path.unlink()
    assert run.refresh()
    assert held.read(0, 1) == b"a"
    assert run.segments().read(0, 1) is None
    assert run.segments().read(10, 1) == b"b"
    run.forget_maps()
    assert run.segments().read(10, 1) == b"b"
    assert run.map_of(RunFile(0, path, 10)) is None


def test_no_descriptor_is_kept_for_a_map(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path, number * 10, b"x" * 10)
    run = MappedRun([tmp_path])
    run.refresh()
    run.segments()
    assert descriptors_below(tmp_path) == []


def test_a_run_without_files_has_no_bytes(tmp_path: Path) -> None:
    run = MappedRun([tmp_path / "nothing"])
    assert not run.refresh()
    assert (run.min_offset, run.size_end) == (0, 0)
    assert run.segments().read(0, 1) is None


def test_a_file_of_another_length_is_found_by_offset_and_no_part_of_the_segments(tmp_path: Path) -> None:
    for base, data in ((0, b"a" * 10), (10, b"b" * 10), (20, b"c" * 4)):
        write(tmp_path, base, data)
    run = MappedRun([tmp_path])
    run.refresh()
    found = run.find(22)
    assert found is not None
    assert (bytes(found[0]), found[1]) == (b"cccc", 2)
    assert run.find(24) is None
    assert run.segments().read(20, 1) is None
    write(tmp_path, 20, b"d" * 10)
    run.refresh()
    assert run.find(29) is not None
    assert run.segments().read(29, 1) == b"d"


def test_gaps_and_odd_sizes_are_layout_problems(tmp_path: Path) -> None:
    for base, size in ((0, 80), (80, 60), (240, 80)):
        write(tmp_path, base, bytes(size))
    run = MappedRun([tmp_path])
    run.refresh()
    assert run.layout_problems() == [
        "00000000000000000080: expected 80 bytes like the first file, found 60",
        "after 00000000000000000080: expected a file that starts at 160, found 240",
    ]


def test_a_file_deleted_since_it_was_listed_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, 0, b"a" * 10)
    run = MappedRun([tmp_path])
    run.refresh()
    path.unlink()
    assert run.maps() == []
    assert run.find(0) is None


@pytest.mark.parametrize(("data", "is_zero"), [(bytes(3 << 20), True), (bytes(3 << 20) + b"x", False)])
def test_every_byte_is_looked_at_where_the_file_system_reports_no_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, is_zero: bool
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    file = ReadOnlyMap(write(tmp_path, 0, data))
    monkeypatch.setattr(os, "lseek", refuse)
    assert file.is_zero_from(100) is is_zero
    file.close()
