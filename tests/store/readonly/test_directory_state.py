"""What another process does with a store directory."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tiermq import Message
from tiermq.errors import StoreNotRecovered
from tiermq.store.local_store import LocalStore
from tiermq.store.readonly.directory import LockQuestion, StoreState, require_recovered, store_state

OWNER = """
import sys
from tiermq import Message
from tiermq.store.local_store import LocalStore
store = LocalStore.open(sys.argv[1])
store.put(Message("T", b"x"))
print("open", flush=True)
sys.stdin.readline()
store.close()
"""


@contextmanager
def owner_of(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the store open, until it gets a line."""
    command = [sys.executable, "-c", OWNER, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        yield owner
        owner.kill()


def test_a_store_that_was_closed_is_closed_and_an_empty_directory_too(tmp_path: Path) -> None:
    assert store_state(tmp_path) is StoreState.CLOSED
    LocalStore.open(tmp_path).close()
    assert store_state(tmp_path) is StoreState.CLOSED
    assert require_recovered(tmp_path) is StoreState.CLOSED


def test_a_store_of_this_process_runs_and_keeps_its_lock_when_asked(tmp_path: Path) -> None:
    with LocalStore.open(tmp_path) as store:
        assert require_recovered(tmp_path) is StoreState.RUNNING
        store.put(Message("T", b"x"))
        code = f"from tiermq import LocalStore; LocalStore.open({str(tmp_path)!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "StoreLocked" in other.stderr


@pytest.mark.crash
def test_a_store_of_another_process_runs_until_that_is_killed_and_is_recovered_by_opening_it(tmp_path: Path) -> None:
    with owner_of(tmp_path) as owner:
        assert store_state(tmp_path) is StoreState.RUNNING
        owner.kill()
        owner.wait()
        assert store_state(tmp_path) is StoreState.CRASHED
        with pytest.raises(StoreNotRecovered, match="Open it once"):
            require_recovered(tmp_path)
    LocalStore.open(tmp_path).close()
    assert store_state(tmp_path) is StoreState.CLOSED


@pytest.mark.crash
def test_a_store_that_is_being_opened_after_a_crash_is_not_believed(tmp_path: Path) -> None:
    with owner_of(tmp_path):
        (tmp_path / "abort").write_bytes(b"1")  # As it lies there until recovery is through.
        assert store_state(tmp_path) is StoreState.RECOVERING
        with pytest.raises(StoreNotRecovered, match="being opened"):
            require_recovered(tmp_path)
        (tmp_path / "abort").write_bytes(b"")  # As an old broker writes it.
        assert store_state(tmp_path) is StoreState.RUNNING


def test_the_question_about_a_lock_has_the_layout_of_each_system() -> None:
    """The tests above ask the kernel of Linux. The other layout is that of macOS in <sys/fcntl.h>."""
    linux, other = LockQuestion(True), LockQuestion(False)
    assert linux.encode() == struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
    assert other.encode() == struct.pack("qqihh", 0, 1, 0, fcntl.F_RDLCK, os.SEEK_SET)
    assert len(other.encode()) == 24
    assert other.decode(struct.pack("qqihh", 0, 1, 4711, fcntl.F_WRLCK, 0)) == (fcntl.F_WRLCK, 4711)
    assert linux.decode(struct.pack("hhqqi", fcntl.F_UNLCK, 0, 0, 1, 0)) == (fcntl.F_UNLCK, 0)
