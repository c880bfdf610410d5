"""SparkRunner: run pure tasks on executors and collect their results; the only way in which jobs use Spark.

    tasks ── pickled, one partition each ──► function ── pickled results ──► driver

* A task and its result are small values; message bytes never pass through here.
* A task that raises is run again by Spark, up to `spark.task.maxFailures` times. An error that repeating cannot fix
  (a TierMQError that is not TierUnavailable) is carried back as a value, and raised on the driver with its own type.
* Exactly one result per task comes back, whatever was retried or run twice by speculation.
* With a classic session the tasks are the partitions of an RDD: one stage, no plan to make and to compile. Through
  Spark Connect, which has no RDDs, they are the rows of a frame, spread by their number and mapped.
"""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tiermq.errors import TierMQError, TierUnavailable
from tiermq.pipeline.task_runner import Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
RESULT_SCHEMA = "number bigint, outcome binary"
POLL_S = 0.25
CONNECT_PARALLELISM = 8


class SparkRunner:
    """Tasks on the executors of a session. `parallelism` is guessed where Spark Connect does not report it."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        context = getattr(spark, "_sc", None)
        self.parallelism = int(context.defaultParallelism) if context is not None else CONNECT_PARALLELISM
        self.master = str(spark.conf.get("spark.master", "") or "")

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, name: str = "tiermq", progress: Progress | None = None
    ) -> list[R]:
        """What `function` makes of each task, in the order of the tasks. It must be importable on the executors.

        Raises the first error that a task carried back, and PySpark's own when a task failed too often.
        """
        if not tasks:
            return []
        pickled = [pickle.dumps(task) for task in tasks]
        collected = _collect_frame if getattr(self.spark, "_sc", None) is None else _collect_rdd
        with _Watch(self.spark, name, len(tasks), progress):
            outcomes = collected(self.spark, _Work(function), pickled)
        found = {number: pickle.loads(outcome) for number, outcome in outcomes}  # noqa: S301 - ours
        missing = [number for number in range(len(tasks)) if number not in found]
        if missing:
            raise RuntimeError(f"expected one result for each of {len(tasks)} tasks, found none for {missing[:10]}")
        for outcome in found.values():
            if isinstance(outcome, TierMQError):
                raise outcome
        return [found[number] for number in range(len(tasks))]


def freeze_once() -> None:
    """In a worker: take everything that was imported so far out of the garbage collector's walks.

    Spark's daemon collects garbage after each task, which takes 10 to 25 ms with pandas loaded, all of it spent on
    modules that live as long as the worker.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def _collect_rdd(spark: SparkSession, work: _Work, pickled: Sequence[bytes]) -> list[tuple[int, bytes]]:
    rows = spark.sparkContext.parallelize(list(enumerate(pickled)), len(pickled))
    outcomes: list[tuple[int, bytes]] = rows.map(work.row).collect()
    return outcomes


def _collect_frame(spark: SparkSession, work: _Work, pickled: Sequence[bytes]) -> list[tuple[int, bytes]]:
    import pyarrow as pa

    rows = pa.table({"number": pa.array(range(len(pickled)), pa.int64()), "task": pa.array(pickled, pa.binary())})
    frame = spark.createDataFrame(rows)
    if len(pickled) > 1:
        frame = frame.repartitionById(len(pickled), frame["number"].cast("int"))
    done = frame.mapInArrow(work.batches, RESULT_SCHEMA)
    return [(int(row["number"]), bytes(row["outcome"])) for row in done.collect()]


class _Work:
    """What an executor runs for the tasks of its partition."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def row(self, row: tuple[int, bytes]) -> tuple[int, bytes]:
        """A task with its number → its outcome with its number."""
        freeze_once()
        number, task = row
        return number, pickle.dumps(self._outcome(pickle.loads(task)))  # noqa: S301 - written by the driver

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            done = [self.row((row["number"], row["task"])) for row in batch.to_pylist()]
            numbers, outcomes = zip(*done, strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(numbers, pa.int64()), pa.array(outcomes, pa.binary())], names=["number", "outcome"]
            )

    def _outcome(self, task: Any) -> Any:
        try:
            return self._function(task)
        except TierUnavailable:
            raise
        except TierMQError as error:
            return error


class _Watch:
    """Reports the progress of the calling thread's job, as far as the session provides it."""

    def __init__(self, spark: SparkSession, name: str, total: int, progress: Progress | None) -> None:
        self._context = getattr(spark, "_sc", None)
        self._group = f"{name}-{id(self)}"
        self._name = name
        self._total = total
        self._progress = progress
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._context is None or self._progress is None:
            return
        self._context.setJobGroup(self._group, self._name, interruptOnCancel=True)
        self._thread = threading.Thread(target=self._run, name="pipeline-progress", daemon=True)
        self._thread.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._progress is not None and kind is None:
            self._progress(self._total, self._total)

    def _run(self) -> None:
        reported = -1
        while not self._over.wait(POLL_S):
            done = min(self._done(), self._total)
            if done != reported and self._progress is not None:
                self._progress(done, self._total)
                reported = done

    def _done(self) -> int:
        """Finished tasks of the job's last stage, which does the work."""
        assert self._context is not None
        tracker = self._context.statusTracker()
        most = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            stages = [] if info is None else sorted(info.stageIds)
            last = tracker.getStageInfo(stages[-1]) if stages else None
            if last is not None:
                most = max(most, last.numCompletedTasks)
        return most
