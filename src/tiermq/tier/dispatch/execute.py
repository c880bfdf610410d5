"""execute: do what a plan says, to one queue. One executor for the embedded engine and for jobs.

    Upload       collect ── commit log ── consume queue ── metadata ── index
    RetryCommit            commit log ── consume queue ── metadata ── index      (whatever of it is missing)

The index comes last and is told of every committed record, in order, once: a batch leaves `file.committed` only when
the index has all of it. After a crash the index asks for what it missed itself.
The caller owns the queue (its epoch), holds no locks, and calls from one thread at a time per queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tiermq.errors import TierUnavailable
from tiermq.tier.dispatch.local_source import LocalSource
from tiermq.tier.dispatch.plan import Gap, Hold, Init, Nothing, Plan, RetryCommit, Roll, Upload
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.record_batch import RecordBatch
from tiermq.tier.index.put_request import IndexRequest, PutOutcome
from tiermq.tier.index.record_requests import index_requests as index_requests
from tiermq.tier.metadata.metadata_values import Gap as RecordedGap


class IndexSink(Protocol):
    """Where keys go: `tiermq.tier.index.index_store.IndexStore`."""

    def put_request(self, request: IndexRequest) -> PutOutcome: ...


@runtime_checkable
class BatchSink(Protocol):
    """A sink that takes the records of a batch in one call, which is a hundred times faster than one by one."""

    def put_batch(self, batch: RecordBatch, topic: str, topic_id: int, queue_id: int) -> PutOutcome: ...


class NoIndex:
    """For a tier without a key index (messageIndexEnable = false)."""

    def put_request(self, _request: IndexRequest) -> PutOutcome:
        return PutOutcome.SUCCESS

    def put_batch(self, _batch: RecordBatch, _topic: str, _topic_id: int, _queue_id: int) -> PutOutcome:
        return PutOutcome.SUCCESS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan. Not `done`: the back end was out of reach, and the same can be tried again."""

    done: bool = True
    messages: int = 0  # Committed by this, retried ones included.
    bytes: int = 0
    rolled: int = 0  # Segments that were begun.
    gap: RecordedGap | None = None
    empty: bool = False  # There was nothing to collect after all.
    error: TierUnavailable | None = None


def execute(plan: Plan, file: FlatMessageFile, source: LocalSource, index: IndexSink) -> Outcome:
    """Raises TierError when repeating would not help, and the errors of the local store and of the index."""
    with file.lock:
        before, segments, log_end = file.commit_offset, _segment_count(file), file.log.commit_offset
        gap, empty = None, False
        if isinstance(plan, Nothing | Hold):
            return Outcome()
        if isinstance(plan, Init):
            file.init(plan.offset)
            return Outcome()
        file.recover()
        if isinstance(plan, Upload):
            done, empty = _upload(plan, file, source)
        elif isinstance(plan, Gap):
            gap = file.skip_to(plan.to_offset, plan.reason)
            done = gap is not None
        elif isinstance(plan, Roll):
            done = file.roll_log()
        else:
            assert isinstance(plan, RetryCommit)
            done = file.commit()
        feed_index(file, index)
        return Outcome(
            done=done,
            messages=0 if gap is not None else file.commit_offset - before,
            bytes=file.log.commit_offset - log_end,
            rolled=_segment_count(file) - segments,
            gap=gap,
            empty=empty,
            error=None if done else _last_error(file),
        )


def _upload(plan: Upload, file: FlatMessageFile, source: LocalSource) -> tuple[bool, bool]:
    """Whether it is done, and whether there was nothing to do."""
    if file.append_offset != plan.offset:
        return file.commit(), False  # Recovery found messages that the plan did not know of; plan anew.
    queue = file.queue
    found = source.collect(
        queue.topic, queue.queue_id, plan.offset, plan.max_count, plan.max_bytes, file.log.append_offset
    )
    return file.write(found), found.count == 0


def feed_index(file: FlatMessageFile, index: IndexSink) -> bool:
    """Give the index every committed record that it has not got; False when it takes no more. Raises DiskFull."""
    with file.lock:
        while file.committed:
            if not _feed_batch(file.committed[0], file, index):
                return False
            file.committed.popleft()
    return True


def _feed_batch(batch: RecordBatch, file: FlatMessageFile, index: IndexSink) -> bool:
    name = (file.queue.topic, file.topic.id, file.queue.queue_id)
    put_batch: Callable[..., PutOutcome] | None = getattr(index, "put_batch", None)  # A BatchSink, found out quickly.
    if put_batch is not None:
        return put_batch(batch, *name) is not PutOutcome.SHUTDOWN
    return all(index.put_request(request) is not PutOutcome.SHUTDOWN for request in index_requests(batch, *name))


def _segment_count(file: FlatMessageFile) -> int:
    return len(file.log.segments) + len(file.units.segments)


def _last_error(file: FlatMessageFile) -> TierUnavailable | None:
    return file.log.last.last_error or file.units.last.last_error
