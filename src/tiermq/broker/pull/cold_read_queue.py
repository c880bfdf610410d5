"""ColdReadQueue: queued pulls from the tier, while cold reads are throttled (`cold_pace`).

    enter ─► empty queue and the rate allows it ─► read at once
          └► waits ─► the rate allows it ─► read
                   ├► it waited too long ─► answered: retry later
                   └► its connection closed ─► dropped

The queue is served at least as often as the rate is updated.

Invariants: belongs to the loop's thread; first in, first out; each entry leaves exactly once, by `go`, `late`
or `gone`, which do not raise, unless the queue is closed.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tiermq.clock import Clock

LOOK_S = 0.1
HOT_PER_S = 1_000
"""Messages put and given from the local store: with fewer, cold reads are not throttled."""
PROCESS_SHARE_MAX = 0.75
"""Processors that this process may use before its interpreter counts as busy."""
IDLE_SHARE_MIN = 0.25
"""Of the machine's processors together."""
RATE_MAX = 1 << 30
PAGE_BYTES = 32 * 1024
"""The assumed size of a page before the first."""
TURN_S = 0.02
"""The minimum wait: a few pages per wake-up, not a wake-up for each."""


class Waiting(Protocol):
    """An entry with a peer."""

    @property
    def is_gone(self) -> bool: ...


W = TypeVar("W", bound=Waiting)


class ColdReadQueue(Generic[W]):
    """See the module. `wait_ms` is the maximum wait."""

    def __init__(
        self,
        pace: ColdReadThrottle,
        clock: Clock,
        wait_ms: Callable[[], int],
        go: Callable[[W], None],
        late: Callable[[W], None],
        gone: Callable[[W], None],
    ) -> None:
        self.pace = pace
        self.waited_count = 0
        """How many had to wait since the start."""
        self._clock = clock
        self._wait_ms = wait_ms
        self._go, self._late, self._gone = go, late, gone
        self._line: deque[tuple[float, W]] = deque()
        self._turn: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._line)

    def enter(self, waiting: W, loop: asyncio.AbstractEventLoop) -> None:
        """Serve it now, or queue it."""
        wait_s = self.pace.wait_s()
        if not self._line and not wait_s:
            self._go(waiting)
            return
        self.waited_count += 1
        self._line.append((self._clock.monotonic(), waiting))
        if self._turn is None:
            self._turn = loop.call_later(min(wait_s, LOOK_S), self._take_turn, loop)

    def close(self) -> None:
        """Drop all entries. From any thread: a later wake-up finds the queue empty."""
        self._line.clear()

    def _take_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn = None
        while self._line:
            entered_s, waiting = self._line[0]
            waited_ms = (self._clock.monotonic() - entered_s) * 1000
            if waiting.is_gone:
                leave = self._gone
            elif wait_s := self.pace.wait_s():
                if waited_ms <= self._wait_ms():
                    self._turn = loop.call_later(min(wait_s, LOOK_S), self._take_turn, loop)
                    return
                leave = self._late
            else:
                leave = self._go
            self._line.popleft()
            leave(waiting)


@dataclass(frozen=True, slots=True)
class Load:
    """What was seen since the last look."""

    hot_per_s: float
    process_share: float
    idle_share: float | None
    """None if the system does not report it."""


def next_rate(rate: float | None, load: Load, floor: int) -> float | None:
    """Bytes per second from now on; None: nothing is held back. See the table in the module."""
    if load.hot_per_s < HOT_PER_S or not floor:
        return None
    if load.process_share > PROCESS_SHARE_MAX or (load.idle_share is not None and load.idle_share < IDLE_SHARE_MIN):
        return float(floor) if rate is None else max(float(floor), rate / 2)
    if rate is None or rate * 1.5 > RATE_MAX:
        return None
    return rate * 1.5


class ColdReadThrottle:
    """The rate of cold reads beside hot work, so that producers and consumers are not slowed.

        fewer hot messages than HOT_PER_S              no throttle
        more, and spare capacity                       the rate grows by half at each update, until unlimited
        more, no spare capacity                        the floor at first; then half of the rate, at least the floor

    There is no spare capacity when this process keeps its interpreter busy, which one thread at a time can use, or when
    the machine has hardly a processor idle: then a cold reader's own client, on the same machine, takes from hot
    clients as well. Cold work costs in proportion to its bytes, here and at the client, so bytes are throttled: a
    bucket that fills by the rate, and from which each page is taken when it was given. A page may overdraw it; the next
    ones wait for that. A page that is still being fetched is taken at the size of those before it (`promise`), or a
    whole line could pass meanwhile.

    Invariants: `next_rate` is pure; everything belongs to the loop's thread. A floor of 0 throttles nothing.

    `hot_count` returns the number of messages put and read hot so far.
    """

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
        """0: a page may be read now. Otherwise the seconds to wait."""
        rate = self.rate
        if rate is None:
            return 0.0
        now_s = self._clock.monotonic()
        # What was not used for a while is not kept: a bucket that overflows would be a burst.
        self._level = min(rate * TURN_S, self._level + rate * (now_s - self._filled_s))
        self._filled_s = now_s
        return 0.0 if self._level > 0 else max(TURN_S, -self._level / rate)

    def promise(self) -> int:
        """Reserve for a page that must be fetched first; returns the reserved bytes, for `gave`."""
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
    report it. Time that a virtual machine was kept from its processors counts as busy.
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
