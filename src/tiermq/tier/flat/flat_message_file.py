"""FlatMessageFile: one queue in the tier, its commit log and its consume queue together.

A commit writes records, then units, then the metadata row; each step is repeated as it was after a failure.

    records appended ── commit log committed ── units committed ── row, time entry, gaps ── (manifest, now and then)
                      crash here: adopted at next start       crash here: sizes are taken from the tier

Invariants: every committed unit points to a committed record; queue offsets in [min_offset, commit_offset) can be read,
less the recorded gaps; messages keep the queue offsets that they have in the local store.
A gap (messages that were gone before they could be copied) is recorded and the numbering goes on behind it: the consume
queue is filled with pre-blank units, older history stays.
Threads: one writer (dispatcher or job) under `lock`; any number of readers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tiermq.clock import Clock
from tiermq.consumequeue.unit import PRE_BLANK, UNIT, UNIT_BYTES
from tiermq.errors import CorruptSegment, IllegalTransition
from tiermq.kernel import Collected
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_append_file import FlatAppendFile
from tiermq.tier.flat.flat_commit_log import FlatCommitLog
from tiermq.tier.flat.flat_consume_queue import FlatConsumeQueue
from tiermq.tier.flat.flat_segment import AppendStatus
from tiermq.tier.flat.segment_recovery import SCAN_BYTES, adopt_records
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import NEVER_MS, Gap, TimeEntry, Topic
from tiermq.tier.metadata.time_index import entry_for_commit
from tiermq.tier.names import QueueKey

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
        self.topic: Topic = metadata.add_topic(queue.topic)
        metadata.add_queue(queue)
        self.log = FlatCommitLog(driver, metadata, queue, log_segment_bytes, clock)
        self.units = FlatConsumeQueue(driver, metadata, queue, queue_segment_bytes, clock)
        self._driver = driver
        self._metadata = metadata
        self._clock = clock
        self._last_entry = metadata.last_time_entry(queue)
        self._first_pending: TimeEntry | None = None
        self._recovered = self.units.is_empty and self.log.is_empty

    # Bounds

    @property
    def initialised(self) -> bool:
        """Whether the queue has a place where its first message goes."""
        return not self.units.is_empty

    @property
    def min_offset(self) -> int:
        """The oldest queue offset that can be read: where both files begin."""
        if not self.initialised:
            return -1
        return max(self.units.min_queue_offset, self.log.first_queue_offset())

    @property
    def commit_offset(self) -> int:
        """Behind the newest message that is durable in the tier; -1 before the queue has a place."""
        return self.units.commit_queue_offset if self.initialised else -1

    @property
    def append_offset(self) -> int:
        return self.units.append_queue_offset if self.initialised else -1

    @property
    def pending_bytes(self) -> int:
        return (self.log.append_offset - self.log.commit_offset) + (self.units.append_offset - self.units.commit_offset)

    @property
    def begin_ms(self) -> int:
        """Store time of the oldest message; -1 when there is none. From the metadata, without a request."""
        times = [file.begin_ms for file in (self.log, self.units) if file.begin_ms != NEVER_MS]
        return max(times, default=-1)

    # Writing

    def init(self, queue_offset: int) -> None:
        """Let the queue begin at `queue_offset`. Only once."""
        if self.initialised:
            raise IllegalTransition(f"{self.queue.logical_path}: it begins at {self.units.min_queue_offset} already")
        if self.log.is_empty:
            self.log.create_segment(0)
        self.units.create_segment(queue_offset * UNIT_BYTES)
        self._recovered = True

    def append(self, batch: Collected) -> AppendStatus:
        """Take a batch whose records were collected for `log.append_offset` and begin at `append_offset`."""
        if batch.count == 0:
            return AppendStatus.SUCCESS
        if UNIT.unpack_from(batch.units)[0] != self.log.append_offset:
            raise IllegalTransition(
                f"{self.queue.logical_path}: expected records for offset {self.log.append_offset}, found them for "
                f"{UNIT.unpack_from(batch.units)[0]}"
            )
        if batch.next_offset - batch.count != self.append_offset:
            raise IllegalTransition(
                f"{self.queue.logical_path}: expected messages from queue offset {self.append_offset} on, found them "
                f"from {batch.next_offset - batch.count} on"
            )
        first = TimeEntry(self.append_offset, batch.begin_ms, self.log.append_offset)
        status = self.log.append(batch.data, batch.begin_ms, batch.end_ms)
        if status is not AppendStatus.SUCCESS:
            return status
        if self._first_pending is None:
            self._first_pending = first
        return self.units.append_units(batch.units, batch.begin_ms, batch.end_ms)

    def commit(self) -> bool:
        """Make what was appended durable: records first, then units. False when the back end is out of reach."""
        with self.lock:
            begin, end = self.commit_offset, self.append_offset
            if not self.log.commit(begin, end) or not self.units.commit(begin, end):
                return False
            self._note_time_entry()
            return True

    def _note_time_entry(self) -> None:
        first, self._first_pending = self._first_pending, None
        if first is None:
            return
        entry = entry_for_commit(self._last_entry, first, self.commit_offset, self.log.commit_offset)
        if entry is not None:
            self._metadata.add_time_entries(self.queue, [entry])
            self._last_entry = entry

    def skip_to(self, queue_offset: int, reason: str) -> Gap | None:
        """Go on at `queue_offset`, because the messages before it are gone for good; the gap is recorded.

        None, and nothing recorded, when pending bytes could not be committed first.
        """
        with self.lock:
            if not self.commit():
                return None
            gap = Gap(self.append_offset, queue_offset, reason, self._clock.now_ms())
            self._metadata.add_gap(self.queue, gap)
            missing = queue_offset - self.append_offset
            while missing > 0:
                run = min(missing, BLANK_RUN_UNITS)
                now_ms = self._clock.now_ms()
                if self.units.append_units(PRE_BLANK * run, now_ms, now_ms) is not AppendStatus.SUCCESS:
                    return None
                if not self.units.commit():
                    return None
                missing -= run
            return gap

    def roll_log(self) -> bool:
        return self.log.roll()

    # Reading

    def read_units(self, queue_offset: int, count: int) -> bytes | memoryview:
        return self.units.read_units(queue_offset, count)

    def read_records(self, log_offset: int, length: int) -> bytes | memoryview:
        return self.log.read(log_offset, length)

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
        recovery is tried again before the next write. Raises CorruptSegment when units point to records that are not
        there.
        """
        with self.lock:
            if self._recovered:
                return
            units_end = self._take_size(self.units, UNIT_BYTES)
            log_end = self._take_size(self.log, 1)
            expected = self._end_of_last_record(units_end)
            if log_end < expected:
                raise CorruptSegment(
                    f"{self.queue.logical_path}: its consume queue points to records up to {expected}, but its commit "
                    f"log ends at {log_end}; run `tiermq tier verify`"
                )
            if log_end > expected:
                self._adopt(expected, log_end)
            self._recovered = True

    def _take_size(self, file: FlatAppendFile, step: int) -> int:
        """Learn the true size of the file's last segment, cut to whole steps."""
        if file.is_empty:
            return 0
        segment = file.last
        size = self._driver.size(segment.key)
        if size % step:
            self._driver.trim(segment.key, size - size % step)
            size -= size % step
        if size != segment.commit_position:
            segment.set_size(size)
            file.record_size(segment)
        return segment.commit_offset

    def _end_of_last_record(self, units_end: int) -> int:
        """Where the record of the newest real unit ends; the beginning of the log when there is none."""
        begin = max(0, self.log.min_offset)
        while units_end > self.units.min_offset >= 0:
            count = min(BLANK_RUN_UNITS, (units_end - self.units.min_offset) // UNIT_BYTES)
            data = self.units.read(units_end - count * UNIT_BYTES, count * UNIT_BYTES)
            for position in range((count - 1) * UNIT_BYTES, -1, -UNIT_BYTES):
                if data[position : position + UNIT_BYTES] != PRE_BLANK:
                    log_offset, size, _ = UNIT.unpack_from(data, position)
                    return int(log_offset) + int(size)
            units_end -= count * UNIT_BYTES
        return begin

    def _adopt(self, start: int, end: int) -> None:
        """Give whole records behind the last unit their units, and trim what is not whole."""
        while start < end:
            length = min(SCAN_BYTES, end - start)
            data = self.log.read(start, length)
            found = adopt_records(data, start, self.append_offset)
            if found.units:
                self.units.append_units(found.units, found.begin_ms, found.end_ms)
                start = found.end_offset
            elif length < end - start and len(data) == SCAN_BYTES:
                raise CorruptSegment(f"{self.queue.logical_path}: no whole record within {SCAN_BYTES} bytes of {start}")
            else:
                break
        if start < end:
            segment = self.log.last
            self._driver.trim(segment.key, start - segment.base)
            segment.set_size(start - segment.base)
            self.log.record_size(segment)
        self.units.commit()

    # The end

    def destroy(self, on_step: Callable[[], None] = lambda: None) -> None:
        """Delete the queue's bytes and rows: units first, so that nobody finds a record that is going."""
        with self.lock:
            self.units.destroy()
            on_step()
            self.log.destroy()
            self._metadata.delete_queue(self.queue)

    def close(self) -> None:
        self.units.close()
        self.log.close()
