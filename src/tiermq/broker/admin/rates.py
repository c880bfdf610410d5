"""Rates: how much totals grew in the last minute, hour and day, by name.

    note({"orders": 120}) … note({"orders": 180}) ten seconds later ─► per_second("orders") == 6.0

Each window is a row of steps; a step keeps what grew within it, so a name that is idle costs nothing.

Invariants: a window has whole steps, the newest may be open, and no step that ended before the window begins; a total
that went down was reset and counts from 0. Any thread may ask, one notes.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from tiermq.clock import Clock

NOTE_PERIOD_S = 10.0
K = TypeVar("K", bound=Hashable)


class Window(enum.Enum):
    """(how long it is, how long its steps are), both in ms."""

    MINUTE = (60_000, 0)
    HOUR = (3_600_000, 600_000)
    DAY = (86_400_000, 3_600_000)


class Grown(NamedTuple):
    """What grew within a window, and the time that the window covers so far."""

    total: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.total / self.seconds if self.seconds > 0 else 0.0


class Rates(Generic[K]):
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._noted_ms = clock.now_ms()
        self._totals: Mapping[K, int] = {}
        self._steps: dict[Window, deque[tuple[int, int, Mapping[K, int]]]] = {each: deque() for each in Window}

    def note(self, totals: Mapping[K, int]) -> None:
        before, self._totals = self._totals, dict(totals)
        grown = {}
        for name, now in totals.items():
            if now != (then := before.get(name, 0)):
                grown[name] = now - then if now > then else now
        begin_ms, self._noted_ms = self._noted_ms, self._clock.now_ms()
        for window, steps in self._steps.items():
            span_ms, step_ms = window.value
            if steps and self._noted_ms - steps[-1][0] <= step_ms:
                first_ms, _, known = steps.pop()
                merged = {**known, **{name: known.get(name, 0) + count for name, count in grown.items()}}
                steps.append((first_ms, self._noted_ms, merged))
            else:
                steps.append((begin_ms, self._noted_ms, grown))
            while len(steps) > 1 and steps[0][1] <= self._noted_ms - span_ms:
                steps.popleft()

    def grown(self, name: K, window: Window) -> Grown:
        steps = tuple(self._steps[window])
        if not steps:
            return Grown(0, 0.0)
        return Grown(sum(each.get(name, 0) for _, _, each in steps), (steps[-1][1] - steps[0][0]) / 1000)

    def per_second(self, name: K) -> float:
        """Over the last minute."""
        return self.grown(name, Window.MINUTE).per_second
