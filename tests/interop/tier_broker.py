"""A broker whose messages go on in a tier: its settings, where its files lie, and when everything has arrived there.

RocketMQ's tier has no "upload now": a thread looks at every queue each 20 seconds, begins a new queue at one look and
uploads at the next. What can be seen from outside are the sizes in its metadata file, so that is what `await_upload`
looks at. The index is uploaded file by file while the broker runs, the last file when it stops.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from interop.rocketmq import CLUSTER_NAME, SMALL_FILES
from tiermq.consumequeue.unit import UNIT_BYTES
from tiermq.errors import StoreDamaged
from tiermq.tier.names import SegmentType
from tiermq.tier.restore.rocketmq_json import FILE_NAME, decode_rocketmq_json

UPLOAD_TIMEOUT_S = 180.0

# Small segments, so that a few hundred messages fill several of each kind. Index files must not be as small: RocketMQ
# names them by the millisecond, cannot make a second one of the same name, and drops the keys that would go there.
SMALL_SEGMENTS: Mapping[str, object] = {
    "tieredStoreCommitLogMaxSize": 32 * 1024,
    "tieredStoreConsumeQueueMaxSize": 20 * 50,
    "tieredStoreIndexFileMaxHashSlotNum": 64,
    "tieredStoreIndexFileMaxIndexNum": 800,
}


def tier_settings(tier: Path, segments: Mapping[str, object] = SMALL_SEGMENTS, **more: object) -> dict[str, object]:
    """Settings of a broker with a tier in the directory `tier`, which it reads everything from."""
    return {
        **SMALL_FILES,
        "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
        "tieredBackendServiceProvider": "org.apache.rocketmq.tieredstore.provider.PosixFileSegment",
        "tieredMetadataServiceProvider": "org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore",
        "tieredStoreFilePath": tier,
        "tieredStorageLevel": "FORCE",
        "tieredStoreGroupCommitTimeout": 1,
        **segments,
        **more,
    }


def metadata_path(store: Path) -> Path:
    return store / "config" / FILE_NAME


def uploaded_counts(store: Path) -> dict[tuple[str, int], int]:
    """(topic, queue) → how many messages the broker's metadata says are in the tier."""
    counts: dict[tuple[str, int], int] = {}
    for segment in decode_rocketmq_json(metadata_path(store).read_bytes(), CLUSTER_NAME).segments:
        if segment.key.type is SegmentType.CONSUME_QUEUE:
            place = segment.key.topic, segment.key.queue_id
            counts[place] = counts.get(place, 0) + segment.size // UNIT_BYTES
    return counts


def await_upload(store: Path, expected: Mapping[tuple[str, int], int]) -> None:
    """Return when each queue has as many messages in the tier as expected."""
    deadline = time.monotonic() + UPLOAD_TIMEOUT_S
    counts: dict[tuple[str, int], int] = {}
    while counts.items() & expected.items() != expected.items():
        if time.monotonic() > deadline:
            raise AssertionError(f"expected {dict(expected)} messages in the tier, found {counts}")
        time.sleep(0.25)
        try:
            counts = uploaded_counts(store)
        except (FileNotFoundError, StoreDamaged):
            continue  # The broker rewrites the file in place: a moment without a whole one is normal.
