"""The offset of a stream in a checkpoint: one flat JSON object.

    {"source": "tier s3://bucket/prefix", "version": 1, "DefaultCluster/broker-a/orders/0": 4711, ...}

`source` identifies the history: offsets of one tier mean nothing in another. Queues are [.., offset): everything before
the number has been read. Names are sorted, so that equal offsets are equal texts, which is how Spark compares them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tiermq.client.wire_history import WirePlace
from tiermq.errors import ForeignCheckpoint
from tiermq.history.scan_values import HistoryPlace
from tiermq.tier.names import QueueKey

OFFSET_VERSION = 1
SOURCE = "source"
VERSION_NAME = "version"


def source_name(place: HistoryPlace) -> str:
    """Which history this is. With a tier it is the tier's: stores come and go with machines, the tier stays.

    A cluster has no identity of its own, and its name servers change: queues are identified by their brokers.
    """
    if isinstance(place, WirePlace):
        return "brokers"
    if place.tier is not None:
        return f"tier {place.tier.rstrip('/')}"
    return "store " + ", ".join(sorted(store.path for store in place.stores))


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Offsets of one history by queue."""

    source: str
    queues: Mapping[QueueKey, int]

    def as_json(self) -> dict[str, Any]:
        named = {
            f"{key.cluster}/{key.broker}/{key.topic}/{key.queue_id}": offset
            for key, offset in sorted(self.queues.items())
        }
        return {SOURCE: self.source, VERSION_NAME: OFFSET_VERSION, **named}

    @classmethod
    def of_json(cls, document: Mapping[str, Any], source: str) -> Self:
        """Read what a checkpoint holds. Raises ForeignCheckpoint when it is not of this source."""
        found = document.get(SOURCE)
        if found != source:
            raise ForeignCheckpoint(
                f"expected a checkpoint of {source}, found one of {found or 'something else'}; "
                "its offsets mean nothing here: use another checkpointLocation, or the history that it belongs to"
            )
        if document.get(VERSION_NAME) != OFFSET_VERSION:
            raise ForeignCheckpoint(
                f"expected a checkpoint of version {OFFSET_VERSION}, found {document.get(VERSION_NAME)!r}; "
                "it was written by a newer program: use that one, or another checkpointLocation"
            )
        queues = {name: value for name, value in document.items() if name not in (SOURCE, VERSION_NAME)}
        return cls(source, {_key(name): _offset(name, value) for name, value in queues.items()})


def _key(name: str) -> QueueKey:
    parts = name.split("/")
    if len(parts) != 4 or not parts[3].isdigit():
        raise ForeignCheckpoint(f"expected cluster/broker/topic/queue in the checkpoint, found {name!r}")
    return QueueKey(parts[0], parts[1], parts[2], int(parts[3]))


def _offset(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ForeignCheckpoint(f"expected an offset for {name} in the checkpoint, found {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class StreamLag:
    """How many messages a stream has still to read, by `cluster/broker/topic/queue`."""

    queues: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.queues.values())

    def as_metrics(self) -> dict[str, float]:
        """The same under the names of Spark's Kafka source."""
        each = list(self.queues.values()) or [0]
        return {
            "minOffsetsBehindLatest": float(min(each)),
            "maxOffsetsBehindLatest": float(max(each)),
            "avgOffsetsBehindLatest": sum(each) / len(each),
        }


def stream_lag(progress: Any) -> StreamLag:
    """The lag of a stream: of a query (its last progress), or of one `StreamingQueryProgress`.

    Spark has no metrics of Python sources in its progress, but where each batch ended and where the source ended then.
    """
    if hasattr(progress, "lastProgress"):
        progress = progress.lastProgress
    behind: dict[str, int] = {}
    for source in [] if progress is None else progress["sources"]:
        end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        if SOURCE in end and SOURCE in latest:
            queues = latest.keys() - {SOURCE, VERSION_NAME}
            behind |= {name: max(0, latest[name] - end.get(name, 0)) for name in sorted(queues)}
    return StreamLag(behind)


def _offsets(given: Any) -> dict[str, Any]:
    read = json.loads(given) if isinstance(given, str) else given
    return dict(read) if isinstance(read, Mapping) else {}
