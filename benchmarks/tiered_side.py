"""Stores with a tier, as the benchmarks of uploading drive them, and drivers that count or time what is asked of them.

Every round has a store and a tier of its own, filled before the time counts.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import store_side, workload
from benchmarks.harness import settle, timed
from benchmarks.report import Round
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.contract import Buffer, TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import SegmentKey
from tiermq.tier.tiered_store import TieredStore

LOG_FILE_BYTES = 256 << 20
CALLS = ("write", "read", "size", "seal", "delete", "trim", "is_sealed", "list_segments", "get_object", "put_object")


class CountingDriver:
    """Passes everything on; counts calls by name, reads by type besides, and keeps the lengths of writes, in order."""

    def __init__(self, inner: TierDriver) -> None:
        self._inner = inner
        self.calls: Counter[str] = Counter()
        self.written: list[int] = []
        for name in CALLS:
            setattr(self, name, self._counting(name, getattr(inner, name)))

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*values: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return call(*values, **named)

        def counted_write(key: SegmentKey, position: int, data: Sequence[Buffer]) -> None:
            self.calls[name] += 1
            self.written.append(sum(map(len, data)))
            call(key, position, data)

        def counted_read(key: SegmentKey, position: int, length: int) -> memoryview:
            self.calls[f"{name} {key.type.name}"] += 1
            found: memoryview = counted(key, position, length)
            return found

        special: dict[str, Callable[..., Any]] = {"write": counted_write, "read": counted_read}
        return special.get(name, counted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def fill(store: LocalStore, count: int) -> None:
    """Put `count` messages of the workload, over all queues, and make them durable and visible."""
    queues = workload.TOPIC_COUNT * workload.QUEUE_COUNT
    puts = [store.queue(*workload.queue_of(number)).put for number in range(queues)]
    bodies = workload.bodies(42, workload.POOL_COUNT)
    keys = itertools.chain.from_iterable(workload.keys(seed, 1 << 14) for seed in itertools.count(43))
    rows = zip(itertools.cycle(puts), itertools.cycle(bodies), itertools.islice(keys, count), strict=False)
    for put, body, key in rows:
        put(body, workload.encode_properties(key))
    store.dispatch_now()
    store.flush()


def open_tiered(directory: Path, tier: Path, driver: Any = None, **settings: Any) -> TieredStore:
    """The store over an empty tier, its engine at rest until it is asked to flush."""
    shutil.rmtree(tier, ignore_errors=True)
    shutil.rmtree(directory / "config" / "tier", ignore_errors=True)
    shutil.rmtree(directory / "tiered_index_file", ignore_errors=True)
    for metadata in (directory / "config").glob("*.db*"):
        metadata.unlink()
    settings = {"disk_max_used_space_ratio": 95, "tier_evict_on_proof": False} | settings
    return TieredStore.open(
        directory, tier=tier.as_uri(), driver=driver, mapped_file_size_commit_log=LOG_FILE_BYTES, **settings
    )


class Uploads:
    """Messages of a local store, uploaded into a new tier at file://, again and again.

    Every queue begins in the tier before the time counts (`begin_seconds` says what that took): its directories, its
    epoch and its manifest are not made for each byte.
    """

    def __init__(self, directory: Path, tier: Path, count: int) -> None:
        self._directory = directory
        self._tier = tier
        self._count = count
        self.chunks: list[int] = []  # What the last round wrote, in order.
        self.begin_seconds = 0.0
        self.with_begin: list[Round] = []  # Of each round: the same, with the start of all queues in it.

    def round(self) -> Round:
        """One timed round: from the first turn until everything is durable in the tier."""
        return self.run(lambda _driver: None)

    def run(self, watch: Callable[[CountingDriver], None]) -> Round:
        """The same, with an observer that gets the driver before it begins."""
        shutil.rmtree(self._directory, ignore_errors=True)
        driver = CountingDriver(open_driver(self._tier.as_uri()))
        with open_tiered(self._directory, self._tier, driver) as store:
            fill(store.local, workload.POOL_COUNT)
            begun = timed(lambda: self._work(store))
            self.begin_seconds = begun.seconds
            store.tier.engine.pause()
            fill(store.local, self._count)
            driver.written.clear()
            settle()
            gc.collect()
            watch(driver)
            store.tier.engine.resume()
            done = timed(lambda: self._work(store))
        self.chunks = driver.written
        seconds, cpu_seconds = begun.seconds + done.seconds, begun.cpu_seconds + done.cpu_seconds
        self.with_begin.append(Round(done.messages, done.bytes, seconds, cpu_seconds))
        return done

    def _work(self, store: TieredStore) -> tuple[int, int]:
        if not store.flush_to_tier():
            raise RuntimeError(f"expected everything in the tier, found {store.tier.engine.status()}")
        return self._count, self._count * workload.RECORD_BYTES


class RawUploads:
    """pwrite + fdatasync of the same chunks, one after the other into one new file."""

    def __init__(self, path: Path, chunks: list[int], messages: int) -> None:
        self._path = path
        self._chunks = chunks
        self._messages = messages
        self._source = memoryview(os.urandom(max(chunks)))

    def round(self) -> Round:
        """One timed round."""
        self._path.unlink(missing_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            return timed(lambda: self._work(descriptor))
        finally:
            os.close(descriptor)
            self._path.unlink()

    def _work(self, descriptor: int) -> tuple[int, int]:
        at = 0
        for length in self._chunks:
            os.pwrite(descriptor, self._source[:length], at)
            os.fdatasync(descriptor)
            at += length
        return self._messages, at


class MemorySamples:
    """How much memory the process has, while bytes go to the tier: a thread that looks every `every_s`."""

    def __init__(self, driver: CountingDriver, every_s: float = 0.05) -> None:
        self.samples: list[dict[str, int]] = []
        self._driver = driver
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory-samples", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        counted = uploaded = 0
        while True:
            new = len(self._driver.written)
            uploaded += sum(self._driver.written[counted:new])
            counted = new
            self.samples.append({"uploaded_bytes": uploaded} | _memory())
            if self._ended.wait(self._every_s):
                return

    def stop(self) -> None:
        """Take the last sample."""
        self._ended.set()
        self._thread.join()


def _memory() -> dict[str, int]:
    """Bytes that are the process' own, and bytes that are mapped files (which the system can take back)."""
    found = {}
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssFile", "RssShmem"):
            found[name] = int(value.split()[0]) * 1024
    return {"own_bytes": found.get("RssAnon", 0), "mapped_bytes": found.get("RssFile", 0) + found.get("RssShmem", 0)}


