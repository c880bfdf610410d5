"""FaultyDriver: a driver that fails on purpose, by a plan that can be repeated. For tests and rehearsals.

BEFORE          the call fails, nothing has happened
AFTER           the call has happened, its answer is lost
TORN            a write fails half way and the half stays, as after a crash (only for back ends that can tear)
DELAY           the call takes a while, then happens
TWICE           the request is delivered twice; the answer is the second one's
STALE           size and listings answer as of before the newest write
FLIPPED         one bit of what a write stores is another one; the answer says that all is well
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Protocol, TypeVar

from tiermq.errors import TierUnavailable
from tiermq.tier.driver.contract import Buffer, ForwardingDriver, SegmentInfo, TierDriver, joined
from tiermq.tier.names import SegmentKey

Result = TypeVar("Result")


class Fault(Enum):
    BEFORE = "failed before it happened"
    AFTER = "happened, but the answer was lost"
    TORN = "half of it happened"
    DELAY = "took a while"
    TWICE = "was delivered twice"
    STALE = "answered with what was true before"
    FLIPPED = "stored a wrong bit and said that all is well"


class FaultPlan(Protocol):
    """Says for each call, in the order in which they are made, what goes wrong."""

    def next_fault(self, operation: str) -> Fault | None: ...


class SeededFaults:
    """Faults by chance, the same ones for the same seed and the same calls. `rates` are probabilities, 0 to 1."""

    def __init__(self, seed: int, rates: Mapping[Fault, float], *, operations: Iterable[str] = ()) -> None:
        self._random = random.Random(seed)
        self._rates = dict(rates)
        self._operations = frozenset(operations)
        self._lock = threading.Lock()

    def next_fault(self, operation: str) -> Fault | None:
        if self._operations and operation not in self._operations:
            return None
        with self._lock:
            drawn = self._random.random()
        for fault, rate in self._rates.items():
            drawn -= rate
            if drawn < 0:
                return fault
        return None


class ScriptedFaults:
    """Exactly these faults for the next calls of an operation; then none."""

    def __init__(self, operation: str, faults: Iterable[Fault | None]) -> None:
        self._operation = operation
        self._faults = list(faults)
        self._lock = threading.Lock()

    def next_fault(self, operation: str) -> Fault | None:
        with self._lock:
            return self._faults.pop(0) if operation == self._operation and self._faults else None


class Down:
    """A back end that is down: every call fails."""

    def next_fault(self, operation: str) -> Fault | None:
        return Fault.BEFORE


class FaultyDriver(ForwardingDriver):
    """Used from any thread. `plan` may be replaced at any time; None is a healthy back end."""

    def __init__(
        self,
        inner: TierDriver,
        plan: FaultPlan | None = None,
        *,
        delay_s: float = 0.01,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(inner)
        self.plan = plan
        self.injected: list[tuple[str, Fault]] = []
        self.confirms_flipped = False  # Whether FLIPPED claims a checksum that agrees, too.
        self._delay_s = delay_s
        self._sleep = sleep
        self._before_newest: dict[SegmentKey, int] = {}  # Where each segment's newest write began.

    def _next(self, operation: str) -> Fault | None:
        fault = self.plan.next_fault(operation) if self.plan is not None else None
        if fault is not None:
            self.injected.append((operation, fault))
        return fault

    def forward(self, operation: str, _key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        return self._call(operation, call)

    def _call(self, operation: str, call: Callable[[], Result], fault: Fault | None = None) -> Result:
        fault = fault or self._next(operation)
        if fault is Fault.BEFORE or fault is Fault.TORN:
            raise TierUnavailable(f"{self.url}: {operation} {fault.value}, as planned")
        if fault is Fault.DELAY:
            self._sleep(self._delay_s)
        if fault is Fault.TWICE:
            call()
        result = call()
        if fault is Fault.AFTER:
            raise TierUnavailable(f"{self.url}: {operation} {fault.value}, as planned")
        return result

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        fault = self._next("write")
        body = joined(data)
        if fault is Fault.TORN:
            self.inner.write(key, position, [body[: len(body) // 2]])
            raise TierUnavailable(f"{self.url}: write {fault.value}, as planned")
        if fault is Fault.FLIPPED and body:
            wrong = bytearray(body)
            wrong[len(wrong) // 2] ^= 1
            self.inner.write(key, position, [bytes(wrong)])
            self._before_newest[key] = position
            return self.confirms_flipped
        if fault is Fault.STALE:
            fault = None  # Says nothing about a write.
        self._before_newest[key] = position
        if fault is None:
            return self.inner.write(key, position, [body])
        return self._call("write", lambda: self.inner.write(key, position, [body]), fault)

    def rewrite(self, key: SegmentKey, position: int, data: Buffer) -> None:
        fault = self._next("rewrite")
        if fault is Fault.FLIPPED:
            wrong = bytearray(data)
            wrong[len(wrong) // 2] ^= 1
            self.inner.rewrite(key, position, bytes(wrong))
        elif fault is None:
            self.inner.rewrite(key, position, data)
        else:
            self._call("rewrite", lambda: self.inner.rewrite(key, position, data), fault)

    def size(self, key: SegmentKey) -> int:
        fault = self._next("size")
        if fault is None:
            return self.inner.size(key)
        size = self._call("size", lambda: self.inner.size(key), fault)
        return min(size, self._before_newest.get(key, size)) if fault is Fault.STALE else size

    def delete(self, key: SegmentKey) -> None:
        self._call("delete", lambda: self.inner.delete(key))
        self._before_newest.pop(key, None)

    def list_segments(self, prefix: str = "") -> Iterator[SegmentInfo]:
        fault = self._next("list_segments")
        if fault is None:
            return self.inner.list_segments(prefix)
        found = self._call("list_segments", lambda: list(self.inner.list_segments(prefix)), fault)
        return iter(filter(None, map(self._aged, found)) if fault is Fault.STALE else found)

    def _aged(self, info: SegmentInfo) -> SegmentInfo | None:
        size = min(info.size, self._before_newest.get(info.key, info.size))
        return replace(info, size=size) if size else None
