"""The process that the kill test of delay levels kills: `python delay_child.py <store> <first number>`.

It puts numbered messages into three levels, delivers what is due, and says the number of each message that was
acknowledged, one line each, written by one `os.write`. Its clock is moved ahead with every few messages, so that much
is due all the time, and offsets are written down often; the next process begins with a clock that was set back.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import Any

from tiermq import Message
from tiermq.delivery.delay_levels import DelayLevels
from tiermq.message.topic_name import SCHEDULE_TOPIC
from tiermq.store.local_store import LocalStore
from tiermq.testing.local_broker import MovableClock

STORE: dict[str, Any] = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 500,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
}
LEVELS = 3
FLUSH_INTERVAL_MS = 3_000


def main(root: str, first: int) -> None:
    clock = MovableClock()
    with LocalStore.open(root, clock=clock, **STORE) as store:
        delivery = DelayLevels(store, f"{root}/config", clock, FLUSH_INTERVAL_MS)
        delivery.start()
        for number in itertools.count(first):
            level = number % LEVELS + 1
            properties = {"DELAY": str(level), "REAL_TOPIC": "T", "REAL_QID": str(level)}
            if store.put(Message(SCHEDULE_TOPIC, str(number).encode(), level - 1, properties=properties)).ok:
                os.write(1, f"{number}\n".encode())
            if number % 5 == 0:
                clock.advance(0.7)
                delivery.wake()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
