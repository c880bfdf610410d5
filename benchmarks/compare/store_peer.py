"""TierMQ's sides of the local store's works: each the twin of a class `Store*.java`, with the same settings.

Defaults are RocketMQ's on both sides; files of the log are warmed on both, the disk may be fuller, nothing is logged.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import workload
from benchmarks.harness import settle
from benchmarks.store_side import sample_message
from tiermq import Message
from tiermq.clock import SystemClock
from tiermq.files.os_file_access import OsFileAccess
from tiermq.index.index_service import IndexService
from tiermq.store.local_store import LocalStore

OVERHEAD_BYTES = workload.RECORD_BYTES - workload.BODY_BYTES
QUEUES = workload.TOPIC_COUNT * workload.QUEUE_COUNT
POOL_COUNT = 1024
LARGE_POOL_COUNT = 64
LARGE_BODY_BYTES = 4096
BATCHES = 8
KEYS_PER_PUT = 1000
POLL_S = 0.001
QUERY_MOST = 32
FOREVER_MS = 2**63 - 1
COPY_BLOCK_BYTES = 1 << 18
ZEROS = bytes(COPY_BLOCK_BYTES)
LARGE_PAGES: dict[str, Any] = {
    "max_transfer_count_on_message_in_memory": 100_000,
    "max_transfer_bytes_on_message_in_memory": 1 << 30,
}


def open_store(directory: str, log_size: int, **settings: Any) -> LocalStore:
    """A store with the settings that `StoreSetup.java` gives to RocketMQ's."""
    logging.getLogger("tiermq").setLevel(logging.CRITICAL)
    shared = {"warm_maped_file_enable": True, "disk_max_used_space_ratio": 95}
    return LocalStore.open(directory, mapped_file_size_commit_log=log_size, **{**shared, **settings})


def messages(seed: int, count: int, body_bytes: int, queue: int | None = None) -> list[Message]:
    """Distinct messages that visit every queue in turn, or that are all for one."""
    source = random.Random(seed)
    return [
        sample_message(number if queue is None else queue, source.randbytes(body_bytes), key)
        for number, key in enumerate(workload.keys(seed, count))
    ]


def await_dispatch(store: LocalStore) -> None:
    """Everything that was put can be got when this returns."""
    store.dispatch_now()
    if store.dispatched_where < store.max_physical_offset:
        raise RuntimeError(f"dispatched to {store.dispatched_where} of {store.max_physical_offset}")


def put_rows(store: LocalStore, size: int, varied: bool) -> int:
    """Put `size` bytes of the workload; how many records."""
    puts = [store.queue(*workload.queue_of(number)).put for number in range(QUEUES)]
    count = 0
    for row in workload.rows_of_log(size, varied):
        puts[row.number % QUEUES](row.body, workload.encode_properties(row.key))
        count += 1
    return count


class StorePut:
    """See `StorePut.java`: single puts by several threads, or lists by one; dispatch runs."""

    def __init__(self) -> None:
        self._store: LocalStore | None = None

    def prepare(self, parameters: dict[str, str]) -> dict[str, Any]:
        self._directory, self._log_size = parameters["dir"], int(parameters["log_size"])
        self._flush = parameters["flush"]
        self._until_dispatched = parameters["dispatched"] == "1"
        self._body, self._threads, self._list = (int(parameters[name]) for name in ("body", "threads", "list"))
        pool = LARGE_POOL_COUNT if self._body > LARGE_BODY_BYTES else POOL_COUNT
        self._pools = [messages(42 + number, pool, self._body) for number in range(self._threads)]
        self._lists = [messages(number, self._list, self._body, number) for number in range(BATCHES)]
        return {}

    def reset(self, _parameters: dict[str, str]) -> None:
        if self._store is None or self._flush == "ASYNC_FLUSH":
            self.close()
            self._store = open_store(self._directory, self._log_size, flush_disk_type=self._flush)
            for message in (self._pools[0] * 2)[:QUEUES]:
                _expect_ok(self._store.put(message))
        await_dispatch(self._store)
        gc.collect()
        settle()

    def run(self, parameters: dict[str, str]) -> tuple[int, int]:
        assert self._store is not None
        count = int(parameters["count"])
        if self._list:
            put_many = self._store.put_many
            for number in range(count // self._list):
                results = put_many(self._lists[number % BATCHES])
                if len(results) != self._list:
                    raise RuntimeError(f"expected {self._list} results, found {len(results)}")
                _expect_ok(results[-1])
            done = count // self._list * self._list
        else:
            done = count // self._threads * self._threads
            self._in_threads(count // self._threads)
        if self._until_dispatched:
            while self._store.dispatched_where < self._store.max_physical_offset:
                time.sleep(POLL_S)
        return done, done * (OVERHEAD_BYTES + self._body)

    def _in_threads(self, each: int) -> None:
        failures: list[BaseException] = []

        def work(pool: list[Message]) -> None:
            try:
                _put(self._store, pool, each)
            except BaseException as failure:  # The edge of a thread; the round ends with it.
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(pool,)) for pool in self._pools]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
            shutil.rmtree(self._directory)


