"""TierFetcher: gets from the tier, through the window cache, with read-ahead.

    no such queue       NO_MATCHED_LOGIC_QUEUE  next = offset      offset = max   OFFSET_OVERFLOW_ONE    next = max
    nothing committed   NO_MESSAGE_IN_QUEUE     next = offset      offset > max   OFFSET_OVERFLOW_BADLY  next = max
    offset < min        OFFSET_TOO_SMALL        next = min         otherwise      FOUND or NO_MATCHED_MESSAGE

A get makes progress: `next_offset` is behind `offset` in both of the last cases. Errors are raised: a back end
that is out of reach raises TierUnavailable, and the caller decides whether the local store can answer. A damaged record
is counted and logged; it is never returned and never skipped: pages end before it, and a get of it raises
CorruptSegment, so that no consumer's offset moves past an unrecorded gap.

Read-ahead is for slow back ends. Where a fetch is CPU work only (`BackendLatency`), each group fetches on demand.

Memory: what is kept is bounded by the cache, to the byte. A group fetches windows of at most a quarter of its share of
the cache, and at most half of the share ahead, so its read-ahead does not push out what it is reading. Beyond that
there are the fetches under way: one for each thread that gets, and one for each thread of `pool`; and the units of what
is asked for ahead and not fetched yet (`run_ahead`), which are weighed as part of that half. Idle
memory of a driver (`RecycledMemory`) has its own limit; the weight of a window is the whole block that contains it.
Threads: any thread may get. Read-ahead runs on `pool`.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from typing import Protocol

from tiermq.clock import Clock
from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing, TierError
from tiermq.kernel import TierPage
from tiermq.message.message_filter import MessageFilter
from tiermq.status import GetStatus
from tiermq.tier.fetch.read_ahead import GRID_BYTES_MAX, QueueReader, RunAhead
from tiermq.tier.fetch.window_cache import Kept, Piece, Window, WindowCache
from tiermq.tier.fetch.window_loader import BackendLatency, WindowLoader, fetch_window
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile

# Settings and counters of the fetcher.


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """RocketMQ's read-ahead settings and transfer limits.

    readAheadCacheEnable, readAheadCacheExpireDuration, readAheadMessageCountThreshold, readAheadMessageSizeThreshold,
    and the local store's maxTransferBytesOnMessageInMemory and maxTransferCountOnMessageInMemory. The cache's size is
    in bytes: a share of a heap means nothing here.
    """

    cache_enable: bool = True
    cache_bytes: int = 256 * 1024 * 1024
    cache_expire_ms: int = 15_000
    message_count_threshold: int = 4_096
    message_size_threshold: int = 16_777_216
    transfer_bytes: int = 262_144
    transfer_count: int = 32


class ServedCounts(Protocol):
    """What is counted where it happens, for each reader."""

    hit_count: int
    miss_count: int
    served_count: int
    served_bytes: int


@dataclass(slots=True)
class FetchCounts:
    """Totals since the start. A hit is a window found in memory, a miss one that a reader had to wait for.

    Bytes are those of records.
    """

    hit_count: int = 0
    miss_count: int = 0
    served_count: int = 0
    served_bytes: int = 0
    fetched_bytes: int = 0
    corrupt_count: int = 0

    def add(self, served: ServedCounts) -> None:
        self.hit_count += served.hit_count
        self.miss_count += served.miss_count
        self.served_count += served.served_count
        self.served_bytes += served.served_bytes

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


_log = logging.getLogger(__name__)

AHEAD_FACTOR = 8
"""A window that is fetched ahead may have this many times the threshold's messages: no reader waits for it."""

RUN_PART = 4  # Fetch ahead when at least this part of the read-ahead is missing: few, long runs.

