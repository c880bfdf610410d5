"""Partitions: what travels to a worker, and what becomes of damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.datasource import InputPartition

from spark.source_world import SourceWorld, batch_reader, rows_of
from tiermq.errors import DataLoss, TierMQError
from tiermq.history.scan_values import ScanCounters
from tiermq.spark.source.batch_reader import ScanPartition, read_partition
from tiermq.spark.source.builder import explain_scan


def test_a_partition_survives_the_way_to_a_worker_and_reads_the_same_twice(filled: SourceWorld) -> None:
    partitions = batch_reader({**filled.both, "columns": "queueOffset,body"}).partitions()
    for partition in partitions:
        there = loads(dumps(partition))
        once = list(read_partition(there, ScanCounters()))
        assert once == list(read_partition(partition, ScanCounters()))
        assert once


def test_an_empty_partition_has_no_rows() -> None:
    assert list(read_partition(InputPartition(None), ScanCounters())) == []


def test_what_planning_counted_travels_once(filled: SourceWorld) -> None:
    partitions = batch_reader({**filled.both, "minPartitions": "4", "maxBytesPerPartition": "4k"}).partitions()
    assert len(partitions) >= 4
    assert [partition.planned.queues for partition in partitions] == [5] + [0] * (len(partitions) - 1)
    counters = ScanCounters()
    for partition in partitions:
        for _ in read_partition(partition, counters):
            continue
    assert counters.rows_given == len(filled.wanted())
    assert counters.bytes_read > 0
    assert counters.segments_planned > 0


def damage_a_body(world: SourceWorld, body: bytes) -> None:
    for file in Path(world.url.removeprefix("file://")).rglob("COMMIT_LOG/*"):
        data = file.read_bytes()
        at = data.find(body)
        if at >= 0:
            file.write_bytes(data[:at] + b"X" + data[at + 1 :])
            return
    raise AssertionError("no segment has this body")


def test_a_damaged_body_is_an_error_or_a_row_that_reports_so_or_no_row(filled: SourceWorld) -> None:
    victim = filled.sent["orders", 1][5]
    damage_a_body(filled, victim.body)
    with pytest.raises(TierMQError, match="orders"):
        rows_of(filled.cold, subscribe="orders")
    lenient = {**filled.cold, "subscribe": "orders", "queueIds": "1", "failOnDataLoss": "false"}
    left = rows_of(lenient)
    gone = set(range(120)) - {row[2] for row in left}
    assert victim.offset in gone
    assert 0 < len(gone) < 120  # The messages of its block.
    reader = batch_reader({**lenient, "columns": "queueOffset,_corrupt"})
    rows = [
        row
        for part in reader.partitions()
        for batch in read_partition(part, ScanCounters())
        for row in batch.to_pylist()
    ]
    assert len(rows) == 120
    damaged = [row for row in rows if row["_corrupt"] is not None]
    assert {row["queueOffset"] for row in damaged} == gone


def test_what_is_lost_is_counted_with_what_the_plan_lost(filled: SourceWorld, caplog: pytest.LogCaptureFixture) -> None:
    lenient = {**filled.cold, "subscribe": "orders", "queueIds": "1", "failOnDataLoss": "false"}
    partitions = batch_reader({**lenient, "columns": "queueOffset,body"}).partitions()
    damage_a_body(filled, filled.sent["orders", 1][5].body)
    break_a_unit(filled, "orders", 1, 7)
    counters = ScanCounters()
    rows = sum(batch.num_rows for part in partitions for batch in read_partition(part, counters))
    assert rows == counters.rows_given
    assert (rows + counters.messages_lost, counters.messages_lost > 2) == (120, True)
    assert "orders/1: 64 messages, offsets 0 to 64: corrupt (of its unit its block of 1280 bytes" in caplog.text


def break_a_unit(world: SourceWorld, topic: str, queue_id: int, offset: int) -> None:
    """Let a unit point behind the end of everything."""
    file = min(Path(world.url.removeprefix("file://")).rglob(f"{topic}/{queue_id}/CONSUME_QUEUE/*"))
    data = bytearray(file.read_bytes())
    data[20 * offset : 20 * offset + 8] = (1 << 40).to_bytes(8, "big")
    file.write_bytes(data)


def test_what_the_plan_knows_to_be_lost_is_counted_where_it_is_no_error(filled: SourceWorld) -> None:
    offsets = {"orders": {1: (500, 510)}}
    found = explain_scan(tier=filled.url, queues=1, topic="orders", offsets=offsets, show=False)
    assert found.counters.messages_lost == 10
    with pytest.raises(DataLoss, match="beyond the end"):
        explain_scan(tier=filled.url, topic="orders", offsets=offsets, show=False, failOnDataLoss=True)


def test_many_small_queues_are_few_partitions(world: SourceWorld) -> None:
    for queue_id in range(40):
        world.put(2, "many", queue_id)
    partitions = batch_reader(world.hot).partitions()
    assert all(isinstance(partition, ScanPartition) for partition in partitions)
    assert len(partitions) == 1
