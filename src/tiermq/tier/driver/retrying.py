"""RetryingDriver: tries again what may succeed on another try, waits longer each time, and gives up in good time.

Only TierUnavailable is tried again: every other answer comes from a back end that is alive. Trying again is harmless
because every call of the contract is. The wait doubles with each try up to a limit, and is then drawn at random between
half and all of it, so that a thousand queues that failed together do not come back together.
When calls keep failing the circuit breaker opens: calls then fail at once, so nobody above is ever held up for longer
than one round of tries. `close` ends every wait.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tiermq.clock import Clock, SystemClock
from tiermq.errors import TIER_REFUSALS, TierError, TierUnavailable
from tiermq.tier.driver.circuit_breaker import BreakerState, CircuitBreaker
from tiermq.tier.driver.contract import ANY, Buffer, Expected, SegmentInfo, StoredObject, TierDriver
from tiermq.tier.names import SegmentKey

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how long. The defaults give up after 4 tries and about 0.7 to 1.4 s of waiting."""

    tries_max: int = 4
    first_wait_ms: int = 200
    wait_max_ms: int = 5_000
    failures_max: int = 8  # In a row, over all threads, until the breaker opens.
    rest_ms: int = 10_000  # How long an open breaker refuses before it probes.

    def wait_ms(self, failed_tries: int, chance: float) -> float:
        """How long to wait after that many failed tries; `chance` is drawn from 0..1. Pure."""
        longest_ms = min(self.wait_max_ms, self.first_wait_ms << (failed_tries - 1))
        return longest_ms * (0.5 + chance / 2)


class RetryingDriver:
    """Used from any thread. `wait(seconds)` and `chance()` are seams; by default waiting ends when it is closed."""

    def __init__(
        self,
        inner: TierDriver,
        policy: RetryPolicy | None = None,
        *,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.inner = inner
        self._policy = policy or RetryPolicy()
        self.trouble: TierError | None = None
        """Why the back end could not be used by the last call that ended; None when it could."""
        self.breaker = CircuitBreaker(self._policy.failures_max, self._policy.rest_ms, clock or SystemClock())
        self._chance = chance
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait

    @property
    def url(self) -> str:
        return self.inner.url

    def _call(self, call: Callable[[], Result]) -> Result:
        failed_tries = 0
        while True:
            permission = self.breaker.admit()
            if permission is None:
                raise TierUnavailable(
                    f"{self.url}: not tried, because the calls before failed (circuit {self.breaker.state.value}). "
                    f"One probe is sent every {self._policy.rest_ms} ms; everything continues when it is answered."
                )
            try:
                result = call()
            except TierUnavailable as error:
                self.trouble = error
                self.breaker.failed(permission)
                failed_tries += 1
                exhausted = failed_tries >= self._policy.tries_max or self._closed.is_set()
                if exhausted or self.breaker.state is not BreakerState.CLOSED:
                    raise
            except TierError as error:
                self.trouble = error if isinstance(error, TIER_REFUSALS) else None
                self.breaker.answered(permission)
                raise
            except BaseException:
                # An interrupt or a mistake of ours says nothing about the back end, but a probe must not be forgotten.
                self.breaker.failed(permission)
                raise
            else:
                self.trouble = None
                self.breaker.answered(permission)
                return result
            self._wait(self._policy.wait_ms(failed_tries, self._chance()) / 1000)

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        return self._call(lambda: self.inner.write(key, position, data))

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        return self._call(partial(self.inner.read, key, position, length))

    def reread(self, key: SegmentKey, position: int, length: int) -> memoryview:
        return self._call(lambda: self.inner.reread(key, position, length))

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        self._call(lambda: self.inner.rewrite(key, position, data))

    def size(self, key: SegmentKey) -> int:
        return self._call(lambda: self.inner.size(key))

    def trim(self, key: SegmentKey, size: int) -> None:
        self._call(lambda: self.inner.trim(key, size))

    def seal(self, key: SegmentKey, *, crc32: int | None = None) -> None:
        self._call(lambda: self.inner.seal(key, crc32=crc32))

    def is_sealed(self, key: SegmentKey) -> bool:
        return self._call(lambda: self.inner.is_sealed(key))

    def delete(self, key: SegmentKey) -> None:
        self._call(lambda: self.inner.delete(key))

    def replace(self, key: SegmentKey, pieces: Iterable[Buffer], aside: str) -> str | None:
        return self._call(lambda: self.inner.replace(key, pieces, aside))

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        return iter(self._call(lambda: list(self.inner.list_segments(prefix))))

    def get_object(self, name: str) -> StoredObject | None:
        return self._call(lambda: self.inner.get_object(name))

    def put_object(self, name: str, data: bytes, *, expected: Expected = ANY) -> str:
        return self._call(lambda: self.inner.put_object(name, data, expected=expected))

    def delete_object(self, name: str) -> None:
        self._call(lambda: self.inner.delete_object(name))

    def list_objects(self, prefix: str = "") -> list[str]:
        return self._call(lambda: self.inner.list_objects(prefix))

    def close(self) -> None:
        self._closed.set()
        self.inner.close()
