"""Arrivals: lets threads and event loops wait for messages that can be read. Counts nothing before the first wait."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

Call = Callable[[], None]


class Arrivals:
    """`note` is an arrival listener of the store, on its dispatching thread. `_changed` guards everything else."""

    def __init__(self) -> None:
        self.count = 0
        self.closed = False
        self._changed = threading.Condition()
        self._calls: tuple[Call, ...] = ()

    def note(self, *_arrival: object) -> None:
        """Something can be read that could not be before."""
        with self._changed:
            self.count += 1
            self._changed.notify_all()
            calls = self._calls
        for call in calls:
            call()

    def close(self) -> None:
        """End every wait, now and later."""
        with self._changed:
            self.closed = True
        self.note()

    def wait(self, seen: int, timeout_s: float) -> bool:
        """Wait until more has arrived than when `count` was `seen`; False after `timeout_s`, or when it is closed."""
        limit = None if math.isinf(timeout_s) else max(0.0, min(timeout_s, threading.TIMEOUT_MAX))
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self.count != seen, limit)
            return self.count != seen and not self.closed

    def call(self, call: Call) -> None:
        """Call back at each arrival, on any thread. It must not block."""
        with self._changed:
            self._calls = (*self._calls, call)

    def forget(self, call: Call) -> None:
        """Do not call back any more."""
        with self._changed:
            self._calls = tuple(each for each in self._calls if each is not call)
