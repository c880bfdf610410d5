"""OpenHistory: the tier and the stores of a HistoryPlace, opened when they are first needed.

A worker process keeps one of each place (`worker_history`). Nothing is opened at import or before a fork: the client of
an object store hangs in a child that was forked after it was used, so the cache knows in which process it was filled.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadHistory
from tiermq.history.counted_tier import CountedTier
from tiermq.history.hot_store import HotStore
from tiermq.history.scan_values import HistoryPlace
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver

LOOKUP_THREADS = 16


class OpenHistory:
    """See the module. Any thread may ask; closing it is its owner's."""

    def __init__(self, place: HistoryPlace, *, clock: Clock | None = None, driver: TierDriver | None = None) -> None:
        if place.tier is None and driver is None and not place.stores:
            raise BadHistory("expected a tier, a store directory or both, found neither; name where the history lies")
        self.place = place
        self.clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._tier = CountedTier(driver) if driver is not None else None
        self._owns_tier = driver is None
        self._stores: dict[str, HotStore] = {}
        self._pool: ThreadPoolExecutor | None = None

    @property
    def has_tier(self) -> bool:
        return self.place.tier is not None or self._tier is not None

    @property
    def tier(self) -> CountedTier:
        """The tier, opened now if need be; opening sends no request. Raises BadHistory when the place has none."""
        with self._lock:
            if self._tier is None:
                if self.place.tier is None:
                    raise BadHistory("expected a history with a tier, found store directories alone; name its tier")
                self._tier = CountedTier(open_driver(self.place.tier, clock=self.clock))
            return self._tier

    @property
    def reads_ahead(self) -> bool:
        """Whether a thread should read the next bytes meanwhile: not where they come from this machine's memory."""
        url = self.tier.url
        return not url.startswith(("memory:", "file:")) or "driver=object" in url

    def store(self, path: str) -> HotStore:
        """The store directory, opened now if need be. Raises what opening raises."""
        with self._lock:
            found = self._stores.get(path)
            if found is None:
                found = self._stores[path] = HotStore(path, may_be_new=self.has_tier)
            return found

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for many small requests at once, and for reading ahead."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="history")
            return self._pool

    def close(self) -> None:
        """Give everything back. Records that were read of a store stay readable as long as somebody holds them."""
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
    """The one history of this place in this process; it stays open until the process ends."""
    with _kept_lock:
        return _kept.setdefault((os.getpid(), place), OpenHistory(place))
