"""The sides of `offload` on Spark: the job by plan, a shuffle that does the same, and the job on one and two cores.

Run it alone for a look:  python -m benchmarks.spark_offload_side 256M

The shuffle is what one would write with Spark alone: read the log in ranges, `repartition` by queue, sort by offset,
write each queue's records and units. It reads and writes with the same means as the job (maps, Arrow without copies,
the tier's own driver with its syncs), keeps no index, no metadata and no manifests, and cannot be repeated safely.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from benchmarks import harness
from benchmarks.report import Report, Round
from benchmarks.spark_scan_side import tree_timed
from tiermq import Message
from tiermq.pipeline.offload import offload
from tiermq.pipeline.worker_cache import driver_of, store_of
from tiermq.spark import SparkRunner
from tiermq.store.local_store import LocalStore
from tiermq.tier.names import QueueKey, SegmentType

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MIB = 1 << 20
TOPICS, QUEUES_PER_TOPIC = 8, 8
LOG_FILE_BYTES = 128 * MIB
RANGE_BYTES = 32 * MIB
CHUNK_BYTES = 16 * MIB
PLAN_RATIO, SCALING_RATIO = "offload_by_plan_vs_shuffle", "offload_two_cores_vs_one"


def fill_store(directory: Path, log_bytes: int) -> int:
    """A closed store of 64 queues with records of about 380 bytes, each with a key and a tag; how many."""
    bodies = [bytes([65 + number % 26]) * (150 + 100 * (number % 3)) for number in range(30)]
    settings: dict[str, Any] = {"mapped_file_size_commit_log": LOG_FILE_BYTES}
    count = 0
    with LocalStore.open(directory, **settings) as store:
        while store.max_physical_offset < log_bytes:
            store.put_many(
                Message(
                    f"topic-{number % TOPICS}", bodies[number % 30], number // TOPICS % QUEUES_PER_TOPIC,
                    keys=[f"order-{number}"], tags="TagA",
                )
                for number in range(count, count + 10_000)
            )  # fmt: skip
            count += 10_000
        store.dispatch_now()
    return count


class Offloading:
    """A store directory that is copied again and again into a tier beside it."""

    def __init__(self, directory: Path, messages: int, spark: SparkSession) -> None:
        self.store, self._directory, self._spark = directory / "store", directory, spark
        self._tier = directory / "none"
        self._messages = messages

    def by_plan(self) -> Round:
        """The job: records, units, metadata, manifests, and the key index, in small files."""
        self.clear()
        return tree_timed(self._offload)

    def _offload(self) -> tuple[int, int]:
        report = offload([f"{self.store}=c/b"], self._tier.as_uri(), runner=SparkRunner(self._spark), index="small")
        return self._checked(int(report.done["messages"]), int(report.done["bytes"]), report.problems)

    def by_shuffle(self) -> Round:
        """Records and units alone."""
        self.clear()
        return tree_timed(self._shuffle)

    def _shuffle(self) -> tuple[int, int]:
        rows = shuffled(self._spark, str(self.store), self._tier.as_uri()).collect()
        return self._checked(sum(row["messages"] for row in rows), sum(row["bytes"] for row in rows), [])

    def _checked(self, messages: int, size: int, problems: Sequence[str]) -> tuple[int, int]:
        if problems or messages != self._messages:
            raise RuntimeError(f"expected {self._messages} messages in the tier, found {messages}: {problems}")
        return messages, size

    def clear(self) -> None:
        """A new tier, under a name of its own: drivers remember which directories they have made."""
        shutil.rmtree(self._tier, ignore_errors=True)
        self._tier = self._directory / f"tier-{time.time_ns()}"
        for name in ("config", "tiered_index_file"):
            shutil.rmtree(self.store / name, ignore_errors=True)

    def digest(self) -> dict[str, int]:
        """What is in the tier, to compare two ways with."""
        return {
            str(path.relative_to(self._tier)): hash(path.read_bytes())
            for path in sorted(self._tier.rglob("*"))
            if path.parent.name in ("COMMIT_LOG", "CONSUME_QUEUE") and path.suffix == ""
        }


def shuffled(spark: SparkSession, store: str, tier: str) -> Any:
    """The rival: a frame whose rows say what was written for each queue."""
    with contextlib.closing(store_of(store)) as opened:
        end = opened.max_physical_offset
    ranges = [(start, min(start + RANGE_BYTES, end)) for start in range(0, end, RANGE_BYTES)]
    frame = spark.createDataFrame(ranges, "start bigint, stop bigint").repartition(len(ranges))
    read = frame.mapInArrow(_Reading(store), "topic string, queue int, offset bigint, code bigint, record binary")
    parts = 2 * SparkRunner(spark).parallelism
    return (
        read.repartition(parts, "topic", "queue")
        .sortWithinPartitions("topic", "queue", "offset")
        .mapInArrow(_Writing(tier), "topic string, queue int, messages bigint, bytes bigint")
    )


class _Reading:
    """Records of log ranges, found by the units of all queues."""

    def __init__(self, store: str) -> None:
        self._store = store

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        store = store_of(self._store)
        unit = np.dtype([("place", ">i8"), ("size", ">i4"), ("code", ">i8")])
        tables = []
        for topic, queue_id in store.queues():
            views = [view.read(0, view.position) for view in store.units(topic, queue_id).views]
            tables.append((topic, queue_id, np.frombuffer(b"".join(filter(None, views)), unit)))
        for batch in batches:
            for start, stop in zip(batch["start"].to_pylist(), batch["stop"].to_pylist(), strict=True):
                yield from self._range(store, tables, start, stop)

    def _range(self, store: Any, tables: list[Any], start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """One batch in the order of the log, whose records are one copy of the range. A range lies in one file."""
        import numpy as np
        import pyarrow as pa

        bounds: list[Any] = [np.searchsorted(units["place"], [start, stop]) for _, _, units in tables]
        counts = np.array([last - first for first, last in bounds])
        parts = [units[first:last] for (_, _, units), (first, last) in zip(tables, bounds, strict=True)]
        found = np.concatenate(parts)
        if not len(found):
            return
        order = np.argsort(found["place"], kind="stable")
        queue_offsets = np.concatenate([np.arange(first, last) for first, last in bounds])[order]
        which = np.repeat(np.arange(len(tables)), counts)[order]
        places = found["place"][order].astype(np.int64)
        base, end = int(places[0]), int(places[-1]) + int(found["size"][order[-1]])
        offsets: Any = np.append(places - base, end - base).astype(np.int32)
        data = pa.py_buffer(store.read(base, end - base))
        record = pa.BinaryArray.from_buffers(pa.binary(), len(places), [None, pa.py_buffer(offsets), data])
        topics = pa.array([topic for topic, _, _ in tables])
        queues = np.array([queue_id for _, queue_id, _ in tables], np.int32)
        yield pa.RecordBatch.from_arrays(
            [
                topics.take(pa.array(which)),
                pa.array(queues[which]),
                pa.array(queue_offsets.astype(np.int64)),
                pa.array(found["code"][order].astype(np.int64)),
                record,
            ],
            names=["topic", "queue", "offset", "code", "record"],
        )


class _Writing:
    """Sorted records, rebased and appended to their queues' files."""

    def __init__(self, tier: str) -> None:
        self._tier = tier

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        writing: _QueueFiles | None = None
        done = []
        for batch in batches:
            for topic, queue_id, part in _runs(batch):
                if writing is None or writing.name != (topic, queue_id):
                    if writing is not None:
                        done.append(writing.close())
                    writing = _QueueFiles(self._tier, topic, queue_id)
                writing.append(part)
        if writing is not None:
            done.append(writing.close())
        if done:
            columns = list(zip(*done, strict=True))
            types = [pa.string(), pa.int32(), pa.int64(), pa.int64()]
            arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=["topic", "queue", "messages", "bytes"])


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """The rows of a sorted batch, queue by queue."""
    import numpy as np

    topics, queues = batch["topic"].to_numpy(zero_copy_only=False), batch["queue"].to_numpy()
    cuts: Any = np.flatnonzero((topics[1:] != topics[:-1]) | (queues[1:] != queues[:-1])) + 1
    bounds = [0, *cuts.tolist(), len(queues)]
    for first, last in itertools.pairwise(bounds):
        if last > first:
            yield str(topics[first]), int(queues[first]), batch.slice(first, last - first)


