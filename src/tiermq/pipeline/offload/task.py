"""The work of one offload task: copy records of some queues behind what the tier has of them.

Runs on an executor, or anywhere else; the store and the tier are opened when first needed and kept by the process.
The same task run twice, at once or after a failure, writes the same bytes to the same offsets: it begins where the
queue ends according to the driver, and the chunks depend only on the records. The driver contract makes the second
write of the same bytes harmless. Nothing becomes visible here; see `offload_values` for what comes back.

What quiet queues have (`QueueWork.is_packed`) goes into chunks, one object for many queues, with names of this attempt
alone (`ChunkPack`). They count when the job's driver commits them; those of other attempts never do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple, Protocol, overload

from tiermq.clock import SystemClock
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import CorruptRecord, RemotingError, StaleWriter, TierError, TierUnavailable
from tiermq.pipeline.index_build import KeyStage, StagedKeys
from tiermq.pipeline.offload.plan import (
    LeaseClaim,
    OffloadTask,
    QueueCommit,
    QueueWork,
    Stop,
    TaskResult,
)
from tiermq.pipeline.offload.wire_source import OutOfTime, WireSource
from tiermq.pipeline.worker_cache import driver_of, store_of
from tiermq.tier.dispatch.bundle_step import QUIET_BYTES_MAX
from tiermq.tier.dispatch.dispatch_step import execute
from tiermq.tier.dispatch.local_source import ReadOnlySource, RecordReader
from tiermq.tier.dispatch.plan import Upload
from tiermq.tier.driver.contract import Buffer, ChunkRange, ForwardingDriver, SegmentWrite, TierDriver, joined
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.flat_segment import FlatSegment
from tiermq.tier.index.index_request import FragmentBuilder, IndexFragment, PutOutcome
from tiermq.tier.metadata.broker_lease import BrokerLease
from tiermq.tier.metadata.database import IN_MEMORY
from tiermq.tier.metadata.metadata_store import MetadataStore, SegmentSize
from tiermq.tier.metadata.metadata_values import TimeEntry, sample
from tiermq.tier.names import QueueKey, SegmentKey, broker_directory, index_queue
from tiermq.tier.queue.records import RecordBatch, store_time_at
from tiermq.tier.queue.units import log_offset_at

_log = logging.getLogger(__name__)

LEASE_CHECK_S = 5.0

CHUNK_BYTES = 8 << 20
"""A chunk is ended when it has so many bytes."""

WIRE_THREADS = 4
"""Queues of a task that are read over the wire beside each other: while one waits, another one is uploaded."""


def run_offload_task(task: OffloadTask) -> TaskResult:
    """Copy what the task names. An error of the tier ends one queue, and is reported; unexpected errors are raised."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    queue = task.works[0].queue
    guard = LeaseGuard(queue.cluster, queue.broker, task.lease, driver_of(task.tier))
    stage = KeyStage(guard.driver, index_queue(queue.cluster, queue.broker)) if task.with_index else None
    pack = ChunkPack(guard, broker_directory(queue.cluster, queue.broker))
    with MetadataStore(IN_MEMORY) as metadata:
        if task.wire is None:
            local = ReadOnlySource(store_of(task.store), trusted=True)
            copies = [_QueueCopy(task, work, local, guard, metadata, stage, pack).run() for work in task.works]
        else:
            ranges = [(work.queue.name, work.from_offset, work.to_offset) for work in task.works]
            with (
                closing(WireSource(task.wire, ranges, task.rate, time_s=task.settings.task_s)) as wire,
                ThreadPoolExecutor(WIRE_THREADS, thread_name_prefix="offload-copy") as pool,
            ):
                copied = pool.map(
                    lambda work: _QueueCopy(task, work, wire, guard, metadata, stage, pack).run(), task.works
                )
                copies = list(copied)
    pack.end()
    commits = tuple(_packed(copy, pack, stage) for copy in copies)
    keys = _staged(stage)
    return TaskResult(commits, keys, time.process_time() - began_cpu_s, time.monotonic() - began_s)


def _packed(copy: _Copied, pack: ChunkPack, stage: KeyStage | None) -> QueueCommit:
    """The commit, after its chunk was stored, or failed to be; its keys are staged."""
    commit = copy.commit
    found = pack.ranges(commit.queue)
    if isinstance(found, TierError):
        stop = Stop.UNAVAILABLE if isinstance(found, TierUnavailable) else Stop.REFUSED
        return replace(
            commit, to_offset=commit.from_offset, bytes=0, sizes=copy.before, entries=(), stop=stop, error=str(found)
        )
    assert bool(found) == (copy.is_packed and commit.messages > 0), "what was packed is in a chunk"
    if stage is not None:
        copy.stage(stage)
    return replace(commit, ranges=found)


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

    def __init__(self, cluster: str, broker: str, claim: LeaseClaim, driver: TierDriver) -> None:
        self.driver = driver
        self._claim = claim
        self._lease = BrokerLease(driver, cluster, broker, claim.owner)
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