def _put(store: Any, pool: list[Message], count: int) -> None:
    put = store.put
    ok = put(pool[0]).status  # Compared by identity: a status is a member of an enumeration.
    if ok.name != "PUT_OK":
        raise RuntimeError(f"expected PUT_OK, found {ok}")
    left = count - 1
    while left > 0:
        for message in pool[:left]:
            if put(message).status is not ok:
                raise RuntimeError("TierMQ refused a message of the workload")
        left -= len(pool)


def _expect_ok(result: Any) -> None:
    if result.status.name != "PUT_OK":
        raise RuntimeError(f"expected PUT_OK, found {result!r}")


class StoreDispatch:
    """See `StoreDispatch.java`: dispatch of the whole log from zero, on the calling thread."""

    def prepare(self, parameters: dict[str, str]) -> dict[str, Any]:
        self._records = int(parameters["records"])
        # Its log stays as it is: no thread runs, and the store is not put to.
        self._store = open_store(parameters["dir"], int(parameters["log_size"]), background=False)
        return {}

    def reset(self, _parameters: dict[str, str]) -> None:
        store = self._store
        store.delete_topics(workload.TOPICS)
        dispatch = store._parts.dispatch  # Only a recovery begins again; no public name does.
        dispatch.destroy_index()
        dispatch.offset = 0
        gc.collect()
        settle()

    def run(self, _parameters: dict[str, str]) -> tuple[int, int]:
        store = self._store
        done = store.dispatch_now()
        found = sum(store.max_offset(*workload.queue_of(number)) for number in range(QUEUES))
        if not done == found == self._records:
            raise RuntimeError(f"expected {self._records} units, found {found} of {done} dispatched records")
        return done, store.max_physical_offset

    def close(self) -> None:
        self._store.close()


class StoreRecover:
    """See `StoreRecover.java`: opening a store that was closed, or that crashed."""

    def __init__(self) -> None:
        self._store: LocalStore | None = None

    def prepare(self, parameters: dict[str, str]) -> dict[str, Any]:
        self._directory, self._saved = Path(parameters["dir"]), Path(parameters["saved"])
        self._log_size, self._records = int(parameters["log_size"]), int(parameters["records"])
        self._crashed = parameters["crashed"] == "1"
        return {}

    def reset(self, _parameters: dict[str, str]) -> None:
        first = self._store is None
        self.close()
        if self._crashed or first:
            restore(self._saved, self._directory)
        gc.collect()
        settle()

    def run(self, _parameters: dict[str, str]) -> tuple[int, int]:
        store = open_store(str(self._directory), self._log_size, message_index_safe=True, warm_maped_file_enable=False)
        self._store = store
        found = sum(store.max_offset(*workload.queue_of(number)) for number in range(QUEUES))
        if found != self._records:
            raise RuntimeError(f"expected {self._records} units after recovery, found {found}")
        return found, store.max_physical_offset

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def restore(saved: Path, directory: Path) -> None:
    """Everything but the commit log as it was saved."""
    for entry in directory.iterdir():
        if entry.is_dir() and entry.name != "commitlog":
            shutil.rmtree(entry)
        elif entry.is_file():
            entry.unlink()
    copy_tree(saved, directory)


def copy_tree(source: Path, target: Path, without: str = "") -> None:
    """Copy a store's directory; what is a hole in a file stays one, as in the files that a store makes itself."""
    ignore = shutil.ignore_patterns(without) if without else None
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignore, copy_function=_copy_sparse)


def _copy_sparse(source: str, target: str) -> None:
    with open(source, "rb") as read, open(target, "wb") as write:
        while block := read.read(COPY_BLOCK_BYTES):
            if block == ZEROS[: len(block)]:
                write.seek(len(block), os.SEEK_CUR)
            else:
                write.write(block)
        write.truncate()


