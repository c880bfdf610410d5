"""Rebuild the manifest of a queue from its segments; facts of the old one are taken over where it can be read.

Checksums of damaged bytes are not replaced. Records that do not match theirs keep the old row, and are still reported;
repaired from a local store, they match again. Units that do not match theirs get a new one when the queue, verified
without checksums, is valid: they follow from their records. A manifest of a newer
version is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tiermq.clock import Clock
from tiermq.errors import CorruptSegment, FutureManifest, IllegalRange, SegmentMissing
from tiermq.message.crc import crc32
from tiermq.tier.block_sums import BlockSums
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest import (
    MANIFEST_STEM,
    QueueManifest,
    decode_manifest,
    encode_manifest,
    manifest_name,
    queue_of_manifest,
)
from tiermq.tier.metadata.manifest_store import ManifestStore, WriterLease
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, Segment, SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentKey, SegmentType, broker_directory
from tiermq.tier.repair.queue_facts import QueueFacts, has_known_checksum
from tiermq.tier.restore.queue_discovery import discover_index, discover_queue
from tiermq.tier.verify.queue_verifier import QueueVerifier
from tiermq.tier.verify.verify_plan import QueueTask
from tiermq.tier.verify.verify_report import VerifyReport

CHECKSUM_READ_BYTES = 8 * 1024 * 1024
BLANKED_REASON = "neither records nor units were left when the tier was repaired"


def rebuild_manifest(
    driver: TierDriver,
    facts: QueueFacts,
    clock: Clock,
    metadata: MetadataStore | None = None,
    blanked: Sequence[Gap] = (),
) -> QueueManifest:
    """The manifest that the queue should have; epoch, writer and time are those of the old one."""
    base = facts.manifest or _with_topic(driver, QueueManifest(facts.key), metadata)
    if facts.key.topic == INDEX_TOPIC:
        found, _ = discover_index(driver, facts.index, facts.manifest)
        return replace(base, segments=tuple(sorted(found, key=lambda row: row.key)))
    discovered = discover_queue(driver, facts.key, [*facts.logs, *facts.units], None, clock.now_ms())
    is_sound = _is_sound(driver, facts)
    known = {row.key: row for row in facts.rows}
    infos = {info.key: info for info in (*facts.logs, *facts.units)}
    segments = [
        _with_old(driver, facts, row, known.get(row.key), infos[row.key], is_sound)
        for row in discovered.segments
        if row.key in infos  # A discovery ends with an open segment for the next writer, which may not exist yet.
    ]
    deleted = [row for row in facts.rows if row.status is SegmentStatus.DELETED and row.key in infos]
    gaps = {(gap.from_offset, gap.to_offset): gap for gap in (*discovered.gaps, *blanked, *facts.gaps)}
    rows = {row.key: row for row in (*segments, *deleted)}
    return replace(
        base,
        min_offset=max(discovered.queue.min_offset, facts.manifest.min_offset if facts.manifest else -1),
        max_offset=discovered.queue.max_offset,
        segments=tuple(sorted(rows.values(), key=lambda row: row.key)),
        time_index=tuple(discovered.time_entries),
        gaps=tuple(sorted(_outermost(gaps.values()), key=lambda gap: gap.from_offset)),
    )


def _outermost(gaps: Iterable[Gap]) -> list[Gap]:
    """Gaps that no other gap contains: a gap found now may be part of one recorded before."""
    found: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: (gap.from_offset, -gap.to_offset)):
        if not any(other.from_offset <= gap.from_offset and gap.to_offset <= other.to_offset for other in found):
            found.append(gap)
    return found


def _with_topic(driver: TierDriver, manifest: QueueManifest, metadata: MetadataStore | None) -> QueueManifest:
    """What a lost manifest knew of its topic, from the metadata or from the topic's other queues."""
    key = manifest.key
    topic = metadata.topic(key.topic) if metadata is not None else None
    if topic is not None and metadata is not None:
        return replace(
            manifest,
            topic_id=topic.id,
            topic_serial_number=metadata.topic_serial_number(),
            topic_status=topic.status,
            reserve_time_hours=topic.reserve_time_hours,
            max_bytes=topic.max_bytes,
        )
    for other in _siblings(driver, key):
        return replace(
            manifest,
            topic_id=other.topic_id,
            topic_serial_number=other.topic_serial_number,
            topic_status=other.topic_status,
            reserve_time_hours=other.reserve_time_hours,
            max_bytes=other.max_bytes,
            epoch=other.epoch,
        )
    return manifest


