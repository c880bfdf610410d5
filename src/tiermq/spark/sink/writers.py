"""The writers that Spark asks for.

    into a store     rows are staged by tasks, and put by one commit beside the driver
    to brokers       each task sends its own rows, and there is no commit: what a task sent is there, also of a batch
                     that fails in the end; see `wire_rows` for what a repetition sends

`write` runs in workers, `commit` and `abort` in a process of Spark beside the driver. An abort may come after a commit
that failed half way, so it removes nothing that an intent names, unless no query can ask for the batch again.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tiermq.errors import BadOption
from tiermq.spark.options import SinkOptions
from tiermq.spark.sink.batch_commit import INTENT, commit_batch
from tiermq.spark.sink.staged_rows import BatchName, StagedFile, stage_rows
from tiermq.spark.sink.wire_rows import send_rows
from tiermq.spark.spark_runner import freeze_once

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


class TierMQWriter(DataSourceArrowWriter):  # type: ignore[misc] # PySpark is not followed by the checker.
    """One batch write. Without a name it is a batch of its own, and writing it again puts it again."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.name = written_batch(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_once()
        return stage_rows(iterator, self.name, task_context().partitionId(), self.options, _now_ms())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit_batch(self.name, _staged(messages), self.options)
        if self.options.batch_name is None:
            forget(self.name, self.options)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self.options.batch_name is None:
            shutil.rmtree(Path(self.options.staging) / self.name.query, ignore_errors=True)
        else:
            discard(_staged(messages), self.options)


class TierMQStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc] # As above.
    """One streaming query. Its id and the number of the batch name what is put, so a repetition puts nothing twice."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_once()
        return stage_rows(iterator, streamed_batch(), task_context().partitionId(), self.options, _now_ms())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = _staged(messages)
        if staged:
            commit_batch(BatchName(staged[0].name.query, batchId), staged, self.options)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        discard(_staged(messages), self.options)


def written_batch(options: SinkOptions) -> BatchName:
    """The name of a batch write: the user's, or one of its own. Raises BadOption."""
    query = f"write-{uuid.uuid4().hex}" if options.batch_name is None else named_query(options.batch_name)
    return BatchName(query, 0)


def streamed_batch() -> BatchName:
    """The micro-batch of the task that runs this. Raises BadOption outside of a streaming query."""
    context = task_context()
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if not query or batch is None:
        raise BadOption("expected a streaming query, found a task without the id of one")
    return BatchName(query, int(batch))


def named_query(name: str) -> str:
    """The directory of a batch that has a name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", name):
        raise BadOption(f"option batchName: expected letters, digits, dots, dashes and underscores, found {name!r}")
    return f"named-{name}"


def discard(files: Sequence[StagedFile], options: SinkOptions) -> None:
    """Remove staged files of a batch that did not come to be, unless its intent is written: then it will."""
    for file in files:
        if file.path and not (file.name.directory(options.staging) / INTENT).exists():
            Path(file.path).unlink(missing_ok=True)


def forget(name: BatchName, options: SinkOptions) -> None:
    """Remove the record of a batch that cannot be repeated."""
    directory = Path(options.staging) / name.query
    for file in directory.glob("*"):
        file.unlink(missing_ok=True)
    if directory.is_dir():
        os.rmdir(directory)


def task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise BadOption("expected to run in a task of Spark, found none")
    return context


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    return [message for message in messages if isinstance(message, StagedFile)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class TierMQWireWriter(DataSourceArrowWriter):  # type: ignore[misc] # PySpark is not followed by the checker.
    """One batch write. Without a name it is a batch of its own, and writing it again sends it again."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.name = written_batch(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _send(iterator, self.name, self.options)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing to do: brokers have acknowledged every row."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing can be done: what was sent is there."""


class TierMQWireStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc] # As above.
    """One streaming query. Its id and the number of the batch name what is sent."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _send(iterator, streamed_batch(), self.options)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: brokers have acknowledged every row."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing can be done: what was sent is there."""


def _send(iterator: Iterator[pa.RecordBatch], name: BatchName, options: SinkOptions) -> WriterCommitMessage:
    freeze_once()
    context = task_context()
    is_repeated = context.attemptNumber() > 0
    return send_rows(iterator, name, context.partitionId(), options, _now_ms(), is_repeated=is_repeated)
