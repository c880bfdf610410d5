"""What the tests of the sink share: options, staged rows, and what a store has in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from small_store import SIZES
from tiermq.message.stored_message import StoredMessage
from tiermq.spark.options import SinkOptions
from tiermq.spark.sink.staged_rows import BatchName, StagedFile, stage_rows
from tiermq.store.local_store import LocalStore

NOW_MS = 1_767_225_600_000
SETTINGS = json.dumps(SIZES)
QUERY = BatchName("query", 0)


def sink_options(path: Path, **more: str) -> SinkOptions:
    return SinkOptions.of({"store": str(path / "store"), "topic": "T", "storeSettings": SETTINGS, **more})


def make_store(path: Path) -> None:
    """A store with small files, as another program made it."""
    LocalStore.open(path / "store", **SIZES).close()


def staged(options: SinkOptions, name: BatchName, *partitions: list[dict[str, Any]]) -> list[StagedFile]:
    """One file for each list of rows, as tasks would leave them."""
    return [
        stage_rows([pa.RecordBatch.from_pylist(rows)] if rows else [], name, number, options, NOW_MS)
        for number, rows in enumerate(partitions)
    ]


def bodies(*texts: str) -> list[dict[str, Any]]:
    return [{"body": text.encode()} for text in texts]


def stored(path: Path, topic: str = "T", queues: int = 8) -> list[StoredMessage]:
    """Every message of a topic, in the order of queues."""
    found: list[StoredMessage] = []
    with LocalStore.open(path / "store", **SIZES) as store:
        for queue_id in range(queues):
            offset = store.min_offset(topic, queue_id)
            while offset < store.max_offset(topic, queue_id):
                page = store.get(topic, queue_id, offset)
                found += page.messages
                offset = page.next_offset
    return found
