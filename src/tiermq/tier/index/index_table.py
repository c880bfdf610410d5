"""IndexTable: the index files of a broker, and what of each queue is in them. One lock guards all of it.

    entries   UPLOAD ... UPLOAD  SEALED ... SEALED  UNSEALED      by begin time; at most one is UNSEALED

Invariants: a put changes the file and the coverage under one hold of the lock, so a `moment` taken under it is true of
both; begin times are unique and grow; there is a writable file only while something was put into it. A closing table
takes no items, so no hole is closed in it. A table that was shut has no files, so there is no moment of it: coverage
without the files that hold its items would claim keys that no query finds.
"""

from __future__ import annotations

import enum
import threading
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tiermq.clock import Clock
from tiermq.files.file_access import FileAccess
from tiermq.kernel import key_hashes, put_tier_keys
from tiermq.tier.index.compacted_index import CompactedIndex, IndexEntry, IndexState
from tiermq.tier.index.index_coverage import Coverage, CoverageRecord, QueueTail, either
from tiermq.tier.index.index_item import distinct
from tiermq.tier.index.index_request import IndexRequest, PutOutcome, request_of
from tiermq.tier.index.index_write_file import FileFacts, IndexWriteFile
from tiermq.tier.names import QueueName
from tiermq.tier.queue.records import RecordBatch

_NO_FILE = bytearray(28)
"""For the kernel while there is no file: it is full, so only records without keys are accepted."""


class Moment(NamedTuple):
    """A true state of the index: the record of it, and the files that must be synced before it may be written."""

    version: int
    record: CoverageRecord
    files: tuple[tuple[IndexWriteFile, FileFacts], ...]
    sealed: tuple[IndexEntry, ...]


class Filled(enum.Enum):
    """What became of a record that was read back for a hole."""

    TAKEN = "TAKEN"  # It is indexed; the next one can come.
    BEHIND = "BEHIND"  # The queue's first hole ends before it.
    CLOSING = "CLOSING"  # The index takes nothing more: the hole stays for the next start.


class HoleStart(NamedTuple):
    """Where the first hole of a queue begins."""

    name: QueueName
    start: int


