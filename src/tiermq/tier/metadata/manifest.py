"""The manifest of a queue: what the tier says about a queue in the tier itself, so that a bucket describes itself.

One JSON object beside the queue's segments, `<cluster dir>/<broker>/<topic>/<queue id>/manifest.tiermq.json`:

    {"body": {...}, "crc32": <of the body's canonical text>, "version": 1}

Keys are sorted, there is no white space, text is UTF-8: equal manifests are equal bytes. `timeIndex` is a list of
[queue offset, store ms, log offset], each but the first as the difference to the one before, because a queue of a
terabyte has a quarter of a million of them.

Invariants: `version` is looked at first, and a higher one than ours is refused (FutureManifest) and never overwritten;
`epoch` never falls; within an epoch `sequence` counts the writes. Keys that we do not know are ignored: whatever a
reader must understand comes with a new version.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from tiermq.errors import FutureManifest, TierError
from tiermq.tier.metadata.metadata_values import (
    UNKNOWN_OFFSET,
    UNLIMITED,
    Gap,
    Segment,
    SegmentStatus,
    TimeEntry,
)
from tiermq.tier.names import QueueKey, SegmentKey, SegmentType

MANIFEST_VERSION = 1
MANIFEST_FILE_NAME = "manifest.tiermq.json"


class CorruptManifest(TierError):
    """An object that should be a manifest or a lease, and is damaged."""


@dataclass(frozen=True, slots=True)
class QueueManifest:
    """Everything that a restore needs to know of a queue and cannot read from its segments' names."""

    key: QueueKey
    writer: str = ""
    epoch: int = 0
    sequence: int = 0
    written_ms: int = 0
    topic_id: int = -1
    topic_status: int = 0
    reserve_time_hours: int = UNLIMITED
    max_bytes: int = UNLIMITED
    min_offset: int = UNKNOWN_OFFSET
    max_offset: int = UNKNOWN_OFFSET
    segments: tuple[Segment, ...] = ()
    time_index: tuple[TimeEntry, ...] = ()
    gaps: tuple[Gap, ...] = ()


def manifest_name(key: QueueKey) -> str:
    """The name of the queue's manifest in the tier."""
    segment = SegmentKey(key.cluster, key.broker, key.topic, key.queue_id, SegmentType.COMMIT_LOG, 0)
    return f"{segment.path.rsplit('/', 2)[0]}/{MANIFEST_FILE_NAME}"


def encode_manifest(manifest: QueueManifest) -> bytes:
    """The manifest's one form as bytes."""
    body = {
        "broker": manifest.key.broker,
        "cluster": manifest.key.cluster,
        "epoch": manifest.epoch,
        "gaps": [
            {"atMs": gap.at_ms, "fromOffset": gap.from_offset, "reason": gap.reason, "toOffset": gap.to_offset}
            for gap in manifest.gaps
        ],
        "maxBytes": manifest.max_bytes,
        "maxOffset": manifest.max_offset,
        "minOffset": manifest.min_offset,
        "queueId": manifest.key.queue_id,
        "reserveTimeHours": manifest.reserve_time_hours,
        "segments": [_encode_segment(segment) for segment in manifest.segments],
        "sequence": manifest.sequence,
        "timeIndex": _encode_time_index(manifest.time_index),
        "topic": manifest.key.topic,
        "topicId": manifest.topic_id,
        "topicStatus": int(manifest.topic_status),
        "writer": manifest.writer,
        "writtenMs": manifest.written_ms,
    }
    return seal_document(body, MANIFEST_VERSION)


def decode_manifest(data: bytes, name: str) -> QueueManifest:
    """The manifest in `data`. Raises FutureManifest or CorruptManifest, naming the object; never another error."""
    body = open_document(data, name, MANIFEST_VERSION)
    try:
        key = QueueKey(_text(body, "cluster"), _text(body, "broker"), _text(body, "topic"), _number(body, "queueId"))
        return QueueManifest(
            key=key,
            writer=_text(body, "writer"),
            epoch=_number(body, "epoch"),
            sequence=_number(body, "sequence"),
            written_ms=_number(body, "writtenMs"),
            topic_id=_number(body, "topicId"),
            topic_status=_number(body, "topicStatus"),
            reserve_time_hours=_number(body, "reserveTimeHours"),
            max_bytes=_number(body, "maxBytes"),
            min_offset=_number(body, "minOffset"),
            max_offset=_number(body, "maxOffset"),
            segments=tuple(_decode_segment(key, item) for item in _items(body, "segments")),
            time_index=tuple(_decode_time_index(_items(body, "timeIndex"))),
            gaps=tuple(
                Gap(_number(gap, "fromOffset"), _number(gap, "toOffset"), _text(gap, "reason"), _number(gap, "atMs"))
                for gap in _items(body, "gaps")
            ),
        )
    except (ValueError, TypeError, LookupError) as error:
        _refuse(name, f"a body that does not fit version {MANIFEST_VERSION} ({type(error).__name__}: {error})")


