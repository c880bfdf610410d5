"""Repair over directories and over object stores: parts, sealed objects, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tier.repair.repair_world import LocalRecords, bytes_in
from tier.tier_world import TierWorld
from tier.verify_world import LOG, UNITS
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.tier_url import bare_driver
from tiermq.tier.names import SegmentKey
from tiermq.tier.repair.repair import repair_tier
from tiermq.tier.verify.verify import verify_tier


def made(path: Path, driver: TierDriver, *, is_sealed: bool) -> TierWorld:
    world = TierWorld(path, driver, log_bytes=1600, unit_bytes=200)
    for _ in range(10):
        world.write(3)
    if is_sealed:
        for part in (world.file().log, world.file().units):
            part.roll()
            for segment in part.unsealed():
                part.seal(segment)
    world.put_manifests()
    return world


def damage_file(path: Path, key: SegmentKey) -> None:
    file = path / key.path
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def damage_object(path: Path, key: SegmentKey) -> None:
    """The canonical object, or the first part of an open one."""
    file = path / key.path
    damage_file(path, key) if file.is_file() else _flip(sorted((path / f"{key.path}.parts").iterdir())[0])


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(
    ("kind", "damage"), [("posix", damage_file), ("object", damage_object)], ids=["directory", "object store"]
)
def test_damage_in_records_and_units_is_fixed_to_the_byte(
    tmp_path: Path, kind: str, damage: Callable[[Path, SegmentKey], None], is_sealed: bool
) -> None:
    root = tmp_path / "tier"
    root.mkdir()
    driver: TierDriver = PosixDriver(root) if kind == "posix" else bare_driver(f"{root.as_uri()}?driver=object", {})
    world = made(tmp_path, driver, is_sealed=is_sealed)
    before, local = bytes_in(world), LocalRecords(world)
    sealed = {info.key: info.sealed for info in driver.list_segments()}
    damage(root, world.segments(LOG)[0].key)
    damage(root, world.segments(UNITS)[-1 if not is_sealed else 0].key)
    assert not verify_tier(driver).is_clean
    report = repair_tier(driver, sources=[local], metadata=world.metadata)
    assert report.is_complete, report.to_dict()
    assert bytes_in(world) == before
    assert {info.key: info.sealed for info in driver.list_segments()} == sealed
    kept = [path for outcome in report.outcomes for path in outcome.kept if ".damaged-" in path]
    assert kept
    assert all((root / path).exists() for path in kept)
    world.close()
