"""Damage of the tier's metadata is found when they are opened, reported, and repaired from the tier."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import pytest

from scenarios.broker_world import BrokerWorld
from servers.faulty_driver import Down
from tier.tiered_world import bodies, sent
from tiermq.errors import StoreDamaged, TierUnavailable
from tiermq.tier.metadata.database import damage_of, is_put_away, note_replaced, put_away
from tiermq.tier.metadata.metadata_store import MetadataStore

SECTOR_BYTES = 512


def made(path: Path) -> Path:
    with MetadataStore(path / "tier.db") as metadata:
        for number in range(50):
            metadata.add_topic(f"topic-{number}")
    return path / "tier.db"


def overwrite(path: Path, data: bytes) -> None:
    """As a disk does that goes bad: the times of the file stay."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_what_was_closed_in_order_is_sound(tmp_path: Path) -> None:
    assert damage_of(made(tmp_path), tmp_path / "none") == ""


def test_any_flipped_bit_of_a_closed_file_is_damage(tmp_path: Path) -> None:
    path = made(tmp_path)
    sound, chance = path.read_bytes(), random.Random(8)
    for at in chance.sample(range(len(sound)), 200):
        data = bytearray(sound)
        data[at] ^= 1 << chance.randrange(8)
        overwrite(path, bytes(data))
        assert damage_of(path, tmp_path / "none") != "", at


def test_without_a_seal_sqlite_reports_what_it_sees(tmp_path: Path) -> None:
    path = made(tmp_path)
    data = bytearray(path.read_bytes())
    data[4096 : 4096 + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    path.write_bytes(data)  # Its time has changed: the seal is of another file.
    assert damage_of(path, tmp_path / "none") != ""


def test_a_file_that_is_gone_is_damage_where_it_was_before(tmp_path: Path) -> None:
    assert damage_of(tmp_path / "tier.db", tmp_path / "none") == ""
    (tmp_path / "record").touch()
    assert "missing" in damage_of(tmp_path / "tier.db", tmp_path / "record")


def test_what_is_put_away_is_kept(tmp_path: Path) -> None:
    path = made(tmp_path)
    data = path.read_bytes()
    put_away(path)
    assert not path.exists()
    assert is_put_away(path)
    note_replaced(path)
    assert not is_put_away(path)
    assert (tmp_path / "tier.db.replaced").read_bytes() == data


@pytest.fixture
def world(tmp_path: Path) -> BrokerWorld:
    world = BrokerWorld(tmp_path)
    world.open()
    world.put(30)
    assert world.store.flush_to_tier()
    world.close()
    return world


@pytest.mark.parametrize("is_gone", [True, False])
def test_damaged_metadata_are_reported_and_made_again_from_the_tier(
    world: BrokerWorld, is_gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    spoil(world, is_gone)
    with caplog.at_level(logging.ERROR):
        world.open()
    assert "tieredStoreMetadata.db" in caplog.text
    restored = world.store.restored
    assert restored is not None
    assert world.store.tier_end("orders", 0) == 30
    world.put(5)
    assert world.store.flush_to_tier()
    assert bodies(world) == sent(world)
    world.close()
    caplog.clear()
    world.open()
    assert world.store.restored is None
    assert bodies(world) == sent(world)
    world.bury()


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_store_with_damaged_metadata_waits_for_its_tier_and_never_reports_that_nothing_is_there(
    world: BrokerWorld, is_gone: bool
) -> None:
    spoil(world, is_gone)
    world.driver.plan = Down()
    for _ in range(2):
        with pytest.raises(TierUnavailable):
            world.open()
    world.driver.plan = None
    world.open()
    assert world.store.tier_end("orders", 0) == 30
    world.bury()


def test_a_store_that_may_not_write_its_tier_replaces_nothing(world: BrokerWorld) -> None:
    spoil(world, False)
    with pytest.raises(StoreDamaged, match="tier restore"):
        world.open(tier_dispatch_enable=False)
    world.open()
    world.bury()


def spoil(world: BrokerWorld, is_gone: bool) -> None:
    path = world.disk / "config" / "tieredStoreMetadata.db"
    if is_gone:
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    overwrite(path, bytes(data))
