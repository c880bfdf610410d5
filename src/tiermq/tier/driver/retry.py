"""RetryingDriver: retries with exponential backoff and jitter, behind a circuit breaker; meters every try.

Only TierUnavailable is retried: every other error comes from a back end that works. Retries are safe because every call
of the contract is idempotent. The wait doubles with each try up to a limit, and is then drawn at random between half
and all of it, so that many queues that failed together do not retry together.
When calls keep failing the circuit breaker opens: calls then fail at once, so no caller waits for longer than one round
of tries. `close` ends every wait.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from tiermq.clock import Clock, SystemClock
from tiermq.errors import TIER_REFUSALS, IllegalTransition, TierError, TierUnavailable
from tiermq.tier.driver.contract import READS, Buffer, ForwardingDriver, TierDriver
from tiermq.tier.driver.provider_metrics import ProviderMetrics
from tiermq.tier.names import SegmentKey


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
    """The transition table. Pure."""
    try:
        return _NEXT[state, event]
    except KeyError:
        raise IllegalTransition(f"expected an event of state {state.value!r}, found {event.value!r}") from None


_WRITES = frozenset({"write", "put_object", "put_chunk", "commit_chunks", "write_bundle", "replace", "rewrite"})
"""Operations that prove that the back end accepts writes; others may find nothing to do, and send no request."""


class CircuitBreaker:
    """Refuses requests while a back end is down.

        CLOSED ──failures in a row──► OPEN ──rest is over──► HALF_OPEN ──the probe is answered──► CLOSED
                                       ▲                        │
                                       └────the probe fails─────┘

    CLOSED admits every request. OPEN refuses all requests for `rest_ms`. HALF_OPEN admits one request, the probe. Only
    requests admitted in the current state change it: a late response to a request of an earlier state is ignored.
    Used from any thread; its lock guards every change.
    """

    def __init__(self, failures_max: int, rest_ms: int, clock: Clock) -> None:
        self._failures_max = failures_max
        self._rest_s = rest_ms / 1000
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._opened_at_s = 0.0
        self._era = 0  # Counts state changes; a permission is valid in its own era only.
        self._probing = False

    @property
    def state(self) -> BreakerState:
        return self._state

    def admit(self) -> int | None:
        """A permission to send one request, to be passed to `answered` or `failed`; None: the request is refused."""
        era = self._era
        if self._state is BreakerState.CLOSED:
            return era  # Read before the state: if the state changes meanwhile, the permission is outdated.
        with self._lock:
            if self._state is BreakerState.OPEN and self._clock.monotonic() - self._opened_at_s >= self._rest_s:
                self._move(BreakerEvent.RESTED)
            if self._state is BreakerState.OPEN or (self._state is BreakerState.HALF_OPEN and self._probing):
                return None
            self._probing = self._state is BreakerState.HALF_OPEN
            return self._era

    def answered(self, permission: int) -> None:
        """The back end responded, if only with a refusal."""
        if self._failures == 0 and self._state is BreakerState.CLOSED:
            return  # No failures to reset. A failure that is being counted right now came later.
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


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of tries and waits. The defaults give up after 4 tries and about 0.7 to 1.4 s of waiting."""

    tries_max: int = 4
    first_wait_ms: int = 200
    wait_max_ms: int = 5_000
    failures_max: int = 8  # In a row, over all threads, until the breaker opens.
    rest_ms: int = 10_000  # How long an open breaker refuses before it probes.

    def wait_ms(self, failed_tries: int, chance: float) -> float:
        """How long to wait after `failed_tries`; `chance` is a random number from 0 to 1. Pure."""
        longest_ms = min(self.wait_max_ms, self.first_wait_ms << (failed_tries - 1))
        return longest_ms * (0.5 + chance / 2)


class RetryingDriver(ForwardingDriver):
    """Used from any thread. `wait(seconds)` and `chance()` can be replaced by tests; `close` ends the default wait."""

    def __init__(
        self,
        inner: TierDriver,
        policy: RetryPolicy | None = None,
        *,
        metrics: ProviderMetrics | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        super().__init__(inner)
        self._policy = policy or RetryPolicy()
        self._metrics = metrics
        self._clock = clock or SystemClock()
        self._read_trouble: TierError | None = None
        self._write_trouble: TierError | None = None
        self.breaker = CircuitBreaker(self._policy.failures_max, self._policy.rest_ms, self._clock)
        self._chance = chance
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait

    def forward(self, operation: str, key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        failed_tries = 0
        while True:
            permission = self.breaker.admit()
            if permission is None:
                raise TierUnavailable(
                    f"{self.url}: no request sent, previous requests failed (circuit {self.breaker.state.value}). "
                    f"One probe is sent every {self._policy.rest_ms} ms; requests continue when it is answered."
                )
            began_s = self._clock.monotonic()
            try:
                result = call()
            except BaseException as error:
                if self._metrics is not None:
                    self._metrics.failed(operation, key, self._since_ms(began_s), error)
                failed_tries += 1
                if not self._may_retry(operation, error, permission, failed_tries):
                    raise
            else:
                if self._metrics is not None:
                    self._metrics.answered(operation, key, self._since_ms(began_s))
                self._note(operation, None)
                self.breaker.answered(permission)
                return result
            self._wait(self._policy.wait_ms(failed_tries, self._chance()) / 1000)

    def _since_ms(self, began_s: float) -> float:
        return (self._clock.monotonic() - began_s) * 1000

    @property
    def trouble(self) -> TierError | None:
        """Why the last write, or else the last read, could not use the back end; None when it could.

        A back end may answer reads and refuse writes: a read that is answered proves nothing for writes.
        """
        return self._write_trouble or self._read_trouble

    def _note(self, operation: str, trouble: TierError | None) -> None:
        if trouble is None:
            self._read_trouble = None
            if operation in _WRITES:
                self._write_trouble = None
        elif operation in READS:
            self._read_trouble = trouble
        else:
            self._write_trouble = trouble

    def _may_retry(self, operation: str, error: BaseException, permission: int, failed_tries: int) -> bool:
        """Note a failed try with the breaker; whether another one may follow."""
        if isinstance(error, TierUnavailable):
            self._note(operation, error)
            self.breaker.failed(permission)
            exhausted = failed_tries >= self._policy.tries_max or self._closed.is_set()
            return not exhausted and self.breaker.state is BreakerState.CLOSED
        if isinstance(error, TierError):
            self._note(operation, error if isinstance(error, TIER_REFUSALS) else None)
            self.breaker.answered(permission)
        else:
            # An interrupt or a bug here is no failure of the back end, but a probe must end.
            self.breaker.failed(permission)
        return False

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        is_confirmed = super().write(key, position, data)
        if self._metrics is not None:
            self._metrics.uploaded("write", key, sum(memoryview(buffer).nbytes for buffer in data))
        return is_confirmed

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        data = super().read(key, position, length)
        if self._metrics is not None:
            self._metrics.downloaded("read", key, len(data))
        return data

    def reread(self, key: SegmentKey, position: int, length: int) -> memoryview:
        data = super().reread(key, position, length)
        if self._metrics is not None:
            self._metrics.downloaded("reread", key, len(data))
        return data

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        super().rewrite(key, position, data)
        if self._metrics is not None:
            self._metrics.uploaded("rewrite", key, len(data))

    def close(self) -> None:
        self._closed.set()
        self.inner.close()
