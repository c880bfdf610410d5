"""FlatMessageFile: one queue in the tier, its commit log and its consume queue together.

A commit writes records, then units, then the metadata rows; each step is repeated as it was after a failure.

    records appended ── commit log committed ── units committed ── rows, time entry ── (index) ── (manifest)
                      crash here: adopted at next start       crash here: taken from the tier

Invariants: every committed unit points to a committed record; queue offsets in [min_offset, commit_offset) can be read,
less the recorded gaps; messages keep the queue offsets that they have in the local store; pending bytes are in the last
segment of each file, because a roll waits for the commit. A gap (messages that were gone before they could be copied)
is recorded and the numbering continues behind it: the consume queue is filled with pre-blank units, older history
stays. Threads: one writer (dispatcher or job) under `lock`; any number of readers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tiermq.clock import Clock
from tiermq.consumequeue.unit import PRE_BLANK, UNIT_BYTES
from tiermq.errors import IllegalTransition, StoreClosed
from tiermq.tier.driver.contract import SegmentWrite, TierDriver
from tiermq.tier.flat.flat_file import FlatCommitLog, FlatConsumeQueue
from tiermq.tier.flat.flat_segment import AppendStatus
from tiermq.tier.flat.queue_recovery import QueueRecovery
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import DEFAULT_SPACING, NEVER_MS, Gap, TimeEntry, Topic, entry_for_commit
from tiermq.tier.names import QueueKey, SegmentType
from tiermq.tier.queue.records import CollectedRecords, RecordBatch, store_time_at

BLANK_RUN_UNITS = 65_536


class FlatMessageFile:
    """See the module."""

    def __init__(
        self,
        driver: TierDriver,
        metadata: MetadataStore,
        queue: QueueKey,
        clock: Clock,
        *,
        log_segment_bytes: int,
        queue_segment_bytes: int,
    ) -> None:
        self.queue = queue
        self.lock = threading.RLock()
        known = metadata.topic(queue.topic) if metadata.queue(queue) is not None else None
        self.topic: Topic = known or metadata.together(lambda: _add_rows(metadata, queue))
        self.log = FlatCommitLog(driver, metadata, queue, log_segment_bytes, clock)
        self.units = FlatConsumeQueue(driver, metadata, queue, queue_segment_bytes, clock)
        self._driver = driver
        self._metadata = metadata
        self._clock = clock
        self._last_entry = metadata.last_time_entry(queue)
        self._uncommitted: list[RecordBatch] = []
        self.committed: list[RecordBatch] = []  # Few at a time, and an empty deque has 700 bytes.
        self._destroyed = False
        self._recovered = self.units.is_empty and self.log.is_empty
        self.compared = False  # Whether this process has compared the metadata with the tier.

    # Bounds

    @property
    def initialised(self) -> bool:
        """Whether the queue has its first offset."""
        return not self.units.is_empty

    @property
    def min_offset(self) -> int:
        """The oldest queue offset that can be read: where both files begin. -1 before the queue is in the tier."""
        if not self.initialised:
            return -1
        first = self.log.first_queue_offset()
        return self.commit_offset if first < 0 else max(self.units.min_queue_offset, first)

    @property
    def commit_offset(self) -> int:
        """Behind the newest message that is durable in the tier; -1 before the queue is in the tier."""
        return self.units.commit_queue_offset if self.initialised else -1

    @property
    def is_settled(self) -> bool:
        """Whether all that was appended is recorded, and the index has it. Any thread may ask, also during a commit."""
        return not self._uncommitted and not self.committed

    @property
    def taken_offset(self) -> int:
        """Behind the newest message whose record is in the tier, with or without its unit.

        A broker that lost its local store must not assign these offsets again.
        """
        ends = [segment.end_offset for segment in self.log.segments] if self.initialised else []
        return max([self.commit_offset, *ends])

    @property
    def unindexed_offset(self) -> int | None:
        """The oldest committed message that is not indexed yet; None: all are."""
        try:
            return self.committed[0].first_offset
        except IndexError:
            return None

    @property
    def append_offset(self) -> int:
        return self.units.append_queue_offset if self.initialised else -1

    @property
    def pending_bytes(self) -> int:
        return (self.log.append_offset - self.log.commit_offset) + (self.units.append_offset - self.units.commit_offset)

    @property
    def begin_ms(self) -> int:
        """Store time of the oldest message; -1 without messages. From the metadata, without a request."""
        times = [file.begin_ms for file in (self.log, self.units) if file.begin_ms != NEVER_MS]
        return max(times, default=-1)

    # Writing

    def init(self, queue_offset: int) -> None:
        """Let the queue begin at `queue_offset`. Only once. Durable in the metadata on return, both files or none.

        Sends requests only when an earlier queue of that name is still to be deleted (raises TierError).
        """
        if self.initialised:
            raise IllegalTransition(f"{self.queue.logical_path}: it begins at {self.units.min_queue_offset} already")
        with self.lock:
            if self._destroyed:
                raise IllegalTransition(
                    f"{self.queue.logical_path}: it is being deleted; finish that before it returns"
                )
            self.log.finish_deletions()
            self.units.finish_deletions()
            base = queue_offset * UNIT_BYTES
            keys = [self.queue.segment(SegmentType.COMMIT_LOG, 0)] if self.log.is_empty else []
            keys.append(self.queue.segment(SegmentType.CONSUME_QUEUE, base))
            *log_rows, units_row = self._metadata.together(lambda: [self._metadata.add_segment(key) for key in keys])
            for log_row in log_rows:
                self.log.create_segment(0, log_row)
            self.units.create_segment(base, units_row)
            self._recovered = self.compared = True

    def write(self, collected: CollectedRecords) -> bool:
        """Append and commit a batch whose records were collected for `log.append_offset`, from `append_offset` on.

        Rolls where a segment is full, between two records. False when the back end is out of reach: the part that was
        appended waits for the next `commit`, the rest (from `append_offset` on) must be collected again.
        """
        with self.lock:
            rest: RecordBatch | None = RecordBatch.of(collected) if collected.count else None
            while rest is not None:
                if not self._make_room(rest):
                    return False
                rest = self._append_some(rest)
                if rest is not None and not self.commit():
                    return False
            return self.commit()

    def append(self, collected: CollectedRecords) -> AppendStatus:
        """Take a batch for the next commit, all of it or nothing. FILE_FULL: it passes the end of a segment."""
        if collected.count == 0:
            return AppendStatus.SUCCESS
        batch = RecordBatch.of(collected)
        with self.lock:
            part, rest = batch.split(self._log_room(batch), self.units.room_units)
            if part is None or rest is not None:
                return AppendStatus.FILE_FULL
            self._append_some(batch)
            return AppendStatus.SUCCESS

    def pending_writes(self) -> list[SegmentWrite]:
        """What the next `commit` would write, records before units."""
        with self.lock:
            files = (self.log, self.units) if self.initialised else ()
            return [write for file in files if (write := file.last.pending_write()) is not None]

    def _log_room(self, batch: RecordBatch) -> int:
        """How much of a batch the commit log takes: an empty segment takes one record of any size."""
        last = self.log.last
        return max(last.room(), batch.location(0)[1]) if last.append_position == 0 else last.room()

    def _make_room(self, batch: RecordBatch) -> bool:
        """Roll files that have no room for the first record of a batch; False when a commit before it failed."""
        size = batch.location(0)[1]
        if not self.log.last.has_room_for(size) and not (self.commit() and self.log.roll()):
            return False
        return bool(self.units.room_units) or (self.commit() and self.units.roll())

    def _append_some(self, batch: RecordBatch) -> RecordBatch | None:
        """Append what fits into the last segments, which is one record at least, and return the rest."""
        self._check_offsets(batch)
        part, rest = batch.split(self._log_room(batch), self.units.room_units)
        if part is None:
            return rest
        log, units = self.log.last, self.units
        status = log.append(
            part.data, part.begin_ms, part.end_ms, begin_offset=part.first_offset, end_offset=part.next_offset
        )
        if status is AppendStatus.SUCCESS:
            status = units.append_units(part.units, part.begin_ms, part.end_ms)
        if status is not AppendStatus.SUCCESS:
            self.discard_pending()
            raise StoreClosed(f"{self.queue.logical_path}: expected an open file in the tier, found {status.name}")
        self._uncommitted.append(part)
        return rest

    def _check_offsets(self, batch: RecordBatch) -> None:
        if batch.log_offset != self.log.append_offset:
            raise IllegalTransition(
                f"{self.queue.logical_path}: expected records for offset {self.log.append_offset}, found them for "
                f"{batch.log_offset}"
            )
        if batch.first_offset != self.append_offset:
            raise IllegalTransition(
                f"{self.queue.logical_path}: expected messages from queue offset {self.append_offset} on, found them "
                f"from {batch.first_offset} on"
            )

    def commit(self) -> bool:
        """Make what was appended durable: records, units, rows. False when the back end is out of reach.

        What became durable is in `committed` afterwards, until the one who feeds the index takes it out.
        """
        with self.lock:
            if not self.log.write_pending() or not self.units.write_pending():
                return False
            sizes = [*self.log.unrecorded(), *self.units.unrecorded()]
            if not sizes and not self._uncommitted:
                return True
            entries = self._new_time_entries()
            self._metadata.record_commit(self.queue, sizes, entries)
            self.log.note_recorded()
            self.units.note_recorded()
            self._last_entry = entries[-1] if entries else self._last_entry
            self.committed.extend(self._uncommitted)
            self._uncommitted.clear()
            return True

    def _new_time_entries(self) -> list[TimeEntry]:
        """Time index entries for the records that are being committed (`entry_for_commit`)."""
        entries: list[TimeEntry] = []
        last = self._last_entry
        for batch in self._uncommitted:
            for number, end in batch.runs(DEFAULT_SPACING.messages_max, DEFAULT_SPACING.bytes_max):
                position = batch.location(number)[0]
                first = TimeEntry(
                    batch.first_offset + number, store_time_at(batch.data, position), batch.log_offset + position
                )
                entry = entry_for_commit(last, first, batch.first_offset + end, batch.log_offset + batch.end_of(end))
                if entry is not None:
                    entries.append(entry)
                    last = entry
        return entries

    def discard_pending(self) -> int:
        """Drop pending bytes to free memory; returns their number. The next write asks the tier first."""
        with self.lock:
            dropped = self.log.discard_pending() + self.units.discard_pending()
            self._uncommitted.clear()
            self._recovered = self._recovered and dropped == 0
            return dropped

    def skip_to(self, queue_offset: int, reason: str) -> Gap | None:
        """Continue at `queue_offset`, because the messages before it are lost; the gap is recorded.

        None when the back end is unreachable; another call continues.
        """
        with self.lock:
            if not self.commit():
                return None
            if queue_offset <= self.append_offset:
                raise IllegalTransition(
                    f"{self.queue.logical_path}: expected a gap behind {self.append_offset}, found {queue_offset}"
                )
            gap = Gap(self._gap_start(), queue_offset, reason, self._clock.now_ms())
            self._metadata.add_gap(self.queue, gap)  # First: blank units are only understood inside of a gap.
            while self.append_offset < queue_offset:
                if self.units.room_units == 0 and not self.units.roll():
                    return None
                run = min(queue_offset - self.append_offset, BLANK_RUN_UNITS, self.units.room_units)
                self.units.append_units(PRE_BLANK * run, gap.at_ms, gap.at_ms)
                if not self.commit():
                    return None
            return gap

    def _gap_start(self) -> int:
        """Where a gap at the end begins: one that a crash interrupted is continued, not counted twice."""
        end = self.append_offset
        for gap in self.gaps():
            if gap.from_offset < end <= gap.to_offset:
                return gap.from_offset
        return end

    def roll_log(self) -> bool:
        """End the commit log's segment; False when what waits could not be committed."""
        with self.lock:
            return self.commit() and self.log.roll()

    # What the metadata knows besides

    def gaps(self) -> list[Gap]:
        return self._metadata.gaps(self.queue)

    def time_entries(self) -> list[TimeEntry]:
        return self._metadata.time_entries(self.queue)

    # Recovery

    @property
    def recovered(self) -> bool:
        return self._recovered

    def recover(self) -> None:
        """Compare the metadata with what is in the tier and finish what a crash left undone.

        Raises TierUnavailable when the back end is out of reach: the queue can be read as far as the metadata goes, and
        recovery is tried again before the next write. Raises CorruptSegment when the tier has lost what was committed.
        """
        with self.lock:
            if self._recovered:
                return
            self.discard_pending()
            if self.initialised:
                QueueRecovery(
                    self._driver, self.log, self.units, self.gaps(), self._uncommitted.append, self.commit
                ).run()
                self.commit()  # When that fails, the units wait like those of any commit.
                self.log.complete_sums()
                self.units.complete_sums()
            self._recovered = self.compared = True

    def trust_metadata(self) -> None:
        """The queue's owner has recovered it, and the metadata have its end: recovery sends no request."""
        self._recovered = self.compared = True

    def doubt(self) -> None:
        """Bytes may have been written that the metadata lack: compare with the tier before the next write."""
        self._recovered = False

    def take_rows(self) -> bool:
        """Load what another process, the queue's writer, has committed; whether there was anything."""
        with self.lock:
            self._uncommitted.clear()
            changed = [self.log.take_rows(), self.units.take_rows()]
            self._last_entry = self._metadata.last_time_entry(self.queue)
            self.topic = self._metadata.topic(self.queue.topic) or self.topic
            return any(changed)

    def compare(self) -> bool:
        """Whether the tier has all that the metadata record. Changes nothing. Raises TierError."""
        if not self.compared and self.initialised:
            ends = [self._driver.size(part.last.key) >= part.last.commit_position for part in (self.log, self.units)]
            self.compared = all(ends)
        return self.compared

    # The end

    def destroy(self, on_step: Callable[[], None] = lambda: None) -> None:
        """Delete the queue's bytes and rows: units first, so that no reader finds a record that is being deleted."""
        with self.lock:
            self._destroyed = True
            self.units.destroy()
            on_step()
            self.log.destroy()
            self._metadata.delete_queue(self.queue)

    def close(self, timeout_s: float = -1) -> bool:
        """Take nothing more, after the commit under way; False when that outlasted `timeout_s` (for each segment)."""
        ended = [self.units.close(timeout_s), self.log.close(timeout_s)]
        return all(ended)


def _add_rows(metadata: MetadataStore, queue: QueueKey) -> Topic:
    topic = metadata.add_topic(queue.topic)
    metadata.add_queue(queue)
    return topic
