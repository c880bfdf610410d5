"""Power cuts, in small: copies of one moment, a store that keeps its promise over them, and one that does not."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from campaign.part import Outcome
from campaign.power_cuts.machine import Machine, missing_tools
from campaign.power_cuts.part import PARTS, Cut, StoreCuts, StoreRole

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(bool(missing_tools()), reason=f"power cuts: {missing_tools()}"),
]


def test_a_copy_has_what_was_synced_and_not_what_was_not(tmp_path: Path) -> None:
    machine = Machine(tmp_path, image_bytes=16 << 20)
    with machine.running():
        for name in ("synced", "unsynced"):
            (machine.root / name).write_bytes(b"x" * 10_000)
        with (machine.root / "synced").open("rb") as file:
            os.fsync(file.fileno())
        (machine.root / "later").write_bytes(b"y")
        machine.copy(tmp_path / "copy")
        with machine.looked_into(tmp_path / "copy") as root:
            assert (root / "synced").read_bytes() == b"x" * 10_000
            assert not (root / "later").exists()
        machine.cut_power()
        assert (machine.root / "synced").exists()


def cut(tmp_path: Path, settings: dict[str, object], cuts: list[Cut]) -> Outcome:
    machine, outcome = Machine(tmp_path), Outcome()
    role = StoreRole(random.Random(7), settings)
    with machine.running():
        try:
            for each in cuts:
                StoreCuts()._cut(machine, role, each, outcome)
        finally:
            role.end()
    return outcome


def test_a_store_keeps_what_it_acknowledged_over_cuts(tmp_path: Path) -> None:
    outcome = cut(tmp_path, {"flush_disk_type": "SYNC_FLUSH"}, [Cut(20, boots=False), Cut(20, boots=True)])
    assert outcome.counts["cuts"] == 2
    assert outcome.counts["messages_checked"] >= 60


def test_a_store_that_does_not_sync_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="acknowledged and lost or moved"):
        cut(tmp_path, {"flush_disk_type": "ASYNC_FLUSH"}, [Cut(50, boots=False)])


def test_the_parts_are_known_by_their_names() -> None:
    assert [part.name for part in PARTS] == [
        "power-cuts",
        "power-cuts-tier",
        "power-cuts-timers",
        "power-cuts-transactions",
    ]
