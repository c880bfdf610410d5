"""`tiermq dump` of a tier with tiered timers: its manifest, each timer with its message, damage as damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from delivery.tiered_timers.test_timer_listing import DUE_MS, records
from delivery.tiered_timers.tier_world import DAY_MS, NOW_MS, FarWorld, timer
from tiermq.cli.main import cli
from tiermq.delivery.timer_dump import dump_tiered_timer_file, is_tiered_timer_file
from tiermq.tier.driver.posix import PosixDriver


@pytest.fixture
def dumped(tmp_path: Path) -> FarWorld:
    world = FarWorld(tmp_path, PosixDriver(tmp_path / "tier"))
    world.add(records(tmp_path / "store", {"UNIQ_KEY": "a"}, {"UNIQ_KEY": "a", "TIMER_DEL_UNIQKEY": "orders+a"}))
    world.restart()
    world.timers.state.ready()  # Takes over, so there is a manifest.
    return world


def test_a_tier_with_far_timers_is_dumped_without_damage(dumped: FarWorld, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["dump", str(tmp_path / "tier")])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert sorted(row["kind"] for row in rows) == ["far_manifest", "far_timer", "far_timer", "lease"]
    timers = [row for row in rows if row["kind"] == "far_timer"]
    assert [(row["dueMs"], row["isDelete"], row["properties"]["UNIQ_KEY"]) for row in timers] == [
        (DUE_MS, False, "a"),
        (DUE_MS, True, "a"),
    ]
    path = tmp_path / "tier" / next(name for name in dumped.driver.list_objects() if name.endswith(".timers"))
    alone = CliRunner().invoke(cli, ["dump", str(path), "--kind", "far_timer"])
    assert len(alone.output.splitlines()) == 2


def test_damage_to_far_timers_is_a_row_with_an_error(dumped: FarWorld, tmp_path: Path) -> None:
    dumped.add([timer(1, NOW_MS + 2 * DAY_MS)])  # Sound, and no record of a message.
    for path in filter(is_tiered_timer_file, (tmp_path / "tier").rglob("*")):
        if path.suffix == ".json":
            path.write_bytes(b"{}")
    result = CliRunner().invoke(cli, ["dump", str(tmp_path / "tier")])
    assert result.exit_code == 1
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert sorted(row["kind"] for row in rows if "error" in row) == ["damage", "far_timer"]
    for path in (path for path in (tmp_path / "tier").rglob("*.timers") if path.is_file()):
        path.write_bytes(path.read_bytes()[:-1])
        assert [row["kind"] for row in dump_tiered_timer_file(path, path.name)] == ["damage"]
