"""SegmentList: the segments of one file of a queue, as a listing or the metadata has them, in the order of the file.

    |  segment at base 0  |  segment at base 1073741775  |    hole    |  segment at base 2147483550 ... |

Invariants: sorted by base. Nothing is read here, and nothing is assumed of neighbours: a damaged tier has holes and
overlaps. A record or a unit is in one segment whole; a reader that crosses a boundary reads each side.

What a tier lists: segments and small objects within a scope, with as narrow a request as the scope allows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from tiermq.errors import CorruptSegment, IllegalRange, SegmentMissing
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.manifest import queue_of_manifest
from tiermq.tier.names import (
    INDEX_TOPIC,
    OBJECT_SUFFIX,
    QueueKey,
    SegmentKey,
    SegmentType,
    cluster_directory,
    segment_at,
)

END = (1 << 63) - 1
"""The end of a range without an end."""

UNREADABLE = (SegmentMissing, IllegalRange, CorruptSegment)
"""Errors of the driver for missing or damaged bytes, not for an unreachable tier."""


class StoredSegment(Protocol):
    """The fields that a listing (`SegmentInfo`) and a row (`Segment`) share."""

    @property
    def key(self) -> SegmentKey: ...
    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=StoredSegment)


class SegmentList(Generic[S]):
    """See the module. Immutable."""

    __slots__ = ("_bases", "segments")

    def __init__(self, segments: Iterable[S]) -> None:
        self.segments = tuple(sorted(segments, key=lambda segment: segment.key.base))
        self._bases = [segment.key.base for segment in self.segments]

    def __iter__(self) -> Iterator[S]:
        return iter(self.segments)

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def begin(self) -> int:
        """The base of the first segment; 0 without one."""
        return self._bases[0] if self._bases else 0

    @property
    def end(self) -> int:
        """The offset behind the last segment's last byte; 0 without one."""
        return end_of(self.segments[-1]) if self.segments else 0

    @property
    def is_contiguous(self) -> bool:
        return all(end_of(before) == after.key.base for before, after in pairwise(self.segments))

    def find(self, offset: int, end: int | None = None) -> S | None:
        """The segment that holds the byte at `offset`, or all of [offset, end); None without one.

        Where two overlap, the one that begins later has it.
        """
        last = offset + 1 if end is None else end
        if last <= offset:
            return None
        index = bisect_right(self._bases, offset) - 1
        while index >= 0:
            if last <= end_of(self.segments[index]):
                return self.segments[index]
            index -= 1
        return None

    def covers(self, begin: int, end: int) -> bool:
        """Whether the segment in which [begin, end) begins holds all of it."""
        index = bisect_right(self._bases, begin) - 1
        return index >= 0 and end <= end_of(self.segments[index])

    def ranges(self, begin: int = 0, end: int = END) -> list[tuple[S, int, int]]:
        """The segments that have bytes of [begin, end), each with the positions [start, stop) of them in it."""
        cut = [
            (segment, max(begin - segment.key.base, 0), min(end - segment.key.base, segment.size))
            for segment in self.segments
            if segment.key.base < end
        ]
        return [(segment, start, stop) for segment, start, stop in cut if start < stop]


def end_of(segment: StoredSegment) -> int:
    """The offset behind a segment's last byte."""
    return segment.key.base + segment.size


def of_type(infos: Iterable[SegmentInfo], segment_type: SegmentType) -> tuple[SegmentInfo, ...]:
    """The segments of one file out of a listing of a queue, by base. A listing is sorted by path, which has a hash."""
    return tuple(sorted((i for i in infos if i.key.type is segment_type), key=lambda i: i.key.base))


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

    def by_queue(self) -> dict[QueueKey, list[SegmentInfo]]:
        """The segments of each queue that has some."""
        found: dict[QueueKey, list[SegmentInfo]] = {}
        for info in self.segments:
            found.setdefault(info.key.queue, []).append(info)
        return found

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


def list_brokers(driver: TierDriver, cluster: str | None = None) -> list[tuple[str, str]]:
    """(cluster, broker) of everything that has small objects, such as manifests. One listing."""
    found = set()
    for name in driver.list_objects(TierScope(cluster).prefix):
        directory, _, rest = name.partition("/")
        broker, slash, _ = rest.partition("/")
        if slash:
            found.add((directory, broker))
    homes = [(directory.partition("_")[2], directory, broker) for directory, broker in found]
    return sorted((name, broker) for name, directory, broker in homes if name and cluster_directory(name) == directory)


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
