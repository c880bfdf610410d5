"""A store whose tier is a real S3 server of this machine: uploads of a backlog, look-ups of keys, plain puts beside.

The server shares the processors with what is measured, so its processor time is reported as well.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import process_tree
from benchmarks.harness import settle, timed
from benchmarks.report import Round
from servers.seaweedfs import SeaweedFS, Unavailable
from tiermq import Message
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.tiered_store import TieredStore

BUCKET = "bench"
TOPIC, QUEUES = "Backlog", 8
BODY_BYTES = 1024
LOG_FILE_BYTES = 64 << 20
VOLUMES_MAX = 400
"""Of 64 MB: what is deleted stays there until the server cleans up."""
PLAIN_THREADS = 4
PLAIN_BYTES = 4 << 20
PUT_AT_ONCE = 1_000
INDEX_SLOTS_PER_KEY = 4
_log = logging.getLogger("benchmarks")


@contextlib.contextmanager
def s3_server(directory: Path) -> Iterator[SeaweedFS | None]:
    """With a bucket; None when there is no such server."""
    try:
        server = SeaweedFS(directory, volumes_max=VOLUMES_MAX)
    except Unavailable as reason:
        _log.warning("no S3 server here: %s", reason)
        yield None
        return
    with server:
        server.create_bucket(BUCKET)
        yield server


def open_store(directory: Path, server: SeaweedFS, prefix: str, **settings: Any) -> TieredStore:
    url = f"s3://{BUCKET}/{prefix}"
    driver = open_driver(url, environment=server.environment)
    more: dict[str, Any] = {"disk_max_used_space_ratio": 95, "tier_evict_on_proof": False, **settings}
    return TieredStore.open(directory, tier=url, driver=driver, mapped_file_size_commit_log=LOG_FILE_BYTES, **more)


def put(store: TieredStore, begin: int, end: int) -> None:
    """The messages of these numbers, in 8 queues in turn, each with a key of its own."""
    body = random.Random(19).randbytes(BODY_BYTES)
    for start in range(begin, end, PUT_AT_ONCE):
        numbers = range(start, min(end, start + PUT_AT_ONCE))
        store.local.put_many(Message(TOPIC, body, number % QUEUES, keys=[key_of(number)]) for number in numbers)
    store.local.dispatch_now()
    store.local.flush()


def key_of(number: int) -> str:
    return f"key-{number:012d}"


def upload_all(store: TieredStore) -> None:
    if not store.flush_to_tier():
        raise RuntimeError(f"expected everything in the tier, found {store.tier.engine.status()}")


class Uploads:
    """A backlog of `size` bytes in 8 queues goes into a new tier each round; and as many bytes by the plain client."""

    def __init__(self, directory: Path, server: SeaweedFS, size: int) -> None:
        self._directory = directory
        self._server = server
        self._count = size // BODY_BYTES
        self._number = 0
        self.server_seconds: list[float] = []

    def round(self) -> Round:
        """From the first step until all is durable; each queue is in the tier before, with a message."""
        self._number += 1
        place = self._directory / f"store-{self._number}"
        with open_store(place, self._server, f"upload-{self._number}") as store:
            put(store, 0, QUEUES)
            upload_all(store)
            store.tier.engine.pause()
            put(store, QUEUES, QUEUES + self._count)
            settle()
            gc.collect()
            store.tier.engine.resume()
            before = process_tree.cpu_seconds(self._server.pid)

            def work() -> tuple[int, int]:
                upload_all(store)
                return self._count, self._count * BODY_BYTES

            done = timed(work)
            self.server_seconds.append(process_tree.cpu_seconds(self._server.pid) - before)
            uploaded = sum(file.commit_offset for file in store.tier.files)
        if uploaded != QUEUES + self._count:
            raise RuntimeError(f"expected {QUEUES + self._count} messages in the tier, found {uploaded}")
        shutil.rmtree(place)
        return done

    def plain_round(self) -> Round:
        """Objects of 4 MiB by 4 threads, which share a client."""
        self._number += 1
        client, source = self._server.store(BUCKET), random.Random(20).randbytes(PLAIN_BYTES)
        whole, rest = divmod(self._count * BODY_BYTES, PLAIN_BYTES)
        sizes = [PLAIN_BYTES] * whole + [rest] * bool(rest)

        def put_one(number: int) -> int:
            client.put(f"plain-{self._number}/{number}", source[: sizes[number]])
            return sizes[number]

        def work() -> tuple[int, int]:
            return self._count, sum(pool.map(put_one, range(len(sizes))))

        with ThreadPoolExecutor(PLAIN_THREADS, "plain-put") as pool:
            return timed(work)


class KeyLookUps:
    """A history of `messages` in a tier alone, all their keys in one index file; each look-up is of another key."""

    def __init__(self, directory: Path, server: SeaweedFS, messages: int) -> None:
        self._server = server
        self._store = open_store(
            directory, server, "keys", background=False, broker_name="b1", tiered_storage_level="FORCE",
            tiered_store_index_file_max_hash_slot_num=max(1_000, messages // INDEX_SLOTS_PER_KEY),
            tiered_store_index_file_max_index_num=messages + 1_000,
        )  # fmt: skip
        put(self._store, 0, messages)
        upload_all(self._store)
        index = self._store.tier.index
        assert index is not None
        index.seal()
        while index.run_once() == 0.0:
            continue
        self._numbers = list(range(messages))
        random.Random(21).shuffle(self._numbers)
        self.server_seconds: dict[int, float] = {}
        self.look_ups: dict[int, int] = {}

    def round(self, callers: int, count: int) -> Round:
        """So many look-ups, by so many threads at once."""
        if len(self._numbers) < count:
            raise RuntimeError(f"expected {count} keys that were not looked up yet, found {len(self._numbers)}")
        wanted = [self._numbers.pop() for _ in range(count)]
        before = process_tree.cpu_seconds(self._server.pid)
        with ThreadPoolExecutor(callers, "caller") as pool:
            ready = threading.Barrier(callers + 1)
            for _ in range(callers):
                pool.submit(ready.wait)
            ready.wait()  # Threads are not started in the time.
            done = timed(lambda: (count, sum(pool.map(self._look_up, wanted))))
        spent = process_tree.cpu_seconds(self._server.pid) - before
        self.server_seconds[callers] = self.server_seconds.get(callers, 0.0) + spent
        self.look_ups[callers] = self.look_ups.get(callers, 0) + count
        return done

    def _look_up(self, number: int) -> int:
        (found,) = self._store.query(TOPIC, key_of(number), max_messages=32).messages
        if found.keys != [key_of(number)]:
            raise RuntimeError(f"expected the message with key {key_of(number)}, found {found.keys}")
        return int(found.size)

    def close(self) -> None:
        self._store.close()
