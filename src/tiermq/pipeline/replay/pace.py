"""Pace: the throttle of a replay, in messages per second."""

from __future__ import annotations

import time
from collections.abc import Callable

AT_ONCE = 1000
RATE_STEPS_PER_SECOND = 10


class Pace:
    """Waits so that on the average no more than `rate` messages per second go through; None is no limit."""

    def __init__(
        self, rate: float | None, now_s: Callable[[], float] = time.monotonic, *, at_once: int = AT_ONCE
    ) -> None:
        self._rate = rate
        self._now_s = now_s
        self._began_s: float | None = None
        self._count = 0
        steps = at_once if rate is None else int(rate / RATE_STEPS_PER_SECOND)
        self.at_once = max(1, min(at_once, steps))

    def after(self, count: int) -> float:
        """How long to wait after `count` messages more, in seconds; 0 if they are due already."""
        if self._rate is None:
            return 0.0
        now_s = self._now_s()
        if self._began_s is None:
            self._began_s = now_s
        self._count += count
        return max(0.0, self._began_s + self._count / self._rate - now_s)
