"""One key among 10,000 segments: what Spark reads of a tier to find its message, counted, against what the tier holds.

Run it alone for a look:  python -m benchmarks.spark_key_side 128M
Counted is every byte that leaves the back end: manifests that planning reads, slots and items of the index, the record
itself. Names in a listing are requests and no bytes. Stored are the bytes of all segments: logs, queues, index.
The frame has all columns, and the row that comes back is compared with the message that was put.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import harness
from benchmarks.report import Report
from tiermq import Message
from tiermq.pipeline.offload.job import offload
from tiermq.pipeline.reindex.job import reindex
from tiermq.spark.source.builder import messages
from tiermq.spark.source.scan_meter import ScanMeter
from tiermq.store.local_store import LocalStore
from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import SegmentType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATIO = "key_bytes_stored_vs_read"
TOPICS, QUEUES_PER_TOPIC, SEGMENTS_PER_QUEUE = 125, 8, 10
RECORDS_PER_SEGMENT = 4
INDEX_SLOTS = 100_000
LOG_FILE_BYTES = 128 << 20
BROKER = "DefaultCluster/broker-a"


class ManySegments:
    """A tier of many small log segments, each of four records, every record with a key of its own."""

    def __init__(self, directory: Path, stored_bytes: int, *, segments_per_queue: int = SEGMENTS_PER_QUEUE) -> None:
        self.url = (directory / "tier").as_uri()
        self.queues = TOPICS * QUEUES_PER_TOPIC
        self.segments = self.queues * segments_per_queue
        segment_bytes = stored_bytes // self.segments
        self._body_bytes = max(64, segment_bytes // RECORDS_PER_SEGMENT - 200)
        self._rounds = RECORDS_PER_SEGMENT * segments_per_queue
        self._fill(directory / "store")
        # A segment is full before its fifth record: records differ by the digits of their keys only.
        config = {"tiered_store_commit_log_max_size": (self._body_bytes + 300) * RECORDS_PER_SEGMENT}
        offload([f"{directory / 'store'}={BROKER}"], self.url, index="later", config=config)
        reindex(None, tier=self.url, slots=INDEX_SLOTS)
        infos = list(open_driver(self.url).list_segments())
        found = sum(info.key.type is SegmentType.COMMIT_LOG for info in infos)
        if found != self.segments:
            raise RuntimeError(f"expected {self.segments} segments of logs in the tier, found {found}")
        self.stored_bytes = sum(info.size for info in infos)

    def _fill(self, directory: Path) -> None:
        with LocalStore.open(directory, mapped_file_size_commit_log=LOG_FILE_BYTES) as store:
            for turn in range(self._rounds):
                first = turn * self.queues
                store.put_many(self._message(number) for number in range(first, first + self.queues))
            store.dispatch_now()

    def _message(self, number: int) -> Message:
        body = b"%016d" % number * (self._body_bytes // 16)
        queue = number % self.queues
        return Message(f"topic-{queue % TOPICS}", body, queue // TOPICS, keys=[_key(number)])

    def look_up(self, spark: SparkSession, number: int) -> int:
        """Find one message by its key; how many bytes were read for it."""
        wanted, meter = self._message(number), ScanMeter(spark)
        frame = messages(spark, tier=self.url, topic=wanted.topic, keys=_key(number), meter=meter)
        rows = [(row["queueId"], bytes(row["body"])) for row in frame.collect()]
        if rows != [(wanted.queue_id, wanted.body)]:
            raise RuntimeError(f"expected one message with key {_key(number)}, found {len(rows)}: {rows!r:.200}")
        counters = meter.counters
        return counters.bytes_read + counters.index_bytes_read

    def numbers(self, count: int) -> list[int]:
        """Some messages, spread over the whole history."""
        total = self._rounds * self.queues
        return [(2 * each + 1) * total // (2 * count) for each in range(count)]


def _key(number: int) -> str:
    return f"order-{number}"


def measure(spark: SparkSession, directory: Path, stored_bytes: int, *, look_ups: int = 5) -> tuple[ManySegments, int]:
    """The tier, and the most that one of a few look-ups read."""
    world = ManySegments(directory, stored_bytes)
    return world, max(world.look_up(spark, number) for number in world.numbers(look_ups))


def add_to(made: Report, world: ManySegments, read_bytes: int) -> None:
    """Put what was counted and its ratio into a report. It is no matter of time, so there are no rounds."""
    made.ratios[RATIO] = round(world.stored_bytes / read_bytes, 1)
    made.rates["key_segments"] = float(world.segments)
    made.rates["key_stored_bytes"] = float(world.stored_bytes)
    made.rates["key_read_bytes"] = float(read_bytes)
    made.rates["key_read_percent"] = round(100 * read_bytes / world.stored_bytes, 5)


def main(size: str = "128M") -> None:
    from tiermq.spark.session import get_spark

    stored_bytes = harness.parse_size(size)
    made = Report("spark key")
    with harness.work_directory(None, 4 * stored_bytes) as directory:
        spark = get_spark("local[1]", app="bench key")
        add_to(made, *measure(spark, directory, stored_bytes))
        spark.stop()
    print(made.ratios, made.rates)


if __name__ == "__main__":
    main(*sys.argv[1:])
