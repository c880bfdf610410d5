"""TieredReading: reads over two stores that together have every message once, or twice where they overlap.

    tier   [min ............... committed)
    local                [min .................. max)        numbered alike, so an offset means the same message

The read policy selects the store of a get. The local store answers only for contiguous ranges: messages that it lost in
the middle, that are damaged there, or that its cleaner is deleting, come from the tier. An error of the tier is raised,
unless the local store can answer. Offsets, times and keys are those of both stores, at every level.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tiermq.consumequeue.queue_units import Boundary
from tiermq.errors import CorruptRecord, TierError
from tiermq.kernel import GetPage, TierPage
from tiermq.kernel.columns import TIME_MAX_MS
from tiermq.message.message_filter import MessageFilter
from tiermq.message.stored_message import StoredMessage
from tiermq.status import GetStatus
from tiermq.store.local_store import LocalStore
from tiermq.store.reader import PULL_BYTES_MAX, QueryPage
from tiermq.tier.fetch.merged_query import KeyIndex, merge, query_cold
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.names import QueueName
from tiermq.tier.tier_config import StorageLevel
from tiermq.tier.tier_wiring import TierComponents

_log = logging.getLogger(__name__)

CLOCK_STEP_MS = 600_000
"""How much later than the local store's oldest message one of the tier may seem, after a clock was set back."""


class Source(enum.Enum):
    """The store that answers."""

    LOCAL = "local"
    TIER = "tier"


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """Input of the read policy: a get at one offset, and what both stores have of its queue."""

    tiered_topic: bool
    in_tier: bool  # The tier has the queue.
    tier_commit_offset: int
    local_is_empty: bool
    offset_in_local: bool
    offset_in_memory: bool


def choose(level: StorageLevel, offset: int, facts: ReadFacts) -> Source:
    """The read policy: which store answers a get at `offset`. The first row that applies decides.

    topic is not tiered                    local      level is DISABLE                             local
    level is FORCE                         tier       queue unknown to the tier                    local
    offset not committed in the tier yet   local      local log is empty, level >= NOT_IN_DISK     tier
    offset not in the local store, >= 1    tier       offset not in memory, level >= NOT_IN_MEM    tier
    otherwise                              local
    """
    if not facts.tiered_topic or level is StorageLevel.DISABLE:
        return Source.LOCAL
    if level is StorageLevel.FORCE:
        return Source.TIER
    if not facts.in_tier or offset >= facts.tier_commit_offset:
        return Source.LOCAL
    if facts.local_is_empty or not facts.offset_in_local:
        return Source.TIER
    if level >= StorageLevel.NOT_IN_MEM and not facts.offset_in_memory:
        return Source.TIER
    return Source.LOCAL


def falls_back(status: GetStatus, offset_in_local: bool) -> bool:
    """Whether the local store answers after all: the tier could not, and the message is still there.

    A tier that is out of reach raises instead of giving a status; that falls back in the same way.
    """
    return offset_in_local and status in (GetStatus.OFFSET_FOUND_NULL, GetStatus.NO_MATCHED_LOGIC_QUEUE)


def joint_min_offset(local: int, tier: int) -> int:
    """The smallest readable offset of both; -1 means unknown."""
    known = [offset for offset in (local, tier) if offset >= 0]
    return min(known, default=-1)


def joint_earliest_time(local_ms: int, tier_ms: int) -> int:
    """Store time of the oldest message of both; -1 when neither has one."""
    known = [time_ms for time_ms in (local_ms, tier_ms) if time_ms >= 0]
    return min(known, default=-1)


