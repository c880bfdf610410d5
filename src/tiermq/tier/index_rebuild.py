"""What the index asks for when a crash or a lost disk took entries from it: the committed records of a queue, again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tiermq.consumequeue.unit import UNIT, UNIT_BYTES, is_real
from tiermq.tier.dispatch.execute import index_requests
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.flat.record_batch import RecordBatch
from tiermq.tier.index.put_request import IndexRequest
from tiermq.tier.names import QueueKey

STEP_MESSAGES = 1_024


def rebuild_from(files: FlatFileStore) -> Callable[[QueueKey, int], Iterator[IndexRequest]]:
    """The index store's `rebuild` callback over those files. Raises TierError while it is iterated."""

    def rebuild(queue: QueueKey, from_tier_offset: int) -> Iterator[IndexRequest]:
        file = files.find(queue.topic, queue.queue_id)
        if file is None or not file.initialised:
            return
        offset = max(0, file.min_offset)
        while offset < file.commit_offset:
            units = bytes(file.read_units(offset, min(STEP_MESSAGES, file.commit_offset - offset)))
            for batch in _runs(units, offset):
                start, end = _range_of(batch[1])
                if end <= from_tier_offset:
                    continue
                data = file.read_records(start, end - start)
                records = RecordBatch.of_bytes(data, batch[1], batch[0])
                for request in index_requests(records, queue.topic, file.topic.id, queue.queue_id):
                    if request.tier_offset >= from_tier_offset:
                        yield request
            offset += len(units) // UNIT_BYTES

    return rebuild


def _runs(units: bytes, first_offset: int) -> Iterator[tuple[int, bytes]]:
    """Stretches of real units whose records lie side by side, each with its first queue offset."""
    begin, expected = 0, -1
    for number, (log_offset, size, _) in enumerate(UNIT.iter_unpack(units)):
        real = is_real(log_offset, size)
        if expected >= 0 and (not real or log_offset != expected):
            yield first_offset + begin, units[begin * UNIT_BYTES : number * UNIT_BYTES]
            expected = -1
        if real:
            begin = number if expected < 0 else begin
            expected = log_offset + size
    if expected >= 0:
        yield first_offset + begin, units[begin * UNIT_BYTES :]


def _range_of(units: bytes) -> tuple[int, int]:
    first = UNIT.unpack_from(units)
    last = UNIT.unpack_from(units, len(units) - UNIT_BYTES)
    return int(first[0]), int(last[0]) + int(last[1])
