"""What the tests of the fetcher share: queues in a tier with any records, and a driver that counts, fails and waits."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from simulation.manual_clock import ManualClock
from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.errors import TierUnavailable
from tiermq.message import encode_record
from tiermq.message.java_hash import java_hash
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.memory import MemoryDriver
from tiermq.tier.fetch.fetcher import FetchConfig, TierFetcher
from tiermq.tier.fetch.window_loader import BackendLatency
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.names import SegmentKey, SegmentType

TOPIC, QUEUE_ID = "orders", 3
CODA = struct.Struct(">iIq").pack(16, 0xCBD43194, 0)


@dataclass(frozen=True)
class Mail:
    """What a test says about a message; the rest is made up."""

    body: bytes = b"cold"
    tag: str = ""
    keys: str = ""
    store_ms: int = 1_000
    born_host: str = "10.0.0.1:9"
    store_host: str = "10.0.0.2:8"
    crc_property: bool = False

    def record(self, queue_offset: int, place: int, topic: str = TOPIC, queue_id: int = QUEUE_ID) -> bytes:
        properties = {"TAGS": self.tag, "KEYS": self.keys, "UNIQ_KEY": f"u{queue_offset}"}
        return encode_record(
            topic=topic, body=self.body, queue_id=queue_id, queue_offset=queue_offset, physical_offset=place,
            born_host=self.born_host, store_host=self.store_host, store_timestamp_ms=self.store_ms,
            properties={name: value for name, value in properties.items() if value}, crc_property=self.crc_property,
        )  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run of records as the kernel collects them."""

    data: bytes
    units: bytes
    count: int
    next_offset: int
    begin_ms: int
    end_ms: int

    @classmethod
    def of(
        cls, mails: Sequence[Mail], first: int, log_offset: int, topic: str = TOPIC, queue_id: int = QUEUE_ID
    ) -> Run:
        records, units, place = [], [], log_offset
        for number, mail in enumerate(mails, first):
            records.append(mail.record(number, place, topic, queue_id))
            units.append(UNIT.pack(place, len(records[-1]), java_hash(mail.tag) if mail.tag else 0))
            place += len(records[-1])
        times = [mail.store_ms for mail in mails]
        return cls(b"".join(records), b"".join(units), len(mails), first + len(mails), min(times), max(times))


class WatchedDriver:
    """Counts reads and their bytes; fails while `down`; lets a read wait for `gate`."""

    def __init__(self, inner: TierDriver) -> None:
        self.inner = inner
        self.reads: list[tuple[SegmentKey, int, int]] = []
        self.down = False
        self.gate: threading.Event | None = None
        self.waiting = threading.Semaphore(0)
        self._lock = threading.Lock()

    def read(self, key: SegmentKey, position: int, length: int) -> memoryview:
        with self._lock:
            self.reads.append((key, position, length))
        gate = self.gate
        if gate is not None:
            self.waiting.release()
            gate.wait()
        if self.down:
            raise TierUnavailable("memory://: the test took the tier away")
        return self.inner.read(key, position, length)

    def bytes_read(self, segment_type: SegmentType) -> int:
        return sum(length for key, _, length in self.reads if key.type is segment_type)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


P = ParamSpec("P")
T = TypeVar("T")


class InlinePool(Executor):
    """Runs what is submitted at once, in the caller: read-ahead becomes a plain sequence."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class IdlePool(Executor):
    """Takes what is submitted and does nothing, until the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self.waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def run_all(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


def slow_pace() -> BackendLatency:
    """Of a back end whose every fetch waits, as it is with networks."""
    return BackendLatency(itertools.count().__next__)


def quick_pace() -> BackendLatency:
    """Of a back end without waits."""
    return BackendLatency(lambda: 0)


class FetchWorld:
    """A tier with queues, and a fetcher on it."""

    def __init__(
        self,
        path: Path,
        *,
        driver: TierDriver | None = None,
        pool: Any = None,
        pace: BackendLatency | None = None,
        log_bytes: int = 1 << 30,
        unit_bytes: int = 1 << 20,
        **config: Any,
    ) -> None:
        self.clock = ManualClock()
        self.driver = WatchedDriver(driver or MemoryDriver(clock=self.clock))
        self.metadata = MetadataStore(path / "tier.db", clock=self.clock)
        self.files = FlatFileStore(
            self.driver, self.metadata, "DefaultCluster", "broker-a", self.clock,
            log_segment_bytes=log_bytes, queue_segment_bytes=unit_bytes,
        )  # fmt: skip
        self.pool: Any = pool or InlinePool()
        self.pace = pace or slow_pace()
        self.fetcher = TierFetcher(self.files, FetchConfig(**config), self.clock, self.pool, self.pace)

    def refetch(self, pool: Any = None, **config: Any) -> TierFetcher:
        """Another fetcher over the same tier, nothing in its cache."""
        self.fetcher = TierFetcher(self.files, FetchConfig(**config), self.clock, pool or self.pool, self.pace)
        self.driver.reads.clear()
        return self.fetcher

    def queue(self, topic: str = TOPIC, queue_id: int = QUEUE_ID, *, first: int = 0) -> FlatMessageFile:
        file = self.files.find_or_create(topic, queue_id)
        if not file.initialised:
            file.init(first)
        return file

    def write(
        self, mails: Iterable[Mail], *, topic: str = TOPIC, queue_id: int = QUEUE_ID, first: int = 0, batch: int = 4096
    ) -> FlatMessageFile:
        """Commit messages in batches; `first` is where a new queue begins."""
        file = self.queue(topic, queue_id, first=first)
        rest = list(mails)
        while rest:
            some, rest = rest[:batch], rest[batch:]
            assert file.write(Run.of(some, file.append_offset, file.log.append_offset, topic, queue_id))
        self.driver.reads.clear()
        return file

    def damage(self, segment_type: SegmentType, position: int, data: bytes) -> None:
        """Overwrite bytes of the first segment of the standard queue behind everybody's back."""
        key = self.queue().queue.segment(segment_type, 0)
        place = self.driver.inner._place  # type: ignore[attr-defined]
        place.segments[key].data[position : position + len(data)] = data

    def get(self, offset: int, max_messages: int = 32, **keywords: Any) -> Any:
        return self.fetcher.get(TOPIC, QUEUE_ID, offset, max_messages, **keywords)

    def read_all(self, offset: int = 0, max_messages: int = 32, **keywords: Any) -> list[int]:
        """Queue offsets of everything from `offset` on; each page must make progress."""
        found: list[int] = []
        while True:
            page = self.get(offset, max_messages, **keywords)
            if page.status.name.startswith("OFFSET_OVERFLOW"):
                return found
            assert page.next_offset > offset
            found += [message.queue_offset for message in page.messages]
            offset = page.next_offset

    def close(self) -> None:
        if isinstance(self.pool, ThreadPoolExecutor):
            self.pool.shutdown()
        self.metadata.close()


def unit_of(file: FlatMessageFile, offset: int) -> tuple[int, int, int]:
    place, size, tags_code = UNIT.unpack(file.units.read_units(offset, 1))
    return place, size, tags_code


def mails(count: int, **values: Any) -> list[Mail]:
    """Messages that differ in their bodies."""
    return [Mail(body=b"message %06d" % number, **values) for number in range(count)]


__all__ = [
    "CODA", "QUEUE_ID", "TOPIC", "UNIT_BYTES", "FetchWorld", "IdlePool", "InlinePool", "Mail", "Run", "WatchedDriver",
    "mails", "quick_pace", "slow_pace", "unit_of",
]  # fmt: skip