def seal_document(body: dict[str, Any], version: int) -> bytes:
    """A small JSON document of ours with its version and its checksum."""
    text = _canonical(body)
    return _canonical({"body": body, "crc32": zlib.crc32(text), "version": version})


def open_document(data: bytes, name: str, version_max: int) -> dict[str, Any]:
    """The body of such a document. Raises FutureManifest or CorruptManifest."""
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _refuse(name, f"{len(data)} bytes that are no JSON ({error})")
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is not int or version < 1:
        _refuse(name, "no version number")
    if version > version_max:
        raise FutureManifest(
            f"{name}: expected version {version_max} or older, found {version}; a newer TierMQ writes here, "
            f"so use that one: this one will neither read nor overwrite it"
        )
    body, checksum = document.get("body"), document.get("crc32")
    if not isinstance(body, dict):
        _refuse(name, "no body")
    try:
        computed = zlib.crc32(_canonical(body))
    except (ValueError, RecursionError) as error:  # Lone surrogates, or nesting beyond reason.
        _refuse(name, f"a body that has no canonical text ({error})")
    if checksum != computed:
        _refuse(name, f"checksum {checksum} where its body has {computed}")
    return body


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _refuse(name: str, found: str) -> NoReturn:
    raise CorruptManifest(
        f"{name}: expected a document written by TierMQ, found {found}; it can be rebuilt from the segments beside it"
    )


def _encode_segment(segment: Segment) -> dict[str, Any]:
    return {
        "base": segment.key.base,
        "beginMs": segment.begin_ms,
        "beginOffset": segment.begin_offset,
        "crc32": segment.crc32,
        "createdMs": segment.created_ms,
        "endMs": segment.end_ms,
        "endOffset": segment.end_offset,
        "sealedMs": segment.sealed_ms,
        "size": segment.size,
        "status": segment.status.name,
        "type": segment.key.type.name,
    }


def _decode_segment(queue: QueueKey, item: Any) -> Segment:
    kind = SegmentType[_text(item, "type")]
    return Segment(
        key=SegmentKey(queue.cluster, queue.broker, queue.topic, queue.queue_id, kind, _natural(item, "base")),
        size=_natural(item, "size"),
        status=SegmentStatus[_text(item, "status")],
        created_ms=_number(item, "createdMs"),
        begin_ms=_number(item, "beginMs"),
        end_ms=_number(item, "endMs"),
        sealed_ms=_number(item, "sealedMs"),
        crc32=None if item["crc32"] is None else _natural(item, "crc32"),
        begin_offset=_number(item, "beginOffset"),
        end_offset=_number(item, "endOffset"),
    )


def _encode_time_index(entries: Iterable[TimeEntry]) -> list[list[int]]:
    rows, before = [], TimeEntry(0, 0, 0)
    for entry in entries:
        rows.append(
            [
                entry.queue_offset - before.queue_offset,
                entry.store_ms - before.store_ms,
                entry.log_offset - before.log_offset,
            ]
        )
        before = entry
    return rows


def _decode_time_index(rows: list[Any]) -> Iterable[TimeEntry]:
    queue_offset = store_ms = log_offset = 0
    for row in rows:
        if not (isinstance(row, list) and len(row) == 3 and all(type(number) is int for number in row)):
            raise ValueError(f"a time entry is three integers, found {row!r}")
        queue_offset, store_ms, log_offset = queue_offset + row[0], store_ms + row[1], log_offset + row[2]
        yield TimeEntry(queue_offset, store_ms, log_offset)


def _number(body: Any, field: str) -> int:
    value = body[field]
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{field} is a 64-bit integer, found {value!r}")
    return value


def _natural(body: Any, field: str) -> int:
    value = _number(body, field)
    if value < 0:
        raise ValueError(f"{field} is not negative, found {value}")
    return value


def _text(body: Any, field: str) -> str:
    value = body[field]
    if not isinstance(value, str):
        raise TypeError(f"{field} is text, found {value!r}")
    return value


def _items(body: Any, field: str) -> list[Any]:
    value = body[field]
    if not isinstance(value, list):
        raise TypeError(f"{field} is a list, found {value!r}")
    return value
