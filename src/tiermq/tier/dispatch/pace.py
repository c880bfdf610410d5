"""Pace: how fast the engine's threads may work without crowding out those that put.

All threads share one interpreter, and a put waits while another thread has it. As long as few messages come, nobody
notices, and the engine works as fast as it can. While they come by the hundred thousand a second (`is_hot`), turns are
taken one at a time, with rests between them so that they use no more than `share` of one processor: what waits is safe
in the local log, and a put is not made to wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

HOT_PUTS_PER_S = 200_000
SHARE = 0.2
SAMPLE_S = 0.02
REST_MAX_S = 0.05  # For a thread that asks whether it is to stop.


class Pace:
    """Any thread may call anything."""

    def __init__(
        self,
        put_count: Callable[[], int],
        *,
        share: float = SHARE,
        hot_puts_per_s: int = HOT_PUTS_PER_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._put_count = put_count
        self._share = share
        self._hot_puts_per_s = hot_puts_per_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._sampled_at_s = monotonic()
        self._sampled_count = put_count()
        self._free_at_s = 0.0
        self._busy = False
        self.is_hot = False

    def begin(self) -> float:
        """0: a turn may begin, and `end` must be called after it. Otherwise so many seconds are to be rested first."""
        with self._lock:
            now_s = self._monotonic()
            self._sample(now_s)
            if self.is_hot and (self._busy or now_s < self._free_at_s):
                return REST_MAX_S if self._busy else min(REST_MAX_S, self._free_at_s - now_s)
            self._busy = True
            return 0.0

    def end(self, processor_s: float) -> None:
        """A turn is over that used so much of a processor."""
        with self._lock:
            self._busy = False
            self._free_at_s = self._monotonic() + processor_s * (1 / self._share - 1)

    def _sample(self, now_s: float) -> None:
        passed_s = now_s - self._sampled_at_s
        if passed_s < SAMPLE_S:
            return
        count = self._put_count()
        self.is_hot = count - self._sampled_count > self._hot_puts_per_s * passed_s
        self._sampled_at_s, self._sampled_count = now_s, count