def _siblings(driver: TierDriver, key: QueueKey) -> list[QueueManifest]:
    found = []
    for name in driver.list_objects(f"{broker_directory(key.cluster, key.broker)}/{key.topic}/"):
        other = queue_of_manifest(name)
        stored = driver.get_object(name) if other is not None and other != key else None
        try:
            manifest = decode_manifest(stored.data, name) if stored is not None else None
        except (CorruptManifest, FutureManifest):
            continue
        if manifest is not None and manifest.topic_id >= 0:
            found.append(manifest)
    return sorted(found, key=lambda manifest: -manifest.written_ms)


def _is_sound(driver: TierDriver, facts: QueueFacts) -> bool:
    report = VerifyReport(driver.url)
    QueueVerifier(driver, QueueTask(0, facts.key, facts.logs, facts.units, (), facts.gaps), report).run()
    return report.is_clean


def _with_old(
    driver: TierDriver, facts: QueueFacts, row: Segment, old: Segment | None, info: SegmentInfo, is_sound: bool
) -> Segment:
    """The row of a segment, with facts of the old row, and a checksum (see the module)."""
    is_changed = old is not None and 0 < old.size <= info.size and not has_known_checksum(driver, facts, info)
    # Units follow from their records, so sound ones are what they should be; records follow from nothing.
    if old is not None and is_changed and (row.key.type is SegmentType.COMMIT_LOG or not is_sound):
        return old
    crc, sums = sums_of(driver, row.key, row.size) if is_sound or old is not None else (None, None)
    if old is None:
        return replace(row, crc32=crc, sums=sums)
    sealed = old if old.status is SegmentStatus.SEALED else row
    return replace(
        row, crc32=crc, sums=sums, created_ms=old.created_ms, status=sealed.status, sealed_ms=sealed.sealed_ms
    )


def sums_of(driver: TierDriver, key: SegmentKey, size: int) -> tuple[int | None, BlockSums | None]:
    """The checksum of a segment and those of its blocks; None where it cannot be read."""
    crc, sums = 0, BlockSums.of_nothing(key.type)
    for position in range(0, size, CHECKSUM_READ_BYTES):
        try:
            data = driver.read(key, position, min(CHECKSUM_READ_BYTES, size - position))
        except (SegmentMissing, IllegalRange, CorruptSegment):
            return None, None
        crc, sums = crc32(data, crc), sums.extended(data)
    return (crc, sums) if size else (None, None)


def with_row(manifest: QueueManifest, row: Segment) -> QueueManifest:
    """The manifest with one segment's row put, or replaced."""
    rows = {known.key: known for known in manifest.segments} | {row.key: row}
    return replace(manifest, segments=tuple(sorted(rows.values(), key=lambda known: known.key)))


def says_the_same(old: QueueManifest | None, new: QueueManifest) -> bool:
    """Whether a manifest would only be written again."""
    return old is not None and encode_manifest(old) == encode_manifest(new)


def write_manifest(
    driver: TierDriver,
    facts: QueueFacts,
    manifest: QueueManifest,
    writer: str,
    lease: WriterLease | None,
    clock: Clock,
    aside: str,
) -> str:
    """Keep a copy of the old manifest, valid or not, and write the new one. Returns the name of the copy, or ""."""
    name = manifest_name(facts.key)
    stored = driver.get_object(name)
    kept = ""
    if stored is not None:
        kept = facts.key.object_name(f"{MANIFEST_STEM}.{aside}")
        driver.put_object(kept, stored.data)
    if facts.manifest_damage is not None:
        driver.delete_object(name)
    ManifestStore(driver, writer, lease=lease, clock=clock).write(manifest)
    return kept


def write_metadata(metadata: MetadataStore, manifest: QueueManifest) -> None:
    """Write the manifest's facts to the broker's metadata, in one transaction."""
    with metadata.transaction():
        for row in manifest.segments:
            metadata.put_segment(row)
        if manifest.key.topic == INDEX_TOPIC:
            return
        queue = metadata.queue(manifest.key)
        if queue is not None:
            metadata.put_queue(replace(queue, min_offset=manifest.min_offset, max_offset=manifest.max_offset))
        metadata.add_time_entries(manifest.key, manifest.time_index)
        known = {(gap.from_offset, gap.to_offset) for gap in metadata.gaps(manifest.key)}
        for gap in manifest.gaps:
            if (gap.from_offset, gap.to_offset) not in known:
                metadata.add_gap(manifest.key, gap)
