"""OpenHistory: the tier and the stores of a HistoryPlace, opened when they are first needed.

A worker process keeps one per source (`worker_history`). Nothing is opened at import or before a fork: the client of
an object store hangs in a child that was forked after it was used, so the cache is keyed by process.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadHistory
from tiermq.history.cold_queues import CountedTier
from tiermq.history.scan_values import HistoryPlace
from tiermq.store.readonly.directory import is_store
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import directory_of, open_driver
from tiermq.tier.tier_config import TierConfig

LOOKUP_THREADS = 16


class OpenHistory:
    """See the module. Any thread may call; its owner closes it."""

    def __init__(self, place: HistoryPlace, *, clock: Clock | None = None, driver: TierDriver | None = None) -> None:
        if place.tier is None and driver is None and not place.stores:
            raise BadHistory("expected a tier, a store directory or both, found neither; give one of them")
        self.place = place
        self.clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._tier = CountedTier(driver) if driver is not None else None
        self._owns_tier = driver is None
        self._stores: dict[str, ReadOnlyStore] = {}
        self._pool: ThreadPoolExecutor | None = None

    @property
    def has_tier(self) -> bool:
        return self.place.tier is not None or self._tier is not None

    @property
    def tier(self) -> CountedTier:
        """The tier, opened now if need be; opening sends no request. Raises BadHistory if the source has no tier."""
        with self._lock:
            if self._tier is None:
                if self.place.tier is None:
                    raise BadHistory("expected a history with a tier, found store directories alone; name its tier")
                directory = directory_of(self.place.tier)
                if directory is not None and is_store(directory):
                    raise BadHistory(
                        f"{self.place.tier}: expected a tier, found the directory of a store: name it as the store "
                        f"instead (store= in Python, --store in commands): {directory}"
                    )
                self._tier = CountedTier(open_driver(self.place.tier, clock=self.clock))
            return self._tier

    @property
    def reads_ahead(self) -> bool:
        """Whether read-ahead is worth a thread: not for a tier in memory or in a directory."""
        url = self.tier.url
        return not url.startswith(("memory:", "file:")) or "driver=object" in url

    def store(self, path: str) -> ReadOnlyStore:
        """The store directory, opened now if need be. Raises what opening raises.

        Beside a tier it may have the tier's metadata and no message yet, as `tiermq tier import` and `restore` make it.
        """
        with self._lock:
            found = self._stores.get(path)
            if found is None:
                found = self._stores[path] = ReadOnlyStore.open(
                    path,
                    may_be_new=self.has_tier and TierConfig(store_path_root_dir=path).metadata_path.is_file(),
                )
            return found

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for many small requests at once, and for reading ahead."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="history")
            return self._pool

    def close(self) -> None:
        """Close everything. Records that were read from a store stay readable while they are referenced."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None
            for store in self._stores.values():
                store.close()
            self._stores.clear()
            if self._tier is not None and self._owns_tier:
                self._tier.close()
                self._tier = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_history(place: HistoryPlace, *, clock: Clock | None = None, driver: TierDriver | None = None) -> OpenHistory:
    """A history of one's own, to be closed. `driver` stands in for that of the tier's URL and is not closed."""
    return OpenHistory(place, clock=clock, driver=driver)


_kept: dict[tuple[int, HistoryPlace], OpenHistory] = {}
_kept_lock = threading.Lock()


def worker_history(place: HistoryPlace) -> OpenHistory:
    """The history of this source, one per process; it stays open until the process ends."""
    with _kept_lock:
        return _kept.setdefault((os.getpid(), place), OpenHistory(place))