QUICK_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of one fetch from a fast back end: enough to amortize the calls, few enough for the CPU cache."""

HISTORY_BYTES = 16 * 1024 * 1024  # What a group may keep of what it has read, unless others need it or it is re-read.
QUICK_HISTORY_BYTES = 4 * 1024 * 1024  # The same where fetching again is no more than copying again.
READERS_MAX = 65_536  # Groups times queues whose progress is remembered.
FOUND = GetStatus.FOUND
NO_MATCHED_MESSAGE = GetStatus.NO_MATCHED_MESSAGE


class TierFetcher:
    """See the module."""

    def __init__(
        self,
        files: FlatFileStore,
        config: FetchConfig,
        clock: Clock,
        pool: Executor,
        pace: BackendLatency | None = None,
    ) -> None:
        self.config = config
        self._transfer_bytes, self._transfer_count = config.transfer_bytes, config.transfer_count
        self.pace = pace or BackendLatency()
        self.cache = WindowCache(config.cache_bytes, config.cache_expire_ms, clock, self._note_unread)
        self.loader = WindowLoader(self.cache, self._note_fetch, self.pace)
        self._find_file = files.find
        self._files = files
        self._runs = RunAhead(self.loader, pool, self._window_bytes)
        self._lock = threading.Lock()
        self._counts = FetchCounts()
        self._readers: dict[tuple[str, FlatMessageFile], QueueReader] = {}
        self._by_file: dict[FlatMessageFile, tuple[QueueReader, ...]] = {}

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
    ) -> TierPage:
        """A page of messages. Raises TierUnavailable when the tier cannot be reached."""
        file = self._find_file(topic, queue_id)
        if file is None:
            return TierPage(GetStatus.NO_MATCHED_LOGIC_QUEUE, offset)
        reader = self._readers.get((group, file)) or self._new_reader(group, file)
        low, high = reader.bounds()
        if offset < low or offset >= high:
            return _outside(offset, low, high)
        limit_bytes = self._transfer_bytes
        if max_bytes is not None and max_bytes < limit_bytes:
            limit_bytes = max(0, max_bytes)
        count = max_messages
        if not 1 <= count <= self._transfer_count:
            count = max(1, min(count, self._transfer_count))
        kept = reader.kept
        window = None if kept is None else kept.window
        if kept is not None and window is not None and window.pages is not None and message_filter is None:
            page = window.pages.page(offset, count, limit_bytes, low, high)
            if page is not None:
                # The common case: the next page of the window that this group reads.
                kept.fresh = True
                next_offset = page.next_offset
                ahead = reader.ahead
                ahead.on_read(offset, next_offset)
                if next_offset >= ahead.plan_at and ahead.is_sequential and self.pace.is_slow:
                    self._read_ahead(reader, window, next_offset)
                reader.hit_count += 1
                reader.served_bytes += len(page.data)
                reader.served_count += page.count
                return page
        try:
            data, count, next_offset = self._read(reader, offset, count, limit_bytes, message_filter)
        except (SegmentMissing, IllegalRange):
            # Retention may have taken the messages meanwhile; then that is the answer.
            low, high = reader.bounds()
            if low <= offset < high:
                raise
            return _outside(offset, low, high)
        reader.served_bytes += len(data)
        reader.served_count += count
        return TierPage(FOUND if count else NO_MATCHED_MESSAGE, next_offset, low, high, data, count)

    def get_cached(
        self, topic: str, queue_id: int, offset: int, max_messages: int, max_bytes: int, group: str
    ) -> TierPage | None:
        """What `get` would give, if it is wholly in the window that the group reads, and nothing is to be fetched
        ahead. None otherwise. For a thread that must not wait, and where handing a get to another costs more than it.
        """
        file = self._find_file(topic, queue_id)
        reader = None if file is None else self._readers.get((group, file))
        kept = None if reader is None else reader.kept
        window = None if kept is None else kept.window
        if reader is None or kept is None or window is None or window.pages is None:
            return None
        low, high = reader.bounds()
        count = max(1, min(max_messages, self._transfer_count))
        if offset < low or offset + count > high:
            return None
        ahead = reader.ahead
        if offset + count >= ahead.plan_at and self.pace.is_slow:
            return None  # It may be time to read ahead, which is for a thread that has time.
        page = window.pages.page(offset, count, max(0, min(max_bytes, self._transfer_bytes)), low, high)
        if page is None:
            return None
        kept.fresh = True
        ahead.on_read(offset, page.next_offset)
        reader.hit_count += 1
        reader.served_bytes += len(page.data)
        reader.served_count += page.count
        return page

    def _read(
        self, reader: QueueReader, offset: int, count: int, limit_bytes: int, chosen: MessageFilter | None
    ) -> Piece:
        """Fill a page window by window. For one that has something already, nothing is waited for any more."""
        if not self.config.cache_enable:
            return self._read_directly(reader, offset, count, limit_bytes, chosen)
        scan_end = min(offset + self.config.message_count_threshold, reader.file.commit_offset)
        parts: list[bytes] = []
        total = found = 0
        at = offset
        while True:
            try:
                window = self._window_at(reader, at, count, fetch=not found or not self.pace.is_slow)
                if window is None:
                    break
                data, taken, next_offset = _take(window, at, count - found, limit_bytes - total, chosen)
            except TierError as error:
                if at == offset:
                    raise _named(reader.file, error) from None
                window = None  # Return what there is; a get of the rest raises the error.
                break
            if found and total + len(data) > limit_bytes:
                break  # The first message of a window is given in any case, and was one too many.
            parts.append(data)
            total += len(data)
            found += taken
            at = next_offset
            if found >= count or at < window.end_offset or at >= scan_end:
                break
        reader.ahead.on_read(offset, at)
        ahead = reader.ahead
        if ahead.is_sequential and window is not None and at >= ahead.plan_at and self.pace.is_slow:
            self._read_ahead(reader, window, at)
        return (parts[0] if len(parts) == 1 else b"".join(parts)), found, at

    def _read_directly(
        self, reader: QueueReader, offset: int, count: int, limit_bytes: int, chosen: MessageFilter | None
    ) -> Piece:
        """Without the cache: as many messages as requested, less those that the filter drops."""
        count = min(count, self.config.message_count_threshold, reader.file.commit_offset - offset)
        window = fetch_window(reader.file, offset, count, self.config.message_size_threshold)
        self._note_fetch(reader.file, window)
        try:
            return _take(window, offset, count, limit_bytes, chosen)
        except CorruptSegment as error:
            raise _named(reader.file, error) from None

    def _window_at(self, reader: QueueReader, offset: int, count: int, *, fetch: bool) -> Window | None:
        """The window that holds `offset`; None when it would have to be fetched and `fetch` is false."""
        kept = self.cache.find(reader.file, offset)
        if kept is not None and kept.window is not None:
            reader.hit_count += 1
            self._enter(reader, kept)
            return kept.window
        if not fetch:
            return None
        reader.ahead.on_miss(offset)
        reader.miss_count += 1
        before = None if reader.kept is None else reader.kept.window
        if (
            before is not None
            and reader.ahead.is_sequential
            and offset == reader.ahead.next_offset
            and self.pace.is_slow
        ):
            self._read_ahead(reader, before, offset)  # Fetch the next windows while this one is fetched.
        wanted, bytes_max = reader.ahead.size_for(count), self._window_bytes()
        if self.pace.is_slow:
            wanted = min(wanted, self.config.message_count_threshold)
        else:
            wanted = min(wanted * AHEAD_FACTOR, reader.ahead.max_window) if reader.ahead.is_sequential else wanted
            bytes_max = min(bytes_max, QUICK_BYTES_MAX)
        loaded = self.loader.load(reader.file, offset, wanted, bytes_max, reader.group)
        self._enter(reader, loaded.kept)
        return loaded.window

    def _enter(self, reader: QueueReader, kept: Kept | None) -> None:
        """The group continues with another window.

        A group that holds much lets go of the oldest that it has read, as long as no other is still to come to it:
        memory that is used again soon is warm, and fresh pages cost more than the fetch.
        """
        if kept is reader.kept:
            return
        reader.kept = kept
        history_bytes = HISTORY_BYTES if self.pace.is_slow else QUICK_HISTORY_BYTES
        while reader.ahead.is_sequential and self.cache.bytes_of(reader.group) > history_bytes:
            oldest = self.cache.oldest_read(reader.group)
            window = None if oldest is None else oldest.window
            if oldest is None or window is None or oldest is kept:
                return
            others = self._by_file.get(oldest.queue, ())  # type: ignore[call-overload]
            if any(other.is_before(window.end_offset) for other in others):
                return
            self.cache.release(oldest)

    def _window_bytes(self) -> int:
        """How many bytes one fetch may take: a small part of a group's share, so that it can have several."""
        return min(self.config.message_size_threshold, self.cache.share() // 4)

    # Read-ahead

    def _read_ahead(self, reader: QueueReader, window: Window, next_offset: int) -> None:
        """Request the windows behind the current one, as far as depth and share allow."""
        ahead, file = reader.ahead, reader.file
        mean_bytes = max(1, window.weight // window.count)
        count = max(1, min(ahead.window, min(GRID_BYTES_MAX, self._window_bytes()) // mean_bytes))
        reach = min(ahead.depth * count, max(count, self.cache.share() // 2 // mean_bytes))
        committed = file.commit_offset
        goal = next_offset + reach if next_offset + reach + count < committed else committed
        begin = self.cache.covered_until(file, max(ahead.planned_end, window.end_offset))
        ahead.plan_at = next_offset + max(1, count // 2)
        if begin < goal and (goal == committed or goal - begin >= reach // RUN_PART):
            self._runs.ask(reader, begin, goal, count, mean_bytes)

    # Readers and counts

    def _new_reader(self, group: str, file: FlatMessageFile) -> QueueReader:
        with self._lock:
            while len(self._readers) >= READERS_MAX:
                self._drop_reader(next(iter(self._readers)))
            reader = self._readers.get((group, file))
            if reader is None:
                max_window = self.config.message_count_threshold * AHEAD_FACTOR
                reader = self._readers[(group, file)] = QueueReader(group, file, max_window)
                self._by_file[file] = (*self._by_file.get(file, ()), reader)
            return reader

    def forget(self, file: FlatMessageFile) -> None:
        """The queue was deleted: let go of everything that is known about it."""
        with self._lock:
            for key in [key for key in self._readers if key[1] is file]:
                self._drop_reader(key)
        self.cache.forget(file)

    def _drop_reader(self, key: tuple[str, FlatMessageFile]) -> None:
        """With the lock held."""
        reader = self._readers.pop(key)
        self._counts.add(reader)
        rest = tuple(other for other in self._by_file[reader.file] if other is not reader)
        if rest:
            self._by_file[reader.file] = rest
        else:
            del self._by_file[reader.file]

    def counts(self) -> FetchCounts:
        """Totals so far."""
        with self._lock:
            total = FetchCounts(**self._counts.as_dict())
            for reader in self._readers.values():
                total.add(reader)
        return total

    def _note_unread(self, owner: str, queue: object) -> None:
        reader = self._readers.get((owner, queue))  # type: ignore[arg-type]
        if reader is not None:
            reader.ahead.on_unread()

    def _note_fetch(self, file: FlatMessageFile, window: Window) -> None:
        with self._lock:
            self._counts.fetched_bytes += len(window.data)
            self._counts.corrupt_count += window.corrupt_count
        if window.corrupt_count:
            _log.error(
                "%s: %d damaged messages within queue offsets %d..%d; run `tiermq tier verify`",
                file.queue.logical_path, window.corrupt_count, window.first_offset, window.end_offset - 1,
            )  # fmt: skip


def _named(file: FlatMessageFile, error: TierError) -> TierError:
    """The error with the name of its queue."""
    return CorruptSegment(f"{file.queue.logical_path}: {error}") if type(error) is CorruptSegment else error


def _take(window: Window, offset: int, count: int, limit_bytes: int, chosen: MessageFilter | None) -> Piece:
    if chosen is None:
        return window.take(offset, count, limit_bytes)
    return window.take_matching(offset, count, limit_bytes, chosen)


def _outside(offset: int, low: int, high: int) -> TierPage:
    """A page for an offset that is not in [low, high)."""
    if high <= 0:
        return TierPage(GetStatus.NO_MESSAGE_IN_QUEUE, offset, low, high)
    if offset < low:
        return TierPage(GetStatus.OFFSET_TOO_SMALL, low, low, high)
    status = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
    return TierPage(status, high, low, high)
