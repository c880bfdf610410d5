"""One task of a replay: read, filter, map, and leave the messages in a staged file for the driver to put. Pure.

    <record>/staging/<stem>-<random>.arrow     the source's offset, then the message with its properties encoded

The staging directory must be one that the driver and the executors share; with a local master it is.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tiermq.clock import EVER_MS
from tiermq.errors import IllegalMessage, StagingLost
from tiermq.history.arrow_batch import OnCorrupt, decode_run
from tiermq.history.arrow_schema import CORRUPT
from tiermq.history.open_history import worker_history
from tiermq.history.reading import read_task
from tiermq.history.scan_values import Loss, ScanBundle, ScanCounters, ScanRequest, ScanTask, describe
from tiermq.kernel import Message
from tiermq.message.properties import UNIQ_KEY
from tiermq.pipeline.replay.message import (
    MARK,
    ROW_COLUMNS,
    ReplayMapping,
    ReplayMessage,
    SourcePosition,
    message_of_row,
)
from tiermq.tables.data_place import DataPlace

STAGED_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("properties", pa.binary()),
        ("body", pa.binary()),
        ("flag", pa.int32()),
        ("bornMs", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file of an exported table."""

    place: DataPlace
    name: str


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """Either a bundle of a history, or a file of a table with the request that its rows must fit."""

    name: str  # Of the replay: the first part of marks.
    staging: str
    stem: str
    mapping: ReplayMapping
    bundle: ScanBundle | None = None
    file: TableFile | None = None
    request: ScanRequest = field(default_factory=ScanRequest)
    from_offset: int = 0
    to_offset: int = EVER_MS


@dataclass(frozen=True, slots=True)
class StagedReplay:
    """A task's result for the driver."""

    path: str = ""
    rows: int = 0
    size: int = 0
    crc: int = 0
    read_rows: int = 0
    read_bytes: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedMessage:
    """A message to put, and where it comes from."""

    source: SourcePosition
    message: Message


def stage_replay(task: ReplayTask) -> StagedReplay:
    """Do a task. Raises what reading raises, BadOption for a bad function, IllegalMessage for what it made."""
    counters = ScanCounters()
    problems: list[str] = []
    sink = pa.BufferOutputStream()
    read = rows = 0
    with pa.ipc.new_stream(sink, STAGED_SCHEMA) as writer:
        for batch in _file_batches(task) if task.file is not None else _bundle_batches(task, counters, problems):
            staged = []
            for row in batch.to_pylist():
                if task.file is not None and not _is_wanted(row, task):
                    continue
                read += 1
                made = made_of_row(row, task.mapping, problems)
                if made is not None:
                    staged.append(staged_row(task.name, made))
            rows += len(staged)
            if staged:
                writer.write_batch(pa.RecordBatch.from_pylist(staged, schema=STAGED_SCHEMA))
    size = counters.hot_bytes_read + counters.cold_bytes_read
    if not rows:
        return StagedReplay(read_rows=read, read_bytes=size, problems=tuple(problems))
    data = sink.getvalue()
    path = Path(task.staging) / f"{task.stem}-{uuid.uuid4().hex[:12]}.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
    return StagedReplay(str(path), rows, data.size, zlib.crc32(data), read, size, tuple(problems))


def read_staged_replay(staged: StagedReplay) -> Iterator[list[StagedMessage]]:
    """The messages of a task in their order, some at a time. Raises StagingLost."""
    if not staged.rows:
        return
    path = Path(staged.path)
    data = path.read_bytes() if path.exists() else b""
    if len(data) != staged.size or zlib.crc32(data) != staged.crc:
        raise StagingLost(
            f"{staged.path}: expected {staged.size} bytes that a task staged, found {len(data)} or others; the "
            "record's directory must be one that the driver and all executors share. Run the replay again: it goes on"
        )
    with pa.ipc.open_stream(data) as reader:
        for batch in reader:
            yield [_staged_message(row) for row in batch.to_pylist()]


def made_of_row(row: dict[str, Any], mapping: ReplayMapping, problems: list[str]) -> ReplayMessage | None:
    """What is replayed of a row; None for one that is left out. A damaged one is added to the problems."""
    if row.get(CORRUPT) is not None:
        problems.append(f"{row['topic']}-{row['queueId']} offset {row['queueOffset']}: {row[CORRUPT]}")
        return None
    return mapping.apply(message_of_row(row))


def staged_row(name: str, made: ReplayMessage) -> dict[str, Any]:
    """The message with its properties encoded, and with the mark of the replay `name`. Raises IllegalMessage."""
    properties = {**made.properties, MARK: f"{name}:{made.source.text}"}
    try:
        message = Message(made.topic, made.body, made.queue_id, keys=made.keys, tags=made.tags, properties=properties)
    except (IllegalMessage, TypeError) as error:
        raise IllegalMessage(f"what a replay made of {made.source.text} can be no message: {error}") from error
    return {
        "source": made.source.text,
        "topic": made.topic,
        "queueId": made.queue_id,
        "properties": message.encoded_properties,
        "body": message.body,
        "flag": made.flag,
        "bornMs": made.born_timestamp_ms,
    }


def _staged_message(row: dict[str, Any]) -> StagedMessage:
    message = Message(
        row["topic"], row["body"], row["queueId"], encoded_properties=row["properties"], flag=row["flag"],
        born_timestamp_ms=row["bornMs"],
    )  # fmt: skip
    return StagedMessage(SourcePosition.of(row["source"]), message)


def _bundle_batches(task: ReplayTask, counters: ScanCounters, problems: list[str]) -> Iterator[pa.RecordBatch]:
    assert task.bundle is not None
    for each in task.bundle.tasks:
        yield from scanned(each, counters, problems)


def scanned(scan: ScanTask, counters: ScanCounters, problems: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a scan, damaged ones among them. What is lost and need not be there is added to the problems."""

    def lost(loss: Loss) -> None:
        problems.append(describe(loss))

    for run in read_task(worker_history(scan.place), scan, counters, lost):
        yield from decode_run(run, [*ROW_COLUMNS, CORRUPT], scan.request, on_corrupt=OnCorrupt.ROW)


def _file_batches(task: ReplayTask) -> Iterator[pa.RecordBatch]:
    assert task.file is not None
    with task.file.place.open(task.file.name) as stream:
        yield from pq.ParquetFile(stream).iter_batches(batch_size=8192, columns=list(ROW_COLUMNS))


def _is_wanted(row: dict[str, Any], task: ReplayTask) -> bool:
    """What planning and decoding decide for a history, for a row of a table."""
    request = task.request
    stored_ms = round(row["storeTimestamp"].timestamp() * 1000) if row["storeTimestamp"] is not None else 0
    return (
        (not request.topics or row["topic"] in request.topics)
        and (not request.brokers or row["brokerName"] in request.brokers)
        and (not request.queue_ids or row["queueId"] in request.queue_ids)
        and (not request.tags or row["tags"] in request.tags)
        and (not request.keys or not request.keys.isdisjoint(_keys_of(row)))
        and request.begin_ms <= stored_ms <= request.end_ms
        and task.from_offset <= row["queueOffset"] < task.to_offset
    )


def _keys_of(row: dict[str, Any]) -> set[str]:
    """Keys as RocketMQ's index counts them."""
    return {*(row["keys"] or ()), dict(row["properties"] or ()).get(UNIQ_KEY, "")}
