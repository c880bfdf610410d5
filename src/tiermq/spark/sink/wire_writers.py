"""The writers that Spark asks for when rows go to brokers: each task sends its own rows.

There is no commit to wait for: what a task sent is there, also of a batch that fails in the end. See `wire_rows` for
what a repetition sends.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tiermq.errors import BadOption
from tiermq.spark.options import SinkOptions
from tiermq.spark.sink.staged_rows import BatchName
from tiermq.spark.sink.wire_rows import send_rows
from tiermq.spark.sink.writers import BATCH_ID, QUERY_ID, named_query, task_context
from tiermq.spark.worker import freeze_once


class TierMQWireWriter(DataSourceArrowWriter):  # type: ignore[misc] # PySpark is not followed by the checker.
    """One batch write. Without a name it is a batch of its own, and writing it again sends it again."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        query = f"write-{uuid.uuid4().hex}" if options.batch_name is None else named_query(options.batch_name)
        self.name = BatchName(query, 0)

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
        context = task_context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query or batch is None:
            raise BadOption("expected a streaming query, found a task without the id of one")
        return _send(iterator, BatchName(query, int(batch)), self.options)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to do: brokers have acknowledged every row."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing can be done: what was sent is there."""


def _send(iterator: Iterator[pa.RecordBatch], name: BatchName, options: SinkOptions) -> WriterCommitMessage:
    freeze_once()
    context = task_context()
    now_ms = time.time_ns() // 1_000_000
    is_repeated = context.attemptNumber() > 0
    return send_rows(iterator, name, context.partitionId(), options, now_ms, is_repeated=is_repeated)
