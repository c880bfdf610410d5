"""Tiered timers one by one, from the tier alone: those that wait, and none that was cancelled or delivered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from delivery.tiered_timers.tier_world import DAY_MS, NOW_MS, FarWorld
from tiermq import Message
from tiermq.delivery.tiered_timers.timer_discovery import discover_timers, waiting_in_tier
from tiermq.delivery.timer.timer_record import TieredTimer
from tiermq.message.properties import encode_properties
from tiermq.message.topic_name import TIMER_TOPIC
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.memory import MemoryDriver

DUE_MS = NOW_MS + 9 * DAY_MS
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_index_num": 1_000,
    "max_hash_slot_num": 100,
}


def records(path: Path, *properties: dict[str, str]) -> list[TieredTimer]:
    """Messages of the timer topic, as a store has them."""
    with LocalStore.open(path, background=False, **SIZES) as store:
        for each in properties:
            named = {"TIMER_OUT_MS": str(DUE_MS), "REAL_TOPIC": "orders", "REAL_QID": "3", **each}
            assert store.put(Message(TIMER_TOPIC, b"x", encoded_properties=encode_properties(named))).ok
        store.dispatch_now()
        found = []
        for offset, named in enumerate(properties):
            page = store.get(TIMER_TOPIC, 0, offset, 1)
            due_ms = int(page.messages[0].properties["TIMER_OUT_MS"])
            found.append(TieredTimer(due_ms, "TIMER_DEL_UNIQKEY" in named, bytes(page.data)))
        return found


def test_what_waits_is_reported_and_what_was_cancelled_or_delivered_is_not(tmp_path: Path) -> None:
    world = FarWorld(tmp_path, MemoryDriver())
    named = [{"UNIQ_KEY": "a", "KEYS": "k1 k2"}, {"UNIQ_KEY": "b"}, {}]
    cancel = {"UNIQ_KEY": "b", "TIMER_DEL_UNIQKEY": "orders+b"}
    other = {"UNIQ_KEY": "b", "TIMER_OUT_MS": str(DUE_MS + 1_000)}  # Due at another time: not what is cancelled.
    world.add([*records(tmp_path / "store", *named, cancel, other), TieredTimer(DUE_MS, False, b"no record")])
    [listing] = discover_timers(world.driver)
    found = list(waiting_in_tier(world.driver, listing, NOW_MS))
    assert [(each.unique_key, each.deliver_ms - DUE_MS) for each in found] == [
        ("a", 1_000),
        (None, 1_000),
        ("b", 2_000),
    ]
    assert (found[0].topic, found[0].queue_id, list(found[0].keys)) == ("orders", 3, ["k1", "k2"])
    assert [each.unique_key for each in waiting_in_tier(world.driver, listing, DUE_MS + 1_000)] == ["b"]
