"""TierTroubleFilter: one line a minute about a tier that cannot be used, however many parts of a broker log it.

Uploads, the key index, retention and timers each find out by themselves that a bucket is gone, and each logs it every
few seconds. Their lines have the error as an argument; of those this filter lets through the first, and then one in
every minute, which says how many were left out.
"""

from __future__ import annotations

import logging
import threading

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadTierUrl, TierCredentials, TierUnavailable

REST_S = 60.0
_TROUBLES = (TierUnavailable, TierCredentials, BadTierUrl)


class TierTroubleFilter(logging.Filter):
    """For a handler. Any thread; its lock guards the count."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._said_at_s: float | None = None
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        if not any(isinstance(each, _TROUBLES) for each in arguments):
            return True
        with self._lock:
            now_s = self._clock.monotonic()
            if self._said_at_s is not None and now_s - self._said_at_s < REST_S:
                self._left_out += 1
                return False
            left_out, self._left_out, self._said_at_s = self._left_out, 0, now_s
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out} lines about the tier were left out)", ()
        return True