class _QueueFiles:
    """The two files of one queue; what waits is written in the same chunks as the job's."""

    def __init__(self, tier: str, topic: str, queue_id: int) -> None:
        self.name = (topic, queue_id)
        queue = QueueKey("c", "b", topic, queue_id)
        self._driver = driver_of(tier)
        self._log = queue.segment(SegmentType.COMMIT_LOG, 0)
        self._units = queue.segment(SegmentType.CONSUME_QUEUE, 0)
        self._end = self._written = self._messages = self._units_written = 0
        self._parts: list[bytes] = []
        self._unit_parts: list[bytes] = []

    def append(self, batch: pa.RecordBatch) -> None:
        import numpy as np

        record = batch["record"]
        offsets = np.frombuffer(record.buffers()[1], np.int32)[record.offset : record.offset + len(record) + 1]
        data = np.frombuffer(record.buffers()[2], np.uint8)[offsets[0] : offsets[-1]].copy()
        places = (offsets[:-1] - offsets[0]).astype(np.int64)
        stamps = (places + self._end).astype(">i8").view(np.uint8).reshape(-1, 8)
        data[(places[:, None] + 28) + np.arange(8)] = stamps
        units: Any = np.empty(len(record), np.dtype([("place", ">i8"), ("size", ">i4"), ("code", ">i8")]))
        units["place"], units["size"] = places + self._end, np.diff(offsets)
        units["code"] = batch["code"].to_numpy()
        self._parts.append(data.tobytes())
        self._unit_parts.append(units.tobytes())
        self._end += len(data)
        self._messages += len(record)
        if self._end - self._written >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            self._driver.write(self._log, self._written, self._parts)
            self._driver.write(self._units, self._units_written, self._unit_parts)
            self._written, self._units_written = self._end, 20 * self._messages
            self._parts, self._unit_parts = [], []

    def close(self) -> tuple[str, int, int, int]:
        self._flush()
        return (*self.name, self._messages, self._end)


