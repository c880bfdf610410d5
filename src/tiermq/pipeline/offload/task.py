"""The work of one offload task: copy records of some queues behind what the tier has of them.

Runs on an executor, or anywhere else; the store and the tier are opened when first needed and kept by the process.
The same task run twice, at once or after a failure, writes the same bytes to the same places: it begins where the
driver says that the queue ends, and the chunks depend on nothing but the records. The driver contract makes the second
write of the same bytes harmless. Nothing becomes visible here; see `offload_values` for what comes back.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import overload

from tiermq.clock import SystemClock
from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.errors import StaleWriter, TierError, TierUnavailable
from tiermq.spark.jobs.offload_values import OffloadTask, QueueCommit, QueueWork, Stop, TaskResult
from tiermq.store.read_only_store import ReadOnlyStore
from tiermq.tier.dispatch.execute import execute
from tiermq.tier.dispatch.plan import Upload
from tiermq.tier.dispatch.read_only_source import ReadOnlySource
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import FlatSegment
from tiermq.tier.flat.record_batch import RecordBatch, store_time_at
from tiermq.tier.index.index_fragment import FragmentBuilder
from tiermq.tier.index.put_request import IndexRequest, PutOutcome
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import TimeEntry
from tiermq.tier.metadata.segment_rows import SegmentSize
from tiermq.tier.metadata.time_index import sample

TRAVEL_BYTES_MAX = 256 * 1024
"""Fragments with more keys than that go through a file: results pass through the JVM, which has no use for keys."""

LEASE_CHECK_S = 5.0

_drivers: dict[str, TierDriver] = {}
_stores: dict[str, ReadOnlyStore] = {}


def driver_of(url: str) -> TierDriver:
    """The tier, opened when first asked for: a client that is used before a fork hangs in the child."""
    found = _drivers.get(url)
    if found is None:
        found = _drivers[url] = open_driver(url)
    return found


def store_of(path: str) -> ReadOnlyStore:
    """The store directory as it is now."""
    found = _stores.get(path)
    if found is None:
        found = _stores[path] = ReadOnlyStore.open(path)
    else:
        found.refresh()
    return found


def run_offload_task(task: OffloadTask) -> TaskResult:
    """Copy what the task names. What the tier refuses ends one queue, and is told; what is unexpected is raised."""
    began_s = time.process_time()
    source = ReadOnlySource(store_of(task.store), trusted=True)
    right = _Right(task, driver_of(task.tier))
    with MetadataStore(IN_MEMORY) as metadata:
        commits = [_QueueCopy(task, work, source, right, metadata).run() for work in task.works]
    return TaskResult(tuple(commits), time.process_time() - began_s)


class _Right:
    """Whether the driver of this task still may write. Asked at the beginning and every few seconds."""

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
                f"broker now belongs to {'nobody' if found is None else f'{found.owner} (epoch {found.epoch})'}"
            )
        self._asked_s = now_s


class _QueueCopy:
    """One queue of a task. Also the index of its commits: it keeps what the driver's index must know."""

    def __init__(
        self, task: OffloadTask, work: QueueWork, source: ReadOnlySource, right: _Right, metadata: MetadataStore
    ) -> None:
        self._task = task
        self._work = work
        self._source = source
        self._right = right
        with metadata.transaction():
            metadata.put_topic(work.topic)
            for segment in (work.log, work.units):
                metadata.put_segment(segment)
        self._file = FlatMessageFile(
            right.driver,
            metadata,
            work.queue,
            SystemClock(),
            log_segment_bytes=task.log_segment_bytes,
            queue_segment_bytes=task.queue_segment_bytes,
        )
        self._file.trust_metadata()
        self._last_entry = work.last_entry
        self._entries: list[TimeEntry] = []
        self._keys: FragmentBuilder | None = None
        if task.with_index:
            queue = work.queue
            self._keys = FragmentBuilder(queue.topic, work.topic.id, queue.queue_id, self._file.log.commit_offset)

    def run(self) -> QueueCommit:
        stop, error = Stop.TARGET, ""
        try:
            stop = self._copy()
        except TierUnavailable as found:
            stop, error = Stop.UNAVAILABLE, str(found)
        except TierError as found:
            stop, error = Stop.REFUSED, str(found)
        return self._told(stop, error)

    def _copy(self) -> Stop:
        file, settings = self._file, self._task.settings
        while file.commit_offset < self._work.to_offset:
            self._right.check()
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

    # What `execute` tells its index

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

    def put_request(self, _request: IndexRequest) -> PutOutcome:
        raise NotImplementedError("batches are put as batches")

    # What the driver is told

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
        if self._keys is None or commit.messages == 0:
            return commit
        fragment = self._keys.build()
        if len(fragment.keys) <= TRAVEL_BYTES_MAX or not self._task.spool:
            return replace(commit, fragment=fragment)
        path = os.path.join(self._task.spool, f"{uuid.uuid4().hex}.keys")
        with open(path, "wb") as stream:
            stream.write(fragment.keys)
        return replace(commit, fragment=replace(fragment, keys=b""), fragment_path=path)


def _size_of(segment: FlatSegment) -> SegmentSize:
    return SegmentSize(
        segment.key,
        segment.commit_position,
        segment.begin_ms,
        segment.end_ms,
        segment.crc32,
        segment.begin_offset,
        segment.end_offset,
    )


class _Places(Sequence[int]):
    """Where the records of units lie, read one by one: a search looks at a few of them only."""

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
        return int(UNIT.unpack_from(self._units, number * UNIT_BYTES)[0])
