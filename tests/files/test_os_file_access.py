"""What only the real file system can show: full disks, read-only mounts, locks between processes, descriptors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiermq.clock import ManualClock
from tiermq.errors import DiskFull, ReadOnlyStore, StoreDamaged, StoreError, StoreLocked
from tiermq.files import os_region
from tiermq.files.mapped_file import MappedFile
from tiermq.files.os_file_access import OsFileAccess

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


def test_a_full_disk_refuses_to_reserve_and_changes_nothing(small_disk):
    access = OsFileAccess()
    region = access.create(str(small_disk / "file"), 8 << 20)
    region.reserve(0, 512 << 10)
    region.write(0, b"kept")
    with pytest.raises(DiskFull, match=r"file: expected room on the file system to reserve disk blocks"):
        region.reserve(512 << 10, 4 << 20)
    assert os.path.getsize(small_disk / "file") == 8 << 20
    assert bytes(region.buffer[:4]) == b"kept"
    region.reserve(512 << 10, 4096)
    region.sync()
    region.close()


def append_until_full(file: MappedFile, record: bytes) -> None:
    while file.append(record):
        pass


def test_appends_to_a_filling_disk_end_with_disk_full_and_keep_what_was_written(small_disk):
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


def test_a_full_disk_refuses_whole_files_and_keeps_the_old_one(small_disk):
    access = OsFileAccess()
    path = str(small_disk / "config.json")
    access.write_config(path, b"old")
    with pytest.raises(DiskFull):
        access.write_config(path, bytes(2 << 20))
    assert access.read_bytes(path) == b"old"
    assert sorted(os.listdir(small_disk)) == ["config.json"]


def test_a_read_only_file_system_says_so(small_disk):
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
    ("number", "expected"),
    [(errno.EACCES, ReadOnlyStore), (errno.EROFS, ReadOnlyStore), (errno.EDQUOT, DiskFull), (errno.EIO, OSError)],
)
def test_system_errors_are_said_in_our_words(tmp_path, monkeypatch, number, expected):
    region = OsFileAccess().create(str(tmp_path / "file"), 4096)

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(expected) as caught:
        region.reserve(0, 4096)
    assert type(caught.value) is expected
    region.close()


def test_a_failed_sync_is_never_followed_by_one_that_claims_success(tmp_path, monkeypatch):
    region = OsFileAccess().create(str(tmp_path / "file"), 4096)
    region.write(0, b"lost?")
    with monkeypatch.context() as broken:

        def fail(_):
            raise OSError(errno.EIO, "Input/output error")

        broken.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            region.sync()
    with pytest.raises(StoreError, match="an earlier sync failed"):
        region.sync()
    region.close()


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    region = OsFileAccess().create(str(tmp_path / "file"), 4096)
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: whole(descriptor, bytes(data[:7]), at))
    region.write(100, bytes(range(1, 101)))
    assert bytes(region.buffer[100:200]) == bytes(range(1, 101))
    region.close()


def test_zeroing_works_where_holes_cannot_be_punched(tmp_path, monkeypatch):
    monkeypatch.setattr(os_region.system_calls, "punch_hole", lambda *_: False)
    region = OsFileAccess().create(str(tmp_path / "file"), 1 << 20)
    region.write(0, b"\xff" * 10_000)
    region.write(900_000, b"\xff" * 10_000)
    region.zero(5000, (1 << 20) - 5000)
    assert bytes(region.buffer) == b"\xff" * 5000 + bytes((1 << 20) - 5000)
    assert os.stat(tmp_path / "file").st_blocks * 512 < 1 << 19, "holes stay holes"
    region.close()


def test_a_file_replaced_under_us_is_not_mistaken_for_ours(tmp_path):
    access = OsFileAccess()
    region = access.create(str(tmp_path / "file"), 4096)
    region.close_descriptor()
    (tmp_path / "other").write_bytes(bytes(4096))
    os.replace(tmp_path / "other", tmp_path / "file")
    with pytest.raises(StoreDamaged, match="found another one under its name"):
        region.sync()
    region.close()


def test_descriptors_are_given_back(tmp_path):
    access = OsFileAccess()
    before = len(os.listdir("/proc/self/fd"))
    regions = [access.create(str(tmp_path / str(number)), 4096) for number in range(10)]
    for region in regions:
        region.close_descriptor()
    closed = len(os.listdir("/proc/self/fd"))
    assert closed - before <= 10, "at most the one that Python's map itself keeps before 3.13"
    for region in regions:
        region.close()
    assert len(os.listdir("/proc/self/fd")) == before


LOCK_IN_ANOTHER_PROCESS = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, int(sys.argv[2]), int(sys.argv[3]))
    print("free", flush=True)
except OSError:
    print("held", flush=True)
sys.stdin.read()
"""


def start_locker(path: str, length: int, start: int) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", LOCK_IN_ANOTHER_PROCESS, path, str(length), str(start)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_the_lock_is_the_one_java_takes_on_byte_zero(tmp_path):
    path = str(tmp_path / "lock")
    held = OsFileAccess().lock(path)
    first, byte_zero = start_locker(path, 1, 0)
    second, other_bytes = start_locker(path, 3, 1)
    assert (byte_zero, other_bytes) == ("held", "free")
    held.release()
    third, after_release = start_locker(path, 1, 0)
    assert after_release == "free"
    with pytest.raises(StoreLocked, match="held by another process"):
        OsFileAccess().lock(path)
    for process in (first, second, third):
        process.communicate("")
    OsFileAccess().lock(path).release()


def test_a_refused_second_lock_does_not_drop_the_first(tmp_path):
    path = str(tmp_path / "lock")
    held = OsFileAccess().lock(path)
    with pytest.raises(StoreLocked):
        OsFileAccess().lock(path)
    (tmp_path / "alias").symlink_to(tmp_path)
    with pytest.raises(StoreLocked):
        OsFileAccess().lock(str(tmp_path / "alias" / "lock"))
    process, answer = start_locker(path, 1, 0)
    process.communicate("")
    assert answer == "held"
    held.release()
