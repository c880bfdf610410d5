"""A process with a million timers, which a test kills: `python -m delivery.timer.million_waiting STORE COUNT AHEAD_S`.

With its clock at now it puts what is missing of the numbered timers and takes them into the wheel; with the clock so
many seconds ahead it delivers what is due. A line on its output shows each step: `waiting N`, `delivered N`, and at the
end `done N` with the most memory of its own that it had. Until then nothing is flushed but by the service itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tiermq import Message
from tiermq.delivery.timer.timer_destination import TimerDestination
from tiermq.delivery.timer.timer_service import TimerService
from tiermq.message.properties import encode_properties
from tiermq.message.topic_name import TIMER_TOPIC
from tiermq.store.local_store import LocalStore
from tiermq.testing.local_broker import MovableClock

STORE: dict[str, Any] = {"mapped_file_size_commit_log": 64 << 20, "message_index_enable": False}
BATCH = 20_000
NUMBER_BYTES = 4
FIRST_S, SPREAD_S = 3_600, 36_000
"""Due from in an hour on, over ten hours: with a million, 28 in each second."""


class Program:
    """See the module."""

    def __init__(self, root: str, ahead_s: int) -> None:
        self.clock = MovableClock()
        self.begin_ms = self.clock.now_ms()
        self.clock.advance(ahead_s)
        self.store = LocalStore.open(root, clock=self.clock, **STORE)
        self.timers = TimerService(self.store, root, self.clock)
        self.own_bytes_max = 0

    def tell(self, line: str) -> None:
        self.own_bytes_max = max(self.own_bytes_max, own_bytes())
        os.write(1, f"{line}\n".encode())

    def fill(self, count: int) -> None:
        """Numbers go in order, so the length of the timer topic says which are missing."""
        self.store.dispatch_now()
        number = self.store.max_offset(TIMER_TOPIC, 0)
        while number < count or self.timers.behind_count:
            for each in range(number, min(number + BATCH, count)):
                self.put(each)
            number = min(number + BATCH, count)
            self.store.dispatch_now()
            while self.timers.behind_count:
                self.timers.run_once()
            self.tell(f"waiting {self.timers.waiting_count}")

    def put(self, number: int) -> None:
        # 7,919 is a prime, so neighbours lie far apart in the wheel.
        due_ms = self.begin_ms + (FIRST_S + number * 7_919 % SPREAD_S) * 1_000
        asked = encode_properties({"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"K{number}"})
        place = self.timers.place("T", 0, asked)
        assert isinstance(place, TimerDestination)
        body = number.to_bytes(NUMBER_BYTES)
        assert self.store.put(Message(place.topic, body, 0, encoded_properties=place.properties)).ok

    def deliver(self) -> None:
        reported = 0
        while self.timers.waiting_count or self.timers.behind_count:
            self.timers.run_once()
            if self.timers.counts.delivered - reported >= BATCH:
                reported = self.timers.counts.delivered
                self.tell(f"delivered {reported}")

    def end(self) -> None:
        assert self.timers.counts.skipped == 0
        self.timers.finish()
        self.timers.close()
        self.store.close()
        self.tell(f"done {self.own_bytes_max}")


def own_bytes() -> int:
    """Memory of the process' own, without the pages of mapped files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def main(root: str, count: int, ahead_s: int) -> None:
    program = Program(root, ahead_s)
    if ahead_s == 0:
        program.fill(count)
    else:
        program.deliver()
    program.end()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
