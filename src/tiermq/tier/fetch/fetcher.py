"""TierFetcher: gets from the tier, through the window cache, with read-ahead.

    no such queue       NO_MATCHED_LOGIC_QUEUE  next = offset      offset = max   OFFSET_OVERFLOW_ONE    next = max
    nothing committed   NO_MESSAGE_IN_QUEUE     next = offset      offset > max   OFFSET_OVERFLOW_BADLY  next = max
    offset < min        OFFSET_TOO_SMALL        next = min         otherwise      FOUND or NO_MATCHED_MESSAGE

An error is an error: a back end that is out of reach raises TierUnavailable, and the caller decides whether the local
store can answer. A damaged record is skipped, counted and logged; it is never returned.
Threads: any thread may get. Read-ahead runs on `pool`.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor
from dataclasses import dataclass

from tiermq.clock import Clock
from tiermq.errors import TierError
from tiermq.kernel import GetPage
from tiermq.message.message_filter import MessageFilter
from tiermq.status import GetStatus
from tiermq.tier.fetch.read_ahead import ReadAhead
from tiermq.tier.fetch.window import Slice, Window
from tiermq.tier.fetch.window_cache import QueueName, WindowCache
from tiermq.tier.fetch.window_loader import WindowLoader, fetch_window
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile

_log = logging.getLogger(__name__)

READERS_MAX = 65_536  # Groups times queues whose progress is remembered.


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """RocketMQ's read-ahead settings and transfer limits."""

    cache_enable: bool = True
    cache_bytes: int = 256 * 1024 * 1024
    cache_expire_ms: int = 15_000
    message_count_threshold: int = 4_096
    message_size_threshold: int = 16_777_216
    transfer_bytes: int = 262_144
    transfer_count: int = 32


class TierFetcher:
    """See the module."""

    def __init__(self, files: FlatFileStore, config: FetchConfig, clock: Clock, pool: Executor) -> None:
        self.config = config
        self.corrupt_count = 0
        self.fetch_count = 0
        self.fetched_bytes = 0
        self.served_bytes = 0
        self._files = files
        self._pool = pool
        self._lock = threading.Lock()
        self._readers: dict[tuple[str, QueueName], ReadAhead] = {}
        self.cache = WindowCache(config.cache_bytes, config.cache_expire_ms, clock, self._note_unread)
        self.loader = WindowLoader(self.cache, config.message_size_threshold, self._note_fetch)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int | None = None,
        message_filter: MessageFilter | None = None,
        *,
        group: str = "",
    ) -> GetPage:
        """A page of messages. Raises TierUnavailable when the tier cannot be reached."""
        file = self._files.find(topic, queue_id)
        if file is None:
            return GetPage(GetStatus.NO_MATCHED_LOGIC_QUEUE, offset)
        high = file.commit_offset
        if high <= 0:
            return GetPage(GetStatus.NO_MESSAGE_IN_QUEUE, offset, max(0, file.min_offset), max(0, high))
        low = max(0, file.min_offset)
        if offset < low:
            return GetPage(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset >= high:
            status = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetPage(status, high, low, high)
        limit_bytes = min(max_bytes or self.config.transfer_bytes, self.config.transfer_bytes)
        count = max(1, min(max_messages, self.config.transfer_count))
        piece = self._read(group, file, offset, count, limit_bytes, message_filter)
        self.served_bytes += len(piece.data)
        status = GetStatus.FOUND if piece.count else GetStatus.NO_MATCHED_MESSAGE
        return GetPage(status, piece.next_offset, low, high, piece.data, piece.count)

    def _read(
        self,
        group: str,
        file: FlatMessageFile,
        offset: int,
        count: int,
        limit_bytes: int,
        message_filter: MessageFilter | None,
    ) -> Slice:
        if not self.config.cache_enable:
            window = fetch_window(file, offset, min(count, file.commit_offset - offset), limit_bytes)
            self._note_fetch(window)
            return self._take(window, offset, count, limit_bytes, message_filter)
        queue = (file.queue.topic, file.queue.queue_id)
        reader = self._reader(group, queue)
        window = self.window_at(file, offset, reader.size_for(count), group)
        piece = self._take(window, offset, count, limit_bytes, message_filter)
        reader.on_read(offset, piece.next_offset)
        if reader.is_sequential:
            self._read_ahead(group, file, window, piece.next_offset, reader)
        return piece

    @staticmethod
    def _take(window: Window, offset: int, count: int, limit_bytes: int, message_filter: MessageFilter | None) -> Slice:
        if message_filter is None:
            return window.take(offset, count, limit_bytes)
        return window.take_matching(offset, count, limit_bytes, message_filter)

    def window_at(self, file: FlatMessageFile, offset: int, count: int, owner: str = "") -> Window:
        """The window that holds `offset`, kept or fetched."""
        window = self.cache.find((file.queue.topic, file.queue.queue_id), offset)
        return self.loader.load(file, offset, count, owner) if window is None else window

    # Read-ahead

    def _read_ahead(
        self, group: str, file: FlatMessageFile, window: Window, next_offset: int, reader: ReadAhead
    ) -> None:
        """Fetch the next window in the background once half of this one is read."""
        following = window.end_offset
        queue = (file.queue.topic, file.queue.queue_id)
        if next_offset - window.first_offset < window.count // 2 or following >= file.commit_offset:
            return
        if self.cache.holds(queue, following) or self.loader.is_under_way(queue, following):
            return
        self._pool.submit(self._fetch_quietly, file, following, reader.window, group)

    def _fetch_quietly(self, file: FlatMessageFile, offset: int, count: int, group: str) -> None:
        """The background's edge: whoever really needs the window will meet the error himself."""
        try:
            self.loader.load(file, offset, count, group)
        except TierError as error:
            _log.info("read-ahead of %s at %d failed: %s", file.queue.logical_path, offset, error)

    def _reader(self, group: str, queue: QueueName) -> ReadAhead:
        key = (group, queue)
        reader = self._readers.get(key)
        if reader is None:
            with self._lock:
                if len(self._readers) >= READERS_MAX:
                    self._readers.pop(next(iter(self._readers)))
                reader = self._readers.setdefault(key, ReadAhead(self.config.message_count_threshold))
        return reader

    def _note_unread(self, owner: str, queue: QueueName) -> None:
        reader = self._readers.get((owner, queue))
        if reader is not None:
            reader.on_unread_expiry()

    def _note_fetch(self, window: Window) -> None:
        with self._lock:
            self.fetch_count += 1
            self.fetched_bytes += len(window.data) + len(window.units)
            self.corrupt_count += window.corrupt_count
        if window.corrupt_count:
            _log.error("%d damaged messages behind queue offset %d", window.corrupt_count, window.first_offset)