class Putting:
    """Single puts into a store that dispatches, with or without a tier.

    As many messages as are timed were put before, untimed: so the tier has enough to copy during the whole round.
    """

    def __init__(self, directory: Path, tier: Path | None, count: int) -> None:
        self._directory = directory
        self._tier = tier
        self._turns = -(-count // workload.POOL_COUNT)
        self._pool = store_side.message_pool()
        self.tiered_shares: list[float] = []
        self.tiered_mb_per_second: list[float] = []

    def round(self) -> Round:
        """One timed round in a fresh store."""
        shutil.rmtree(self._directory, ignore_errors=True)
        if self._tier is None:
            settings: dict[str, Any] = {"disk_max_used_space_ratio": 95}
            with LocalStore.open(self._directory, mapped_file_size_commit_log=LOG_FILE_BYTES, **settings) as store:
                self._fill(store)
                return self._timed(store.put)
        with open_tiered(self._directory, self._tier) as tiered:
            for message in self._pool:  # Every queue begins in the tier before anything is timed.
                tiered.put(message)
            tiered.flush_to_tier()
            tiered.tier.engine.pause()
            self._fill(tiered.local)
            tiered.tier.engine.resume()
            done = self._timed(tiered.put)
            share = (_tiered_messages(tiered) - len(self._pool)) / done.messages
            self.tiered_shares.append(share)
            self.tiered_mb_per_second.append(share * done.bytes / done.seconds / 1e6)
            tiered.tier.engine.pause()
            return done

    def _timed(self, put: Callable[[Any], Any]) -> Round:
        """One round whose processor time is all the time but that in which other processes had the core.

        The processor time itself would hide what is asked here: how long the putting thread waits for the interpreter.
        """
        before = _run_delay_s()
        done = timed(lambda: self._work(put))
        delay = _run_delay_s() - before
        return Round(done.messages, done.bytes, done.seconds, done.seconds - delay if delay else done.cpu_seconds)

    def _fill(self, store: LocalStore) -> None:
        self._work(store.put)
        store.dispatch_now()
        store.flush()
        settle()
        gc.collect()

    def _work(self, put: Callable[[Any], Any]) -> tuple[int, int]:
        result = None
        for _ in range(self._turns):
            for message in self._pool:
                result = put(message)
        if result is None or result.status.name != "PUT_OK":
            raise RuntimeError(f"expected PUT_OK, found {result!r}")
        count = self._turns * workload.POOL_COUNT
        return count, count * workload.RECORD_BYTES


def _run_delay_s() -> float:
    """How long this thread has waited for a core so far; 0 where it is unknown."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except OSError:  # Not Linux.
        return 0.0


def _tiered_messages(store: TieredStore) -> int:
    return sum(max(0, file.commit_offset) for file in store.tier.files)
