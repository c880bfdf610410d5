"""The work of one offload task: copy records of some queues behind what the tier has of them.

Runs on an executor, or anywhere else; the store and the tier are opened when first needed and kept by the process.
The same task run twice, at once or after a failure, writes the same bytes to the same offsets: it begins where the
queue ends according to the driver, and the chunks depend only on the records. The driver contract makes the second
write of the same bytes harmless. Nothing becomes visible here; see `offload_values` for what comes back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Protocol, overload

from tiermq.clock import SystemClock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import CorruptRecord, RemotingError, StaleWriter, TierError, TierUnavailable
from tiermq.pipeline.index_build import KeyStage, StagedKeys
from tiermq.pipeline.offload.plan import OffloadTask, QueueCommit, QueueWork, Stop, TaskResult
from tiermq.pipeline.offload.wire_source import OutOfTime, WireSource
from tiermq.pipeline.worker_cache import driver_of, store_of
from tiermq.tier.dispatch.dispatch_step import execute
from tiermq.tier.dispatch.local_source import ReadOnlySource, RecordReader
from tiermq.tier.dispatch.plan import Upload
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import FlatSegment
from tiermq.tier.index.index_request import FragmentBuilder, PutOutcome
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.metadata_store import MetadataStore, SegmentSize
from tiermq.tier.metadata.metadata_values import TimeEntry, sample
from tiermq.tier.names import index_queue
from tiermq.tier.queue.records import RecordBatch, store_time_at
from tiermq.tier.queue.units import log_offset_at

_log = logging.getLogger(__name__)

LEASE_CHECK_S = 5.0

WIRE_THREADS = 4
"""Queues of a task that are read over the wire beside each other: while one waits, another one is uploaded."""


def run_offload_task(task: OffloadTask) -> TaskResult:
    """Copy what the task names. An error of the tier ends one queue, and is reported; unexpected errors are raised."""
    began_s = time.process_time()
    guard = LeaseGuard(task, driver_of(task.tier))
    queue = task.works[0].queue
    stage = KeyStage(guard.driver, index_queue(queue.cluster, queue.broker)) if task.with_index else None
    with MetadataStore(IN_MEMORY) as metadata:
        if task.wire is None:
            local = ReadOnlySource(store_of(task.store), trusted=True)
            commits = [_QueueCopy(task, work, local, guard, metadata, stage).run() for work in task.works]
        else:
            ranges = [(work.queue.name, work.from_offset, work.to_offset) for work in task.works]
            with (
                closing(WireSource(task.wire, ranges, task.rate, time_s=task.settings.task_s)) as wire,
                ThreadPoolExecutor(WIRE_THREADS, thread_name_prefix="offload-copy") as pool,
            ):
                copied = pool.map(lambda work: _QueueCopy(task, work, wire, guard, metadata, stage).run(), task.works)
                commits = list(copied)
    return TaskResult(tuple(commits), _staged(stage), time.process_time() - began_s)


def _staged(stage: KeyStage | None) -> tuple[StagedKeys, ...]:
    """Where the keys are. Without them the records are committed nevertheless, and are indexed from the tier later."""
    try:
        return () if stage is None else stage.finish()
    except TierError as error:
        _log.warning("the keys of this task could not be staged: %s", error)
        return ()


class TaskSource(RecordReader, Protocol):
    """What a task reads of: a store directory, or a broker."""

    def size_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """The size of the record at exactly that offset; None when there is none."""
        ...


class LeaseGuard:
    """Whether the job of this task still may write its broker. Asks at the beginning and every few seconds."""

    def __init__(self, task: OffloadTask, driver: TierDriver) -> None:
        queue = task.works[0].queue
        self.driver = driver
        self._claim = task.lease
        self._lease = BrokerLease(driver, queue.cluster, queue.broker, task.lease.owner)
        self._asked_s = -LEASE_CHECK_S

    def check(self) -> None:
        now_s = time.monotonic()
        if now_s - self._asked_s < LEASE_CHECK_S:
            return
        found = self._lease.read()
        if found is None or (found.owner, found.epoch) != (self._claim.owner, self._claim.epoch):
            raise StaleWriter(
                f"{self._lease.name}: this task works for {self._claim.owner} with epoch {self._claim.epoch}, but the "
                f"broker now belongs to {'no owner' if found is None else f'{found.owner} (epoch {found.epoch})'}"
            )
        self._asked_s = now_s


class _QueueCopy:
    """One queue of a task. Also the index of its commits: it collects their keys, and stages them at the end."""

    def __init__(
        self,
        task: OffloadTask,
        work: QueueWork,
        source: TaskSource,
        guard: LeaseGuard,
        metadata: MetadataStore,
        stage: KeyStage | None,
    ) -> None:
        self._task = task
        self._work = work
        self._source = source
        self._guard = guard
        with metadata.transaction():
            metadata.put_topic(work.topic)
            for segment in (work.log, work.units):
                metadata.put_segment(segment)
        self._file = FlatMessageFile(
            guard.driver,
            metadata,
            work.queue,
            SystemClock(),
            log_segment_bytes=task.log_segment_bytes,
            queue_segment_bytes=task.queue_segment_bytes,
        )
        self._file.trust_metadata()
        self._last_entry = work.last_entry
        self._entries: list[TimeEntry] = []
        self._stage = stage
        self._keys: FragmentBuilder | None = None
        if stage is not None:
            queue = work.queue
            self._keys = FragmentBuilder(queue.topic, work.topic.id, queue.queue_id, self._file.log.commit_offset)

    def run(self) -> QueueCommit:
        stop, error, seen, began_s = Stop.TARGET, "", 0, time.monotonic()
        try:
            stop = self._copy()
        except TierUnavailable as found:
            stop, error = Stop.UNAVAILABLE, str(found)
        except TierError as found:
            stop, error = Stop.REFUSED, str(found)
        except RemotingError as found:
            stop, error = Stop.NO_SOURCE, str(found)
        except CorruptRecord as found:
            stop, error = Stop.DAMAGED, str(found)
        except OutOfTime as found:
            if found.seen is None:
                return self._told(Stop.SLOW, "")
            stop, seen = Stop.SLOW, found.seen
        return replace(self._told(stop, error), took_s=time.monotonic() - began_s, seen=seen)

    def _copy(self) -> Stop:
        file, settings = self._file, self._task.settings
        while file.commit_offset < self._work.to_offset:
            self._guard.check()
            offset = file.commit_offset
            size = self._source.size_at(self._work.queue.topic, self._work.queue.queue_id, offset)
            if size is None:
                return Stop.NO_RECORD
            if not file.log.last.has_room_for(size):
                return Stop.LOG_FULL
            if file.units.room_units == 0:
                return Stop.UNITS_FULL
            most = min(settings.chunk_messages, file.units.room_units, self._work.to_offset - offset)
            room = file.log.last.room() if file.log.last.append_position else max(size, file.log.last.room())
            outcome = execute(
                Upload(offset, most, min(settings.chunk_bytes, room), repeat=True), file, self._source, self
            )
            if not outcome.done:
                raise outcome.error or TierUnavailable(f"{self._work.queue.logical_path}: a commit did not succeed")
            if outcome.empty:
                return Stop.NO_RECORD
        return Stop.TARGET

    # Input of the index

    def put_batch(self, batch: RecordBatch, _topic: str, _topic_id: int, _queue_id: int) -> PutOutcome:
        if self._keys is not None:
            self._keys.add(batch)
        places = _Places(batch.units)
        offsets = range(batch.first_offset, batch.next_offset)
        for number in sample(self._last_entry, offsets, places):
            place = places[number]
            store_ms = store_time_at(batch.data, place - batch.log_offset)
            self._last_entry = TimeEntry(offsets[number], store_ms, place)
            self._entries.append(self._last_entry)
        return PutOutcome.SUCCESS

    # Result for the driver

    def _told(self, stop: Stop, error: str) -> QueueCommit:
        file, work = self._file, self._work
        commit = QueueCommit(
            work.queue,
            work.from_offset,
            file.commit_offset,
            file.log.commit_offset - work.log.end,
            tuple(_size_of(part.last) for part in (file.log, file.units)),
            tuple(self._entries),
            stop,
            error,
        )
        if self._stage is not None and self._keys is not None and commit.messages:
            fragment = self._keys.build()
            self._stage.add(work.queue, work.topic.id, fragment.start, fragment.end, fragment.keys)
        return commit


def _size_of(segment: FlatSegment) -> SegmentSize:
    return SegmentSize(
        segment.key,
        segment.commit_position,
        segment.begin_ms,
        segment.end_ms,
        segment.crc32,
        segment.begin_offset,
        segment.end_offset,
        segment.sums,
    )


class _Places(Sequence[int]):
    """The log offsets of units, read one by one: a search reads only a few of them."""

    def __init__(self, units: bytes | memoryview) -> None:
        self._units = units

    def __len__(self) -> int:
        return len(self._units) // UNIT_BYTES

    @overload
    def __getitem__(self, number: int) -> int: ...
    @overload
    def __getitem__(self, number: slice) -> list[int]: ...
    def __getitem__(self, number: int | slice) -> int | list[int]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        return log_offset_at(self._units, number)
