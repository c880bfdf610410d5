"""CircuitBreaker: when a back end is down, know it at once instead of finding out again with every request.

    CLOSED ──failures in a row──► OPEN ──rest is over──► HALF_OPEN ──the probe is answered──► CLOSED
                                   ▲                        │
                                   └────the probe fails─────┘

CLOSED lets everything through. OPEN refuses everything until it has rested. HALF_OPEN lets one request through, the
probe, and refuses the others. Only the request that was let through in a state may move it from there: an answer that
comes late, to a question asked in an earlier state, changes nothing.
"""

from __future__ import annotations

import threading
from enum import Enum

from tiermq.clock import Clock
from tiermq.errors import IllegalTransition


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class BreakerEvent(Enum):
    TOO_MANY_FAILURES = "too many failures"
    RESTED = "rested"
    PROBE_ANSWERED = "probe answered"
    PROBE_FAILED = "probe failed"


_NEXT = {
    (BreakerState.CLOSED, BreakerEvent.TOO_MANY_FAILURES): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.RESTED): BreakerState.HALF_OPEN,
    (BreakerState.HALF_OPEN, BreakerEvent.PROBE_ANSWERED): BreakerState.CLOSED,
    (BreakerState.HALF_OPEN, BreakerEvent.PROBE_FAILED): BreakerState.OPEN,
}


def next_state(state: BreakerState, event: BreakerEvent) -> BreakerState:
    """The whole machine. Pure."""
    try:
        return _NEXT[state, event]
    except KeyError:
        raise IllegalTransition(f"expected an event that {state.value!r} knows, found {event.value!r}") from None


class CircuitBreaker:
    """Used from any thread; its lock guards every change."""

    def __init__(self, failures_max: int, rest_ms: int, clock: Clock) -> None:
        self._failures_max = failures_max
        self._rest_s = rest_ms / 1000
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._opened_at_s = 0.0
        self._era = 0  # Counts state changes; a permission belongs to the era in which it was given.
        self._probing = False

    @property
    def state(self) -> BreakerState:
        return self._state

    def admit(self) -> int | None:
        """A permission to send one request, to be given back by `answered` or `failed`; None: do not even try."""
        era = self._era
        if self._state is BreakerState.CLOSED:
            return era  # Read before the state: when that changes meanwhile, the permission is one of the past.
        with self._lock:
            if self._state is BreakerState.OPEN and self._clock.monotonic() - self._opened_at_s >= self._rest_s:
                self._move(BreakerEvent.RESTED)
            if self._state is BreakerState.OPEN or (self._state is BreakerState.HALF_OPEN and self._probing):
                return None
            self._probing = self._state is BreakerState.HALF_OPEN
            return self._era

    def answered(self, permission: int) -> None:
        """The back end said something, be it no: it is alive."""
        if self._failures == 0 and self._state is BreakerState.CLOSED:
            return  # Nothing to forget. A failure that is being counted just now came later, then.
        with self._lock:
            if permission != self._era:
                return
            self._failures = 0
            if self._state is BreakerState.HALF_OPEN:
                self._move(BreakerEvent.PROBE_ANSWERED)

    def failed(self, permission: int) -> None:
        with self._lock:
            if permission != self._era:
                return
            self._failures += 1
            if self._state is BreakerState.HALF_OPEN:
                self._move(BreakerEvent.PROBE_FAILED)
            elif self._failures >= self._failures_max:
                self._move(BreakerEvent.TOO_MANY_FAILURES)

    def _move(self, event: BreakerEvent) -> None:
        self._state = next_state(self._state, event)
        self._era += 1
        self._failures = 0
        self._probing = False
        if self._state is BreakerState.OPEN:
            self._opened_at_s = self._clock.monotonic()
