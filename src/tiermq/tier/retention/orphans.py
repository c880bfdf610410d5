"""Orphans: bytes in the tier without metadata, and rows whose bytes are missing.

    listing ──┬─► in the tier, in no manifest, not in the metadata, older than the grace time   orphan
    manifests ┤
    metadata ─┘─► in the metadata or a manifest, with bytes, and not in the listing              missing

The tier is listed before the metadata is read, and a writer announces a segment in the metadata before its first byte:
so what a living writer has just begun is never an orphan, with the metadata at hand. Without it (from the bucket alone)
only what the queue's own manifest rules out is one: a segment before or between those that the manifest names.
Nothing is deleted unless `clean` is called with what was found, and then each is checked once more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from tiermq.clock import Clock, SystemClock
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.manifest import QueueManifest, queue_of_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.names import INDEX_TOPIC, OBJECT_SUFFIX, QueueKey, SegmentKey, segment_at
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.restore.restore import read_manifests

GRACE_MS = 24 * 3_600_000
"""The least age of an orphan: by then its writer has recorded it."""


class OrphanKind(enum.Enum):
    """Kinds of orphans. The value is the reason."""

    SEGMENT = "a segment that neither a manifest nor the metadata knows"
    DELETED = "a segment whose deletion was begun and not finished"
    COMPANION = "the facts about an index file that is not there"
    MANIFEST = "a manifest of a queue without segments, which the metadata does not know"


@dataclass(frozen=True, slots=True)
class Orphan:
    """One thing in the tier that may go."""

    kind: OrphanKind
    path: str
    size: int = 0
    modified_ms: int = 0


@dataclass(frozen=True, slots=True)
class Missing:
    """A recorded segment that is missing in the tier, or too short."""

    path: str
    expected_bytes: int
    found_bytes: int
    known_to: str


@dataclass(slots=True)
class OrphanReport:
    """What was found."""

    orphans: list[Orphan] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Manifests that cannot be read: of their queues nothing is called an orphan."""

    @property
    def is_clean(self) -> bool:
        return not self.orphans and not self.missing

    @property
    def size_bytes(self) -> int:
        return sum(orphan.size for orphan in self.orphans)


def find_orphans(
    driver: TierDriver,
    metadata: MetadataStore | None = None,
    scope: TierScope | None = None,
    *,
    grace_ms: int = GRACE_MS,
    clock: Clock | None = None,
) -> OrphanReport:
    """Compare what the tier lists with what manifests and, if given, one broker's metadata know of it.

    The scope must be that broker's when there is metadata. Raises what the driver raises.
    """
    listing = list_tier(driver, scope or TierScope())
    read = read_manifests(driver, listing.objects)
    manifests, report = read.manifests, OrphanReport(unread=read.unread)
    unread = {key for key in map(queue_of_manifest, report.unread) if key is not None}
    before_ms = (clock or SystemClock()).now_ms() - grace_ms
    known = _Known(manifests, metadata, unread)
    for info in listing.segments:
        kind = known.orphan_kind(info)
        if kind is not None and info.modified_ms <= before_ms:
            report.orphans.append(Orphan(kind, info.key.path, info.size, info.modified_ms))
    listed = {info.key: info.size for info in listing.segments}
    report.orphans += _small_orphans(listing.objects, listed, manifests, metadata, before_ms)
    report.missing += known.missing(listed, listing.scope)
    return report


def clean(driver: TierDriver, orphans: Iterable[Orphan], metadata: MetadataStore | None = None) -> list[str]:
    """Delete orphans that were found; returns the deleted paths. One that is recorded by now is kept.

    Raises what the driver raises; another call with the same orphans continues.
    """
    gone = []
    for orphan in orphans:
        key = segment_at(orphan.path)
        if key is None:
            driver.delete_object(orphan.path)
        else:
            row = metadata.segment(key) if metadata is not None else None
            if row is not None and row.status is not SegmentStatus.DELETED:
                continue
            driver.delete(key)
            if row is not None and metadata is not None:
                metadata.delete_segment(key)
        gone.append(orphan.path)
    return gone


class _Known:
    """Segments in manifests and metadata."""

    def __init__(
        self, manifests: dict[QueueKey, QueueManifest], metadata: MetadataStore | None, unread: set[QueueKey]
    ) -> None:
        self._manifests, self._metadata, self._unread = manifests, metadata, unread
        self._rows: dict[SegmentKey, list[tuple[str, Segment]]] = {}
        for manifest in manifests.values():
            for row in manifest.segments:
                self._rows.setdefault(row.key, []).append(("manifest", row))
        if metadata is not None:
            for row in [*metadata.all_segments(), *metadata.segments_being_deleted()]:
                self._rows.setdefault(row.key, []).append(("metadata", row))

    def orphan_kind(self, info: SegmentInfo) -> OrphanKind | None:
        rows = [row for _, row in self._rows.get(info.key, ())]
        if any(row.status is not SegmentStatus.DELETED for row in rows):
            return None
        if rows:
            return OrphanKind.DELETED
        if info.key.queue in self._unread:
            return None
        return OrphanKind.SEGMENT if self._metadata is not None or self._is_ruled_out(info) else None

    def _is_ruled_out(self, info: SegmentInfo) -> bool:
        """Whether the manifest names a later segment of that file, and not this one."""
        manifest = self._manifests.get(info.key.queue)
        rows = [row for row in (manifest.segments if manifest else ()) if row.key.type is info.key.type]
        return any(row.key.base >= info.key.base + info.size for row in rows)

    def missing(self, listed: dict[SegmentKey, int], scope: TierScope) -> list[Missing]:
        found = []
        for key, rows in sorted(self._rows.items()):
            live = [(source, row) for source, row in rows if row.status is not SegmentStatus.DELETED]
            if self._metadata is not None:  # It is newer than any manifest.
                live = [(source, row) for source, row in live if source == "metadata"]
            for source, row in live:
                size = listed.get(key, 0)
                if size < row.size and scope.holds(key.queue):
                    found.append(Missing(key.path, row.size, size, source))
        return found


def _small_orphans(
    names: Iterable[str],
    listed: dict[SegmentKey, int],
    manifests: dict[QueueKey, QueueManifest],
    metadata: MetadataStore | None,
    before_ms: int,
) -> list[Orphan]:
    queues = {key.queue for key in listed}
    found = []
    for name in names:
        segment = segment_at(name.removesuffix(OBJECT_SUFFIX))
        manifest = manifests.get(key) if (key := queue_of_manifest(name)) is not None else None
        if segment is not None and segment not in listed:
            # A companion is written before its file: one whose file is announced or may still come is no orphan.
            row = metadata.segment(segment) if metadata is not None else None
            last = max((other.base for other in listed if other.queue == segment.queue), default=-1)
            if row is None and segment.base < last:
                found.append(Orphan(OrphanKind.COMPANION, name))
        elif manifest is not None and key is not None and metadata is not None and key not in queues:
            unknown = metadata.queue(key) is None and key.topic != INDEX_TOPIC
            if unknown and manifest.written_ms <= before_ms:
                found.append(Orphan(OrphanKind.MANIFEST, name, modified_ms=manifest.written_ms))
    return found
