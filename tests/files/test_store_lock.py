"""The lock on a store directory, between processes and within one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tiermq.errors import StoreLocked
from tiermq.files.os_file_access import OsFileAccess

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


def test_the_lock_is_the_one_java_takes_on_byte_zero(tmp_path: Path) -> None:
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


def test_a_refused_second_lock_does_not_drop_the_first(tmp_path: Path) -> None:
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
