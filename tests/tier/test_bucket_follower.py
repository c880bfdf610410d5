"""A store that only reads a tier: it follows what another broker uploads, and never writes there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from scenarios.broker_world import SETTINGS, BrokerWorld
from simulation.manual_clock import ManualClock
from tier.tiered_world import opened
from tiermq import Message
from tiermq.errors import StaleWriter, TierUnavailable
from tiermq.tier.driver.contract import READS, ForwardingDriver, ReadOnlyDriver, TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.names import SegmentKey
from tiermq.tier.tiered_store import TieredStore

Result = TypeVar("Result")


class Counting(ForwardingDriver):
    """Counts the calls that reach the back end."""

    def __init__(self, inner: TierDriver) -> None:
        super().__init__(inner)
        self.calls: list[str] = []

    def forward(self, operation: str, _key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        self.calls.append(operation)
        return call()


class Away(ForwardingDriver):
    """Does not answer, while `is_away`."""

    is_away = True

    def forward(self, _operation: str, _key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        if self.is_away:
            raise TierUnavailable("no answer")
        return call()


@pytest.fixture
def world(tmp_path: Path) -> BrokerWorld:
    made = BrokerWorld(tmp_path / "writer")
    made.open()
    return made


def reader(path: Path, world: BrokerWorld, driver: TierDriver | None = None, **more: Any) -> TieredStore:
    return opened(path, driver=driver or world.driver, clock=world.clock, reader=True, broker_role="SLAVE",
                  with_replication=True, **more)  # fmt: skip


def look(store: TieredStore, clock: ManualClock) -> None:
    clock.advance_ms(10_000)
    store.refresh_tier()
    assert store.tier.index is not None
    store.tier.index.run_once()


def read(store: TieredStore, topic: str = "orders") -> list[bytes]:
    found: list[bytes] = []
    while page := store.get(topic, 0, len(found)).messages:
        found += [each.body for each in page]
    return found


def test_a_reader_shows_what_another_store_uploads_as_it_grows(world: BrokerWorld, tmp_path: Path) -> None:
    world.put(60)
    assert world.store.flush_to_tier()
    with reader(tmp_path / "reader", world) as store:
        assert read(store) == [each.body for each in world.sent["orders", 0]]
        grown: list[tuple[str, int, int]] = []
        store.on_growth(lambda *growth: grown.append(growth))
        world.put(40)
        world.put(5, "later")
        assert world.store.flush_to_tier()
        look(store, world.clock)
        assert read(store) == [each.body for each in world.sent["orders", 0]]
        assert read(store, "later") == [each.body for each in world.sent["later", 0]]
        assert sorted(grown) == [("later", 0, 5), ("orders", 0, 100)]


def test_a_reader_finds_every_key_also_before_the_index_is_uploaded(world: BrokerWorld, tmp_path: Path) -> None:
    world.put(60)
    assert world.store.flush_to_tier()
    with reader(tmp_path / "reader", world) as store:
        look(store, world.clock)
        world.put(60)
        assert world.store.flush_to_tier()
        world.clock.advance_ms(10_000)
        assert store.refresh_tier()
        assert not store.query("orders", world.sent["orders", 0][-1].keys[0]).complete, "seen, and not indexed yet"
        look(store, world.clock)
        for each in world.sent["orders", 0]:
            page = store.query("orders", each.keys[0])
            assert page.complete
            assert [message.body for message in page.messages] == [each.body]


def test_a_reader_finds_offsets_by_time(world: BrokerWorld, tmp_path: Path) -> None:
    for _ in range(5):
        world.put(10)
        world.clock.advance_ms(60_000)
    assert world.store.flush_to_tier()
    with reader(tmp_path / "reader", world) as store:
        for each in world.sent["orders", 0][::10]:
            assert store.offset_at("orders", 0, each.store_ms) == world.store.offset_at("orders", 0, each.store_ms)


def test_a_reader_sends_no_write_to_the_back_end(world: BrokerWorld, tmp_path: Path) -> None:
    world.put(60)
    assert world.store.flush_to_tier()
    counting = Counting(world.driver)
    with reader(tmp_path / "reader", world, counting) as store:
        world.put(60)
        assert world.store.flush_to_tier()
        look(store, world.clock)
        assert len(read(store)) == 120
        assert store.query("orders", world.sent["orders", 0][0].keys[0]).messages
        with pytest.raises(StaleWriter):
            store.expire_now()
    assert set(counting.calls) <= READS
    assert "list_segments" in counting.calls


def test_a_reader_drops_what_the_writer_has_expired_or_deleted(world: BrokerWorld, tmp_path: Path) -> None:
    world.put(60)
    world.put(5, "other")
    assert world.store.flush_to_tier()
    with reader(tmp_path / "reader", world) as store:
        assert set(store.topics()) == {"orders", "other"}
        world.clock.advance_ms(100 * 3_600_000)
        world.put(1)
        assert world.store.flush_to_tier()
        world.store.expire_now()
        world.store.delete_topics(["other"])
        look(store, world.clock)
        assert store.min_offset("orders", 0) == world.store.tier.files.find("orders", 0).min_offset  # type: ignore[union-attr]
        assert store.min_offset("orders", 0) > 0
        assert read_from(store, "orders", store.min_offset("orders", 0))[-1] == world.sent["orders", 0][-1].body
        assert store.max_offset("other", 0) == 0


def read_from(store: TieredStore, topic: str, offset: int) -> list[bytes]:
    return [each.body for each in store.get(topic, 0, offset).messages]


def test_a_reader_that_is_opened_again_trusts_the_tier_and_not_its_directory(
    world: BrokerWorld, tmp_path: Path
) -> None:
    world.put(20)
    assert world.store.flush_to_tier()
    with reader(tmp_path / "reader", world) as store:
        assert len(read(store)) == 20
    other = MemoryDriver()
    with TieredStore.open(tmp_path / "third", driver=other, background=False, clock=world.clock, **SETTINGS) as third:
        third.put(Message("orders", b"of another tier"))
        assert third.flush_to_tier()
    with reader(tmp_path / "reader", world, other) as store:
        assert read(store) == [b"of another tier"]


def test_a_reader_of_a_tier_that_does_not_answer_opens_and_catches_up_later(world: BrokerWorld, tmp_path: Path) -> None:
    world.put(20)
    assert world.store.flush_to_tier()
    away = Away(world.driver)
    with reader(tmp_path / "reader", world, away) as store:
        assert read(store) == []
        away.is_away = False
        look(store, world.clock)
        assert len(read(store)) == 20


def test_a_read_only_driver_refuses_every_call_that_writes() -> None:
    driver = ReadOnlyDriver(MemoryDriver())
    with pytest.raises(StaleWriter):
        driver.put_object("a.tiermq.json", b"{}")
    assert driver.get_object("a.tiermq.json") is None
