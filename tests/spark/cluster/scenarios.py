"""What tests let a driver on a cluster do. Each function gets the session first, and JSON values; it returns JSON."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from pipeline.offload.offload_world import SMALL, TIER
from spark.cluster.driver_process import die
from spark.cluster.faults import Fault, FaultRows, Straggler, claim, counted, java_of_executor, parent_of
from spark.replacing_runner import ReplacingRunner
from tiermq.clock import SystemClock
from tiermq.pipeline.offload.job import OffloadJob, OffloadOptions
from tiermq.pipeline.offload.task import run_offload_task
from tiermq.spark import SparkRunner, TierMQDataSource, messages
from tiermq.spark.sink import batch_commit
from tiermq.spark.sink.writers import TierMQStreamWriter, TierMQWriter

ROW = "topic string, queueId int, queueOffset long, body binary"
CHANGES = ("write", "trim", "seal", "delete", "replace", "put_object", "delete_object")
Rows = list[tuple[str, int, int, str]]


def offload(
    spark: Any,
    *,
    place: str,
    tier: str,
    folder: str = "",
    kinds: list[str] | None = None,
    straggler: bool = False,
    kill_at: str = "",
    times: int = 1,
    with_jvm: bool = True,
) -> dict[str, Any]:
    """An offload with faults in its tasks (`kinds`), a slow copy of one, or the death of its driver at a step."""
    function: Any = run_offload_task
    if kinds:
        function = Fault(function, folder, kinds)
    if straggler:
        function = Straggler(function, folder)
    left = [times]

    def step(name: str) -> None:
        if name == kill_at:
            left[0] -= 1
            if left[0] == 0:
                die(with_jvm=with_jvm)

    options = OffloadOptions(settings=SMALL, config=TIER, step=step)
    job = OffloadJob([place], tier, options, ReplacingRunner.of_copies(spark, function))
    report = job.run()
    return {"problems": report.problems, "done": report.done, "faults": sorted(os.listdir(folder)) if folder else []}


def javas(spark: Any, *, tasks: int) -> list[str]:
    """The programs that the JVMs of the driver and of the executors of some tasks run."""
    here = os.readlink(f"/proc/{SparkContext._gateway.proc.pid}/exe")
    return sorted({here, *SparkRunner(spark).run(java_of_executor, list(range(tasks)))})


def scan(spark: Any, *, options: dict[str, Any], folder: str, kinds: list[str]) -> Rows:
    """The rows of a batch read, after faults in its tasks."""
    frame = messages(spark, **options, maxBytesPerPartition="4k").select("topic", "queueId", "queueOffset", "body")
    return _rows(frame.mapInArrow(FaultRows(folder, kinds), ROW))


def read_parquet(spark: Any, *, path: str) -> Rows:
    return _rows(spark.read.schema(ROW).parquet(path))


def stream(
    spark: Any,
    *,
    options: dict[str, str],
    checkpoint: str,
    folder: str,
    kinds: list[str],
    parquet: str = "",
    store: str = "",
    settings: str = "",
) -> int:
    """A stream that reads what is there now, into Parquet files or a store; how many batches this run had."""
    if store:
        spark.dataSource.register(DyingSource)
    victims = [SparkContext._gateway.proc.pid, os.getpid()] if "driver" in kinds else []
    source = spark.readStream.format("tiermq").options(**options, startingOffsets="earliest", maxOffsetsPerTrigger="60")
    frame = source.load().select("topic", "queueId", "queueOffset", "body")
    frame = frame.mapInArrow(FaultRows(folder, kinds, victims), ROW)
    if store:
        # The sink has two queues of its own, so that rows are put into the order of partitions.
        frame = frame.selectExpr("body", "queueId % 2 as queueId")
        sink = frame.writeStream.format(DyingSource.name()).options(store=store, topic="copy", storeSettings=settings)
    else:
        sink = frame.writeStream.format("parquet").option("path", parquet)
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return len(query.recentProgress)


def write(
    spark: Any, *, options: dict[str, Any], folder: str, kinds: list[str], store: str, settings: str, name: str
) -> None:
    """A batch write of what a batch read gives, with faults in its tasks; its commits let the driver die."""
    spark.dataSource.register(DyingSource)
    frame = messages(spark, **options, maxBytesPerPartition="4k").select("topic", "queueId", "queueOffset", "body")
    frame = frame.mapInArrow(FaultRows(folder, kinds), ROW).selectExpr("body", "queueId % 2 as queueId")
    sink = frame.write.format(DyingSource.name()).mode("append").options(store=store, topic="copy", batchName=name)
    sink.option("storeSettings", settings).save()


class DyingSource(TierMQDataSource):
    """Our sink, whose commits let the driver die beside them: see `commit_and_die`."""

    @classmethod
    def name(cls) -> str:
        return "tiermq-dying"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        return DyingStreamWriter(super().streamWriter(schema, overwrite).options)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return DyingWriter(super().writer(schema, overwrite).options)


class DyingStreamWriter(TierMQStreamWriter):
    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        commit_and_die(self.options.store, lambda: super(DyingStreamWriter, self).commit(messages, batchId))


class DyingWriter(TierMQWriter):
    def commit(self, messages: Sequence[Any]) -> None:
        commit_and_die(self.options.store, lambda: super(DyingWriter, self).commit(messages))


def commit_and_die(store: str, commit: Callable[[], None]) -> None:
    """The commits 0, 2 and 4 kill the driver, each at another place; the directory `commits` beside the store counts
    them, and with a file `spared` in it no task dies.

    The process of the commit itself dies in the middle of the put; in the other places it is left to find out.
    """
    folder = Path(store).with_name("commits")
    folder.mkdir(exist_ok=True)
    place = {0: "message_of", 2: "write_intent", 4: "_clean"}.get(claim(str(folder), "commit"))
    if place is None or (folder / "spared").exists():
        commit()
        return
    real, calls = getattr(batch_commit, place), [0]

    def dying(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == (20 if place == "message_of" else 1):
            jvm = parent_of(os.getppid())
            for process in (parent_of(jvm), jvm):
                os.kill(process, signal.SIGKILL)
            if place == "message_of":
                os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    batch_commit.SINK_PUT_AT_ONCE = 7
    setattr(batch_commit, place, dying)
    commit()


class LaterClock(SystemClock):
    """The time some milliseconds from now: a lease that a dead process holds has run out by then."""

    def __init__(self, later_ms: int) -> None:
        super().__init__()
        self._later_ms = later_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._later_ms


def job(
    spark: Any,
    *,
    name: str,
    folder: str = "",
    kinds: list[str] | None = None,
    straggler: bool = False,
    later_ms: int = 0,
    constants: dict[str, int] | None = None,
    death: dict[str, Any] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Any other job of the pipeline, by its name, with faults in its tasks or the death of its driver: see `_dying`.

    `constants` of the job's module are set, so that little history makes many tasks.
    """
    module = importlib.import_module(f"tiermq.pipeline.{name}.job")
    for constant, value in (constants or {}).items():
        assert hasattr(module, constant)
        setattr(module, constant, value)

    def faulty(function: Any) -> Any:
        if kinds:
            function = Fault(function, folder, kinds)
        return Straggler(function, folder) if straggler else function

    if later_ms:
        arguments["clock"] = LaterClock(later_ms)
    with _dying(module, arguments, **(death or {})):
        report = getattr(module, name)(ReplacingRunner(spark, faulty), **arguments)
    reported = sorted(os.listdir(folder)) if folder else []
    return {"problems": report.problems, "done": report.done, "planned": report.planned, "faults": reported}


@contextmanager
def _dying(
    module: Any, arguments: dict[str, Any], *, step: str = "", function: str = "", changes: int = -1, times: int = 1
) -> Iterator[None]:
    """Let this driver be killed with its JVM: at a step of the job for the `times`-th time, after a function of its
    module was called so often, or before the change of the tier that follows so many others."""
    left = [times]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            die(with_jvm=True)

    if step:
        arguments["step"] = lambda taken: count() if taken == step else None
    if function:
        real = getattr(module, function)

        def dying(*given: Any, **options: Any) -> Any:
            value = real(*given, **options)
            count()
            return value

        setattr(module, function, dying)
    with counted(CHANGES, changes, count) if changes >= 0 else nullcontext():
        yield


def _rows(frame: Any) -> Rows:
    return sorted((row[0], row[1], row[2], bytes(row[3]).hex()) for row in frame.collect())
