"""An object store in memory, for `ObjectStoreDriver`: each request can be lost, repeated, delayed, or answered late.

It keeps what object stores promise today: a put is whole or not at all, and conditional puts compare versions. A
listing comes in no order, and while STALE is drawn it does not show yet what the last requests made.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from campaign.simulation.power import Power
from servers.faulty_driver import Fault, FaultPlan
from simulation.manual_clock import ManualClock
from tiermq.errors import TierUnavailable
from tiermq.tier.driver.object_requests import Fetched, ObjectRequests, ObjectStat, PastTheEnd

Result = TypeVar("Result")
NEW_MS = 30_000  # So young is what a stale listing may not show.


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    version: str
    modified_ms: int


class Bucket:
    """The objects; they outlive every process."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.objects: dict[str, _Object] = {}
        self._version = 0

    def put(self, path: str, data: bytes) -> str:
        self._version += 1
        version = f"{self._version}\n"
        self.objects[path] = _Object(bytes(data), version, self.clock.now_ms())
        return version


class BucketRequests(ObjectRequests):
    """One process's way to the bucket. It may lose its power before and after each request."""

    def __init__(
        self,
        bucket: Bucket,
        faults: FaultPlan,
        power: Power,
        chance: random.Random,
        sleep: Callable[[float], object],
        delay_s: float,
    ) -> None:
        absent: Any = None  # Every request of the base class is replaced.
        super().__init__(absent, "memory://bucket")
        self._bucket = bucket
        self._faults = faults
        self._power = power
        self._random = chance
        self._sleep = sleep
        self._delay_s = delay_s

    def _send(self, kind: str, path: str, request: Callable[[], Result], *, fault: Fault | None = None) -> Result:
        self._power.touch(kind, path)
        self._count(kind, 1)
        fault = fault or self._faults.next_fault(kind)
        if fault in (Fault.BEFORE, Fault.TORN):  # A put is never half done.
            raise TierUnavailable(f"{kind} failed before it happened, as planned")
        if fault is Fault.DELAY:
            self._sleep(self._delay_s)
        if fault is Fault.TWICE:
            request()
        result = request()
        self._power.touch(kind, "done")
        if fault is Fault.AFTER:
            raise TierUnavailable(f"{kind} happened, but its answer was lost, as planned")
        return result

    def create(self, path: str, data: bytes | memoryview) -> str | None:
        def request() -> str | None:
            if path in self._bucket.objects:
                return None
            self._bucket.put(path, bytes(data))
            return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'

        return self._send("put", path, request)

    def put(self, path: str, data: bytes, expected: str | None, *, check: bool) -> str | None:
        def request() -> str | None:
            current = self._bucket.objects.get(path)
            if check and expected != (None if current is None else current.version):
                return None
            return self._bucket.put(path, data)

        return self._send("put", path, request)

    def fetch(self, path: str, start: int = 0, length: int | None = None) -> Fetched | None:
        def request() -> Fetched | None:
            found = self._bucket.objects.get(path)
            if found is None:
                return None
            if length is not None and start >= len(found.data):
                raise PastTheEnd
            end = len(found.data) if length is None else start + length
            return Fetched(memoryview(found.data)[start:end], len(found.data), found.version)

        return self._send("get", path, request)

    def fetch_range(self, path: str, start: int, length: int) -> memoryview | None:
        fetched = self.fetch(path, start, length)
        if fetched is not None and len(fetched.data) != length:
            raise PastTheEnd
        return None if fetched is None else fetched.data

    def head(self, path: str) -> ObjectStat | None:
        return self._send("head", path, lambda: self._stat(path))

    def _stat(self, path: str) -> ObjectStat | None:
        found = self._bucket.objects.get(path)
        return None if found is None else ObjectStat(path, len(found.data), found.modified_ms)

    def stat_version(self, path: str) -> str | None:
        found = self._send("head", path, lambda: self._bucket.objects.get(path))
        return None if found is None else found.version

    def list(self, directory: str) -> list[ObjectStat]:
        fault = self._faults.next_fault("list")
        prefix = f"{directory}/" if directory else ""

        def request() -> list[ObjectStat]:
            stats = [self._stat(path) for path in sorted(self._bucket.objects) if path.startswith(prefix)]
            found = [stat for stat in stats if stat is not None]
            self._random.shuffle(found)
            if fault is Fault.STALE:
                since_ms = self._bucket.clock.now_ms() - NEW_MS
                found = [stat for stat in found if stat.modified_ms < since_ms]
            return found

        return self._send("list", directory, request, fault=fault)

    def delete(self, paths: Sequence[str]) -> None:
        def request() -> None:
            for path in paths:
                self._bucket.objects.pop(path, None)

        if paths:
            self._send("delete", paths[0], request)

    def copy(self, source: str, target: str) -> bool:
        def request() -> bool:
            found = self._bucket.objects.get(source)
            if found is not None:
                self._bucket.put(target, found.data)
            return found is not None

        return self._send("copy", source, request)

    def upload(self, path: str, chunks: Iterable[memoryview]) -> None:
        data = b"".join(chunks)

        def request() -> None:
            self._bucket.put(path, data)

        self._send("upload", path, request)