class StoreGet:
    """See `StoreGet.java`: gets from random queues and offsets, each one block of bytes."""

    def prepare(self, parameters: dict[str, str]) -> dict[str, Any]:
        self._batch = int(parameters["batch"])
        # Hot is what a running store was given: of what it finds at its start it checks every record once more. No
        # thread runs, so that no file is made ahead, which RocketMQ would take for the end of the log.
        self._store = open_store(parameters["dir"], int(parameters["log_size"]), background=False, **LARGE_PAGES)
        records = put_rows(self._store, int(parameters["size"]), varied=False)
        await_dispatch(self._store)
        return {"records": records}

    def reset(self, parameters: dict[str, str]) -> None:
        source = random.Random(int(parameters["seed"]))
        self._places = []
        for _ in range(int(parameters["pulls"])):
            topic, queue_id = workload.queue_of(source.randrange(QUEUES))
            self._places.append(
                (topic, queue_id, source.randrange(self._store.max_offset(topic, queue_id) - self._batch))
            )
        gc.collect()
        settle()

    def run(self, _parameters: dict[str, str]) -> tuple[int, int]:
        get, batch = self._store.get, self._batch
        size = 0
        for topic, queue_id, offset in self._places:
            page = get(topic, queue_id, offset, batch)
            if page.next_offset != offset + batch:
                raise RuntimeError(f"expected {batch} messages, found {page!r}")
            size += len(page.data)
        return len(self._places) * batch, size

    def close(self) -> None:
        self._store.close()


class StoreIndex:
    """See `StoreIndex.java`: keys into a new index of one file, or queries of keys that it has."""

    def __init__(self) -> None:
        self._service: IndexService | None = None

    def prepare(self, parameters: dict[str, str]) -> dict[str, Any]:
        self._directory = Path(parameters["dir"])
        count = int(parameters["keys"])
        self._keys = [key.decode() for key in workload.keys(7, count)]
        self._offsets = array("q", range(0, count * workload.RECORD_BYTES, workload.RECORD_BYTES))
        self._timestamps_ms = array("q", [SystemClock().now_ms()]) * count
        self._queries = parameters["query"] == "1"
        self._run: Callable[[], int] = self._put
        if self._queries:
            self._open()
            self._put()
            self._run = self._query
        return {}

    def _open(self) -> None:
        self.close()
        self._directory.mkdir(parents=True)
        self._service = IndexService(
            OsFileAccess(), str(self._directory), 5_000_000, 20_000_000, SystemClock(), checkpoint=lambda _: None
        )

    def reset(self, parameters: dict[str, str]) -> None:
        if self._queries:
            source = random.Random(int(parameters["seed"]))
            # Fresh, as a request brings them: how a million keys lie in memory is not the index's affair.
            places = [source.randrange(len(self._keys)) for _ in range(int(parameters["count"]))]
            keys = [self._keys[at].encode().decode() for at in places]
            topics = [workload.TOPICS[at // KEYS_PER_PUT % workload.TOPIC_COUNT] for at in places]
            self._wanted = list(zip(topics, keys, strict=True))
        else:
            self._open()
        gc.collect()
        settle()

    def run(self, _parameters: dict[str, str]) -> tuple[int, int]:
        return self._run(), 0

    def _put(self) -> int:
        assert self._service is not None
        put, keys, offsets, times = self._service.put_keys, self._keys, self._offsets, self._timestamps_ms
        added = 0
        for number, start in enumerate(range(0, len(keys), KEYS_PER_PUT)):
            rows = slice(start, start + KEYS_PER_PUT)
            added += put(workload.TOPICS[number % workload.TOPIC_COUNT], keys[rows], offsets[rows], times[rows])
        if added != len(keys):
            raise RuntimeError(f"expected {len(keys)} index entries, found {added}")
        return added

    def _query(self) -> int:
        assert self._service is not None
        query, most, forever, found = self._service.query, QUERY_MOST, FOREVER_MS, 0
        for topic, key in self._wanted:
            found += len(query(topic, key, most, 0, forever).offsets)
        if found < len(self._wanted):
            raise RuntimeError(f"expected every key in the index, found {found} of {len(self._wanted)}")
        return len(self._wanted)

    def close(self) -> None:
        if self._service is not None:
            self._service.destroy()
            self._service.close()
            self._service = None
            shutil.rmtree(self._directory)