class ChunkPack:
    """The chunks of one attempt of a task. Any thread may `add`; after the last one, `end`."""

    def __init__(self, guard: LeaseGuard, directory: str) -> None:
        self._guard = guard
        self._directory = directory
        self._lock = threading.Lock()
        self._waiting: list[tuple[QueueKey, ChunkRange]] = []  # Without the name of their chunk.
        self._data = bytearray()
        self._ranges: dict[QueueKey, list[ChunkRange]] = {}
        self._errors: dict[QueueKey, TierError] = {}

    def add(self, queue: QueueKey, writes: Iterable[SegmentWrite]) -> None:
        """Take what would be appended to segments of a queue. A queue comes once."""
        with self._lock:
            for write in writes:
                body = joined(write.data)
                self._waiting.append((queue, ChunkRange(write.key, write.position, len(body), "", len(self._data))))
                self._data += body
            if len(self._data) >= CHUNK_BYTES:
                self._put()

    def end(self) -> None:
        """Store what is left."""
        if self._waiting:
            self._put()

    def _put(self) -> None:
        try:
            self._guard.check()
            name = self._guard.driver.put_chunk(self._directory, bytes(self._data))
            for queue, entry in self._waiting:
                self._ranges.setdefault(queue, []).append(entry._replace(chunk=name))
        except TierError as error:
            self._errors |= {queue: error for queue, _ in self._waiting}
        self._waiting.clear()
        self._data.clear()

    def ranges(self, queue: QueueKey) -> tuple[ChunkRange, ...] | TierError:
        """Where a queue's bytes are; the error when they are not stored."""
        return self._errors.get(queue) or tuple(self._ranges.get(queue, ()))


class _PackedDriver(ForwardingDriver):
    """The tier of a quiet queue in a task: what would be appended waits for a chunk."""

    def __init__(self, inner: TierDriver) -> None:
        super().__init__(inner)
        self._written: dict[SegmentKey, tuple[int, list[Buffer]]] = {}

    def write(self, key: SegmentKey, position: int, data: Sequence[Buffer]) -> bool:
        _, buffers = self._written.setdefault(key, (position, []))
        buffers.extend(data)
        return False

    def writes(self) -> list[SegmentWrite]:
        return [SegmentWrite(key, position, buffers) for key, (position, buffers) in self._written.items()]


class _Copied(NamedTuple):
    """What became of a queue, before its chunk is stored."""

    commit: QueueCommit
    before: tuple[SegmentSize, ...]
    topic_id: int
    is_packed: bool
    keys: IndexFragment | None = None  # Those that are not staged yet.

    def stage(self, stage: KeyStage) -> None:
        if self.keys is not None:
            stage.add(self.commit.queue, self.topic_id, self.keys.start, self.keys.end, self.keys.keys)


class _QueueCopy:
    """One queue of a task. Also the index of its commits: it collects their keys."""

    def __init__(
        self,
        task: OffloadTask,
        work: QueueWork,
        source: TaskSource,
        guard: LeaseGuard,
        metadata: MetadataStore,
        stage: KeyStage | None,
        pack: ChunkPack,
    ) -> None:
        self._task = task
        self._work = work
        self._source = source
        self._guard = guard
        with metadata.transaction():
            metadata.put_topic(work.topic)
            metadata.add_queue(work.queue)  # A file adds what is missing, in a transaction of its own.
            for segment in (work.log, work.units):
                metadata.put_segment(segment)
        self._pack = pack
        self._packed = _PackedDriver(guard.driver) if work.is_packed else None
        self._file = FlatMessageFile(
            self._packed or guard.driver,
            metadata,
            work.queue,
            SystemClock(),
            log_segment_bytes=task.log_segment_bytes,
            queue_segment_bytes=task.queue_segment_bytes,
        )
        self._file.trust_metadata()
        self._last_entry = work.last_entry
        self._entries: list[TimeEntry] = []
        self._before = self._sizes()
        self._stage = stage
        self._keys: FragmentBuilder | None = None
        if stage is not None:
            queue = work.queue
            self._keys = FragmentBuilder(queue.topic, work.topic.id, queue.queue_id, self._file.log.commit_offset)

    def run(self) -> _Copied:
        commit = self._run()
        copied = _Copied(commit, self._before, self._work.topic.id, self._work.is_packed)
        if self._packed is not None:
            self._pack.add(self._work.queue, self._packed.writes())
        if self._stage is None or self._keys is None or not commit.messages:
            return copied
        copied = copied._replace(keys=self._keys.build())
        if self._packed is not None:
            return copied
        copied.stage(self._stage)
        return copied._replace(keys=None)  # They may be many.

    def _run(self) -> QueueCommit:
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
                return self._result(Stop.SLOW, "")
            stop, seen = Stop.SLOW, found.seen
        return replace(self._result(stop, error), took_s=time.monotonic() - began_s, seen=seen)

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
            if self._packed is not None and file.log.commit_offset - self._work.log.end >= QUIET_BYTES_MAX:
                return Stop.NOT_QUIET
            most = min(settings.chunk_messages, file.units.room_units, self._work.to_offset - offset)
            room = file.log.last.room() if file.log.last.append_position else max(size, file.log.last.room())
            most_bytes = min(settings.chunk_bytes if self._packed is None else QUIET_BYTES_MAX, room)
            outcome = execute(Upload(offset, most, most_bytes, repeat=True), file, self._source, self)
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

    def _result(self, stop: Stop, error: str) -> QueueCommit:
        file, work = self._file, self._work
        return QueueCommit(
            work.queue,
            work.from_offset,
            file.commit_offset,
            file.log.commit_offset - work.log.end,
            self._sizes(),
            tuple(self._entries),
            stop,
            error,
        )

    def _sizes(self) -> tuple[SegmentSize, ...]:
        return tuple(_size_of(part.last) for part in (self._file.log, self._file.units))


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
