"""What is there of a queue, and what is known of it: the ground on which every repair of a queue stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiermq.errors import FutureManifest
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, manifest_name
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, Segment, SegmentStatus
from tiermq.tier.names import QueueKey, SegmentType


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """Segments as the tier lists them now, rows as manifest and metadata have them: the newest of each segment."""

    key: QueueKey
    logs: tuple[SegmentInfo, ...]
    units: tuple[SegmentInfo, ...]
    index: tuple[SegmentInfo, ...]
    manifest: QueueManifest | None
    manifest_damage: str | None
    is_future: bool
    rows: tuple[Segment, ...]
    gaps: tuple[Gap, ...]

    def rows_of(self, kind: SegmentType) -> list[Segment]:
        """What should be there, by base."""
        live = [row for row in self.rows if row.key.type is kind and row.status is not SegmentStatus.DELETED]
        return sorted(live, key=lambda row: row.key.base)


def read_facts(driver: TierDriver, key: QueueKey, metadata: MetadataStore | None = None) -> QueueFacts:
    """Ask the tier. Raises what the driver raises."""
    infos = [info for info in driver.list_segments(key.directory + "/") if info.key.queue == key]
    name = manifest_name(key)
    stored = driver.get_object(name)
    manifest, damage, is_future = None, None, False
    if stored is not None:
        try:
            found = decode_manifest(stored.data, name)
            manifest = found if found.key == key else None
            damage = None if manifest is not None else f"it is the manifest of {found.key.directory}"
        except CorruptManifest as error:
            damage = str(error)
        except FutureManifest as error:
            damage, is_future = str(error), True
    known = list(metadata.segments(key)) + _deleted(metadata, key) if metadata is not None else []
    # The metadata is newer than any manifest, so its rows come last and win.
    rows = {row.key: row for row in (*(manifest.segments if manifest else ()), *known)}
    gaps = (*(manifest.gaps if manifest else ()), *(metadata.gaps(key) if metadata is not None else ()))
    return QueueFacts(
        key,
        _of(infos, SegmentType.COMMIT_LOG),
        _of(infos, SegmentType.CONSUME_QUEUE),
        _of(infos, SegmentType.INDEX),
        manifest,
        damage,
        is_future,
        tuple(rows.values()),
        gaps,
    )


def _deleted(metadata: MetadataStore, key: QueueKey) -> list[Segment]:
    return [row for row in metadata.segments_being_deleted() if row.key.queue == key]


def _of(infos: Sequence[SegmentInfo], kind: SegmentType) -> tuple[SegmentInfo, ...]:
    return tuple(sorted((info for info in infos if info.key.type is kind), key=lambda info: info.key.base))
