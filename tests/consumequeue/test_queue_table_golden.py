"""Queues that the real RocketMQ wrote: read, left untouched, answered from, and written again byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from golden.reading import NAMES, Golden, golden
from simulation.manual_clock import ManualClock
from tiermq.commitlog.dispatch_request import DispatchRequest
from tiermq.consumequeue.batch_consume_queue import BatchConsumeQueue
from tiermq.consumequeue.consume_queue import ConsumeQueue
from tiermq.consumequeue.ext_unit import ExtUnit
from tiermq.consumequeue.queue_table import QueueTable, QueueType
from tiermq.consumequeue.queue_units import AppendOutcome, Boundary
from tiermq.files.os_file_access import OsFileAccess

QUEUE_DIRECTORIES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


def new_table(source: Golden, root: Path) -> QueueTable:
    settings = source.settings["store"]

    def queue_type_of(topic: str) -> QueueType:
        attributes = source.settings["topics"].get(topic, {}).get("attributes", {})
        return QueueType(attributes.get("queue.type", "SimpleCQ"))

    return QueueTable(
        OsFileAccess(), str(root), ManualClock(), queue_type_of,
        file_size=settings["mappedFileSizeConsumeQueue"],
        ext_file_size=settings.get("mappedFileSizeConsumeQueueExt", 1024),
        batch_file_size=settings["mapperFileSizeBatchConsumeQueue"],
        enable_ext=settings.get("enableConsumeQueueExt", False),
    )  # fmt: skip


def queue_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for directory in QUEUE_DIRECTORIES
        for path in (root / directory).glob("*/*/*")
    }


def store_time_of(source: Golden, physical_offset: int) -> int:
    """The store time in a record's bytes: behind the born host, which is longer for IPv6."""
    record = source.records[physical_offset]
    (sys_flag,) = struct.unpack_from(">i", record, 36)
    at = 48 + (20 if sys_flag & 16 else 8)
    return int(struct.unpack_from(">q", record, at)[0])


def requests_of(queue: ConsumeQueue | BatchConsumeQueue, source: Golden) -> Iterator[DispatchRequest]:
    offset = queue.min_offset
    while offset < queue.max_offset:
        for unit in queue.iterate_from(offset) or ():
            physical_offset, size, tags_code, queue_offset, *batch_size = unit
            ext = queue.ext_unit_of(tags_code) if isinstance(queue, ConsumeQueue) else None
            yield DispatchRequest(
                physical_offset, size, ext.tags_code if ext else tags_code, queue_offset,
                store_time_of(source, physical_offset), batch_size[0] if batch_size else 1,
            )  # fmt: skip
        offset = queue.roll_next_file(offset)


@pytest.fixture(params=NAMES)
def source(request: pytest.FixtureRequest) -> Golden:
    return golden(request.param)


@pytest.fixture
def table(source: Golden, tmp_path: Path) -> Iterator[QueueTable]:
    table = new_table(source, source.copy_store(tmp_path / "store"))
    table.load()
    assert table.recover_all(not source.crashed) is None
    yield table
    table.close()


def test_each_unit_leads_to_a_record_of_the_log(table: QueueTable, source: Golden) -> None:
    seen = 0
    for queue in table.all_queues():
        for request in requests_of(queue, source):
            record = source.records[request.physical_offset]
            assert len(record) == request.size
            if not queue.topic.startswith("%LMQ%"):
                assert struct.unpack_from(">iiq", record, 12)[0::2] == (queue.queue_id, request.queue_offset)
            seen += request.batch_size
    assert seen >= len(source.stored)


def test_loading_and_recovering_changes_no_byte(table: QueueTable, source: Golden, tmp_path: Path) -> None:
    table.close()
    assert queue_files(tmp_path / "store") == queue_files(source.store)


def test_the_same_records_give_the_same_files(table: QueueTable, source: Golden, tmp_path: Path) -> None:
    rebuilt = new_table(source, tmp_path / "rebuilt")
    for queue in table.all_queues():
        for request in requests_of(queue, source):
            outcome = rebuilt.find_or_create(queue.topic, queue.queue_id).append(request)
            assert outcome is AppendOutcome.APPENDED
    rebuilt.close()
    assert queue_files(tmp_path / "rebuilt") == queue_files(source.store)


def test_times_lead_to_the_offsets_that_rocketmq_answered(table: QueueTable, source: Golden) -> None:
    assert source.offset_searches
    for search in source.offset_searches:
        queue = table.find(search["topic"], search["queue"])
        assert queue is not None
        found = queue.offset_by_time(
            search["timestamp"], Boundary.LOWER, lambda physical_offset, _: store_time_of(source, physical_offset)
        )
        if isinstance(queue, BatchConsumeQueue) and found != search["offset"]:
            # The time lies between two files: RocketMQ looks into the first one only and answers with its last batch.
            earlier = queue.unit_at(search["offset"])
            assert earlier is not None
            assert earlier.store_timestamp_ms < search["timestamp"]
            assert found == earlier.end_offset == queue.roll_next_file(search["offset"])
        else:
            assert found == search["offset"], search


def test_ext_units_are_resolved(tmp_path: Path) -> None:
    source = golden("rocketmq-5.3.3-ext-units")
    table = new_table(source, source.copy_store(tmp_path / "store"))
    table.load()
    table.recover_all(last_exit_ok=True)
    resolved = 0
    for queue in table.all_queues():
        assert isinstance(queue, ConsumeQueue)
        for physical_offset, _, tags_code, _ in queue.iterate_from(queue.min_offset) or ():
            ext = queue.ext_unit_of(tags_code)
            assert isinstance(ext, ExtUnit)
            assert ext.store_timestamp_ms == store_time_of(source, physical_offset)
            resolved += 1
    assert resolved > 0
    table.close()
