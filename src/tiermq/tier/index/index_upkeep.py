"""The index's work behind the scenes, as steps that can each fail and be repeated without harm.

    settle_base   learn from the tier what an earlier life indexed (only when the local record is lost)
    fill_holes    read back committed records that a crash kept out of the index, and put them
    roll_old      seal a file that waits too long to be full
    sync          make items durable, then write the coverage record
    expire        delete uploaded files whose messages are expired for every topic
    upload_next   move the oldest sealed file into the tier

Order matters in `sync` only: files first, the record last. All of it belongs to one thread at a time, but `sync` may
be called by any.

From a sealed local index file to an index segment in the tier, step by step.

    1  compact    the whole file, rearranged, into `compacting/<begin>`         thrown away and made again after a crash
    2  companion  the facts and the coverage; first, so that no whole index file of ours is ever without
    3  write      in chunks, from where an earlier attempt stopped
    4  seal       one canonical object
    5  row        in the metadata: from now on the upload has happened
    6  (caller)   the table answers from the tier, and the local files go

A crash between any two steps is followed by the same steps with the same bytes at the same base: the file is sealed and
synced, rearranging it is deterministic, and the base follows from the rows. So a repeated write finds its own bytes.

If other bytes exist under the name, an earlier process wrote them: a complete index file gets a row, so that it can be
found, and the upload goes behind it; anything else is deleted. (Two live writers are excluded by
the broker's lease, not here.)
"""

from __future__ import annotations

import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tiermq.clock import HOUR_MS, Clock
from tiermq.errors import CorruptSegment, DiskFull, SegmentMissing, TierError
from tiermq.files.file_access import FileAccess
from tiermq.tier.block_sums import BlockSums, summed
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.compacted_index import CompactedIndex, IndexEntry, IndexRows, IndexState, companion_name
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, QueueTail, sealed_text
from tiermq.tier.index.index_item import HEADER_BYTES, MAGIC_END, decode_header
from tiermq.tier.index.index_recovery import COMPACTING_DIRECTORY, RECORD_NAME, sealed_record_path
from tiermq.tier.index.index_request import IndexRequest
from tiermq.tier.index.index_table import Filled, HoleStart, IndexTable
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile
from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType

INDEX_WRITE_BYTES = 32 << 20


class UploadStopped(Exception):
    """The upload was stopped between two steps. No error: the store closes, and the next start continues it."""


