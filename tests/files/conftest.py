"""File systems to test on: the real one below a temporary directory, and the simulated one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from simulation.manual_clock import ManualClock
from simulation.simulated_files import SimulatedFileAccess
from tiermq.files.file_access import FileAccess
from tiermq.files.os_file_access import OsFileAccess


@dataclass
class World:
    """A file system and an empty directory in it."""

    access: FileAccess
    root: str
    clock: ManualClock


class SimulatedWorld(World):
    access: SimulatedFileAccess


def make_world(kind: str, tmp_path: Path) -> World:
    return World(OsFileAccess(), str(tmp_path), ManualClock()) if kind == "os" else simulated_world()


def simulated_world() -> SimulatedWorld:
    clock = ManualClock()
    access = SimulatedFileAccess(clock=clock)
    access.make_directories("/store")
    return SimulatedWorld(access, "/store", clock)


@pytest.fixture(params=["os", "simulated"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return make_world(request.param, tmp_path)


@pytest.fixture
def simulated() -> SimulatedWorld:
    return simulated_world()
