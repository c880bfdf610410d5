"""ColdLine: pulls from the tier that wait their turn, while cold reads are paced (`cold_pace`).

    enter ─► nobody waits and the pace allows it ─► goes at once
          └► waits ─► its turn comes ─► goes
                   ├► it waited too long ─► told to come back
                   └► its connection closed ─► dropped

A turn comes at least as often as the pace is looked at, because it may have changed.

Invariants: belongs to the loop's thread; first come, first served; whoever enters leaves exactly once, by `go`, `late`
or `gone`, which do not raise, unless the line is closed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from tiermq.broker.cold_pace import LOOK_S, ColdPace
from tiermq.clock import Clock


class Waiting(Protocol):
    """Somebody with a peer."""

    @property
    def is_gone(self) -> bool: ...


W = TypeVar("W", bound=Waiting)


class ColdLine(Generic[W]):
    """See the module. `wait_ms` says how long is too long."""

    def __init__(
        self,
        pace: ColdPace,
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
        """Let it go now, or when its turn comes."""
        wait_s = self.pace.wait_s()
        if not self._line and not wait_s:
            self._go(waiting)
            return
        self.waited_count += 1
        self._line.append((self._clock.monotonic(), waiting))
        if self._turn is None:
            self._turn = loop.call_later(min(wait_s, LOOK_S), self._take_turn, loop)

    def close(self) -> None:
        """Nobody who waits has a turn any more. From any thread: a turn that comes finds nobody."""
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
