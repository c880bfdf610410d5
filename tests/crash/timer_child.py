"""The process that the kill test of timers kills: `python timer_child.py <store> <first number>`.

It puts timers that are due soon, delivers what is due, and says the number of each timer that was acknowledged, one
line each, written by one `os.write`. Its wheel turns quickly and is written down often: a kill meets every step.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from typing import Any

from tiermq import Message
from tiermq.clock import SystemClock
from tiermq.delivery.timer.timer_destination import TimerDestination
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.delivery.timer.timer_state import TimerSettings
from tiermq.message.properties import encode_properties
from tiermq.store.local_store import LocalStore

STORE: dict[str, Any] = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 500,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}
SETTINGS = TimerSettings(precision_ms=10, flush_interval_ms=30, roll_window_slots=20, log_file_bytes=8192, slots=10_000)
"""Timers that are due in more than 200 ms roll."""


def main(root: str, first: int) -> None:
    with LocalStore.open(root, **STORE) as store:
        timers = TimerService(store, root, SystemClock(), SETTINGS)
        timers.start()
        chance = random.Random(first)
        for number in itertools.count(first):
            delay_ms = chance.choice((5, 50, 150, 450))
            asked = encode_properties({"TIMER_DELAY_MS": str(delay_ms), "UNIQ_KEY": f"K{number}"})
            place = timers.place("T", 0, asked)
            assert isinstance(place, TimerDestination)
            message = Message(place.topic, str(number).encode(), 0, encoded_properties=place.properties)
            if store.put(message).ok:
                os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
