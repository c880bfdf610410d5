"""PosixDriver keeps the contract."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from simulation.descriptor_limit import descriptors_left
from tier.driver.conformance import DriverConformance, Place, fresh_segment, pattern
from tiermq.errors import (
    BadTierName,
    IllegalRange,
    SegmentConflict,
    SegmentMissing,
    TierCredentials,
    TierError,
    TierUnavailable,
)
from tiermq.tier.driver import posix
from tiermq.tier.driver.posix import PosixCalls, PosixDriver
from tiermq.tier.names import QueueKey, SegmentType


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(lambda: PosixDriver(tmp_path / "tier"))


class TestPosixDriver(DriverConformance):
    pass


KEY = fresh_segment()


class FailingCalls(PosixCalls):
    """Real calls, of which one kind fails from the given call on, and a record of all that sync."""

    def __init__(self, failing: str = "", error: int = errno.EIO, *, short_bytes: int = 0) -> None:
        self.failing = failing
        self.error = error
        self.short_bytes = short_bytes
        self.synced: list[str] = []

    def pwrite(self, descriptor: int, data: memoryview, position: int) -> int:
        if self.failing == "pwrite":
            if self.short_bytes == 0:
                raise OSError(self.error, os.strerror(self.error))
            written = super().pwrite(descriptor, data[: self.short_bytes], position)
            self.short_bytes = 0
            return written
        return super().pwrite(descriptor, data, position)

    def pread(self, descriptor: int, buffer: memoryview, position: int) -> int:
        return super().pread(descriptor, buffer[:3], position)  # Short answers are legal: the reader must go on.

    def sync_data(self, descriptor: int) -> None:
        if self.failing == "sync_data":
            raise OSError(self.error, os.strerror(self.error))
        super().sync_data(descriptor)
        self.synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self.synced.append(path)


def test_the_file_is_the_one_that_rocketmq_would_have_written(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path)
    driver.write(KEY, 0, [b"abc"])
    driver.write(KEY, 3, [b"def"])
    assert (tmp_path / KEY.path).read_bytes() == b"abcdef"
    driver.seal(KEY)
    assert (tmp_path / KEY.path).read_bytes() == b"abcdef"
    assert sorted(path.name for path in (tmp_path / KEY.path).parent.iterdir()) == [
        (tmp_path / KEY.path).name,
        (tmp_path / KEY.path).name + ".sealed",
    ]
    driver.delete(KEY)
    assert list((tmp_path / KEY.path).parent.iterdir()) == []


@pytest.mark.parametrize("failing", ["pwrite", "sync_data"])
@pytest.mark.parametrize("short_bytes", [0, 2])
def test_bug_05_a_write_that_fails_half_way_is_cut_off_again(tmp_path: Path, failing: str, short_bytes: int) -> None:
    calls = FailingCalls()
    driver = PosixDriver(tmp_path, calls=calls)
    driver.write(KEY, 0, [b"whole"])
    calls.failing, calls.short_bytes = failing, short_bytes
    with pytest.raises(TierUnavailable, match="could not write: Input/output error"):
        driver.write(KEY, 5, [b"broken"])
    calls.failing = ""
    assert (tmp_path / KEY.path).read_bytes() == b"whole"
    driver.write(KEY, 5, [b" again"])
    assert bytes(driver.read(KEY, 0, 11)) == b"whole again"


def test_a_disk_that_is_really_full_tears_nothing(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path)
    driver.write(KEY, 0, [b"x" * 1000])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        # The kernel takes the first 500 bytes and refuses the rest.
        with pytest.raises(TierUnavailable, match="File too large"):
            driver.write(KEY, 1000, [b"y" * 1000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert driver.size(KEY) == 1000
    driver.write(KEY, 1000, [b"y" * 1000])
    assert bytes(driver.read(KEY, 999, 2)) == b"xy"


def test_a_first_write_is_acknowledged_when_file_and_every_directory_are_on_disk(tmp_path: Path) -> None:
    calls = FailingCalls()
    root = tmp_path / "new" / "tier"
    PosixDriver(root, calls=calls).write(KEY, 0, [b"x"])
    directories = [str(parent) for parent in (root / KEY.path).parents if tmp_path in (parent, *parent.parents)]
    assert {str(root / KEY.path), *directories} <= set(calls.synced)


def test_bytes_that_were_found_are_synced_before_they_are_vouched_for(tmp_path: Path) -> None:
    PosixDriver(tmp_path).write(KEY, 0, [b"of a process that may have died before it synced"])
    path = str(tmp_path / KEY.path)
    asks: tuple[Callable[[PosixDriver], object], ...] = (
        lambda driver: driver.size(KEY),
        lambda driver: driver.write(KEY, 0, [b"of a process that may have died"]),
    )
    for ask in asks:
        calls = FailingCalls()
        ask(PosixDriver(tmp_path, calls=calls))
        assert {path, os.path.dirname(path)} <= set(calls.synced)


def test_what_is_known_to_be_synced_is_bounded_and_what_was_forgotten_is_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix, "DURABLE_MAX", 8)
    calls = FailingCalls()
    driver = PosixDriver(tmp_path, calls=calls)
    for queue_id in range(20):
        driver.write(replace(KEY, queue_id=queue_id), 0, [b"x"])
    assert len(driver._durable) <= 8
    assert len(driver._durable_directories) <= 8
    first = replace(KEY, queue_id=0)
    calls.synced.clear()
    assert driver.size(first) == 1
    path = str(tmp_path / first.path)
    assert {path, os.path.dirname(path)} <= set(calls.synced)


def test_a_torn_tail_is_counted_as_it_is_and_resumed_or_trimmed(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path)
    driver.write(KEY, 0, [b"whole"])
    with (tmp_path / KEY.path).open("ab") as file:
        file.write(b"to")  # What a crash in the middle of writing "torn" leaves.
    fresh = PosixDriver(tmp_path)
    assert fresh.size(KEY) == 7
    with pytest.raises(SegmentConflict):
        fresh.write(KEY, 5, [b"other"])
    fresh.write(KEY, 5, [b"torn"])
    assert bytes(fresh.read(KEY, 0, 9)) == b"wholetorn"
    fresh.trim(KEY, 5)
    fresh.write(KEY, 5, [b"other"])
    assert (tmp_path / KEY.path).read_bytes() == b"wholeother"


def test_bug_06_short_answers_of_the_system_are_continued(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path, calls=FailingCalls())
    driver.write(KEY, 0, [pattern(1000)])
    assert driver.read(KEY, 1, 998) == pattern(1000)[1:999]


def test_bug_17_a_missing_file_is_missed_and_not_created(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path)
    driver.write(KEY, 0, [b"abc"])
    (tmp_path / KEY.path).unlink()
    with pytest.raises(SegmentMissing):
        driver.read(KEY, 0, 3)
    assert driver.size(KEY) == 0
    with pytest.raises(IllegalRange):
        driver.write(KEY, 3, [b"def"])
    assert not (tmp_path / KEY.path).exists()


def test_a_segment_that_was_deleted_while_we_waited_for_it_is_written_again(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path)
    driver.write(KEY, 0, [b"old"])
    path = tmp_path / KEY.path
    with path.open("rb") as held, ThreadPoolExecutor(1) as pool:
        fcntl.flock(held, fcntl.LOCK_EX)
        writing = pool.submit(driver.write, KEY, 0, [b"new"])
        while not _someone_waits_for(path):
            pass
        path.unlink()
        fcntl.flock(held, fcntl.LOCK_UN)
        writing.result()
    assert path.read_bytes() == b"new"


def _someone_waits_for(path: Path) -> bool:
    waiting = [line for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return any(f":{path.stat().st_ino} " in line for line in waiting)


def test_a_seal_mark_that_lost_its_file_seals_nothing(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path)
    driver.write(KEY, 0, [b"abc"])
    driver.seal(KEY)
    (tmp_path / KEY.path).unlink()
    assert not driver.is_sealed(KEY)
    driver.delete(KEY)
    driver.write(KEY, 0, [b"abc"])


def test_files_of_others_are_passed_over(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path)
    driver.write(KEY, 0, [b"abc"])
    folder = (tmp_path / KEY.path).parent
    (folder / "README").write_text("not a segment")
    (folder / (KEY.path.rpartition("/")[2] + ".bak")).write_text("nor is this")
    (folder / QueueKey("c", "b", "t", 0).segment(SegmentType.INDEX, 20).path.rpartition("/")[2]).mkdir()
    assert [info.key for info in driver.list_segments()] == [KEY]


def test_a_crash_while_an_object_is_replaced_leaves_the_old_one(tmp_path: Path) -> None:
    calls = FailingCalls()
    driver, name = PosixDriver(tmp_path, calls=calls), "a/manifest.tiermq.json"
    version = driver.put_object(name, b"old")
    calls.failing = "sync_data"
    with pytest.raises(TierUnavailable):
        driver.put_object(name, b"new", expected=version)
    calls.failing = ""
    found = driver.get_object(name)
    assert found is not None
    assert found.data == b"old"
    assert driver.list_objects() == [name]
    driver.put_object(name, b"new", expected=version)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EACCES, TierCredentials),
        (errno.EROFS, TierCredentials),
        (errno.ENOSPC, TierUnavailable),
        (errno.ESTALE, TierUnavailable),
        (errno.ENAMETOOLONG, BadTierName),
    ],
)
def test_what_the_system_refuses_is_reported_in_our_words(
    tmp_path: Path, number: int, expected: type[Exception]
) -> None:
    driver = PosixDriver(tmp_path, calls=FailingCalls("pwrite", number))
    with pytest.raises(expected, match="could not write"):
        driver.write(KEY, 0, [b"x"])


def test_a_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tier").write_text("in the way")
    driver = PosixDriver(tmp_path / "tier")
    with pytest.raises(TierError, match="tier"):
        driver.write(KEY, 0, [b"x"])
    with pytest.raises(TierError, match="tier"):
        driver.read(KEY, 0, 1)


def test_a_file_in_the_way_of_a_directory_is_named(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path)
    driver.write(KEY, 0, [b"x"])
    segment = tmp_path / KEY.path
    for directory in (segment.parent, segment.parent.parent.parent):
        shutil.rmtree(directory)
        directory.write_text("in the way")
        with pytest.raises(BadTierName, match=f"found the file {directory} in the way: move it away"):
            PosixDriver(tmp_path).write(KEY, 0, [b"x"])
        directory.unlink()
        driver = PosixDriver(tmp_path)
        driver.write(KEY, 0, [b"x"])


def test_without_descriptors_every_call_reports_which_limit_was_reached_and_what_raises_it(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path / "tier")
    driver.write(KEY, 0, [b"one"])
    driver.put_object("a.tiermq.json", b"{}")
    with descriptors_left(0):
        for call in (
            lambda: driver.write(KEY, 3, [b"two"]),
            lambda: driver.read(KEY, 0, 3),
            lambda: driver.size(KEY),
            lambda: driver.trim(KEY, 1),
            lambda: driver.delete(KEY),
            lambda: driver.get_object("a.tiermq.json"),
            lambda: driver.put_object("a.tiermq.json", b"[]"),
            lambda: list(driver.list_segments()),
            lambda: driver.list_objects(),
        ):
            with pytest.raises(TierUnavailable, match=r"found all \d+ of this process open.*ulimit -n") as caught:
                call()
            assert "health of the file system" not in str(caught.value)
    driver.write(KEY, 3, [b"two"])
    assert bytes(driver.read(KEY, 0, 6)) == b"onetwo"
    assert driver.list_objects() == ["a.tiermq.json"]


def test_a_write_whose_directory_cannot_be_synced_for_want_of_a_descriptor_is_cut_off_again(tmp_path: Path) -> None:
    PosixDriver(tmp_path).write(KEY, 0, [b"one"])
    driver = PosixDriver(tmp_path)  # Knows nothing of this file yet, so it syncs the directory too.
    with descriptors_left(1), pytest.raises(TierUnavailable, match="ulimit -n"):
        driver.write(KEY, 3, [b"two"])
    assert driver.size(KEY) == 3


def test_a_directory_that_cannot_be_read_is_an_error_and_not_an_empty_listing(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path)
    driver.write(KEY, 0, [b"one"])
    with descriptors_left(0), pytest.raises(TierUnavailable, match="could not list.*ulimit -n"):
        list(driver.list_segments())
    assert [info.key for info in driver.list_segments()] == [KEY]
    assert list(driver.list_segments("no/queue/has/this/")) == []


def test_a_queue_s_first_manifest_makes_its_directories_durable_with_one_sync(tmp_path: Path) -> None:
    calls = FailingCalls()
    driver = PosixDriver(tmp_path / "tier", calls=calls)
    log = QueueKey("c", "b", "t", 0).segment(SegmentType.COMMIT_LOG, 0)
    units = QueueKey("c", "b", "t", 0).segment(SegmentType.CONSUME_QUEUE, 0)
    queue = log.path.rpartition("/")[0].rpartition("/")[0]
    driver.put_object(f"{queue}/manifest.tiermq.json", b"{}")
    assert calls.synced[-1] == str(tmp_path / "tier" / queue)
    calls.synced.clear()
    for key in (log, units):
        path = tmp_path / "tier" / key.path
        driver.write(key, 0, [b"data"])
        assert calls.synced == [str(path), str(path.parent)]
        calls.synced.clear()


def test_directories_below_a_manifest_that_was_never_durable_are_synced_by_the_first_write(tmp_path: Path) -> None:
    calls = FailingCalls("sync_data")
    driver = PosixDriver(tmp_path / "tier", calls=calls)
    log = QueueKey("c", "b", "t", 0).segment(SegmentType.COMMIT_LOG, 0)
    queue = log.path.rpartition("/")[0].rpartition("/")[0]
    with pytest.raises(TierUnavailable):
        driver.put_object(f"{queue}/manifest.tiermq.json", b"{}")
    calls.failing = ""
    calls.synced.clear()
    driver.write(log, 0, [b"data"])
    assert str(tmp_path / "tier" / queue) in calls.synced


def test_other_objects_bring_no_directories(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path / "tier")
    for name in ("c/b/lease.tiermq.json", "c/b/rmq_sys_INDEX/0/manifest.tiermq.json"):
        driver.put_object(name, b"{}")
        assert [path for path in (tmp_path / "tier" / name).parent.iterdir() if path.is_dir()] == []


def test_an_object_longer_than_one_read_comes_whole(tmp_path: Path) -> None:
    driver = PosixDriver(tmp_path / "tier")
    data = pattern(3 * 256 * 1024 + 7)
    driver.put_object("long.tiermq.json", data)
    found = driver.get_object("long.tiermq.json")
    assert found is not None
    assert found.data == data
