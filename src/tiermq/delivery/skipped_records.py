"""SkippedRecords: records of an internal log that its reader could not use. All are counted, few are logged.

Anything may lie in a log: bytes of another version, or what a client wrote while that was allowed. A reader passes over
what it cannot use and goes on; a million such records must not become a million lines.
"""

from __future__ import annotations

import logging
import threading

from tiermq.clock import Clock

_log = logging.getLogger(__name__)

LINES_FIRST = 10
"""Logged one by one; what follows is summed up."""
LINE_INTERVAL_S = 60.0


class SkippedRecords:
    """Of one log. Any thread may call."""

    def __init__(self, what: str, clock: Clock) -> None:
        self.count = 0
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._unlogged = 0
        self._logged_s = clock.monotonic()

    def add(self, where: str, reason: object) -> None:
        """One record was passed over."""
        with self._lock:
            self.count += 1
            now_s = self._clock.monotonic()
            if self.count > LINES_FIRST and now_s - self._logged_s < LINE_INTERVAL_S:
                self._unlogged += 1
                return
            unlogged, self._unlogged, self._logged_s = self._unlogged, 0, now_s
        more = f"; {unlogged} others since the last line" if unlogged else ""
        _log.error("%s: skipped at %s: %s%s", self._what, where, str(reason)[:300], more)
