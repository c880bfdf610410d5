"""Disks that tests of recovery begin with: a store that was closed cleanly, with and without what says so."""

from __future__ import annotations

from typing import Any

from simulation.simulated_files import SimulatedFileAccess
from small_store import ROOT, on_simulation, put_all
from tiermq.kernel import PutResult
from tiermq.store.local_store import LocalStore

MARKER = "tiermq.clean"


def closed_store(
    count: int = 200, access: SimulatedFileAccess | None = None, **settings: Any
) -> tuple[SimulatedFileAccess, list[PutResult]]:
    """A disk with a store of `count` messages with keys that was closed cleanly."""
    access = access or SimulatedFileAccess()
    with on_simulation(access, **settings) as store:
        results = put_all(store, count, keys="k")
    return access, results


def without_marker(access: SimulatedFileAccess) -> SimulatedFileAccess:
    """The same disk as RocketMQ would have left it: a clean stop, and no marker of ours."""
    access.remove(f"{ROOT}/{MARKER}")
    access.sync_directory(ROOT)
    return access


def unclean(access: SimulatedFileAccess) -> SimulatedFileAccess:
    """The same disk with the abort file of a broker that died."""
    without_marker(access)
    access.write_bytes(f"{ROOT}/abort", b"1")
    return access


def reopened(access: SimulatedFileAccess, **settings: Any) -> LocalStore:
    return on_simulation(access, **settings)
