"""The manifest of a queue: its metadata as an object in the tier, so that a bucket is self-describing.

One document (see `document.py`) beside the queue's segments, named
`<cluster dir>/<broker>/<topic>/<queue id>/manifest.tiermq.json`. Equal manifests are equal bytes. `timeIndex` is a list
of [queue offset, store ms, log offset], each but the first as the difference to the one before, because a queue of a
terabyte has a quarter of a million of them.

Invariants: a valid manifest of a higher `version` than ours is refused (FutureManifest) and never overwritten;
`epoch` never decreases; within an epoch `sequence` counts the writes. Unknown keys are ignored: changes that a reader
must understand get a new version.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from tiermq.errors import BadTierName
from tiermq.tier.block_sums import BlockSums
from tiermq.tier.metadata.document import (
    items_field,
    natural_field,
    number_field,
    offset_field,
    open_document,
    refuse_document,
    seal_document,
    text_field,
)
from tiermq.tier.metadata.metadata_values import (
    UNKNOWN_OFFSET,
    UNLIMITED,
    Gap,
    Segment,
    SegmentStatus,
    TimeEntry,
)
from tiermq.tier.names import QueueKey, SegmentType

MANIFEST_VERSION = 2
"""That of queues that may have bytes in bundles, of which readers of version 1 know nothing; all others have 1."""
MANIFEST_STEM = "manifest"
TOPIC_ID_END = 1 << 31
"""Index items have 32 bits for the id of a topic."""


@dataclass(frozen=True, slots=True)
class QueueManifest:
    """Everything that a restore needs of a queue and cannot read from the names of its segments.

    `topic_serial_number` is the last topic id of the whole broker: ids of deleted topics must not be reused.
    """

    key: QueueKey
    writer: str = ""
    epoch: int = 0
    sequence: int = 0
    written_ms: int = 0
    topic_id: int = -1
    topic_serial_number: int = -1
    topic_status: int = 0
    reserve_time_hours: int = UNLIMITED
    max_bytes: int = UNLIMITED
    min_offset: int = UNKNOWN_OFFSET
    max_offset: int = UNKNOWN_OFFSET
    segments: tuple[Segment, ...] = ()
    time_index: tuple[TimeEntry, ...] = ()
    gaps: tuple[Gap, ...] = ()
    in_bundles: bool = False  # Whether its segments may have, or have had, ranges in bundles.


def is_by_job(writer: str) -> bool:
    """Whether the writer of a manifest is a job or a repair, which only copies or changes what a broker has."""
    return "(pipeline " in writer or writer.startswith("repair ")


def manifest_name(key: QueueKey) -> str:
    """The name of the queue's manifest in the tier."""
    return key.object_name(MANIFEST_STEM)


def queue_of_manifest(name: str) -> QueueKey | None:
    """The queue whose manifest has that name; None when it is another object."""
    parts = name.split("/")
    if len(parts) != 5 or not parts[3].isdigit():
        return None
    try:
        key = QueueKey(parts[0].partition("_")[2], parts[1], parts[2], int(parts[3]))
    except BadTierName:
        return None
    # Written out again it must be the same, which also checks the hash of the cluster.
    return key if manifest_name(key) == name else None


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
        "segments": [encode_segment(segment) for segment in manifest.segments],
        "sequence": manifest.sequence,
        "timeIndex": _encode_time_index(manifest.time_index),
        "topic": manifest.key.topic,
        "topicId": manifest.topic_id,
        "topicSerialNumber": manifest.topic_serial_number,
        "topicStatus": int(manifest.topic_status),
        "writer": manifest.writer,
        "writtenMs": manifest.written_ms,
    }
    if not manifest.in_bundles:
        return seal_document(body, 1)
    return seal_document(body | {"bundles": True}, MANIFEST_VERSION)