class IndexUploader:
    """Uploads one file at a time; belongs to the thread that does the index's upkeep."""

    def __init__(
        self,
        access: FileAccess,
        directory: str,
        driver: TierDriver,
        rows: IndexRows,
        queue: QueueKey,
        clock: Clock,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        chunk_bytes: int = INDEX_WRITE_BYTES,
    ) -> None:
        self._access = access
        self._compacting = os.path.join(directory, COMPACTING_DIRECTORY)
        self._driver = driver
        self._rows = rows
        self._queue = queue
        self._clock = clock
        self._should_stop = should_stop
        self._chunk_bytes = chunk_bytes
        self._compacted: dict[int, int] = {}  # begin -> bytes, of the copies that this process made.

    def upload(self, file: IndexWriteFile, facts: FileFacts, base: int, companion: bytes) -> CompactedIndex:
        """Steps 1 to 5. `facts` are the file's, durable; it has items.

        Raises UploadStopped, or what the driver, the disk or the metadata raise; try again with the same arguments.
        """
        with self._compacted_bytes(file) as data:
            sums = BlockSums.of(data)
            key = self._write(base, data, summed(companion, sums))
            self._pause()
            self._driver.seal(key)
            self._pause()
            segment = self._row(key, len(data), facts.begin_ms, facts.newest_ms, zlib.crc32(data))
        self.discard(file.begin_ms)
        return CompactedIndex(self._driver, segment, file.slots, sums)

    def discard(self, begin_ms: int) -> None:
        """Remove the temporary copy of a file."""
        self._compacted.pop(begin_ms, None)
        self._access.remove(self._path(begin_ms))

    @contextmanager
    def _compacted_bytes(self, file: IndexWriteFile) -> Iterator[memoryview]:
        """The compacted file, from the copy on disk, so that attempts that fail keep no memory; else from memory."""
        size = self._compacted.get(file.begin_ms)
        if size is None:
            self._access.remove(self._path(file.begin_ms))
            data = file.compact()
            try:
                self._copy(file.begin_ms, data)
            except DiskFull:
                # A full disk is when uploading matters most: what it takes is in memory already.
                self._access.remove(self._path(file.begin_ms))
                yield memoryview(data)
                return
            size = self._compacted[file.begin_ms] = len(data)
            del data
        region = self._access.open(self._path(file.begin_ms), size, writable=False)
        try:
            with memoryview(region.buffer) as view:
                yield view
        finally:
            region.close()

    def _copy(self, begin_ms: int, data: bytes) -> None:
        region = self._access.create(self._path(begin_ms), len(data))
        try:
            region.reserve(0, len(data))
            region.write(0, data)
        finally:
            region.close()

    def _path(self, begin_ms: int) -> str:
        return os.path.join(self._compacting, str(begin_ms))

    def _write(self, base: int, data: memoryview, companion: bytes) -> SegmentKey:
        """Write `data` to a segment at `base`, or behind index files that already exist there."""
        while True:
            key = self._queue.segment(SegmentType.INDEX, base)
            size = self._driver.size(key)
            if self._is_ours(key, size, data) and (size == len(data) or not self._driver.is_sealed(key)):
                self._driver.put_object(companion_name(key), companion)
                for position in range(size, len(data), self._chunk_bytes):
                    self._pause()
                    self._driver.write(key, position, [bytes(data[position : position + self._chunk_bytes])])
                return key
            if self._keep_occupant(key, size):
                base += size
            else:
                log.warning("%s: removing %d bytes that are neither ours nor an index file", key, size)
                self._driver.delete(key)

    def _is_ours(self, key: SegmentKey, size: int, data: memoryview) -> bool:
        """Whether what is stored is the beginning of `data`, as an attempt that was cut short leaves it."""
        if size > len(data):
            return False
        for position in range(0, size, self._chunk_bytes):
            self._pause()
            length = min(self._chunk_bytes, size - position)
            if self._driver.read(key, position, length) != data[position : position + length]:
                return False
        return True

    def keep_occupants(self, base: int) -> None:
        """Add rows for complete index files from `base` on: uploads whose last step a crash interrupted."""
        key = self._queue.segment(SegmentType.INDEX, base)
        while self._keep_occupant(key, size := self._driver.size(key)):
            key = self._queue.segment(SegmentType.INDEX, key.base + size)

    def _keep_occupant(self, key: SegmentKey, size: int) -> bool:
        """Give a row to a whole index file that has none; False when the bytes are no index file."""
        if size <= HEADER_BYTES:
            return False
        try:
            CompactedIndex(self._driver, Segment(key, size)).slots()
        except CorruptSegment:
            return False
        header = decode_header(self._driver.read(key, 0, HEADER_BYTES))
        if header.magic != MAGIC_END:
            return False
        log.warning("%s: an index file that no row knew; it is kept", key)
        self._driver.seal(key)
        self._row(key, size, header.begin_ms, header.end_ms, None)
        return True

    def _row(self, key: SegmentKey, size: int, begin_ms: int, end_ms: int, crc32: int | None) -> Segment:
        now_ms = self._clock.now_ms()
        segment = Segment(key, size, SegmentStatus.SEALED, now_ms, begin_ms, end_ms, now_ms, crc32)
        self._rows.put_segment(segment)
        return segment

    def _pause(self) -> None:
        if self._should_stop():
            raise UploadStopped


log = logging.getLogger(__name__)

Rebuild = Callable[[QueueKey, int], Iterator[IndexRequest]]
"""The committed records of a queue whose tier offset is at least the given one, in their order. May raise TierError."""

RetentionMs = Callable[[frozenset[int] | None], int]
"""For how long messages of these topic ids are kept, the longest of them; None: of any topic that there is."""

IsUnneeded = Callable[[CompactedIndex], bool]
"""Whether no message is left to which an uploaded file leads. May raise TierError."""


@dataclass(frozen=True, slots=True)
class UpkeepRules:
    """When a file that is not full is sealed all the same, and how much is read back at a time."""

    roll_interval_ms: int = 24 * HOUR_MS
    roll_items_min: int = 1_000_000
    fill_count: int = 10_000


