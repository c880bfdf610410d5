"""The checkpoint file: its bytes, its rounding, and that it is durable when flush returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.simulated_files import SimulatedFileAccess
from small_store import power_cut
from tiermq.errors import StoreDamaged
from tiermq.files.os_file_access import OsFileAccess
from tiermq.store.checkpoint import CHECKPOINT_BYTES, Checkpoint

FIELDS = (
    "physic_msg_timestamp_ms",
    "logics_msg_timestamp_ms",
    "index_msg_timestamp_ms",
    "master_flushed_offset",
    "confirm_offset",
)


def test_a_fresh_checkpoint_is_zeros(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    Checkpoint(OsFileAccess(), str(path)).close()
    assert path.read_bytes() == bytes(CHECKPOINT_BYTES)


def test_five_big_endian_numbers_come_back(tmp_path: Path) -> None:
    """Item 41."""
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint(OsFileAccess(), str(path))
    for number, name in enumerate(FIELDS, start=1):
        setattr(checkpoint, name, number * 2**40)
    checkpoint.flush()
    checkpoint.close()
    assert path.read_bytes()[:40] == b"".join((number * 2**40).to_bytes(8, "big") for number in range(1, 6))
    again = Checkpoint(OsFileAccess(), str(path))
    assert [getattr(again, name) for name in FIELDS] == [number * 2**40 for number in range(1, 6)]
    again.close()


@pytest.mark.parametrize(
    ("physic", "logics", "expected"), [(10_000, 20_000, 7_000), (20_000, 10_000, 7_000), (2_999, 9_999, 0), (0, 0, 0)]
)
def test_the_minimum_is_the_smaller_time_less_three_seconds(physic: int, logics: int, expected: int) -> None:
    """Item 41."""
    checkpoint = Checkpoint(SimulatedFileAccess(), "/checkpoint")
    checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms = physic, logics
    assert checkpoint.min_timestamp_ms == expected


def test_a_flushed_checkpoint_survives_a_power_cut_and_an_unflushed_one_does_not() -> None:
    access = SimulatedFileAccess()
    checkpoint = Checkpoint(access, "/checkpoint")
    checkpoint.physic_msg_timestamp_ms = 5
    checkpoint.flush()
    checkpoint.physic_msg_timestamp_ms = 6
    assert Checkpoint(power_cut(access), "/checkpoint").physic_msg_timestamp_ms == 5


def test_an_unchanged_checkpoint_is_not_synced_again() -> None:
    calls: list[str] = []
    access = SimulatedFileAccess(on_call=lambda operation, path: calls.append(operation))
    checkpoint = Checkpoint(access, "/checkpoint")
    checkpoint.confirm_offset = 7
    checkpoint.flush()
    calls.clear()
    checkpoint.flush()
    assert calls == []


def test_a_checkpoint_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(40))
    with pytest.raises(StoreDamaged, match="4096"):
        Checkpoint(OsFileAccess(), str(tmp_path / "checkpoint"))
