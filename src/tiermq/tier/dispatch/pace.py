"""Pace: how the engine's threads work without crowding out those that put.

All threads share one interpreter, and a put waits while another thread has it. As long as few messages come, nobody
notices, and the engine works as fast as it can. While many come (`is_paced`):

* turns are taken one at a time, with rests between them, so that they use no more than a share of one processor;
* a turn takes `batch_factor` times as many messages. The interpreter is taken and given back some forty times in a
  turn, however large it is; the copying, writing and indexing in between is done without it. So a larger turn brings
  more messages into the tier for the same number of times that a put had to wait.

What waits is safe in the local log, and a put is not made to wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

REST_MAX_S = 0.05
BUSY_REST_S = 0.5  # While another thread works: whoever only looks takes the interpreter too, from it and from puts.


@dataclass(frozen=True, slots=True)
class PaceSettings:
    """When to hold back, and how. `put_rate` 0: never."""

    put_rate: int = 200_000  # Puts a second.
    cpu_percent: int = 50  # Of one processor.
    batch_factor: int = 4
    sample_ms: int = 20


class Pace:
    """Any thread may call anything."""

    def __init__(
        self,
        put_count: Callable[[], int],
        settings: PaceSettings | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`put_count` tells how many messages were put so far."""
        self._put_count = put_count
        self._settings = settings or PaceSettings()
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._sampled_at_s = monotonic()
        self._sampled_count = put_count()
        self._free_at_s = 0.0
        self._busy = False
        self._is_paced = False

    @property
    def is_paced(self) -> bool:
        """Whether turns are held back now."""
        with self._lock:
            self._sample(self._monotonic())
            return self._is_paced

    @property
    def batch_factor(self) -> int:
        """How many times larger than usual the batch of a turn may be. As the last look at the puts found it."""
        return self._settings.batch_factor if self._is_paced else 1

    def begin(self) -> float:
        """0: a turn may begin, and `end` must be called after it. Otherwise so many seconds are to be rested first."""
        with self._lock:
            now_s = self._monotonic()
            self._sample(now_s)
            if self._is_paced and (self._busy or now_s < self._free_at_s):
                return BUSY_REST_S if self._busy else min(REST_MAX_S, self._free_at_s - now_s)
            self._busy = True
            return 0.0

    def end(self, processor_s: float) -> None:
        """A turn is over that used so much of a processor."""
        with self._lock:
            self._busy = False
            self._free_at_s = self._monotonic() + processor_s * (100 / self._settings.cpu_percent - 1)

    def _sample(self, now_s: float) -> None:
        settings = self._settings
        passed_s = now_s - self._sampled_at_s
        if not settings.put_rate or passed_s * 1000 < settings.sample_ms:
            return
        count = self._put_count()
        self._is_paced = count - self._sampled_count > settings.put_rate * passed_s
        self._sampled_at_s, self._sampled_count = now_s, count
