"""Store directories before an offload: names, recovery, what waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.jobs.offload_world import STORE, TIER, OffloadWorld, fill
from tiermq import LocalStore, Message
from tiermq.clock import ManualClock
from tiermq.errors import BadConfig, StoreNotRecovered
from tiermq.history.scan_values import StorePlace
from tiermq.spark.jobs.offload_place import (
    parse_place,
    place_of,
    recover_store,
    require_free,
    require_topics,
    store_settings,
    waiting_in,
)
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseHeld
from tiermq.tier.tier_config import TierConfig


def test_a_place_is_a_directory_and_perhaps_two_names() -> None:
    assert parse_place("/a/b") == ("/a/b", None, None)
    assert parse_place("/a/b=c/d") == ("/a/b", "c", "d")
    for text in ("", "/a=", "/a=b", "/a=b/", "/a=/c", "/a=b/c/d", "=b/c"):
        with pytest.raises(BadConfig, match="DIR=cluster/broker"):
            parse_place(text)


def test_a_directory_that_was_tiered_knows_its_names(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    assert place_of(str(world.store)) == StorePlace(str(world.store), "DefaultCluster", "broker-a")
    fill(world.store, 5)
    world.offload()
    assert place_of(str(world.store)) == StorePlace(str(world.store), "c", "b")
    with pytest.raises(BadConfig, match="a second time"):
        place_of(f"{world.store}=c/x")


def test_the_sizes_of_a_store_are_told_from_its_files_so_that_it_can_be_recovered(tmp_path: Path) -> None:
    settings = {**STORE, "enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 4_096}
    with LocalStore.open(tmp_path, background=False, **settings) as store:
        for number in range(50):
            store.put(Message("T", b"x", tags="a", keys=[f"k{number}"], properties={"p": "v"}))
        store.dispatch_now()
    found = store_settings(tmp_path)
    assert {name: found[name] for name in settings if name in found} == {
        name: value for name, value in settings.items() if name in found
    }
    assert found["mapped_file_size_commit_log"] == STORE["mapped_file_size_commit_log"]
    assert not recover_store(str(tmp_path))
    (tmp_path / "abort").write_bytes(b"1")
    assert recover_store(str(tmp_path))
    assert not (tmp_path / "abort").exists()
    with LocalStore.open(tmp_path, background=False, **settings) as store:
        assert store.max_offset("T", 0) == 50
        assert len(store.query("T", "k7").messages) == 1


def test_what_waits_is_counted_without_touching_anything(tmp_path: Path) -> None:
    world = OffloadWorld(tmp_path)
    fill(world.store, 40)
    config = TierConfig(store_path_root_dir=str(world.store), **TIER)
    place = StorePlace(str(world.store), "c", "b")
    driver = open_driver(world.tier)
    before = sorted(path for path in tmp_path.rglob("*"))
    found = waiting_in(place, config, frozenset(), driver)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert sum(waiting.backlog.messages for waiting in found) == 40
    orders = waiting_in(place, config, frozenset({"orders"}), driver)
    assert {waiting.as_row()["topic"] for waiting in orders} == {"orders"}
    (world.store / "abort").write_bytes(b"1")
    with pytest.raises(StoreNotRecovered):
        waiting_in(place, config, frozenset(), driver)


def test_a_topic_that_one_of_the_stores_has_is_known(tmp_path: Path) -> None:
    places = []
    for name in ("orders", "payments"):
        with LocalStore.open(tmp_path / name, background=False) as store:
            store.put(Message(name, b"x", 0))
            store.dispatch_now()
        places.append(StorePlace(str(tmp_path / name), "c", name))
    require_topics(places, frozenset({"orders", "payments"}))
    with pytest.raises(BadConfig, match="no topic 'order' in these stores; did you mean 'orders'.*orders, payments"):
        require_topics(places, frozenset({"orders", "order"}))


def test_a_broker_is_free_unless_somebody_else_holds_it_now() -> None:
    driver, clock, place = MemoryDriver(), ManualClock(1_000_000), StorePlace("/s", "c", "b")
    require_free(driver, place, "me", clock)
    BrokerLease(driver, "c", "b", "me", term_ms=60_000, clock=clock).acquire()
    require_free(driver, place, "me", clock)
    with pytest.raises(LeaseHeld, match="found me at it, for another 60 s"):
        require_free(driver, place, "another", clock)
    clock.advance_ms(60_000)
    require_free(driver, place, "another", clock)
