"""What only the real file system can show: full disks, read-only mounts, locks between processes, descriptors."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from present import present
from simulation.manual_clock import ManualClock
from tiermq.errors import DiskFull, ReadOnlyStore
from tiermq.files.mapped_file import MappedFile
from tiermq.files.os_file_access import OsFileAccess, usage_ratio

NAME = "0" * 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount_point)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = f"cannot mount a small tmpfs (needs root): {done.stderr.strip()}"
        print(reason)
        pytest.skip(reason)
    yield mount_point
    subprocess.run(["umount", "-l", str(mount_point)], check=True)


def test_a_full_disk_refuses_to_reserve_and_changes_nothing(small_disk: Path) -> None:
    access = OsFileAccess()
    region = access.create(str(small_disk / "file"), 8 << 20)
    region.reserve(0, 512 << 10)
    region.write(0, b"kept")
    with pytest.raises(DiskFull, match=r"file: expected room on the file system to reserve disk blocks"):
        region.reserve(512 << 10, 4 << 20)
    assert os.path.getsize(small_disk / "file") == 8 << 20
    assert bytes(present(region.buffer)[:4]) == b"kept"
    region.reserve(512 << 10, 4096)
    region.sync()
    region.close()


def append_until_full(file: MappedFile, record: bytes) -> None:
    while file.append(record):
        pass


def test_appends_to_a_filling_disk_end_with_disk_full_and_keep_what_was_written(small_disk: Path) -> None:
    access = OsFileAccess()
    file = MappedFile.create(access, str(small_disk / NAME), 8 << 20, clock=ManualClock(), reserve_bytes=300 << 10)
    record = bytes(range(256)) * 16
    with pytest.raises(DiskFull):
        append_until_full(file, record)
    written = file.wrote_position
    assert written >= 900 << 10, "the last chunk is shrunk to pages, so nearly the whole disk is used"
    assert file.read(written - len(record), len(record)) == record
    with pytest.raises(DiskFull):
        file.append(record)
    assert file.wrote_position == written
    file.close()


def test_a_full_disk_refuses_whole_files_and_keeps_the_old_one(small_disk: Path) -> None:
    access = OsFileAccess()
    path = str(small_disk / "config.json")
    access.write_config(path, b"old")
    with pytest.raises(DiskFull):
        access.write_config(path, bytes(2 << 20))
    assert access.read_bytes(path) == b"old"
    assert sorted(os.listdir(small_disk)) == ["config.json"]


def test_a_read_only_file_system_reports_so(small_disk: Path) -> None:
    access = OsFileAccess()
    access.create(str(small_disk / "file"), 4096).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for call in (
        lambda: access.create(str(small_disk / "new"), 4096),
        lambda: access.open(str(small_disk / "file"), 4096),
        lambda: access.remove(str(small_disk / "file")),
        lambda: access.make_directories(str(small_disk / "directory")),
        lambda: access.write_bytes(str(small_disk / "whole"), b"x"),
        lambda: access.lock(str(small_disk / "lock")),
    ):
        with pytest.raises(ReadOnlyStore, match=str(small_disk)):
            call()
    access.open(str(small_disk / "file"), 4096, writable=False).close()


@pytest.mark.parametrize(
    ("total", "free", "usable", "ratio"),
    [
        (1000, 1000, 1000, 0.0),
        (1000, 0, 0, 1.0),
        (1000, 500, 500, 0.5),
        (1000, 499, 499, 0.51),  # Rounded up to the next hundredth.
        (1000, 999, 999, 0.01),
        (1000, 500, 450, 0.53),  # What root keeps for itself does not count as room.
        (0, 0, 0, -1.0),
    ],
)
def test_the_used_share_is_rounded_up_to_hundredths(total: int, free: int, usable: int, ratio: float) -> None:
    assert usage_ratio(total, free, usable) == ratio
