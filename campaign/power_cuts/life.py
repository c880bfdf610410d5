"""What power cuts happen to: `python -m campaign.power_cuts.life ROLE DIRECTORY FIRST`, until it is killed.

    tier      a store that tiers into a directory beside it, evicts what the tier has, and is read meanwhile
    timers    a store with timers that are due soon

It says `S number` before a put and `A number queue offset` after one that was acknowledged; a line is one `os.write`.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from pathlib import Path
from typing import Any

from crash.timer_child import SETTINGS as TIMERS
from crash.timer_child import STORE as TIMER_STORE
from tiermq import Message
from tiermq.clock import SystemClock
from tiermq.delivery.timer.timer_destination import TimerDestination
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.message.properties import encode_properties
from tiermq.store.local_store import LocalStore
from tiermq.tier.tiered_store import TieredStore

TIERED: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 20 * 200,
    "max_hash_slot_num": 64,
    "max_index_num": 400,
    "tiered_store_commit_log_max_size": 20_000,
    "tiered_store_consume_queue_max_size": 20 * 100,
    "tiered_store_index_file_max_hash_slot_num": 64,
    "tiered_store_index_file_max_index_num": 300,
    "flush_disk_type": "SYNC_FLUSH",
    "file_reserved_time": 0,
    "delete_commit_log_files_interval": 0,
    "broker_name": "broker-a",
    "tiered_store_group_commit_timeout": 0,
    "tier_manifest_interval": 200,
    "tier_dispatch_interval": 50,
}
QUEUES = 3


def body_of(number: int) -> bytes:
    return (b"%d " % number).ljust(20 + number * 37 % 600, b".")


def opened(directory: Path) -> TieredStore:
    """The store of the role `tier`."""
    return TieredStore.open(directory / "store", tier=(directory / "tier").as_uri(), **TIERED)


def tier(directory: Path, first: int) -> None:
    store = opened(directory)
    chance = random.Random(first)
    for number in itertools.count(first):
        queue_id = chance.randrange(QUEUES)
        _say(f"S {number}")
        result = store.put(Message("orders", body_of(number), queue_id, keys=[f"key-{number}"]))
        if result.ok:
            _say(f"A {number} {queue_id} {result.queue_offset}")
        if chance.random() < 0.01:
            store.flush_to_tier(60)
            store.clean_now()


def timers(directory: Path, first: int) -> None:
    with LocalStore.open(directory / "store", flush_disk_type="SYNC_FLUSH", **TIMER_STORE) as store:
        service = TimerService(store, str(directory / "store"), SystemClock(), TIMERS)
        service.start()
        chance = random.Random(first)
        for number in itertools.count(first):
            delay_ms = chance.choice((5, 50, 150, 450))
            asked = encode_properties({"TIMER_DELAY_MS": str(delay_ms), "UNIQ_KEY": f"K{number}"})
            place = service.place("T", 0, asked)
            assert isinstance(place, TimerDestination)
            _say(f"S {number}")
            if store.put(Message(place.topic, b"%d" % number, 0, encoded_properties=place.properties)).ok:
                _say(f"A {number} 0 0")


def _say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    {"tier": tier, "timers": timers}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