def measure_plan(
    spark: SparkSession, directory: Path, log_bytes: int, *, rounds: int = 3, warmup: int = 1
) -> dict[str, list[Round]]:
    """Alternating rounds of the job and of the shuffle, on the same session and the same store."""
    world = Offloading(directory, fill_store(directory / "store", log_bytes), spark)
    return harness.alternate({"offload_by_plan": world.by_plan, "shuffle": world.by_shuffle}, rounds, warmup)


def measure_scaling(directory: Path, log_bytes: int, *, rounds: int = 3, warmup: int = 2) -> dict[str, list[Round]]:
    """Alternating rounds of the job in two sessions of their own: one core, and two."""
    messages = fill_store(directory / "store", log_bytes)
    with contextlib.ExitStack() as stack:
        sides = {
            name: stack.enter_context(_Child(master, directory, messages)).round
            for name, master in (("one_core", "local[1]"), ("two_cores", "local[2]"))
        }
        return harness.alternate(sides, rounds, warmup)


class _Child:
    """A process with a session of its own, which does a round for each line that it gets."""

    def __init__(self, master: str, directory: Path, messages: int) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.spark_offload_side",
            "--child",
            master,
            str(directory),
            str(messages),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self) -> Round:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("round\n")
        self._process.stdin.flush()
        return Round(*json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def add_plan_to(made: Report, measured: dict[str, list[Round]]) -> None:
    """Put what was measured by `measure_plan` and its ratio into a report."""
    made.add(measured)
    made.compare(PLAN_RATIO, measured["offload_by_plan"], measured["shuffle"])


def add_scaling_to(made: Report, measured: dict[str, list[Round]]) -> None:
    """Put what was measured by `measure_scaling` and its ratio into a report."""
    named = {f"offload_{name}": rounds for name, rounds in measured.items()}
    made.add(named)
    made.compare(SCALING_RATIO, named["offload_two_cores"], named["offload_one_core"])


def _serve(master: str, directory: str, messages: str) -> None:
    from tiermq.spark.session import get_spark

    spark = get_spark(master)
    world = Offloading(Path(directory), int(messages), spark)
    for _ in sys.stdin:
        done = world.by_plan()
        world.clear()  # The other side needs the room.
        print(json.dumps([done.messages, done.bytes, done.seconds, done.cpu_seconds]), flush=True)
    spark.stop()


def _show(rounds: dict[str, list[Round]]) -> None:
    for name, found in rounds.items():
        print(name, [f"{each.bytes / each.seconds / 1e6:.0f} MB/s" for each in found])


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        _serve(*sys.argv[2:])
    else:
        from tiermq.spark.session import get_spark

        size = harness.parse_size(sys.argv[1])
        with harness.work_directory(None, 4 * size) as place:
            _show(measure_scaling(place / "scaling", size))
            _show(measure_plan(get_spark("local[1]"), place / "plan", size))
