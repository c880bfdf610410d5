"""The TierMQ side of every benchmark. The only module here that calls TierMQ, so what its API changes, changes here.

The store is the real one with all its checks. Three things keep a round about its subject: files are warmed before,
the interval flush is moved out of the measured time (the Java loops do not flush either), and dispatch is paused
while puts are measured (both sides share one core; a broker has more).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tiermq.kernel
from benchmarks import harness, workload
from benchmarks.harness import settle, timed
from benchmarks.report import Round
from tiermq import LocalStore as EmbeddedStore
from tiermq import Message
from tiermq.clock import SystemClock
from tiermq.commitlog.recovery import verify_log
from tiermq.files.mapped_file import MappedFile
from tiermq.files.os_file_access import OsFileAccess
from tiermq.index.index_service import IndexService
from tiermq.store.local_store import LocalStore

HOUR_MS = 3_600_000
POOL_COUNT = workload.POOL_COUNT
BATCH_COUNT = 1000
BATCHES = 8
INDEX_SLOTS = 5_000_000
INDEX_ENTRIES = 20_000_000


def kernel() -> str:
    """Which form of the kernel is measured: compiled or pure."""
    return tiermq.kernel.KERNEL


def open_store(directory: Path, log_size: int, **settings: Any) -> LocalStore:
    """A store that appends to a warm log file of `log_size` bytes, its dispatch paused."""
    settings = {
        "warm_maped_file_enable": True,
        "flush_interval_commit_log": HOUR_MS,
        "disk_max_used_space_ratio": 95,
    } | settings
    # A store that closes with its dispatch paused warns that the next start will check it. This one has no next start.
    logging.getLogger("tiermq").setLevel(logging.ERROR)
    store = LocalStore.open(directory, mapped_file_size_commit_log=log_size, **settings)
    _pause(store)
    return store


def open_embedded_store(directory: Path, log_size: int) -> EmbeddedStore:
    """The same as programs open it: its files grow, and are not warmed."""
    logging.getLogger("tiermq").setLevel(logging.ERROR)
    store = EmbeddedStore.open(
        directory,
        mapped_file_size_commit_log=log_size,
        flush_interval_commit_log=HOUR_MS,
        disk_max_used_space_ratio=95,
    )
    _pause(store._local)
    return store


def _pause(store: LocalStore) -> None:
    store._parts.reput.paused = True
    with store._parts.dispatch.lock:  # The current round of the dispatch is over.
        pass
    settle()  # The file behind is being warmed now.


def sample_message(number: int, body: bytes, key: bytes) -> Message:
    """The n-th message of the workload, as a producer would build it."""
    topic, queue_id = workload.queue_of(number)
    return Message(
        topic, body, queue_id, encoded_properties=workload.encode_properties(key), born_host="10.0.0.1:50000"
    )


def message_pool(count: int = POOL_COUNT) -> list[Message]:
    """Distinct messages that visit every queue in turn."""
    rows = zip(workload.bodies(42, count), workload.keys(43, count), strict=True)
    return [sample_message(number, body, key) for number, (body, key) in enumerate(rows)]


def message_batches() -> list[list[Message]]:
    """Lists of 1,000 messages, each for one queue of its own topic."""
    made = []
    for batch in range(BATCHES):
        rows = zip(workload.bodies(batch, BATCH_COUNT), workload.keys(batch + 99, BATCH_COUNT), strict=True)
        made.append([sample_message(batch, body, key) for body, key in rows])
    return made


class Puts:
    """Single puts: the whole pool again and again through `store.put`."""

    def __init__(self, store: LocalStore | EmbeddedStore, count: int) -> None:
        self._store = store
        self._pool = message_pool()
        self._turns = -(-count // len(self._pool))
        gc.collect()

    def round(self) -> Round:
        """One timed round."""
        return timed(self._work)

    def _work(self) -> tuple[int, int]:
        put, pool = self._store.put, self._pool
        result = None
        for _ in range(self._turns):
            for message in pool:
                result = put(message)
        _expect_ok(result)
        count = self._turns * len(pool)
        return count, count * workload.RECORD_BYTES


class HandlePuts:
    """Single puts through handles that know their queue."""

    def __init__(self, store: LocalStore, count: int) -> None:
        rows = zip(workload.bodies(42, POOL_COUNT), workload.keys(43, POOL_COUNT), strict=True)
        handles = {workload.queue_of(number): store.queue(*workload.queue_of(number)) for number in range(64)}
        self._calls = [
            (handles[workload.queue_of(number)].put, body, workload.encode_properties(key))
            for number, (body, key) in enumerate(rows)
        ]
        self._turns = -(-count // POOL_COUNT)
        gc.collect()

    def round(self) -> Round:
        """One timed round."""
        return timed(self._work)

    def _work(self) -> tuple[int, int]:
        result = None
        for _ in range(self._turns):
            for put, body, properties in self._calls:
                result = put(body, properties)
        _expect_ok(result)
        count = self._turns * POOL_COUNT
        return count, count * workload.RECORD_BYTES


class BatchPuts:
    """`put_many` of lists of 1,000 messages for one queue."""

    def __init__(self, store: LocalStore, count: int) -> None:
        self._store = store
        self._batches = message_batches()
        self._lists = -(-count // BATCH_COUNT)
        gc.collect()

    def round(self) -> Round:
        """One timed round."""
        return timed(self._work)

    def _work(self) -> tuple[int, int]:
        put_many, batches = self._store.put_many, self._batches
        results: Any = None
        for number in range(self._lists):
            results = put_many(batches[number % BATCHES])
        _expect_all_ok(results, BATCH_COUNT)
        count = self._lists * BATCH_COUNT
        return count, count * workload.RECORD_BYTES


def _expect_ok(result: Any) -> None:
    if result is None or result.status.name != "PUT_OK":
        raise RuntimeError(f"expected PUT_OK, found {result!r}: the benchmark's store refused a message")


def _expect_all_ok(results: Any, count: int) -> None:
    if len(results) != count:
        raise RuntimeError(f"expected {count} results, found {len(results)}")
    _expect_ok(results[0])
    _expect_ok(results[-1])


def log_file(directory: Path) -> Path:
    """The first commit log file of a store directory."""
    return directory / "commitlog" / f"{0:020d}"


def fill_log(store: LocalStore, log_size: int, varied: bool) -> tuple[int, int]:
    """Write the workload until one log file is full but for its blank record; returns messages and bytes."""
    queues = workload.TOPIC_COUNT * workload.QUEUE_COUNT
    puts = [store.queue(*workload.queue_of(number)).put for number in range(queues)]
    count = size = 0
    for row in workload.rows_of_log(log_size, varied):
        puts[row.number % queues](row.body, workload.encode_properties(row.key))
        count += 1
        size += row.record_bytes
    if store.max_physical_offset != size:
        raise RuntimeError(f"expected {size} bytes in the log, found {store.max_physical_offset}")
    return count, size


def dispatch_round(store: LocalStore, waiting: tuple[int, int]) -> Round:
    """Dispatch everything that waits in the log, in this thread."""

    def work() -> tuple[int, int]:
        count = store.dispatch_now()
        if count != waiting[0]:
            raise RuntimeError(f"expected {waiting[0]} dispatched records, found {count}")
        return waiting

    settle()
    gc.collect()
    return timed(work)


def open_flushing_store(directory: Path, log_size: int) -> LocalStore:
    """A store whose puts return when their bytes are on the disk."""
    return open_store(directory, log_size, flush_disk_type="SYNC_FLUSH")


@contextlib.contextmanager
def recovery_walk(path: Path, log_size: int, records: int) -> Iterator[Callable[[], Round]]:
    """A function that checks every record of one log file, body CRC included, with the walk that recovery uses."""
    file = MappedFile.load(OsFileAccess(), str(path), log_size, clock=SystemClock(), writable=False)

    def work() -> tuple[int, int]:
        end, found = verify_log([file])
        if found != records or end.damaged:
            raise RuntimeError(f"expected {records} whole records, found {found}, ending at {end}")
        return found, log_size

    try:
        yield lambda: timed(work)
    finally:
        file.close()


class Gets:
    """Pulls of 32 messages from random queues and offsets."""

    def __init__(self, store: LocalStore, records: int, pulls: int, batch: int) -> None:
        self._store = store
        self._batch = batch
        self._pulls = pulls
        self._units = records // (workload.TOPIC_COUNT * workload.QUEUE_COUNT)
        self._random = random.Random(1)

    def round(self) -> Round:
        """One timed round over freshly drawn places."""
        draw = self._random.randrange
        places = [
            (workload.TOPICS[draw(workload.TOPIC_COUNT)], draw(workload.QUEUE_COUNT), draw(self._units - self._batch))
            for _ in range(self._pulls)
        ]
        gc.collect()
        return timed(lambda: self._work(places))

    def _work(self, places: list[tuple[str, int, int]]) -> tuple[int, int]:
        get, batch = self._store.get, self._batch
        size = 0
        page: Any = None
        for topic, queue_id, offset in places:
            page = get(topic, queue_id, offset, batch)
            size += len(page.data)
        if size != len(places) * batch * workload.RECORD_BYTES:
            raise RuntimeError(f"expected {batch} messages per pull, found {size} bytes in {len(places)} pulls")
        return len(places) * batch, size


KEYS_PER_PUT = 1000


class IndexPuts:
    """Batches of keys into a fresh index of one file."""

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._keys = [key.decode() for key in workload.keys(5, count)]
        self._hashes = array("i", random.Random(6).choices(range(2**31), k=count))
        self._offsets = array("q", range(0, count * workload.RECORD_BYTES, workload.RECORD_BYTES))
        self._timestamps_ms = array("q", [SystemClock().now_ms()]) * count

    def round_of_keys(self) -> Round:
        """From topics and keys: the hash of `topic#key` is part of the work."""
        topics, keys = workload.TOPICS, self._keys

        def work(service: IndexService) -> int:
            added = 0
            for number, start in enumerate(range(0, len(keys), KEYS_PER_PUT)):
                rows = slice(start, start + KEYS_PER_PUT)
                topic = topics[number % workload.TOPIC_COUNT]
                added += service.put_keys(topic, keys[rows], self._offsets[rows], self._timestamps_ms[rows])
            return added

        return self._round(work)

    def round_of_hashes(self) -> Round:
        """From ready hashes."""
        return self._round(lambda service: service.put_keys_batch(self._hashes, self._offsets, self._timestamps_ms))

    def _round(self, put: Callable[[IndexService], int]) -> Round:
        def work() -> tuple[int, int]:
            added = put(service)
            if added != len(self._keys):
                raise RuntimeError(f"expected {len(self._keys)} index entries, found {added}")
            return added, 0

        with harness.part_directory(self._directory) as place:
            service = IndexService(
                OsFileAccess(), str(place), INDEX_SLOTS, INDEX_ENTRIES, SystemClock(), checkpoint=lambda _: None
            )
            try:
                gc.collect()
                return timed(work)
            finally:
                service.close()
