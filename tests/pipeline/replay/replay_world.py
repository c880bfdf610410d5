"""A store to replay from, one to replay into, and functions that a replay can be told to use."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark.source_world import SourceWorld
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.replay.job import replay
from tiermq.pipeline.replay.message import MARK, ReplayMessage
from tiermq.store.local_store import LocalStore


class ReplayWorld(SourceWorld):
    """The source is hot and cold; the target is another directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.target = path / "target"
        self.record = path / "record"
        self.put(20, "orders", 0)
        self.put(10, "orders", 1)
        self.flush_to_tier()
        self.put(5, "orders", 0)
        self.put(7, "returns", 0)

    def replay(self, runner: Any = None, **more: Any) -> JobReport:
        given = {
            "tier": self.url,
            "store": self.disk,
            "broker": "broker-a",
            "into": self.target,
            "record": self.record,
        }
        return replay(runner, **{**given, **more})

    def found(self, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
        """Bodies of a queue of the target."""
        return [message.body for message in self.messages(topic, queue_id)]

    def messages(self, topic: str = "orders", queue_id: int = 0) -> list[Any]:
        with LocalStore.open(self.target, background=False) as store:
            end = store.max_offset(topic, queue_id)
            return list(store.get(topic, queue_id, 0, end).messages) if end else []

    def bodies(self, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
        """Bodies of a queue of the source."""
        return [sent.body for sent in self.sent[topic, queue_id]]

    def lines(self) -> list[dict[str, str]]:
        with open(self.record / "offsets.csv", encoding="utf-8") as file:
            return list(csv.DictReader(file))


def shouted(message: ReplayMessage) -> ReplayMessage | None:
    """Every second message, in capitals."""
    return None if message.source.queue_offset % 2 else replace(message, body=message.body.upper(), tags="loud")


def moved(message: ReplayMessage) -> ReplayMessage:
    """Another place may not be claimed: `source` stays what it was."""
    return replace(message, topic=f"copy-{message.topic}", source=replace(message.source, queue_offset=999))


def wrong(_message: ReplayMessage) -> bytes:
    return b"no message"


def failing(message: ReplayMessage) -> ReplayMessage:
    return replace(message, body=message.properties["price"].encode())


def text_body(message: ReplayMessage) -> ReplayMessage:
    return replace(message, body="no bytes")  # type: ignore[arg-type] # What a user may do.


NOT_A_FUNCTION = MARK
