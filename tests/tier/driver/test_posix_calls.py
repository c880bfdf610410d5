"""File locks of the POSIX driver: they hold between threads, and follow the path, not the file."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from simulation.descriptor_limit import descriptors_below
from tiermq.tier.driver.posix import PosixCalls, locked, opened


def test_one_at_a_time_even_within_a_process(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    inside: list[int] = []
    most: list[int] = []

    def enter(number: int) -> None:
        for _ in range(50):
            with locked(path, os.O_RDWR | os.O_CREAT):
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter, range(4)))
    assert set(most) == {1}


def test_readers_share(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with locked(str(path), os.O_RDONLY, shared=True), locked(str(path), os.O_RDONLY, shared=True) as second:
        assert second > 0


def test_descriptors_are_closed_also_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for manager in (opened, locked):
        with pytest.raises(RuntimeError), manager(str(path), os.O_RDWR):
            raise RuntimeError
    PosixCalls().sync_directory(str(tmp_path))
    assert descriptors_below(tmp_path) == []
