"""Calls to the kernel that Python lacks."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
from pathlib import Path

import pytest

from simulation.descriptor_limit import descriptors_below
from tiermq.files import system_calls


def test_a_punched_hole_reads_as_zero_and_gives_its_blocks_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (1 << 20))
    descriptor = os.open(path, os.O_RDWR)
    try:
        punched = system_calls.punch_hole(descriptor, 4096, (1 << 20) - 4096)
    finally:
        os.close(descriptor)
    if not punched:
        pytest.skip("this file system has no holes")
    assert path.read_bytes() == b"x" * 4096 + bytes((1 << 20) - 4096)
    assert os.stat(path).st_blocks * 512 <= 64 << 10


def test_an_error_of_the_kernel_is_raised_and_not_taken_for_a_missing_feature() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        system_calls.punch_hole(-1, 0, 4096)


def test_a_file_system_is_synced_only_where_its_errors_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        monkeypatch.setattr(system_calls, "_release", lambda: (5, 7))
        assert system_calls.sync_file_system(descriptor) is False
        monkeypatch.setattr(system_calls, "_release", lambda: (5, 8))
        assert system_calls.sync_file_system(descriptor) is True
    finally:
        os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        system_calls.sync_file_system(-1)


def test_a_refusal_is_an_answer_and_the_map_can_be_closed_afterwards() -> None:
    memory = mmap.mmap(-1, 8192)
    assert system_calls.advise(memory, 0, 8192, 12345) is False
    if os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] >= 1 << 20:
        assert system_calls.lock_pages(memory, 8192) is True
    memory.close()
    assert system_calls.lock_pages(memory, 8192) is False
    assert system_calls.advise(memory, 0, 8192, system_calls.MADV_WILLNEED) is False


def test_advice_may_begin_in_the_middle_of_a_page(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 8192) as memory:
        assert system_calls.advise(memory, 5000, 100, system_calls.MADV_WILLNEED) is True


def test_a_read_only_map_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ) as memory:
        assert system_calls.lock_pages(memory, 4096) is False
        assert system_calls.advise(memory, 0, 4096, system_calls.MADV_POPULATE_WRITE) is False


@pytest.mark.parametrize("size", [200, 4096, 100_000])
def test_a_map_keeps_no_descriptor_and_reaches_the_file_only_when_it_is_shared(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"o" * size)
    for shared in (False, True):
        descriptor = os.open(path, os.O_RDWR)
        memory = system_calls.map_file(descriptor, size, shared=shared)
        os.close(descriptor)
        assert descriptors_below(path) == []
        assert bytes(memory) == b"o" * size
        memory[size - 3 :] = b"new"
        with memoryview(memory), pytest.raises(BufferError):
            memory.close()
        memory.close()
        assert path.read_bytes().endswith(b"new") is shared
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_refused_map_is_an_error_and_leaves_nothing_mapped() -> None:
    before = Path("/proc/self/statm").read_text().split()[0]
    with pytest.raises(OSError, match="Bad file descriptor"):
        system_calls.map_file(999_999, 1 << 30, shared=True)
    assert abs(int(Path("/proc/self/statm").read_text().split()[0]) - int(before)) < (1 << 30) // mmap.PAGESIZE


def test_pages_are_synced_through_the_map_and_an_error_of_the_kernel_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file:
        memory = system_calls.map_file(file.fileno(), 8192, shared=True)
    memory[:3] = b"new"
    system_calls.sync_pages(memory, 8192)
    assert path.read_bytes()[:3] == b"new"
    # Whatever is mapped behind it is synced, too: there is a hole sooner or later, or a file that cannot be synced.
    with pytest.raises(OSError, match="Cannot allocate memory|Invalid argument"):
        system_calls.sync_pages(memory, 1 << 46)
    memory.close()
    with pytest.raises(ValueError, match="closed"):
        system_calls.sync_pages(memory, 8192)


@pytest.mark.parametrize("has_call", [True, False], ids=["posix_fallocate", "zeros"])
def test_reserved_blocks_keep_what_is_written_and_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_call: bool
) -> None:
    if not has_call:
        monkeypatch.delattr(os, "posix_fallocate")
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 20)
        os.pwrite(file.fileno(), b"kept", 70_000)
    with path.open("r+b") as file:
        system_calls.reserve_blocks(file.fileno(), 100, (1 << 19) - 100)
        os.fsync(file.fileno())
    data = path.read_bytes()
    assert len(data) == 1 << 20
    assert data[70_000:70_004] == b"kept"
    assert data.strip(b"\0") == b"kept"
    assert os.stat(path).st_blocks * 512 >= 1 << 19


def test_zeros_that_find_no_room_are_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(os, "pwrite", lambda *_: 1)
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, pytest.raises(OSError, match="No space left"):
        system_calls.reserve_blocks(file.fileno(), 0, 8192)


def test_bytes_are_read_and_synced_where_python_has_no_such_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "preadv")
    monkeypatch.delattr(os, "fdatasync")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file:
        buffer = bytearray(8)
        assert system_calls.read_into(file.fileno(), memoryview(buffer), 4) == 6
        assert bytes(buffer) == b"456789\0\0"
        assert system_calls.read_into(file.fileno(), memoryview(buffer), 10) == 0
        system_calls.sync_data(file.fileno())
        assert synced == [file.fileno()]


@pytest.mark.parametrize(("number", "is_refused"), [(0, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_sync_goes_through_the_drives_cache_where_fsync_does_not(
    monkeypatch: pytest.MonkeyPatch, number: int, is_refused: bool
) -> None:
    done: list[str] = []

    def full(descriptor: int, command: int) -> None:
        assert (descriptor, command) == (7, 51)
        done.append("full")
        if number:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda _: done.append("plain"))
    if is_refused:
        with pytest.raises(OSError, match="Input/output"):
            system_calls.sync_file(7)
    else:
        system_calls.sync_file(7)
    assert done == (["full", "plain"] if number == errno.ENOTSUP else ["full"])


def test_processors_are_counted_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert system_calls.processor_count() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert system_calls.processor_count() == 3


def test_numbers_of_linux_are_used_on_linux_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS 4 is no MS_SYNC but drops pages, and struct statfs is nine times as long as our buffer."""
    path = tmp_path / "file"
    path.write_bytes(b"o" * 8192)
    monkeypatch.setattr(system_calls, "ON_LINUX", False)
    monkeypatch.setattr(system_calls, "_fstatfs", None)
    monkeypatch.setattr(system_calls, "_mmap", None)
    with path.open("r+b") as file:
        assert system_calls.is_tmpfs(file.fileno(), -1) is False
        for shared in (False, True):
            memory = system_calls.map_file(file.fileno(), 8192, shared=shared)
            memory[:3] = b"new"
            memory.close()
            assert path.read_bytes().startswith(b"new") is shared
