"""The index's work behind the scenes, as steps that can each fail and be repeated without harm.

    settle_base   learn from the tier what an earlier life indexed (only when the local record is lost)
    fill_holes    read back committed records that a crash kept out of the index, and put them
    roll_old      seal a file that waits too long to be full
    sync          make items durable, then write the record that says so
    expire        remove uploaded files whose every topic has let go of their messages
    upload_next   move the oldest sealed file into the tier

Order matters in `sync` only: files first, the record last. All of it belongs to one thread at a time, but `sync` may
be called by any.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tiermq.clock import Clock
from tiermq.errors import CorruptSegment, SegmentMissing, TierError
from tiermq.files.file_access import FileAccess
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.compacted_index import CompactedIndex, companion_name
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, QueueTail, sealed_text
from tiermq.tier.index.index_recovery import RECORD_NAME, sealed_record_path
from tiermq.tier.index.index_rows import IndexRows
from tiermq.tier.index.index_state import IndexEntry, IndexState
from tiermq.tier.index.index_table import Filled, HolePlace, IndexTable
from tiermq.tier.index.index_upload import IndexUploader
from tiermq.tier.index.put_request import IndexRequest
from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment
from tiermq.tier.names import QueueKey, SegmentType

log = logging.getLogger(__name__)

Rebuild = Callable[[QueueKey, int], Iterator[IndexRequest]]
"""The committed records of a queue whose tier offset is at least the given one, in their order. May raise TierError."""

RetentionMs = Callable[[frozenset[int] | None], int]
"""For how long messages of these topic ids are kept, the longest of them; None: of any topic that there is."""

IsUnneeded = Callable[[CompactedIndex], bool]
"""Whether no message is left to which an uploaded file leads. May raise TierError."""

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class UpkeepRules:
    """When a file that is not full is sealed all the same, and how much is read back at a time."""

    roll_interval_ms: int = 24 * HOUR_MS
    roll_items_min: int = 1_000_000
    fill_count: int = 10_000


@dataclass(slots=True)
class UpkeepCounts:
    """What the upkeep has done since the start; for metrics."""

    synced: int = 0
    uploaded: int = 0
    uploaded_bytes: int = 0
    expired: int = 0
    filled: int = 0
    failures: int = 0


def live_segments(rows: IndexRows, queue: QueueKey) -> list[Segment]:
    """Index segments that hold something. RocketMQ leaves rows of files that never got a byte."""
    found = rows.segments(queue, SegmentType.INDEX)
    return [segment for segment in found if segment.size > 0 and segment.begin_ms != NEVER_MS]


class IndexUpkeep:
    """See the module."""

    def __init__(
        self,
        table: IndexTable,
        uploader: IndexUploader,
        access: FileAccess,
        directory: str,
        driver: TierDriver,
        rows: IndexRows,
        queue: QueueKey,
        clock: Clock,
        *,
        rebuild: Rebuild,
        retention_ms: RetentionMs,
        is_unneeded: IsUnneeded | None,
        is_delete_enabled: Callable[[], bool],
        rules: UpkeepRules,
    ) -> None:
        self._table = table
        self._uploader = uploader
        self._access = access
        self._directory = directory
        self._driver = driver
        self._rows = rows
        self._queue = queue
        self._clock = clock
        self._rebuild = rebuild
        self._retention_ms = retention_ms
        self._is_unneeded = is_unneeded
        self._is_delete_enabled = is_delete_enabled
        self._rules = rules
        self._sync_lock = threading.Lock()
        self._recorded_version = -1
        self._sealed_written: set[int] = set()
        self.tails: tuple[QueueTail, ...] = ()
        self.trusts_foreign = True  # False: the topics got new ids, so RocketMQ's entries name nobody any more.
        self.counts = UpkeepCounts()

    # Durability

    def sync(self) -> bool:
        """Make everything put so far durable; False when nothing had changed. Raises what the disk raises."""
        with self._sync_lock:
            moment = self._table.moment()
            if moment is None or moment.version == self._recorded_version:
                return False
            for file, facts in moment.files:
                if file.synced_count < facts.item_count:
                    file.sync()
            for entry in moment.sealed:
                self._write_sealed_record(entry)
            self._access.write_bytes(os.path.join(self._directory, RECORD_NAME), sealed_text(moment.record))
            self._recorded_version = moment.version
            self.counts.synced += 1
            return True

    def end(self) -> None:
        """Shut the table. A `sync` under way ends first, and a later one of a thread that hangs writes nothing."""
        with self._sync_lock:
            self._table.shut()

    def _write_sealed_record(self, entry: IndexEntry) -> None:
        is_local = entry.remote is None  # Else it was uploaded since the moment was taken.
        if is_local and entry.begin_ms not in self._sealed_written and entry.sealed_record is not None:
            path = sealed_record_path(self._directory, entry.begin_ms)
            self._access.write_bytes(path, sealed_text(entry.sealed_record))
            self._sealed_written.add(entry.begin_ms)

    # Rebuilding

    def settle_base(self) -> None:
        """After the local record was lost: go on from what the newest uploaded file says was indexed."""
        if self._table.coverage.is_base_known:
            return
        self._uploader.keep_occupants(self._table.next_base)
        self.load_uploaded()
        uploaded = [entry.remote for entry in self._table.entries() if entry.remote is not None]
        base = Coverage()
        for remote in sorted(uploaded, key=lambda remote: remote.key.base, reverse=True):
            if self._is_whole(remote):
                companion = remote.companion()
                if companion is not None:
                    base = companion.coverage()
                elif self.trusts_foreign:
                    base.take_as_indexed(self.tails)  # RocketMQ's file: it had indexed what it committed.
                break
        self._table.begin_from(CoverageRecord.of(base, ()), self.tails)
        self._sealed_written.clear()

    def _is_whole(self, remote: CompactedIndex) -> bool:
        """Whether the items are there that a companion tells of."""
        try:
            return remote.slots() > 0
        except (CorruptSegment, SegmentMissing) as error:
            log.warning("index: %s has a row and cannot be read: %s", remote.key, error)
            return False

    def fill_holes(self) -> bool:
        """Read back some of what is missing in each queue; True when there is more to do at once."""
        has_more = False
        for place in self._table.holes():
            try:
                has_more |= self._fill(place)
            except TierError as error:  # One queue that cannot be read does not keep the others out of the index.
                self.counts.failures += 1
                log.warning("index: reading back queue %s from %d failed: %s", place.name, place.start, error)
        return has_more

    def _fill(self, place: HolePlace) -> bool:
        topic, queue_id = place.name
        key = QueueKey(self._queue.cluster, self._queue.broker, topic, queue_id)
        for done, request in enumerate(self._rebuild(key, place.start)):
            if done >= self._rules.fill_count:
                return True
            filled = self._table.fill(place.name, request)
            if filled is Filled.CLOSING:
                return False
            if filled is Filled.BEHIND:
                break
            self.counts.filled += 1
        self._table.close_hole(place.name)
        return False

    # Moving on

    def roll_old(self) -> bool:
        """Seal the open file when it is old and worth an object, or so old that it outlives its messages."""
        entry = self._table.first(IndexState.UNSEALED)
        if entry is None or entry.local is None:
            return False
        facts = entry.local.facts()
        age_ms = self._clock.now_ms() - entry.begin_ms
        is_worth_it = facts.item_count >= self._rules.roll_items_min
        if facts.item_count == 0 or age_ms < self._rules.roll_interval_ms:
            return False
        if is_worth_it or age_ms >= self._retention_ms(facts.topic_ids):
            return self._table.seal_current()
        return False

    def upload_next(self) -> bool:
        """Move the oldest sealed file into the tier; False when there is none. Raises UploadStopped, TierError, …"""
        entry = self._table.first(IndexState.SEALED)
        # Before the base is known, a file of an earlier life may lie where ours would go, and its companion counts.
        if entry is None or entry.local is None or not self._table.coverage.is_base_known:
            return False
        file = entry.local
        facts = file.facts()
        if facts.item_count == 0:
            self._table.drop(entry)
            self._remove_local(entry)
            return True
        self.sync()  # A file whose items are not durably recorded here would be indexed again after a crash.
        companion = entry.sealed_record or CoverageRecord.of(Coverage(), [facts])
        base = self._table.next_base
        remote = self._uploader.upload(file, facts, base, companion.encode())
        if not self._table.uploaded(entry, remote):
            return False
        if remote.key.base != base:
            self.load_uploaded()
        self._remove_local(entry)
        self.counts.uploaded += 1
        self.counts.uploaded_bytes += remote.segment.size
        return True

    def load_uploaded(self) -> None:
        """Put what the metadata knows into the table."""
        segments = live_segments(self._rows, self._queue)
        self._table.add_uploaded([CompactedIndex(self._driver, segment) for segment in segments])

    def _remove_local(self, entry: IndexEntry) -> None:
        with self._sync_lock:  # A sync of another thread must not write the file's record behind its removal.
            if entry.local is not None:
                entry.local.destroy()
            self._access.remove(sealed_record_path(self._directory, entry.begin_ms))
            self._sealed_written.discard(entry.begin_ms)
            self._access.sync_directory(self._directory)

    # Expiry

    def expire(self) -> int:
        """Remove the uploaded files whose newest message no topic in them keeps any longer. Returns how many.

        Raises what the driver raises; what was begun is finished by a later call.
        """
        if not self._is_delete_enabled():
            return 0
        for segment in self._rows.segments_being_deleted():
            if segment.key.queue == self._queue:
                self._delete_objects(segment)
        expired = [entry for entry in self._table.entries() if self._is_expired(entry)]
        for entry in expired:
            if entry.remote is None:
                continue
            self._table.drop(entry)  # First, so that no query asks a file that goes.
            self._rows.mark_deleted(entry.remote.key)
            self._delete_objects(entry.remote.segment)
            self.counts.expired += 1
        return len(expired)

    def _is_expired(self, entry: IndexEntry) -> bool:
        if entry.state is not IndexState.UPLOAD or entry.remote is None:
            return False
        if self._is_unneeded is not None:
            return self._is_unneeded(entry.remote)
        facts = entry.remote.facts()
        kept_ms = self._retention_ms(facts.topic_ids if facts is not None else None)
        return entry.remote.segment.end_ms < self._clock.now_ms() - kept_ms

    def _delete_objects(self, segment: Segment) -> None:
        self._driver.delete(segment.key)
        self._driver.delete_object(companion_name(segment.key))
        self._rows.delete_segment(segment.key)
