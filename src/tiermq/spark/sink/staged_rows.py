"""Staged rows: what a task leaves for the commit. One Arrow file per attempt, under a name of its own.

    <staging>/<query>/<batch>/<partition>-<random>.arrow      topic, queueId, properties (encoded), body, …

Rows are whole messages already: properties are encoded and hold the mark `TIERMQ_SINK`, which names query, batch,
partition and row. It is by this mark that a commit which was cut short finds out what it has put.

A file gets its name when it is complete; the commit trusts its length and its CRC, not its being there.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from tiermq.clock import time_ms
from tiermq.errors import IllegalMessage, StagingLost
from tiermq.kernel import Message
from tiermq.message import properties as names
from tiermq.message.java_hash import java_hash
from tiermq.message.topic_name import topic_problem
from tiermq.spark.options import SinkOptions

MARK = "TIERMQ_SINK"
KEY_BYTES = 16
STAGED_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("properties", pa.binary()),
        ("body", pa.binary()),
        ("bornMs", pa.int64()),
        ("bornHost", pa.binary()),
        ("flag", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class BatchName:
    """Which batch of which query. A batch is put once."""

    query: str
    batch: int

    def directory(self, staging: str) -> Path:
        return Path(staging) / self.query / str(self.batch)

    def mark(self, partition: int, row: int) -> str:
        return f"{self.query}/{self.batch}/{partition}/{row}"

    @property
    def mark_prefix(self) -> str:
        return f"{self.query}/{self.batch}/"


@dataclass(frozen=True)
class StagedFile(WriterCommitMessage):  # type: ignore[misc] # PySpark is not followed by the checker.
    """A task's result for the driver. A task without rows has no file."""

    name: BatchName
    partition: int
    path: str = ""
    rows: int = 0
    size: int = 0
    crc: int = 0
    queues: tuple[tuple[str, int], ...] = ()  # Topics and queue ids that its rows go to.


def stage_rows(
    batches: Iterable[pa.RecordBatch], name: BatchName, partition: int, options: SinkOptions, now_ms: int
) -> StagedFile:
    """Write the messages of a partition down. Raises IllegalMessage for a row that cannot be a message."""
    sink = pa.BufferOutputStream()
    rows = 0
    queues: set[tuple[str, int]] = set()
    with pa.ipc.new_stream(sink, STAGED_SCHEMA) as writer:
        for batch in batches:
            staged = [
                staged_row(row, name.mark(partition, rows + at), partition + rows + at, options, now_ms)
                for at, row in enumerate(batch.to_pylist())
            ]
            rows += len(staged)
            queues.update((row["topic"], row["queueId"]) for row in staged)
            if staged:
                writer.write_batch(pa.RecordBatch.from_pylist(staged, schema=STAGED_SCHEMA))
    if not rows:
        return StagedFile(name, partition)
    data = sink.getvalue()
    path = name.directory(options.staging) / f"{partition}-{uuid.uuid4().hex}.arrow"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
    return StagedFile(name, partition, str(path), rows, data.size, zlib.crc32(data), tuple(sorted(queues)))


def read_staged(file: StagedFile) -> Iterator[list[dict[str, Any]]]:
    """The rows of a staged file, some at a time. Raises StagingLost when it is not what the task wrote."""
    with pa.ipc.open_stream(checked_bytes(file)) as reader:
        for batch in reader:
            yield batch.to_pylist()


def checked_bytes(file: StagedFile) -> bytes:
    """A staged file's bytes. Raises StagingLost when they are not what the task wrote."""
    try:
        data = Path(file.path).read_bytes()
    except FileNotFoundError:
        data = b""
    if len(data) != file.size or zlib.crc32(data) != file.crc:
        raise StagingLost(
            f"{file.path}: expected {file.size} bytes that a task staged, found {len(data)} or others; the staging "
            "directory must be one that the driver and all executors share (option staging). Run the batch again"
        )
    return data


def message_of(row: dict[str, Any]) -> Message:
    """The message of a staged row."""
    return Message(
        row["topic"], row["body"], row["queueId"], encoded_properties=row["properties"],
        born_timestamp_ms=row["bornMs"], born_host=row["bornHost"], flag=row["flag"],
    )  # fmt: skip


def staged_row(row: dict[str, Any], mark: str, turn: int, options: SinkOptions, now_ms: int) -> dict[str, Any]:
    """A row as it is staged. Raises IllegalMessage for one that cannot be a message."""
    topic = row.get("topic") or options.topic
    body = row.get("body")
    if topic is None or body is None:
        raise IllegalMessage(f"row {mark}: expected a topic and a body, found topic {topic!r} and body {body!r}")
    if problem := topic_problem(topic):
        raise IllegalMessage(f"row {mark}: {problem}")
    if row.get("_corrupt") is not None:
        raise IllegalMessage(f"row {mark}: expected a message, found a damaged one: {row['_corrupt']}; filter it out")
    properties = dict(row.get("properties") or ())
    keys = row.get("keys") or (properties.get(names.KEYS) or "").split()
    if row.get("uniqKey"):
        properties[names.UNIQ_KEY] = row["uniqKey"]
    sharding_key = row.get("shardingKey")
    if sharding_key is not None:
        properties[names.SHARDING_KEY] = sharding_key
    deliver = row.get("deliverTime")
    if deliver is not None:
        properties[names.TIMER_DELIVER_MS] = str(time_ms(deliver) if isinstance(deliver, dt.datetime) else deliver)
    if row.get("delayLevel"):
        properties[names.DELAY] = str(row["delayLevel"])
    properties[MARK] = mark
    queue_id = row.get("queueId")
    if queue_id is None:
        queue_id = (turn if sharding_key is None else java_hash(sharding_key)) % options.queue_count
    born = row.get("bornTimestamp")
    body = body.encode() if isinstance(body, str) else body
    message = Message(
        topic, body, queue_id, keys=keys, tags=row.get("tags") or "", properties=properties,
        born_timestamp_ms=now_ms if born is None else time_ms(born) if isinstance(born, dt.datetime) else born,
        born_host=row.get("bornHost") or b"", flag=row.get("flag") or 0,
    )  # fmt: skip
    encoded = message.encoded_properties
    if names.UNIQ_KEY not in properties:
        encoded = _with_unique_key(encoded, mark, topic, message.body)
    return {
        "topic": topic, "queueId": queue_id, "properties": encoded, "body": message.body,
        "bornMs": message.born_timestamp_ms, "bornHost": message.born_host, "flag": message.flag,
    }  # fmt: skip


def _with_unique_key(encoded: bytes, mark: str, topic: str, body: bytes) -> bytes:
    """Properties with a unique key derived from a row's position in its batch, and from its contents."""
    said = hashlib.blake2b(mark.encode(), digest_size=KEY_BYTES)
    for piece in (topic.encode(), encoded, body):
        said.update(b"%d:" % len(piece) + piece)
    joint = b"" if not encoded or encoded.endswith(b"\x02") else b"\x02"
    return encoded + joint + f"{names.UNIQ_KEY}\x01{said.hexdigest().upper()}\x02".encode()