@dataclass(slots=True)
class UpkeepCounts:
    """What the upkeep has done since the start; for metrics."""

    uploaded: int = 0
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
        only_reads: bool = False,
    ) -> None:
        self._table = table
        self._only_reads = only_reads
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
        self.trusts_foreign = True  # False: the topics got new ids, so RocketMQ's entries are useless.
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
            return True

    def end(self) -> None:
        """Shut the table. A `sync` under way ends first, and a later one of a thread that hangs writes nothing."""
        with self._sync_lock:
            self._table.shut()

    def _write_sealed_record(self, entry: IndexEntry) -> None:
        is_local = entry.remote is None  # Else it was uploaded meanwhile.
        if is_local and entry.begin_ms not in self._sealed_written and entry.sealed_record is not None:
            path = sealed_record_path(self._directory, entry.begin_ms)
            self._access.write_bytes(path, sealed_text(entry.sealed_record))
            self._sealed_written.add(entry.begin_ms)

    # Rebuilding

    def settle_base(self) -> None:
        """After the loss of the local record: continue from the coverage in the newest uploaded file."""
        if self._table.coverage.is_base_known:
            return
        if not self._only_reads:
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
        """Whether the items of a companion exist."""
        try:
            return remote.slots() > 0
        except (CorruptSegment, SegmentMissing) as error:
            log.warning("index: %s has a row and cannot be read: %s", remote.key, error)
            return False

    def fill_holes(self) -> bool:
        """Read back some of what is missing in each queue; True when there is more to do at once."""
        has_more = False
        for hole in self._table.holes():
            try:
                has_more |= self._fill(hole)
            except TierError as error:  # A queue that cannot be read does not stop the other queues.
                self.counts.failures += 1
                log.warning("index: reading back queue %s from %d failed: %s", hole.name, hole.start, error)
        return has_more

    def _fill(self, hole: HoleStart) -> bool:
        topic, queue_id = hole.name
        key = QueueKey(self._queue.cluster, self._queue.broker, topic, queue_id)
        for done, request in enumerate(self._rebuild(key, hole.start)):
            if done >= self._rules.fill_count:
                return True
            filled = self._table.fill(hole.name, request)
            if filled is Filled.CLOSING:
                return False
            if filled is Filled.BEHIND:
                break
            self.counts.filled += 1
        self._table.close_hole(hole.name)
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
        """Upload the oldest sealed file; False when there is none. Raises UploadStopped, TierError, …"""
        entry = self._table.first(IndexState.SEALED)
        # Before the base is known: a file of an earlier process may be at our base, and its companion counts.
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
        return True

    def load_uploaded(self) -> None:
        """Put what the metadata knows into the table."""
        segments = live_segments(self._rows, self._queue)
        self._table.add_uploaded([CompactedIndex(self._driver, segment) for segment in segments])

    def take_uploaded(self) -> None:
        """Let the table have the uploaded files that the metadata know now, and no others."""
        segments = live_segments(self._rows, self._queue)
        self._table.replace_uploaded([CompactedIndex(self._driver, segment) for segment in segments])

    def follow(self, tails: tuple[QueueTail, ...]) -> bool:
        """Look for what neither the uploaded files nor the local ones have of `tails`; whether that changed. What the
        files cover is read again when there is a newer one; without its companion all of it is indexed here.
        """
        if tails == self.tails:
            return False
        self.tails = tails
        if self._table.coverage.is_base_known:
            self._table.join(Coverage(), tails)
            try:
                self.learn_coverage(tails)
            except TierError as error:
                log.info("what the index in the tier covers is not known yet: %s", error)
        return True

    def learn_coverage(self, tails: Sequence[QueueTail]) -> None:
        """Take what the newest uploaded file covers as indexed: a job may have made it. Raises TierError."""
        segments = live_segments(self._rows, self._queue)
        if not segments or not self._table.coverage.is_base_known:
            return
        companion = CompactedIndex(self._driver, max(segments, key=lambda segment: segment.key.base)).companion()
        if companion is not None:
            self._table.join(companion.coverage(), tails)

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
            self._table.drop(entry)  # First, so that no query uses a file that is being deleted.
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
