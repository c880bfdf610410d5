"""The TierMQ side of the cold-read benchmark: a store, its copy in a tier, sequential readers, plain ranged reads."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import store_side, workload
from benchmarks.harness import timed
from benchmarks.report import Round
from servers.seaweedfs import SeaweedFS, Unavailable
from tiermq.clock import SystemClock
from tiermq.kernel import collect_for_tier
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.posix import PosixDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.fetch.fetcher import FetchConfig, TierFetcher
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.metadata.metadata_store import MetadataStore

QUEUES = [workload.queue_of(number) for number in range(workload.TOPIC_COUNT * workload.QUEUE_COUNT)]
BATCH_COUNT, BATCH_BYTES = 4096, 4 << 20
FETCH_THREADS = 8
RANGE_BYTES = 4 << 20
HOUR_MS = 3_600_000

Get = Callable[..., Any]


@contextlib.contextmanager
def filled_store(directory: Path, log_size: int) -> Iterator[tuple[LocalStore, int]]:
    """A store whose log is full and dispatched, and how many messages each of its queues has at least."""
    store = store_side.open_store(directory, log_size)
    try:
        messages, size = store_side.fill_log(store, log_size, varied=False)
        store_side.dispatch_round(store, (messages, size))
        yield store, messages // len(QUEUES)
    finally:
        store.close()


@contextlib.contextmanager
def one_long_queue(directory: Path, log_size: int) -> Iterator[tuple[LocalStore, int]]:
    """A store whose log is one queue, and how many messages that has."""
    store = store_side.open_store(directory, log_size)
    put = store.queue(*QUEUES[0]).put
    try:
        messages = 0
        for row in workload.rows_of_log(log_size, varied=False):
            put(row.body, workload.encode_properties(row.key))
            messages += 1
        store.dispatch_now()
        yield store, messages
    finally:
        store.close()


@contextlib.contextmanager
def tier_of(
    store: LocalStore, directory: Path, driver: TierDriver, per_queue: int, queues: int
) -> Iterator[FlatFileStore]:
    """The first queues of the store, copied to a tier, every segment sealed: one object each, as history is."""
    with MetadataStore(directory / "tier.db") as metadata:
        files = FlatFileStore(driver, metadata, "DefaultCluster", "broker-a", SystemClock())
        log = store._parts.log.files.segments
        for topic, queue_id in QUEUES[:queues]:
            file = files.find_or_create(topic, queue_id)
            file.init(0)
            queue: Any = store._parts.queues.find(topic, queue_id)
            while file.append_offset < per_queue:
                some = min(BATCH_COUNT, per_queue - file.append_offset)
                offset = file.append_offset
                run = collect_for_tier(queue.files.segments, log, offset, some, BATCH_BYTES, file.log.append_offset)
                if not file.write(run):
                    raise RuntimeError(f"the tier at {driver.url} refused a batch: {file.log.last.last_error}")
            for part in (file.log, file.units):
                part.roll()
                for segment in part.unsealed():
                    part.seal(segment)
        yield files
        files.close()


def posix_driver(directory: Path) -> TierDriver:
    return PosixDriver(directory)


@contextlib.contextmanager
def s3_driver(directory: Path) -> Iterator[tuple[TierDriver, Any] | None]:
    """A driver on a real S3 server of this machine and the plain client of the same bucket; None when there is none."""
    try:
        server = SeaweedFS(directory)
    except Unavailable as reason:
        logging.getLogger("benchmarks").warning("no S3 server here: %s", reason)
        yield None
        return
    with server:
        server.create_bucket("bench")
        with contextlib.closing(open_driver("s3://bench", environment=server.environment)) as driver:
            yield driver, server.store("bench")


class SequentialGets:
    """Reads every queue from its beginning to its end in pages of `batch`."""

    def __init__(self, queues: int, per_queue: int, batch: int) -> None:
        self._queues = QUEUES[:queues]
        self._per_queue = per_queue
        self._batch = batch

    def round(self, get: Get) -> Round:
        """One timed round."""
        gc.collect()
        return timed(lambda: self._work(get))

    def _work(self, get: Get) -> tuple[int, int]:
        batch, end = self._batch, self._per_queue
        count = size = 0
        for topic, queue_id in self._queues:
            offset = 0
            while offset < end:
                page = get(topic, queue_id, offset, batch)
                offset = page.next_offset
                count += page.count
                size += len(page.data)
        if count < len(self._queues) * end or size != count * workload.RECORD_BYTES:
            raise RuntimeError(f"expected {len(self._queues) * end} messages, found {count} in {size} bytes")
        return count, size


@contextlib.contextmanager
def fetcher_over(files: FlatFileStore, **settings: Any) -> Iterator[Callable[[], TierFetcher]]:
    """Makes fetchers that know nothing yet; they share the threads that read ahead."""
    with ThreadPoolExecutor(FETCH_THREADS, "tier-fetch") as pool:
        yield lambda: TierFetcher(files, FetchConfig(**settings), SystemClock(), pool)


@contextlib.contextmanager
def keeping_everything(files: FlatFileStore, cache_bytes: int) -> Iterator[TierFetcher]:
    """A fetcher that has everything in memory: another group that never reads further keeps it there."""
    with ThreadPoolExecutor(1, "tier-fetch") as pool:
        fetcher = TierFetcher(files, FetchConfig(cache_bytes=cache_bytes, cache_expire_ms=HOUR_MS), SystemClock(), pool)
        for topic, queue_id in QUEUES:
            fetcher.get(topic, queue_id, 0, 1, group="one that waits")
        yield fetcher


@contextlib.contextmanager
def ranged_reads(store: Any, files: FlatFileStore, messages: int) -> Iterator[Callable[[], Round]]:
    """The same bytes of the commit logs with the plain client: ranges of 4 MiB, as many at a time as threads fetch."""
    ranges = []
    for file in files:
        for segment in file.log.segments:
            starts = range(0, segment.commit_position, RANGE_BYTES)
            ranges += [(segment.key.path, at, min(RANGE_BYTES, segment.commit_position - at)) for at in starts]

    def read(place: tuple[str, int, int]) -> int:
        path, start, length = place
        return len(memoryview(store.get_range(path, start=start, length=length)))

    def work() -> tuple[int, int]:
        size = sum(pool.map(read, ranges))
        if size != messages * workload.RECORD_BYTES:
            raise RuntimeError(f"expected {messages} records, found {size} bytes")
        return messages, size

    with ThreadPoolExecutor(FETCH_THREADS, "plain-get") as pool:
        yield lambda: timed(work)


def memory_curve(files: FlatFileStore, queues: int, per_queue: int, groups: int, cache_bytes: int) -> dict[str, float]:
    """Megabytes that the process needs more, at quarters of the way, while many groups read at once."""
    with fetcher_over(files, cache_bytes=cache_bytes) as make:
        fetcher = make()
        places = dict.fromkeys(range(groups), 0)
        before, curve, done = resident_mb(), {}, 0
        total = groups * per_queue
        marks = [(percent, total * percent // 100) for percent in (25, 50, 75, 100)]
        highest = 0
        while places:
            for group, offset in list(places.items()):
                topic, queue_id = QUEUES[group % queues]
                page = fetcher.get(topic, queue_id, offset, 32, group=f"group-{group}")
                highest = max(highest, fetcher.cache.bytes)
                done += page.count
                places[group] = page.next_offset
                if page.next_offset >= per_queue:
                    del places[group]
            while marks and done >= marks[0][1]:
                curve[f"at_{marks.pop(0)[0]}_percent_mb"] = round(resident_mb() - before, 1)
        curve["cache_limit_mb"] = round(cache_bytes / 1e6, 1)
        curve["cache_highest_mb"] = round(highest / 1e6, 1)
        return curve


def resident_mb() -> float:
    """What the process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6
