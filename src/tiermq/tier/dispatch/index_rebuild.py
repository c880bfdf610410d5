"""Reading back what a queue has committed, so that an index which missed some of it can catch up.

The consume queue says which records count; bytes of the commit log that no unit knows are passed over. Where to begin
in it is found by the sparse time index, which knows for some messages both their queue offset and their place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES
from tiermq.tier.dispatch.execute import index_requests
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.flat_message_file import FlatMessageFile
from tiermq.tier.flat.record_batch import RecordBatch
from tiermq.tier.flat.segment_recovery import runs_of_records
from tiermq.tier.index.index_coverage import QueueTail
from tiermq.tier.index.put_request import IndexRequest
from tiermq.tier.names import QueueKey

UNITS_PER_READ = 4_096


def rebuild_from(files: FlatFileStore) -> Callable[[QueueKey, int], Iterator[IndexRequest]]:
    """The `rebuild` of an IndexStore over these queues; nothing comes back for a queue that is not there.

    A queue that is there and cannot be opened is an error: nothing read must not pass for nothing to index.
    """

    def rebuild(queue: QueueKey, from_offset: int) -> Iterator[IndexRequest]:
        damage = files.damaged.get((queue.topic, queue.queue_id))
        if damage is not None:
            raise damage
        file = files.find(queue.topic, queue.queue_id)
        return iter(()) if file is None else committed_requests(file, from_offset)

    return rebuild


def queue_tails(files: FlatFileStore) -> list[QueueTail]:
    """What `IndexStore.start` wants to know: how much each queue has committed. Asks the tier nothing."""
    return [
        QueueTail(file.queue.topic, file.topic.id, file.queue.queue_id, file.log.commit_offset)
        for file in files
        if file.initialised
    ]


def committed_requests(file: FlatMessageFile, from_offset: int) -> Iterator[IndexRequest]:
    """What the index is told of each committed record from tier offset `from_offset` on, in order. Raises TierError."""
    offset = max(_queue_offset_before(file, from_offset), file.min_offset)
    while offset < file.commit_offset:
        units = file.read_units(offset, UNITS_PER_READ)
        for first, run in runs_of_records(units, offset):
            yield from _requests_of_run(file, first, run, from_offset)
        offset += len(units) // UNIT_BYTES


def _queue_offset_before(file: FlatMessageFile, log_offset: int) -> int:
    entries = file.time_entries()
    at = bisect_right(entries, log_offset, key=lambda entry: entry.log_offset)
    return entries[at - 1].queue_offset if at else 0


def _requests_of_run(file: FlatMessageFile, first: int, run: memoryview, from_offset: int) -> Iterator[IndexRequest]:
    place, size, _ = UNIT.unpack_from(run, len(run) - UNIT_BYTES)
    if place < from_offset:
        return
    start = UNIT.unpack_from(run)[0]
    batch = RecordBatch.of_bytes(file.read_records(start, place + size - start), run, first)
    for request in index_requests(batch, file.queue.topic, file.topic.id, file.queue.queue_id):
        if request.tier_offset >= from_offset:
            yield request