class IndexTable:
    """See the module. Any thread may call anything."""

    def __init__(self, access: FileAccess, directory: str, slots: int, capacity: int, clock: Clock) -> None:
        self._access = access
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self._clock = clock
        self._lock = threading.RLock()
        self._entries: list[IndexEntry] = []
        self._current: IndexEntry | None = None  # The UNSEALED one.
        self._last_begin_ms = 0
        self._is_closing = False
        self._is_shut = False
        self.coverage = Coverage()
        self.next_base = 0
        self.version = 0  # Counts changes that a record would show.

    # Loading

    def load(
        self, coverage: Coverage, files: Sequence[IndexWriteFile], sealed_records: dict[int, CoverageRecord]
    ) -> None:
        """Take over what recovery opened: the newest stays open unless full or sealed, the rest are SEALED."""
        with self._lock:
            self.coverage = coverage
            for file in files:
                sealed = sealed_records.get(file.begin_ms)
                is_newest = file is files[-1]
                if is_newest and sealed is None and file.header.item_count + 1 < file.capacity:
                    entry = self._current = IndexEntry(file.begin_ms, IndexState.UNSEALED, local=file)
                else:
                    # Of the newest file the coverage at its sealing is that of now; of others it was written down.
                    known = coverage if is_newest else Coverage()
                    record = sealed or CoverageRecord.of(known, [file.facts()])
                    entry = IndexEntry(file.begin_ms, IndexState.SEALED, local=file, sealed_record=record)
                self._entries.append(entry)
            self._sort()
            self.version += 1

    def add_uploaded(self, files: Sequence[CompactedIndex]) -> None:
        """Add what the metadata knows and the table does not."""
        with self._lock:
            if self._is_shut:
                return
            known = {entry.remote.key for entry in self._entries if entry.remote is not None}
            for remote in files:
                if remote.key not in known:
                    self._entries.append(IndexEntry(remote.begin_ms, IndexState.UPLOAD, remote=remote))
                    self.next_base = max(self.next_base, remote.segment.end)
            self._sort()
            self.version += 1

    def replace_uploaded(self, files: Sequence[CompactedIndex]) -> None:
        """The uploaded files are these, after another process has changed them; local files stay."""
        with self._lock:
            known = {(remote.key, remote.segment.size) for remote in files}
            for entry in list(self._entries):
                if entry.remote is not None and (entry.remote.key, entry.remote.segment.size) not in known:
                    self.drop(entry)
            self.add_uploaded(files)

    def join(self, other: Coverage, tails: Iterable[QueueTail]) -> None:
        """What another true coverage has of the queues that are known here is indexed, too; `tails`: as of now."""
        with self._lock:
            for name, mine in list(self.coverage.queues.items()):
                theirs = other.queues.get(name)
                if theirs is not None and theirs.topic_id == mine.topic_id:
                    joint = either(theirs, mine)
                    joint.is_live = mine.is_live
                    self.coverage.queues[name] = joint
            self.coverage.expect(tails)
            self.version += 1

    def _sort(self) -> None:
        self._entries.sort(key=lambda entry: (entry.begin_ms, entry.remote.key.base if entry.remote else -1))
        self._last_begin_ms = max([self._last_begin_ms, *(entry.begin_ms for entry in self._entries)])

    # Reading

    def entries(self) -> tuple[IndexEntry, ...]:
        with self._lock:
            return tuple(self._entries)

    def first(self, state: IndexState) -> IndexEntry | None:
        """The oldest file in that state."""
        with self._lock:
            return next((entry for entry in self._entries if entry.state is state), None)

    def moment(self) -> Moment | None:
        """The coverage record of this moment; None once the table is closed."""
        with self._lock:
            if self._is_shut:
                return None
            local = [entry for entry in self._entries if entry.local is not None and entry.remote is None]
            files = tuple((entry.local, entry.local.facts()) for entry in local if entry.local is not None)
            record = CoverageRecord.of(self.coverage, (facts for _, facts in files), self.next_base)
            sealed = tuple(entry for entry in local if entry.state is IndexState.SEALED)
            return Moment(self.version, record, files, sealed)

    # Putting

    def put(self, request: IndexRequest) -> PutOutcome:
        """Put a record that was just committed. Raises DiskFull, and has then put nothing."""
        hashes = hashes_of(request)
        if not request.is_legal() or len(hashes) >= self._capacity:
            return PutOutcome.ILLEGAL_REQUEST
        with self._lock:
            if self._is_closing:
                return PutOutcome.SHUTDOWN
            queue = self.coverage.of(request.topic, request.topic_id, request.queue_id)
            if not queue.admit(request.tier_offset):
                return PutOutcome.ALREADY_INDEXED
            self._put_items(hashes, request)
            queue.note_put(request.tier_offset, request.size)
            self.version += 1
            return PutOutcome.SUCCESS

    def put_batch(self, batch: RecordBatch, topic: str, topic_id: int, queue_id: int) -> PutOutcome:
        """Put the records of a batch that was just committed, as `put` would one by one. Raises DiskFull.

        SHUTDOWN, or SUCCESS; what of it is indexed already is passed over, and what no file can take too. After a
        failure the same batch can be put again.
        """
        done = 0
        while done < batch.count:
            with self._lock:
                if self._is_closing:
                    return PutOutcome.SHUTDOWN
                done = self._put_run(batch, done, topic, topic_id, queue_id)
            if done < batch.count:
                position, size = batch.location(done)
                request = request_of(batch, position, size, topic, topic_id, queue_id)
                if request is not None and self.put(request) is PutOutcome.SHUTDOWN:
                    return PutOutcome.SHUTDOWN
                done += 1
        return PutOutcome.SUCCESS

    def _put_run(self, batch: RecordBatch, first: int, topic: str, topic_id: int, queue_id: int) -> int:
        """Let the kernel put what it can of the records from number `first` on, under the lock; where it stopped."""
        known = self.coverage.queues.get((topic, queue_id))
        if known is not None and known.topic_id == topic_id:
            while first < batch.count and not known.admit(batch.log_offset + batch.location(first)[0]):
                first += 1
        if first == batch.count or queue_id < 0 or not topic.strip() or batch.log_offset < 0:
            return first
        where = (batch.units, batch.data, first, batch.log_offset, topic)
        if self._current is not None and self._current.local is not None:
            count = self._current.local.put_records(*where, topic_id, queue_id)
        else:
            count = put_tier_keys(_NO_FILE, 1, 0, 0, *where, 0, queue_id)[0]
        if count:
            (start, _), (position, size) = batch.location(first), batch.location(first + count - 1)
            queue = self.coverage.of(topic, topic_id, queue_id)
            queue.note_put(batch.log_offset + start, position + size - start)
            self.version += 1
        return first + count

    def fill(self, name: QueueName, request: IndexRequest) -> Filled:
        """Put a record that was read back. Raises DiskFull."""
        hashes = hashes_of(request)
        with self._lock:
            if self._is_closing:
                return Filled.CLOSING
            queue = self.coverage.queues.get(name)
            if queue is None or not queue.holes or request.topic_id != queue.topic_id:
                return Filled.BEHIND
            if request.tier_offset < queue.holes[0].start:
                return Filled.TAKEN
            if not queue.wants(request.tier_offset):
                return Filled.BEHIND
            if request.is_legal() and len(hashes) < self._capacity:
                self._put_items(hashes, request)
            queue.note_filled(request.tier_offset, request.size)
            self.version += 1
            return Filled.TAKEN

    def holes(self) -> list[HoleStart]:
        """The queues that have holes; none while their beginnings are unknown."""
        with self._lock:
            if not self.coverage.is_base_known:
                return []
            found = [(name, queue) for name, queue in self.coverage.queues.items() if queue.holes]
            return [HoleStart(name, queue.holes[0].start) for name, queue in found]

    def close_hole(self, name: QueueName) -> None:
        """Everything of the queue's first hole was read back."""
        with self._lock:
            queue = self.coverage.queues.get(name)
            if queue is not None and queue.holes:
                queue.close_hole()
                self.version += 1

    def reindex(self) -> int:
        """Have everything doubtful read back; of how many queues."""
        with self._lock:
            count = self.coverage.reindex()
            self.version += count > 0
            return count

    def is_complete(self, topic: str | None = None) -> bool:
        """Whether every committed record of a topic, or of all, is indexed for certain."""
        with self._lock:
            return self.coverage.is_complete(topic)

    def hole_count(self) -> int:
        """How many ranges of records wait to be read back."""
        with self._lock:
            return self.coverage.hole_count

    def begin_from(self, base: CoverageRecord, tails: Iterable[QueueTail]) -> None:
        """Learn what was indexed before this life, also for files sealed meanwhile, and look for what was not."""
        with self._lock:
            for entry in self._entries:
                if entry.sealed_record is not None and not entry.sealed_record.is_base_known:
                    then = entry.sealed_record.coverage()
                    then.begin_from(base.coverage())
                    entry.sealed_record = CoverageRecord.of(then, entry.sealed_record.files)
            self.coverage.begin_from(base.coverage())
            self.coverage.expect(tails)
            self.version += 1

    def forget(self, topic: str, queue_id: int) -> None:
        """The queue is gone; one of the same name begins at offset 0."""
        with self._lock:
            self.coverage.forget(topic, queue_id)
            self.version += 1

    def _put_items(self, hashes: tuple[int, ...], request: IndexRequest) -> None:
        if not hashes:
            return
        values = (request.topic_id, request.queue_id, request.tier_offset, request.size, request.store_ms)
        if not self._writable().put(hashes, *values):
            self.seal_current()
            self._writable().put(hashes, *values)

    def _writable(self) -> IndexWriteFile:
        if self._current is not None and self._current.local is not None:
            return self._current.local
        begin_ms = max(self._clock.now_ms(), self._last_begin_ms + 1)
        file = IndexWriteFile.create(self._access, self._directory, begin_ms, self._slots, self._capacity)
        self._current = IndexEntry(begin_ms, IndexState.UNSEALED, local=file)
        self._entries.append(self._current)
        self._sort()
        return file

    # Moving on

    def seal_current(self) -> bool:
        """Seal the open file; False when there is none."""
        with self._lock:
            current, self._current = self._current, None
            if current is None or current.local is None:
                return False
            # What is indexed up to now is in this file and older ones, not in later ones.
            current.sealed_record = CoverageRecord.of(self.coverage, [current.local.facts()])
            current.move(IndexState.SEALED)
            self.version += 1
            return True

    def uploaded(self, entry: IndexEntry, remote: CompactedIndex) -> bool:
        """The tier answers for the file from now on; False when the index was shut meanwhile."""
        with self._lock:
            if entry.state is not IndexState.SEALED:
                return False
            entry.remote = remote
            entry.move(IndexState.UPLOAD)
            self.next_base = max(self.next_base, remote.segment.end)
            self.version += 1
            return True

    def drop(self, entry: IndexEntry) -> None:
        """The file is expired or empty: no query uses it any more."""
        with self._lock:
            entry.move(IndexState.SHUTDOWN)
            self._entries.remove(entry)
            self.version += 1

    def refuse_puts(self) -> None:
        """Take no more items, of new records or of holes."""
        with self._lock:
            self._is_closing = True

    def shut(self) -> None:
        """Close everything: files stay as they are on disk and in the tier."""
        with self._lock:
            self._is_closing = self._is_shut = True
            self._current = None
            for entry in self._entries:
                entry.move(IndexState.SHUTDOWN)
                if entry.local is not None:
                    entry.local.close()
            self._entries.clear()


def hashes_of(request: IndexRequest) -> tuple[int, ...]:
    """The hashes of a record's keys, each key once."""
    keys = distinct(request.keys or ())
    return tuple(array("i", key_hashes(request.topic, list(keys)))) if keys else ()
