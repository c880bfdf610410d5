"""One writer and one history: late restores, second brokers of the same name, take-overs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.brokers import send_command
from scenarios.broker_world import BrokerWorld
from servers.faulty_driver import Down
from servers.serving import Serving
from tier.tiered_world import bodies, opened, sent
from tiermq import GetStatus, Message, PutStatus
from tiermq.errors import StaleWriter, StoreDamaged, StoreLocked
from tiermq.remoting.client import BlockingClient
from tiermq.tier import open_tier, tier_wiring
from tiermq.tier.driver.contract import ANY
from tiermq.tier.names import QueueKey

T = "orders"
QUEUE = QueueKey("DefaultCluster", "broker-a", T, 0)


# Restoring late


def test_a_lost_disk_that_is_not_restored_is_noticed_and_nothing_in_the_tier_is_touched(world: BrokerWorld) -> None:
    world.open()
    world.put(50)
    assert world.store.flush_to_tier()
    before = {info.key: info.size for info in world.driver.list_segments()}
    world.erase_disk()
    with pytest.raises(StoreDamaged, match="tiermq tier restore"):
        world.open()
    world.driver.plan = Down()
    world.open()  # A tier that is out of reach cannot say what it has.
    world.store.put(Message(T, b"too early"))
    world.driver.plan = None
    world.clock.advance_ms(120_000)
    assert not world.store.flush_to_tier()
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
    assert world.store.flush_to_tier()
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
    assert world.store.flush_to_tier()
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
    assert world.store.flush_to_tier()
    for restore in (False, True):
        with pytest.raises(StoreLocked, match=rf"{world.disk} holds it.*another brokerName"):
            opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=restore)
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True, standby=True) as second:
        assert second.put(Message(T, b"other")).ok
        assert not second.flush_to_tier()
        tier: Any = second.status()["tier"]
        assert "standing by" in tier["lease"]
        assert str(world.disk) in tier["lease"]
        with pytest.raises(StaleWriter, match="holds it"):
            second.delete_topics([T])
        with pytest.raises(StaleWriter):
            second.expire_now()
        assert second.get(T, 0, 5).count == 1
    assert bodies(world) == sent(world)


def test_a_copy_of_a_directory_is_refused_while_the_original_runs_and_loses_nothing_afterwards(
    world: BrokerWorld, tmp_path: Path
) -> None:
    world.open()
    world.put(50)
    assert world.store.flush_to_tier()
    world.put(10)  # Acknowledged, and not in the tier yet.
    world.store.flush()
    copy = tmp_path / "copy"
    shutil.copytree(world.disk, copy)
    before = {info.key: info.size for info in world.driver.list_segments()}
    with pytest.raises(StoreLocked, match=rf"{world.disk} holds it.*same numbers to different messages"):
        opened(copy, driver=world.driver, clock=world.clock)
    assert {info.key: info.size for info in world.driver.list_segments()} == before
    world.put(10)
    assert world.store.flush_to_tier()
    assert bodies(world) == sent(world)
    world.close()
    # The original is gone. The copy is an older one of its disk now, and goes on behind what the tier has.
    with opened(copy, driver=world.driver, clock=world.clock) as second:
        assert second.put(Message(T, b"next")).queue_offset == 70
        assert second.flush_to_tier()
        assert [second.get(T, 0, offset, 1).messages[0].body for offset in range(71)] == [*sent(world), b"next"]
    with opened(world.disk, driver=world.driver, clock=world.clock) as first:
        assert first.max_offset(T, 0) == 71
        assert first.get(T, 0, 70).messages[0].body == b"next"


def test_of_two_stores_that_start_at_once_the_one_without_the_lease_takes_no_puts(
    world: BrokerWorld, tmp_path: Path
) -> None:
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    world.close()
    shutil.copytree(world.disk, tmp_path / "copy")
    world.open()
    with opened(tmp_path / "copy", driver=world.driver, clock=world.clock) as second:  # The lease is free.
        assert world.store.flush_to_tier()
        assert not second.flush_to_tier()
        assert second.status()["flags"] == ["FENCED"]
        assert second.put(Message(T, b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
        world.put(1)
        assert second.get(T, 0, 4).messages[0].body == sent(world)[4]
    assert bodies(world) == sent(world)


def test_a_broker_that_was_cut_off_and_replaced_takes_no_puts_once_it_knows(world: BrokerWorld, tmp_path: Path) -> None:
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    shutil.copytree(world.disk, tmp_path / "copy")
    world.clock.advance_ms(61_000)  # It was cut off from the tier for longer than its lease.
    with opened(tmp_path / "copy", driver=world.driver, clock=world.clock) as second:
        assert second.put(Message(T, b"other")).queue_offset == 5
        assert second.flush_to_tier()
        for _ in range(2):  # It asks for the lease, as its scheduler does three times in a term.
            world.store.flush_to_tier()
            world.clock.advance_ms(20_000)
        assert world.store.put(Message(T, b"mine")).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert second.get(T, 0, 5).messages[0].body == b"other"


def test_of_two_machines_of_one_name_the_first_takes_no_puts_once_it_knows(
    world: BrokerWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (open_tier, tier_wiring):
        monkeypatch.setattr(module, "lease_owner", lambda _config: "broker-0:/store")
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    shutil.copytree(world.disk, tmp_path / "copy")
    with opened(tmp_path / "copy", driver=world.driver, clock=world.clock) as second:
        assert second.put(Message(T, b"other")).queue_offset == 5
        assert second.flush_to_tier()
        for _ in range(3):
            world.clock.advance_ms(20_000)
            world.store.tier.engine.tick()
            second.tier.engine.tick()
        assert world.store.put(Message(T, b"mine")).status is PutStatus.SERVICE_NOT_AVAILABLE
        tier: Any = world.store.status()["tier"]
        assert "another broker-0:/store" in tier["lease"]
        assert second.put(Message(T, b"more")).queue_offset == 6
        assert second.flush_to_tier(), "the first does not take the lease back"


def test_a_copy_of_a_served_directory_starts_no_second_broker(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    with Serving(tmp_path / "one", "--tier", tier.as_uri()) as first:
        with BlockingClient("127.0.0.1", first.port, timeout_s=60) as client:
            assert client.request(send_command(T, b"x")).code == 0
        while not list(tier.rglob("lease.tiermq.json")):
            pass  # It takes the lease as soon as it runs.
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        with (
            pytest.raises(AssertionError, match="found another one at work"),
            Serving(tmp_path / "two", "--tier", tier.as_uri()),
        ):
            pass


def test_a_copy_of_a_directory_waits_for_the_lease_of_an_original_that_died(world: BrokerWorld, tmp_path: Path) -> None:
    world.open()
    world.put(50)
    assert world.store.flush_to_tier()
    world.kill()
    copy = tmp_path / "copy"
    shutil.copytree(world.disk, copy)
    with pytest.raises(StoreLocked, match="for another 60 s"):
        opened(copy, driver=world.driver, clock=world.clock)
    world.clock.advance_ms(60_000)
    with opened(copy, driver=world.driver, clock=world.clock) as second:
        assert second.put(Message(T, b"next")).queue_offset == 50
        assert second.flush_to_tier()


def test_a_lease_that_cannot_be_read_shuts_no_store_out(world: BrokerWorld, tmp_path: Path) -> None:
    world.open()
    world.put(50)
    assert world.store.flush_to_tier()
    world.driver.put_object(world.store.tier.lease.name, b"{", expected=ANY)
    world.kill()
    copy = tmp_path / "copy"
    shutil.copytree(world.disk, copy)
    with opened(copy, driver=world.driver, clock=world.clock) as second:
        assert second.max_offset(T, 0) == 50


def test_the_first_writer_is_fenced_after_a_take_over_and_its_messages_stay_local(
    world: BrokerWorld, tmp_path: Path
) -> None:
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    world.clock.advance_ms(61_000)  # It was cut off from the tier for longer than its lease.
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True) as second:
        assert second.put(Message(T, b"other")).queue_offset == 5
        assert second.flush_to_tier()
        world.put(5)
        assert not world.store.flush_to_tier()
        tier: Any = world.store.status()["tier"]
        assert "lost" in tier["lease"]
        assert str(tmp_path / "second") in tier["lease"]
        with pytest.raises(StaleWriter):
            world.store.expire_now()
        assert second.get(T, 0, 5).messages[0].body == b"other"
    world.clock.advance_ms(120_000)  # The second one is gone; the first one still does not know what it wrote.
    assert not world.store.flush_to_tier()
    assert bodies(world) == sent(world)
    for _ in range(3):  # Not now, not later, and not after a restart.
        world.close()
        world.clock.advance_ms(120_000)
        world.open()
        assert not world.store.flush_to_tier()
    fenced: Any = world.store.status()["tier"]
    assert "gave numbers out" in fenced["fenced"]["orders-0"]
    world.close()
    with opened(tmp_path / "third", driver=world.driver, clock=world.clock, restore=True) as third:
        assert third.max_offset(T, 0) == 6
        assert [m.body for m in third.get(T, 0, 0).messages] == [*sent(world)[:5], b"other"]


def test_a_standby_takes_over_when_the_first_one_is_gone(world: BrokerWorld, tmp_path: Path) -> None:
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True, standby=True) as second:
        assert not second.flush_to_tier() or second.tier.engine.status()["lease"] != "held"
        world.close()
        assert second.put(Message(T, b"mine")).queue_offset == 5
        assert second.flush_to_tier()
        assert second.get(T, 0, 5, 1).messages[0].body == b"mine"


def test_a_standby_writes_no_index_into_the_tier(world: BrokerWorld, tmp_path: Path) -> None:
    world.open()
    world.put(400)
    assert world.store.flush_to_tier()
    with opened(tmp_path / "second", driver=world.driver, clock=world.clock, restore=True, standby=True) as second:
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
    assert world.store.flush_to_tier()
    world.close()
    assert [info for info in world.driver.list_segments() if "/INDEX/" in info.key.path]


def test_epochs_go_on_rising_when_the_lease_was_lost(world: BrokerWorld) -> None:
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    world.close()
    for name in world.driver.list_objects():
        if "lease" in name:
            world.driver.delete_object(name)
    world.open()
    world.put(5)
    assert world.store.flush_to_tier()
    assert world.store.get(T, 0, 9).status is GetStatus.FOUND
