"""One writer and one history: late restores, second brokers of the same name, take-overs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scenarios.broker_world import BrokerWorld
from tier.tiered_world import bodies, opened, sent
from tiermq import GetStatus, Message
from tiermq.errors import (
    StaleWriter,
    StoreDamaged,
)
from tiermq.tier.driver.faulty import Down
from tiermq.tier.names import QueueKey

T = "orders"
QUEUE = QueueKey("DefaultCluster", "broker-a", T, 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BrokerWorld]:
    world = BrokerWorld(tmp_path)
    yield world
    world.driver.plan = None
    world.bury()


# Restoring late


def test_a_lost_disk_that_is_not_restored_is_noticed_and_nothing_in_the_tier_is_touched(world: BrokerWorld) -> None:
    world.open()
    world.put(50)
    assert world.store.tier_now()
    before = {info.key: info.size for info in world.driver.list_segments()}
    world.erase_disk()
    with pytest.raises(StoreDamaged, match="tiermq tier restore"):
        world.open()
    world.driver.plan = Down()
    world.open()  # A tier that is out of reach cannot say what it has.
    world.store.put(Message(T, b"too early"))
    world.driver.plan = None
    world.clock.advance_ms(120_000)
    assert not world.store.tier_now()
    tier: Any = world.store.status()["tier"]
    assert "tiermq tier restore" in tier["troubles"]["orders-0"]
    assert {info.key: info.size for info in world.driver.list_segments()} == before
    world.close()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="used before it was restored"):
            world.open(restore=True)
    world.erase_disk()
    world.open(restore=True)
    assert bodies(world) == sent(world)


def test_a_start_before_the_restore_does_no_harm_when_nothing_was_put(world: BrokerWorld) -> None:
    world.open()
    world.put(50)
    assert world.store.tier_now()
    world.erase_disk()
    world.driver.plan = Down()
    world.open()
    world.store.set_retention(T, hours=5)
    world.close()
    world.driver.plan = None
    world.open(restore=True)
    assert world.store.restored is not None
    assert bodies(world) == sent(world)


def test_a_store_that_needs_no_restore_is_not_restored(world: BrokerWorld) -> None:
    world.open()
    world.put(50)
    assert world.store.tier_now()
    world.close()
    world.open(restore=True)
    assert world.store.restored is None
    assert bodies(world) == sent(world)


# One writer


def test_a_second_broker_of_the_same_name_is_refused_with_the_first_ones_name(
    world: BrokerWorld, tmp_path: Path
) -> None:
    world.open()
    world.put(5)
    assert world.store.tier_now()
    with pytest.raises(StoreDamaged, match="another brokerName"):
        opened(tmp_path / "second", driver=world.driver, clock=world.clock)
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True) as second:
        assert second.put(Message(T, b"other")).ok
        assert not second.tier_now()
        tier: Any = second.status()["tier"]
        assert "standing by" in tier["lease"]
        assert str(world.disk) in tier["lease"]
        with pytest.raises(StaleWriter, match="holds it"):
            second.delete_topics([T])
        with pytest.raises(StaleWriter):
            second.expire_now()
        assert second.get(T, 0, 5).count == 1
    assert bodies(world) == sent(world)


def test_the_first_writer_is_fenced_after_a_take_over_and_its_messages_stay_local(
    world: BrokerWorld, tmp_path: Path
) -> None:
    world.open()
    world.put(5)
    assert world.store.tier_now()
    world.clock.advance_ms(61_000)  # It was cut off from the tier for longer than its lease.
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True) as second:
        assert second.put(Message(T, b"other")).queue_offset == 5
        assert second.tier_now()
        world.put(5)
        assert not world.store.tier_now()
        tier: Any = world.store.status()["tier"]
        assert "lost" in tier["lease"]
        assert str(tmp_path / "second") in tier["lease"]
        with pytest.raises(StaleWriter):
            world.store.expire_now()
        assert second.get(T, 0, 5).messages[0].body == b"other"
    world.clock.advance_ms(120_000)  # The second one is gone; the first one still does not know what it wrote.
    assert not world.store.tier_now()
    assert bodies(world) == sent(world)
    for _ in range(3):  # Not now, not later, and not after a restart.
        world.close()
        world.clock.advance_ms(120_000)
        world.open()
        assert not world.store.tier_now()
    fenced: Any = world.store.status()["tier"]
    assert "gave numbers out" in fenced["fenced"]["orders-0"]
    world.close()
    with opened(tmp_path / "third", driver=world.driver, clock=world.clock, restore=True) as third:
        assert third.max_offset(T, 0) == 6
        assert [m.body for m in third.get(T, 0, 0).messages] == [*sent(world)[:5], b"other"]


def test_a_standby_takes_over_when_the_first_one_is_gone(world: BrokerWorld, tmp_path: Path) -> None:
    world.open()
    world.put(5)
    assert world.store.tier_now()
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True) as second:
        assert not second.tier_now() or second.tier.engine.status()["lease"] != "held"
        world.close()
        assert second.put(Message(T, b"mine")).queue_offset == 5
        assert second.tier_now()
        assert second.get(T, 0, 5, 1).messages[0].body == b"mine"


def test_a_standby_writes_no_index_into_the_tier(world: BrokerWorld, tmp_path: Path) -> None:
    world.open()
    world.put(400)
    assert world.store.tier_now()
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True) as second:
        before = [info.key for info in world.driver.list_segments()]
        assert second.tier.index is not None
        assert second.tier.index.is_complete
        second.tier.index.seal()
        for _ in range(3):
            second.tier.index.run_once()
        assert [info.key for info in world.driver.list_segments()] == before
        assert [m.queue_offset for m in second.query(T, "key-17").messages] == [16]
    assert [info.key for info in world.driver.list_segments()] == before
    assert world.store.tier.index is not None
    for _ in range(5):
        world.store.tier.index.run_once()
    assert [m.queue_offset for m in world.store.query(T, "key-17").messages] == [16]


def test_full_index_files_are_uploaded_when_the_store_is_closed(world: BrokerWorld) -> None:
    world.open()
    world.put(400)
    assert world.store.tier_now()
    world.close()
    assert [info for info in world.driver.list_segments() if "/INDEX/" in info.key.path]


def test_epochs_go_on_rising_when_the_lease_was_lost(world: BrokerWorld) -> None:
    world.open()
    world.put(5)
    assert world.store.tier_now()
    world.close()
    for name in world.driver.list_objects():
        if "lease" in name:
            world.driver.delete_object(name)
    world.open()
    world.put(5)
    assert world.store.tier_now()
    assert world.store.get(T, 0, 9).status is GetStatus.FOUND
