"""The stream reader, by the calls that Spark makes, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from spark.source_world import SourceWorld
from tiermq.errors import BadHistory, DataLoss, ForeignCheckpoint
from tiermq.history.scan_values import ScanCounters
from tiermq.spark.option_table import Use
from tiermq.spark.options import SourceOptions
from tiermq.spark.source.batch_reader import read_partition
from tiermq.spark.source.stream_reader import TierMQStreamReader

Rows = list[tuple[str, int, int, bytes]]


class Stream:
    """What Spark does with a reader: a log of offsets, batches, restarts."""

    def __init__(self, options: dict[str, str], **more: str) -> None:
        self.given = {**options, **more, "columns": "topic,queueId,queueOffset,body"}
        self.offset: dict[str, Any] | None = None
        self.now_s = 0.0
        self.start()

    def start(self) -> None:
        """A new process, which knows nothing but the checkpoint."""
        options = SourceOptions.of(self.given, Use.STREAM)
        self.reader = TierMQStreamReader(options, options.column_names, now_s=lambda: self.now_s)
        if self.offset is None:
            self.offset = _through_json(self.reader.initialOffset())

    def end(self) -> dict[str, Any]:
        assert self.offset is not None
        return _through_json(self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit()))

    def rows(self, start: dict[str, Any] | None, end: dict[str, Any]) -> Rows:
        assert start is not None
        parts = self.reader.partitions(start, end)
        return [
            tuple(row.values()) for part in parts for b in read_partition(part, ScanCounters()) for row in b.to_pylist()
        ]

    def batch(self) -> Rows:
        """One micro-batch; nothing when there is nothing new."""
        end = self.end()
        if end == self.offset:
            return []
        found = self.rows(self.offset, end)
        self.reader.commit(end)
        self.offset = end
        return found

    def stop(self) -> None:
        self.reader.stop()


def _through_json(offset: dict[str, Any]) -> dict[str, Any]:
    through: dict[str, Any] = json.loads(json.dumps(offset))
    return through


def test_a_stream_begins_at_the_end_unless_asked_otherwise(filled: SourceWorld) -> None:
    stream = Stream(filled.both, subscribe="orders")
    assert stream.batch() == []
    filled.put(4, "orders", 1)
    assert stream.batch() == filled.wanted(("orders", 1))[-4:]
    assert stream.batch() == []
    everything = Stream(filled.both, startingOffsets="earliest")
    assert everything.batch() == filled.wanted()


def test_a_restart_goes_on_exactly_where_it_stopped(filled: SourceWorld) -> None:
    stream = Stream(filled.both, startingOffsets="earliest", maxOffsetsPerTrigger="50")
    found = []
    while rows := stream.batch():
        assert len(rows) <= 50
        found += rows
        stream.stop()
        stream.start()
    assert sorted(found) == filled.wanted()


def test_a_batch_that_is_repeated_has_the_same_rows_also_after_its_messages_moved_to_the_tier(
    world: SourceWorld,
) -> None:
    world.put(30)
    stream = Stream(world.both, startingOffsets="earliest")
    start, end = stream.offset, stream.end()
    first = stream.rows(start, end)
    world.put(10)
    world.flush_to_tier()
    world.evict_all()
    stream.stop()
    stream.start()
    assert stream.rows(start, end) == first == world.wanted()[:30]
    stream.offset = end
    assert stream.batch() == world.wanted()[30:]


def test_rates_are_shared_between_queues(filled: SourceWorld) -> None:
    stream = Stream(filled.both, startingOffsets="earliest", maxOffsetsPerTrigger="44")
    queues = {row[:2] for row in stream.batch()}
    assert queues == set(filled.sent)


def test_a_limit_by_bytes_is_kept_about(filled: SourceWorld) -> None:
    stream = Stream(filled.both, startingOffsets="earliest", maxBytesPerTrigger="10k")
    assert stream.reader.getDefaultReadLimit() == ReadMaxBytes(10 << 10)
    found, batches = [], 0
    while rows := stream.batch():
        assert sum(len(row[3]) for row in rows) < 10 << 10
        found += rows
        batches += 1
    assert sorted(found) == filled.wanted()
    assert 5 < batches < 20


def test_a_trigger_that_reads_everything_once_knows_no_limit(filled: SourceWorld) -> None:
    stream = Stream(filled.both, startingOffsets="earliest", maxOffsetsPerTrigger="5")
    assert stream.reader.getDefaultReadLimit() == ReadMaxRows(5)
    assert stream.offset is not None
    end = stream.reader.latestOffset(stream.offset, ReadAllAvailable())
    assert stream.rows(stream.offset, end) == filled.wanted()


def test_available_now_reads_what_was_there_at_its_start_and_no_more(filled: SourceWorld) -> None:
    stream = Stream(filled.both, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    stream.reader.prepareForTriggerAvailableNow()
    before = filled.wanted()
    filled.put(10, "orders", 0)
    filled.put(10, "new", 0)
    found = []
    while rows := stream.batch():
        found += rows
    assert sorted(found) == before


def test_a_stream_may_wait_until_there_is_enough_or_for_long_enough(world: SourceWorld) -> None:
    world.put(1)
    stream = Stream(
        world.hot, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="60s"
    )  # fmt: skip
    world.put(5)
    assert stream.batch() == []
    stream.now_s += 61
    assert len(stream.batch()) == 6
    world.put(9)
    assert stream.batch() == []
    world.put(1)
    assert len(stream.batch()) == 10


def test_queues_and_topics_that_appear_are_read_from_their_beginning(filled: SourceWorld) -> None:
    stream = Stream(filled.both, subscribePattern="orders|new")
    assert stream.batch() == []
    filled.put(3, "orders", 9)
    filled.put(2, "new", 0)
    assert stream.batch() == sorted(filled.wanted(("new", 0), ("orders", 9)))
    assert stream.batch() == []


def test_a_start_by_time_is_exact(filled: SourceWorld) -> None:
    late = max(sent.store_ms for sent in filled.sent["orders", 0])
    stream = Stream(filled.both, subscribe="orders", startingTimestamp=str(late))
    assert stream.batch() == filled.wanted(("orders", 0))[120:] + filled.wanted(("orders", 3))
    by_queue = Stream(filled.both, subscribe="orders", startingOffsetsByTimestamp=f'{{"orders": {{"0": {late}}}}}')
    assert by_queue.batch() == filled.wanted(("orders", 0))[120:]


def test_a_topic_that_is_no_longer_wanted_keeps_its_place(filled: SourceWorld) -> None:
    stream = Stream(filled.both, subscribe="orders,returns")
    stream.batch()
    stream.given["subscribe"] = "orders"
    filled.put(3, "orders", 0)
    filled.put(3, "returns", 0)
    stream.start()
    assert len(stream.batch()) == 3
    stream.given["subscribe"] = "orders,returns"
    stream.start()
    assert stream.batch() == filled.wanted(("returns", 0))[-3:]


def test_a_checkpoint_of_another_tier_is_refused(filled: SourceWorld, tmp_path_factory: pytest.TempPathFactory) -> None:
    stream = Stream(filled.both, subscribe="orders")
    other = SourceWorld(tmp_path_factory.mktemp("other"))
    try:
        other.put(10)
        stream.given |= other.both
        stream.start()
        with pytest.raises(
            ForeignCheckpoint, match="expected a checkpoint of tier file:.*other.*found one of tier file:"
        ):
            stream.batch()
    finally:
        other.bury()


def test_what_expired_meanwhile_ends_the_stream_with_its_reason_or_is_passed_over(filled: SourceWorld) -> None:
    filled.flush_to_tier()
    strict = Stream(filled.cold, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="10")
    lenient = Stream(
        filled.cold, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="10", failOnDataLoss="false"
    )
    assert len(strict.batch()) == len(lenient.batch()) == 10
    filled.expire()
    filled.put(25, "orders", 0)
    filled.flush_to_tier()
    with pytest.raises(DataLoss, match="orders/0.*expired.*failOnDataLoss=false"):
        strict.batch()
    found = []
    while (end := lenient.end()) != lenient.offset:
        found += lenient.rows(lenient.offset, end)
        lenient.offset = end
    assert found == filled.wanted(("orders", 0))[-25:]


def test_a_queue_that_starts_over_ends_the_stream_or_is_read_again(
    world: SourceWorld, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world.put(50)
    stream = Stream(world.hot, subscribe="orders")
    lenient = Stream(world.hot, subscribe="orders", failOnDataLoss="false")
    other = SourceWorld(tmp_path_factory.mktemp("other"))
    try:
        other.put(20)
        other.close()
        world.close()
        world.disk.rename(world.disk.with_name("old"))
        other.disk.rename(world.disk)
        for each in (stream, lenient):
            each.stop()
            each.start()
        with pytest.raises(DataLoss, match="orders/0.*beyond the end.*ends at 20"):
            stream.batch()
        assert lenient.batch() == other.wanted()
        assert lenient.batch() == []
    finally:
        other.bury()


def test_a_topic_that_was_deleted_ends_the_stream(filled: SourceWorld) -> None:
    stream = Stream(filled.both, subscribePattern="orders|returns", startingOffsets="earliest")
    assigned = Stream(filled.both, assign='{"orders": [0], "returns": [0]}', startingOffsets="earliest")
    lenient = Stream(filled.both, startingOffsets="earliest", failOnDataLoss="false")
    for each in (stream, assigned, lenient):
        each.batch()
    filled.store.delete_topics(["returns"])
    filled.store.expire_now()
    for each in (stream, assigned):
        with pytest.raises(DataLoss, match="returns/0.*deleted topic"):
            each.batch()
    filled.put(3, "orders", 0)
    assert lenient.batch() == filled.wanted(("orders", 0))[-3:]
    assert lenient.batch() == []


def test_a_topic_that_does_not_exist_is_reported_at_the_start(filled: SourceWorld) -> None:
    with pytest.raises(BadHistory, match="did you mean 'orders'"):
        Stream(filled.both, subscribe="order")


def test_the_report_of_the_end_knows_no_limit(filled: SourceWorld) -> None:
    stream = Stream(filled.both, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="5")
    stream.batch()
    report = stream.reader.reportLatestOffset()
    assert report is not None
    assert report["DefaultCluster/broker-a/orders/0"] == 150