def decode_manifest(data: bytes, name: str) -> QueueManifest:
    """The manifest in `data`. Raises FutureManifest or CorruptManifest, naming the object; never another error."""
    body = open_document(data, name, MANIFEST_VERSION)
    try:
        key = QueueKey(
            sys.intern(text_field(body, "cluster")),
            sys.intern(text_field(body, "broker")),
            sys.intern(text_field(body, "topic")),
            natural_field(body, "queueId"),
        )
        return QueueManifest(
            key=key,
            writer=sys.intern(text_field(body, "writer")),
            epoch=natural_field(body, "epoch"),
            sequence=offset_field(body, "sequence"),
            written_ms=number_field(body, "writtenMs"),
            topic_id=number_field(body, "topicId", -1, TOPIC_ID_END),
            topic_serial_number=number_field(body, "topicSerialNumber", -1, TOPIC_ID_END),
            topic_status=number_field(body, "topicStatus"),
            reserve_time_hours=number_field(body, "reserveTimeHours"),
            max_bytes=number_field(body, "maxBytes"),
            min_offset=offset_field(body, "minOffset"),
            max_offset=offset_field(body, "maxOffset"),
            segments=tuple(decode_segment(key, item) for item in items_field(body, "segments")),
            time_index=tuple(_decode_time_index(items_field(body, "timeIndex"))),
            gaps=tuple(_decode_gap(gap) for gap in items_field(body, "gaps")),
            in_bundles=body.get("bundles") is True,
        )
    except (ValueError, TypeError, LookupError) as error:
        refuse_document(name, f"a body that does not fit version {MANIFEST_VERSION} ({type(error).__name__}: {error})")


def encode_segment(segment: Segment) -> dict[str, Any]:
    """A segment as the value of a document."""
    sums = segment.sums
    blocks = {} if sums is None or not sums.size else {"blocks": {**sums.document(), "size": sums.size}}
    return blocks | {
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


def decode_segment(queue: QueueKey, item: Any) -> Segment:
    """The segment of the queue. Raises ValueError, TypeError or LookupError."""
    kind = SegmentType[text_field(item, "type")]
    return Segment(
        key=queue.segment(kind, natural_field(item, "base")),
        size=natural_field(item, "size"),
        status=SegmentStatus[text_field(item, "status")],
        created_ms=number_field(item, "createdMs"),
        begin_ms=number_field(item, "beginMs"),
        end_ms=number_field(item, "endMs"),
        sealed_ms=number_field(item, "sealedMs"),
        crc32=None if item["crc32"] is None else number_field(item, "crc32", 0, 1 << 32),
        begin_offset=offset_field(item, "beginOffset"),
        end_offset=offset_field(item, "endOffset"),
        sums=_decode_sums(item),
    )


def _decode_sums(item: Any) -> BlockSums | None:
    """The checksums of the segment's blocks; a manifest of an earlier TierMQ has none."""
    if "blocks" not in item:
        return None
    sums = BlockSums.from_document(item["blocks"], natural_field(item["blocks"], "size"))
    if sums is None:
        raise ValueError("the checksums of a segment's blocks do not fit its size")
    return sums


def _decode_gap(item: Any) -> Gap:
    return Gap(
        offset_field(item, "fromOffset"),
        offset_field(item, "toOffset"),
        text_field(item, "reason"),
        number_field(item, "atMs"),
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
        if not all(-(1 << 63) <= number < 1 << 63 for number in (queue_offset, store_ms, log_offset)):
            raise ValueError("a time entry is three integers of 64 bits, found larger ones")
        yield TimeEntry(queue_offset, store_ms, log_offset)


# When a queue's manifest is written: at once after what changes its shape, and now and then while it grows.
#
# A manifest is not the truth about the tail of a queue, the listing is. It may lag behind commits without any loss: a
# restore reads what is beyond it from the records. So growth alone costs one small request per interval and queue.


class ManifestCause(enum.Enum):
    """What happened to a queue since its manifest was written."""

    COMMIT = "commit"
    ROLL = "roll"
    SEAL = "seal"
    EXPIRY = "expiry"
    GAP = "gap"
    TOPIC_CHANGE = "topic change"
    CLOSE = "close"
    START = "start"
    """An earlier process ended before it wrote its changes."""


@dataclass(frozen=True, slots=True)
class ManifestPolicy:
    """Whether a manifest is due. Pure."""

    interval_ms: int = 60_000

    def is_due(self, causes: Collection[ManifestCause], last_written_ms: int | None, now_ms: int) -> bool:
        """`last_written_ms` is None when this process has not written the manifest of the queue yet."""
        due_ms = self.due_at_ms(causes, last_written_ms)
        return due_ms is not None and now_ms >= due_ms

    def due_at_ms(self, causes: Collection[ManifestCause], last_written_ms: int | None) -> int | None:
        """The time from which on the manifest is due: 0 for at once, None for not at all."""
        if not causes:
            return None
        if last_written_ms is None or any(cause is not ManifestCause.COMMIT for cause in causes):
            return 0
        return last_written_ms + self.interval_ms
