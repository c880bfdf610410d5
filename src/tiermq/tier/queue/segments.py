"""What a tier lists: segments and small objects within a scope, with as narrow a request as the scope allows."""

from __future__ import annotations

from dataclasses import dataclass

from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.manifest import queue_of_manifest
from tiermq.tier.names import INDEX_TOPIC, OBJECT_SUFFIX, QueueKey, cluster_directory, segment_at


@dataclass(frozen=True, slots=True)
class TierScope:
    """A part of a tier; None is everything. A broker's index belongs to no topic."""

    cluster: str | None = None
    broker: str | None = None
    topic: str | None = None
    queue_id: int | None = None

    @property
    def prefix(self) -> str:
        """The longest beginning that all names within the scope have."""
        if self.cluster is None:
            return ""
        parts = [cluster_directory(self.cluster)]
        for part in (self.broker, self.topic, self.queue_id):
            if part is None:
                break
            parts.append(str(part))
        return "/".join(parts) + "/"

    def holds(self, key: QueueKey) -> bool:
        return (
            self.cluster in (None, key.cluster)
            and self.broker in (None, key.broker)
            and self.topic in (None, key.topic)
            and self.queue_id in (None, key.queue_id)
        )


@dataclass(frozen=True, slots=True)
class TierListing:
    """Segments by path, and names of small objects."""

    scope: TierScope
    segments: list[SegmentInfo]
    objects: list[str]

    @property
    def brokers(self) -> list[tuple[str, str]]:
        """(cluster, broker) of everything that was found."""
        found = {(info.key.cluster, info.key.broker) for info in self.segments}
        found |= {(key.cluster, key.broker) for key in map(_owner, self.objects) if key is not None}
        return sorted(found)


def list_tier(driver: TierDriver, scope: TierScope) -> TierListing:
    """Two listings. Objects of no queue (leases) are within a scope that names no topic."""
    segments = [info for info in driver.list_segments(scope.prefix) if scope.holds(info.key.queue)]
    names = []
    for name in driver.list_objects(scope.prefix):
        owner = _owner(name)
        if scope.holds(owner) if owner is not None else _is_in_scope(name, scope):
            names.append(name)
    return TierListing(scope, segments, names)


def _owner(name: str) -> QueueKey | None:
    """The queue to which a small object belongs: by its manifest, or by the segment that it stands beside."""
    key = queue_of_manifest(name)
    if key is not None:
        return key
    segment = segment_at(name.removesuffix(OBJECT_SUFFIX))
    return None if segment is None else segment.queue


def _is_in_scope(name: str, scope: TierScope) -> bool:
    """For an object of a broker as a whole."""
    parts = name.split("/")
    if scope.topic is not None or len(parts) < 3:
        return False
    cluster = parts[0].partition("_")[2]
    return (
        scope.holds(QueueKey(cluster, parts[1], scope.topic or INDEX_TOPIC, scope.queue_id or 0)) if cluster else False
    )
