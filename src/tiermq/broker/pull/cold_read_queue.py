"""ColdPace: how fast pages of the tier are given out beside hot work, so that producers and consumers do not notice.

    fewer hot messages than HOT_PER_S              as fast as it goes
    more, and there is room                        the rate grows by half at each look, until nothing holds it back
    more, and no room                              the floor at first; from then on half of the rate, at least the floor

There is no room when this process keeps its interpreter busy, which one thread at a time can use, or when the machine
has hardly a processor idle: then a cold reader's own client, on the same machine, takes from hot clients as well. Cold
work costs in proportion to its bytes, here and at the client, so bytes are what is paced: a bucket that fills by the
rate, and from which each page is taken when it was given. A page may overdraw it; the next ones wait for that. A page
that is still being fetched is taken at the size of those before it (`promise`), or a whole line could pass meanwhile.

Invariants: `next_rate` is pure; everything belongs to the loop's thread. A floor of 0 paces nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from tiermq.clock import Clock

LOOK_S = 0.1
HOT_PER_S = 1_000
"""Messages put and given from the local store: with fewer nobody is in a cold reader's way."""
PROCESS_SHARE_MAX = 0.75
"""Processors that this process may use before its interpreter counts as busy."""
IDLE_SHARE_MIN = 0.25
"""Of the machine's processors together."""
RATE_MAX = 1 << 30
PAGE_BYTES = 32 * 1024
"""What a page is believed to have before one was seen."""
TURN_S = 0.02
"""Whoever waits, waits at least so long: a few pages at each turn, not a wake-up for each."""


@dataclass(frozen=True, slots=True)
class Load:
    """What was seen since the last look."""

    hot_per_s: float
    process_share: float
    idle_share: float | None
    """None where the system does not tell."""


def next_rate(rate: float | None, load: Load, floor: int) -> float | None:
    """Bytes per second from now on; None: nothing is held back. See the table in the module."""
    if load.hot_per_s < HOT_PER_S or not floor:
        return None
    if load.process_share > PROCESS_SHARE_MAX or (load.idle_share is not None and load.idle_share < IDLE_SHARE_MIN):
        return float(floor) if rate is None else max(float(floor), rate / 2)
    if rate is None or rate * 1.5 > RATE_MAX:
        return None
    return rate * 1.5


class ColdPace:
    """See the module. `hot_count` tells how many messages were put and given hot so far."""

    def __init__(
        self,
        clock: Clock,
        floor: Callable[[], int],
        hot_count: Callable[[], int],
        *,
        process_s: Callable[[], float] = time.process_time,
        machine_s: Callable[[], tuple[float, float] | None] | None = None,
    ) -> None:
        """`process_s`: processor time of this process; `machine_s`: idle and whole processor time of the machine."""
        self.rate: float | None = None
        self._clock = clock
        self._floor = floor
        self._hot_count = hot_count
        self._process_s = process_s
        self._machine_s = machine_s or machine_times
        self._level = 0.0
        self._page_bytes = float(PAGE_BYTES)
        self._filled_s = self._looked_s = clock.monotonic()
        self._seen = self._now()

    def look(self) -> None:
        """Called each `LOOK_S` or so: find the rate for the next while."""
        now_s = self._clock.monotonic()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if passed_s <= 0:
            return
        (hot, process_s, machine), self._seen = self._seen, self._now()
        idle_share = None
        if machine is not None and self._seen[2] is not None and self._seen[2][1] > machine[1]:
            idle_share = (self._seen[2][0] - machine[0]) / (self._seen[2][1] - machine[1])
        load = Load((self._seen[0] - hot) / passed_s, (self._seen[1] - process_s) / passed_s, idle_share)
        rate = next_rate(self.rate, load, self._floor())
        if rate is not None and self.rate is None:
            self._level, self._filled_s = 0.0, now_s
        self.rate = rate

    def wait_s(self) -> float:
        """0: a page may be given now. Otherwise nothing changes for so many seconds."""
        rate = self.rate
        if rate is None:
            return 0.0
        now_s = self._clock.monotonic()
        # What was not used for a while is not kept: a bucket that overflows would be a burst.
        self._level = min(rate * TURN_S, self._level + rate * (now_s - self._filled_s))
        self._filled_s = now_s
        return 0.0 if self._level > 0 else max(TURN_S, -self._level / rate)

    def promise(self) -> int:
        """A page will be given that must be fetched first: what was taken for it, which `gave` is to be told."""
        promised = 0 if self.rate is None else int(self._page_bytes)
        self._level -= promised
        return promised

    def gave(self, byte_count: int, promised: int = 0) -> None:
        """A page of the tier was given; 0 bytes when there was none after all."""
        if byte_count:
            self._page_bytes += (byte_count - self._page_bytes) / 8
        if self.rate is not None:
            self._level -= byte_count - promised

    def _now(self) -> tuple[int, float, tuple[float, float] | None]:
        return self._hot_count(), self._process_s(), self._machine_s()


def machine_times() -> tuple[float, float] | None:
    """Idle and whole time of all processors since the machine started, in the system's ticks; None where it does not
    tell. Time that a virtual machine was kept from its processors counts as busy.
    """
    try:
        place = os.open("/proc/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        line = os.read(place, 256).split(b"\n", 1)[0].split()
    finally:
        os.close(place)
    ticks = [int(word) for word in line[1:9]]  # user nice system idle iowait irq softirq steal; the rest is in user.
    return float(ticks[3] + ticks[4]), float(sum(ticks))