class TieredReading:
    """See the module. Any thread may call anything."""

    def __init__(self, local: LocalStore, tier: TierComponents) -> None:
        self.local = local
        self.tier = tier
        level = self._level = tier.config.tiered_storage_level
        # What a level means beside `choose`: a get that one of these decides looks nothing up.
        self._never_cold = level is StorageLevel.DISABLE
        self._local_first = level <= StorageLevel.NOT_IN_DISK
        self._always_cold = level is StorageLevel.FORCE

    # Gets

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int = PULL_BYTES_MAX,
        message_filter: MessageFilter | None = None,
        *,
        group: str = "",
        reader: str = "",
        bulk: bool = False,
    ) -> GetPage:
        """A page of messages from either store. Raises TierError when only the tier has them and cannot answer.

        `reader` identifies a sequential reader, if it is not the whole group: read-ahead follows it.
        """
        file = None if self._never_cold else self._cold(topic, queue_id)
        if not self._local_first and self._prefers_tier(topic, queue_id, offset, file):
            return self._from_tier(topic, queue_id, offset, max_messages, max_bytes, message_filter, group, reader)
        page = self._local_page(file, topic, queue_id, offset, max_messages, max_bytes, message_filter, bulk)
        if page is not None:
            return page
        cold = self._fetch(topic, queue_id, offset, max_messages, max_bytes, message_filter, group, reader)
        return self._with_local_min(cold, topic, queue_id)

    def get_local(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int = PULL_BYTES_MAX,
        message_filter: MessageFilter | None = None,
        bulk: bool = False,
    ) -> GetPage | None:
        """What `get` would return, if the local store can answer; None when the tier must be read. Never blocks."""
        file = None if self._never_cold else self._cold(topic, queue_id)
        if not self._local_first and self._prefers_tier(topic, queue_id, offset, file):
            return None
        return self._local_page(file, topic, queue_id, offset, max_messages, max_bytes, message_filter, bulk)

    def get_cached(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        group: str,
        max_bytes: int = PULL_BYTES_MAX,
        *,
        reader: str = "",
    ) -> TierPage | None:
        """What `get` would return where `get_local` returns None, if it is in a cached window; None when the tier must
        be read. Never blocks. Without a filter: filtering is work for another thread.
        """
        tier, began_s = self.tier, time.perf_counter()
        page = tier.fetcher.get_cached(topic, queue_id, offset, max_messages, max_bytes, reader or group)
        if page is None:
            return None
        tier.metrics.took("get_message", topic, group, time.perf_counter() - began_s)
        tier.metrics.served(topic, group, page.count)
        return self._with_local_min(page, topic, queue_id)

    def tier_end(self, topic: str, queue_id: int) -> int:
        """The end of a queue in the tier, or -1. Never blocks."""
        file = self._cold(topic, queue_id)
        return -1 if file is None else file.commit_offset

    def _local_page(
        self,
        file: FlatMessageFile | None,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
        bulk: bool = False,
    ) -> GetPage | None:
        """The local store's page, if its messages are contiguous or the tier lacks them too.

        Raises CorruptRecord when it begins with a damaged message that the tier lacks.
        """
        try:
            page = self.local.get(topic, queue_id, offset, max_messages, max_bytes, message_filter, bulk)
        except CorruptRecord as error:
            if file is None or not self._holds(file, offset):
                raise
            _log.warning(
                "queue %s/%d offset %d is damaged here, and read from the tier: %s", topic, queue_id, offset, error
            )
            return None
        if file is None or (message_filter is None and page.count and page.count == page.next_offset - offset):
            return page
        if not self._holds(file, offset):
            return self._beyond(page, file, offset)
        if page.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
            unbroken = self._unbroken(topic, queue_id, offset, page.next_offset)
            if unbroken == page.next_offset - offset:
                return page
            if unbroken and message_filter is None:
                found = self.local.get(topic, queue_id, offset, min(unbroken, max_messages), max_bytes)
                end = offset + found.count  # The local store skips offsets without a message; the tier has them.
                return GetPage(found.status, end, found.min_offset, found.max_offset, found.data, found.count)
        return None

    def _fetch(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
        group: str,
        reader: str,
    ) -> TierPage:
        """A get from the tier, timed and counted."""
        tier, began_s = self.tier, time.perf_counter()
        reader = reader or group
        try:
            page = tier.fetcher.get(topic, queue_id, offset, max_messages, max_bytes, message_filter, group=reader)
        finally:
            tier.metrics.took("get_message", topic, group, time.perf_counter() - began_s)
        tier.metrics.served(topic, group, page.count)
        return page

    def _cold(self, topic: str, queue_id: int) -> FlatMessageFile | None:
        """The queue in the tier, if it is stored there."""
        tier = self.tier
        if topic in tier.engine.held_topics or tier.filter.is_filtered(topic):
            return None
        file = tier.files.find(topic, queue_id)
        return file if file is not None and file.initialised else None

    @staticmethod
    def _holds(file: FlatMessageFile, offset: int) -> bool:
        return max(0, file.min_offset) <= offset < file.commit_offset

    def _is_local(self, topic: str, queue_id: int, offset: int) -> bool:
        return self.local.physical_offset_of(topic, queue_id, offset) >= max(0, self.local.min_physical_offset)

    def _unbroken(self, topic: str, queue_id: int, offset: int, end: int) -> int:
        """How many messages from `offset` on, at most up to `end`, the local store has without a gap."""
        count = 0
        low = max(0, self.local.min_physical_offset)
        for at, physical, _ in self.local.units_between(topic, queue_id, offset, end):
            if at != offset + count or physical < low:
                break
            count += 1
        return count

    def _prefers_tier(self, topic: str, queue_id: int, offset: int, file: FlatMessageFile | None) -> bool:
        """The read policy's decision, for levels that do not always read the local store first."""
        local = self.local
        is_tiered = not self.tier.filter.is_filtered(topic) and topic not in self.tier.engine.held_topics
        if self._always_cold:
            return is_tiered  # `choose` uses nothing else for this level; skip the lookups per page.
        physical = local.physical_offset_of(topic, queue_id, offset)
        low, high = local.min_physical_offset, local.max_physical_offset
        facts = ReadFacts(
            tiered_topic=is_tiered,
            # Do not read from the tier what it no longer has, or not yet.
            in_tier=file is not None and self._holds(file, offset),
            tier_commit_offset=-1 if file is None else file.commit_offset,
            local_is_empty=low < 0 or low >= high,
            offset_in_local=physical >= max(0, low),
            offset_in_memory=physical >= 0 and high - physical <= local.memory_window_bytes,
        )
        return choose(self._level, offset, facts) is Source.TIER

    def _from_tier(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
        group: str,
        reader: str,
    ) -> GetPage:
        """The tier's page, or the local store's where only that has one."""
        try:
            page = self._fetch(topic, queue_id, offset, max_messages, max_bytes, message_filter, group, reader)
        except TierError:
            if not self._is_local(topic, queue_id, offset):
                raise
        else:
            if page.count:
                return self._with_local_min(page, topic, queue_id)
            # Only the local store has the queue, so its bounds are complete.
            is_only_local = (
                page.status is GetStatus.NO_MATCHED_LOGIC_QUEUE and self.local.max_offset(topic, queue_id) > 0
            )
            if not is_only_local and not falls_back(page.status, self._is_local(topic, queue_id, offset)):
                return self._with_local_min(self._not_sent_back(page, topic, queue_id, offset), topic, queue_id)
        self.tier.metrics.fell_back("get_message", topic, group)
        return self.local.get(topic, queue_id, offset, max_messages, max_bytes, message_filter)

    def _beyond(self, page: GetPage, file: FlatMessageFile, offset: int) -> GetPage:
        """A local page for an offset that the tier lacks too, with the bounds of both stores."""
        low, high = max(0, file.min_offset), file.commit_offset
        if page.status is GetStatus.OFFSET_TOO_SMALL and offset < low < min(page.next_offset, high):
            return GetPage(GetStatus.OFFSET_TOO_SMALL, low, low, page.max_offset)
        if page.count == 0 and page.max_offset < high <= offset:
            # The local store lost its end: its own max offset would reset a client to an older offset.
            status = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetPage(status, high, low, high)
        return page

    def _not_sent_back(self, page: TierPage, topic: str, queue_id: int, offset: int) -> TierPage:
        """A reader may be ahead of the tier, after pages of the local store: it waits instead of being reset."""
        if page.count or not page.max_offset < offset <= self.local.max_offset(topic, queue_id):
            return page
        return TierPage(GetStatus.OFFSET_OVERFLOW_ONE, offset, page.min_offset, offset)

    def _with_local_min(self, page: TierPage, topic: str, queue_id: int) -> TierPage:
        """A page of the tier with the local store's min offset. Its max offset stays the tier's: a larger one would
        send a client back and forth between the stores.
        """
        if page.min_offset != 0 and self.local.max_offset(topic, queue_id) > 0:  # 0 is the lowest offset.
            page.min_offset = joint_min_offset(self.local.min_offset(topic, queue_id), page.min_offset)
        return page

    def holes(self, wanted: Mapping[QueueName, tuple[int, int]]) -> dict[QueueName, tuple[int, int]]:
        """What of these messages is in neither store because the tier ends before the local log begins; by the first
        offset and the one behind the last. Nothing where files go without a proof, and of queues that may be in a part
        of the log that was not dispatched yet. Sends no request.
        """
        found: dict[QueueName, tuple[int, int]] = {}
        if not self.tier.config.tier_evict_on_proof:
            return found
        is_whole = self.local.dispatched_where >= self.local.max_physical_offset
        for (topic, queue_id), (begin, end) in wanted.items():
            low, high = self.local.min_offset(topic, queue_id), self.local.max_offset(topic, queue_id)
            if self.tier.filter.is_filtered(topic) or not (is_whole or 0 <= low < high):
                continue
            file = self.tier.files.find(topic, queue_id)
            copied = 0 if file is None else max(0, file.commit_offset)
            hole = max(begin, copied), min(end, low) if 0 <= low < high else end
            if hole[0] < hole[1]:
                found[topic, queue_id] = hole
        return found

    # Keys

    def query(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = TIME_MAX_MS, max_messages: int = 32
    ) -> QueryPage:
        """The newest messages with a key, from both stores, each once, oldest of them first.

        Raises TierError when the tier may have some and cannot answer.
        """
        page = self._query(topic, key, begin_ms, end_ms, max_messages)
        if not page.complete and self.tier.follower is not None:
            # A job may have indexed what it had committed at the last refresh.
            self.tier.follower.refresh()
            page = self._query(topic, key, begin_ms, end_ms, max_messages)
        return page

    def _query(self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int) -> QueryPage:
        tier = self.tier
        if tier.key_index is None or topic in tier.engine.held_topics or tier.filter.is_filtered(topic):
            return self.local.query(topic, key, begin_ms, end_ms, max_messages)
        if not tier.writer.is_caught_up and self._needs_index(topic):
            tier.engine.keep_lease()  # Which reads first what other processes have written; waits if it is being read.
        most = min(max_messages, self.local.config.max_msgs_num_batch)
        if self._is_cold_only():
            is_indexed = self._is_indexed(tier.key_index, topic)
            with tier.metrics.timed("query_message", topic):
                cold = query_cold(tier.key_index, tier.records, tier.pool, topic, key, begin_ms, end_ms, most)
            return QueryPage(cold, 0, 0, is_indexed)
        is_indexed = self._is_indexed(tier.key_index, topic)
        page = self.local.query(topic, key, begin_ms, end_ms, max_messages)
        # Messages of the tier newer than the oldest local one are copies.
        oldest_ms = self._oldest_local_ms()
        cold_end_ms = end_ms if oldest_ms < 0 else min(end_ms, oldest_ms + CLOCK_STEP_MS)
        try:
            with tier.metrics.timed("query_message", topic):
                cold = query_cold(tier.key_index, tier.records, tier.pool, topic, key, begin_ms, cold_end_ms, most)
        except TierError:
            if self._is_colder(topic):
                raise
            return page
        merged = merge(page.messages, cold, most)
        return QueryPage(
            merged,
            page.last_update_timestamp_ms,
            page.last_update_physical_offset,
            page.complete and is_indexed and self._is_indexed(tier.key_index, topic),
        )

    def _is_indexed(self, index: KeyIndex, topic: str) -> bool:
        """Whether the tier's index covers every message of the topic that the local index does not."""
        is_complete = self.tier.writer.is_caught_up and index.is_complete_for(topic)
        if not is_complete and self._needs_index(topic):
            return False
        is_cold_only = self._is_cold_only()
        for file in self.tier.files.of_topic(topic):
            # A dispatch step that fails after its commit leaves indexing to the next step.
            first = file.unindexed_offset
            if first is not None and (is_cold_only or not self._is_local(topic, file.queue.queue_id, first)):
                return False
        return True

    def _needs_index(self, topic: str) -> bool:
        """Whether only the tier's index can know every message of the topic."""
        return self._is_cold_only() or not all(map(self._has_all_of, self.tier.files.of_topic(topic)))

    def _is_cold_only(self) -> bool:
        """Whether queries by key do not use the local index."""
        return self._always_cold or not self.local.config.message_index_enable

    def _has_all_of(self, file: FlatMessageFile) -> bool:
        """Whether the local store has every message that the tier has of a queue."""
        first, end = max(0, file.min_offset), file.commit_offset
        name = file.queue.topic, file.queue.queue_id
        return end <= first or (self._is_local(*name, first) and self._is_local(*name, end - 1))

    def _oldest_local_ms(self) -> int:
        """When the oldest record of the local log was stored; -1 when there is none."""
        oldest = self.local.message_at(max(0, self.local.min_physical_offset))
        return -1 if oldest is None else oldest.store_timestamp_ms

    def _is_colder(self, topic: str) -> bool:
        """Whether the tier has messages of the topic that the local store lacks."""
        for file in self.tier.files:
            name = file.queue.name
            if name[0] == topic and file.initialised and file.commit_offset > max(0, file.min_offset):
                low, high = self.local.min_offset(*name), self.local.max_offset(*name)
                if high == 0 or file.min_offset < low or file.commit_offset > high:
                    return True
        return False

    def message_at(self, physical_offset: int, size: int | None = None) -> StoredMessage | None:
        """By physical offset in the local log; records in the tier have other offsets."""
        return self.local.message_at(physical_offset, size)

    def stored_at(self, physical_offset: int) -> StoredMessage | None:
        """The same at an offset that a client names: see `LocalStore.stored_at`."""
        return self.local.stored_at(physical_offset)

    # Offsets and times

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The oldest queue offset that either store has."""
        file = self._cold(topic, queue_id)
        local = self.local.min_offset(topic, queue_id)
        if file is None or file.commit_offset <= max(0, file.min_offset):
            return local
        is_empty = self.local.max_offset(topic, queue_id) == 0
        return joint_min_offset(-1 if is_empty else local, file.min_offset)

    def max_offset(self, topic: str, queue_id: int, *, committed: bool = True) -> int:
        """The offset behind the newest message of either store."""
        file = self._cold(topic, queue_id)
        local = self.local.max_offset(topic, queue_id, committed=committed)
        return local if file is None else max(local, file.commit_offset)

    def earliest_time(self, topic: str, queue_id: int) -> int:
        """Store time of the oldest message of a queue; -1 when there is none."""
        file = self._cold(topic, queue_id)
        return joint_earliest_time(self.local.earliest_time(topic, queue_id), -1 if file is None else file.begin_ms)

    def offset_at(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """The queue offset that belongs to a time, over both stores. Raises TierError."""
        file = self._cold(topic, queue_id)
        if file is None:
            return self.local.offset_at(topic, queue_id, timestamp_ms, boundary)
        if self._always_cold:
            return self._cold_offset_at(file, timestamp_ms, boundary)
        earliest = self.local.earliest_time(topic, queue_id)
        # Of messages stored in the same millisecond, the first may be cold and the last local.
        in_local = timestamp_ms >= earliest if boundary == "upper" else timestamp_ms > earliest
        if earliest >= 0 and in_local:
            return self.local.offset_at(topic, queue_id, timestamp_ms, boundary)
        if earliest >= 0 and self.local.min_offset(topic, queue_id) <= max(0, file.min_offset):
            return self.local.offset_at(topic, queue_id, timestamp_ms, boundary)
        found = self._cold_offset_at(file, timestamp_ms, boundary)
        if found >= file.commit_offset and earliest >= 0:
            return max(found, self.local.offset_at(topic, queue_id, timestamp_ms, boundary))
        return found

    def _cold_offset_at(self, file: FlatMessageFile, timestamp_ms: int, boundary: str) -> int:
        with self.tier.metrics.timed("get_offset_by_time", file.queue.topic):
            return self.tier.times.offset_by_time(file, timestamp_ms, Boundary(boundary))

    def store_time_of(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message with a queue offset was stored; -1 when neither store has it. Raises TierError."""
        file = None if self._never_cold else self._cold(topic, queue_id)
        if file is not None and self._always_cold:
            time_ms = self.tier.times.store_time_of(file, offset)
            return time_ms if time_ms >= 0 else self.local.store_time_of(topic, queue_id, offset)
        time_ms = self.local.store_time_of(topic, queue_id, offset)
        if time_ms >= 0 or file is None or not self._holds(file, offset):
            return time_ms
        return self.tier.times.store_time_of(file, offset)

    def topics(self) -> dict[str, list[int]]:
        """Every topic of either store, with its queue ids."""
        found = {topic: set(ids) for topic, ids in self.local.topics().items()}
        for file in self.tier.files:
            if file.queue.topic not in self.tier.engine.held_topics:
                found.setdefault(file.queue.topic, set()).add(file.queue.queue_id)
        return {topic: sorted(ids) for topic, ids in sorted(found.items())}
