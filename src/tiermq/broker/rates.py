"""Rates: how fast totals grew lately, by name.

    note({"orders": 120}) … note({"orders": 180}) ten seconds later ─► per_second("orders") == 6.0

Invariants: a rate is the growth between the oldest and the newest note of the last minute over the time between them; a
total that went down began anew; a name that the oldest note does not have counts from 0. Any thread may ask, one notes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from tiermq.clock import Clock

WINDOW_MS = 60_000
NOTE_PERIOD_S = 10.0
K = TypeVar("K", bound=Hashable)


class Rates(Generic[K]):
    """See the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._notes: deque[tuple[int, Mapping[K, int]]] = deque([(clock.now_ms(), {})])

    def note(self, totals: Mapping[K, int]) -> None:
        now_ms = self._clock.now_ms()
        self._notes.append((now_ms, dict(totals)))
        while len(self._notes) > 2 and now_ms - self._notes[1][0] >= WINDOW_MS:
            self._notes.popleft()

    def per_second(self, name: K) -> float:
        notes = tuple(self._notes)
        (first_ms, first), (last_ms, last) = notes[0], notes[-1]
        if last_ms <= first_ms:
            return 0.0
        now, before = last.get(name, 0), first.get(name, 0)
        return (now if now < before else now - before) * 1_000 / (last_ms - first_ms)
