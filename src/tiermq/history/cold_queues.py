"""ColdQueues: the cold half of a catalogue: what the tier holds of each queue, refreshed with one listing.

    listing ─► queues whose segments changed ─► manifest ─► units behind the manifest (or behind the last refresh)

A queue whose listing shows the same segments, sizes and seals as before is not read again: every message, gap and
expiry changes one of them. Of a queue that changed, the manifest is read, and only those units that neither it nor the
last refresh covers. So an idle refresh is one listing, however many queues there are.

A tier without manifests (RocketMQ's) is read the same way; its first refresh reads all units once.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TypeVar

from tiermq.clock import Clock
from tiermq.errors import BadHistory, FutureManifest, TierError
from tiermq.tier.driver.contract import ForwardingDriver, SegmentInfo, StoredObject, TierDriver
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, manifest_name, queue_of_manifest
from tiermq.tier.metadata.metadata_values import Gap, Segment, SegmentStatus, TimeEntry, TopicStatus
from tiermq.tier.names import INDEX_TOPIC, QueueKey, SegmentKey, SegmentType, broker_directory
from tiermq.tier.restore.queue_discovery import DiscoveredQueue, discover_queue
from tiermq.tier.restore.restore_report import Finding, Remark

CHANGES = frozenset({"write", "rewrite", "trim", "seal", "delete", "replace", "put_object", "delete_object"})

Result = TypeVar("Result")


class CountedTier(ForwardingDriver):
    """A read-only driver that counts calls and bytes. Any thread may call; `requests` and `bytes_read` only grow.

    `requests` are calls of the driver: an object store may need several requests for a long range, or for a segment
    that still consists of parts.
    """

    def __init__(self, inner: TierDriver) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self.requests = 0
        self.bytes_read = 0

    def forward(self, operation: str, key: SegmentKey | None, call: Callable[[], Result]) -> Result:
        if operation in CHANGES:
            raise TierError(
                f"{self.url}: expected only reads of a history, found an attempt to {operation} {key or ''}; "
                "use the tier's driver"
            )
        found = call()
        data = found.data if isinstance(found, StoredObject) else found
        with self._lock:
            self.requests += 1
            self.bytes_read += len(data) if isinstance(data, bytes | memoryview) else 0
        return found


PREFIXES_MAX = 8
"""The maximum number of narrow listings instead of a full one."""

ROUNDS_NARROW = 32
"""Every Nth refresh lists the whole tier to discover new brokers."""

Fingerprint = tuple[tuple[int, int, int, bool], ...]


@dataclass(frozen=True, slots=True)
class ColdQueue:
    """One queue in the tier: messages [min_offset, max_offset) less the gaps. Segments ascend."""

    key: QueueKey
    min_offset: int
    max_offset: int
    logs: tuple[Segment, ...] = ()
    units: tuple[Segment, ...] = ()
    time_entries: tuple[TimeEntry, ...] = ()
    gaps: tuple[Gap, ...] = ()
    topic_id: int = -1
    is_deleted: bool = False
    remarks: tuple[Remark, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.max_offset <= max(0, self.min_offset)


class ColdQueues:
    """What one tier holds. Changed by `refresh` only, which one thread calls."""

    def __init__(
        self,
        tier: CountedTier,
        wanted: Callable[[QueueKey], bool],
        clock: Clock,
        pool: Executor,
        topics: frozenset[str] = frozenset(),
    ) -> None:
        """`topics`, if any, are all that `wanted` can want: then a refresh does not list other topics."""
        self._tier = tier
        self._wanted = wanted
        self._clock = clock
        self._pool = pool
        self._topics = topics
        self._rounds = 0
        self._manifest_names: set[str] | None = None  # What the first listing of objects found.
        self._seen: dict[QueueKey, Fingerprint] = {}
        self.queues: dict[QueueKey, ColdQueue] = {}
        self.index_infos: dict[tuple[str, str], list[SegmentInfo]] = {}
        self.brokers: list[tuple[str, str]] = []
        self.segment_count = 0
        self.stored_bytes = 0

    def refresh(self) -> bool:
        """Refresh; True when anything changed. Raises what the driver raises, and FutureManifest."""
        infos: defaultdict[QueueKey, list[SegmentInfo]] = defaultdict(list)
        prefixes = self._narrow_prefixes()
        self._rounds += 1
        if prefixes:
            for prefix in prefixes:
                for info in self._tier.list_segments(prefix):
                    if self._wanted(info.key.queue):
                        infos[info.key.queue].append(info)
        else:
            self._list_everything(infos)
        changed = {queue: found for queue, found in infos.items() if self._seen.get(queue) != _fingerprint(found)}
        gone = self.queues.keys() - infos.keys() - {key for key, queue in self.queues.items() if queue.is_empty}
        for queue in gone:
            # Its topic was deleted, or everything of it expired; the manifest, if one is left, shows which.
            changed[queue] = []
        looked = self._pool.map(lambda each: self._look(*each), changed.items())
        for (queue, found), discovered in zip(changed.items(), list(looked), strict=True):
            self._seen[queue] = _fingerprint(found)
            if discovered is None:
                self.queues.pop(queue, None)
            else:
                self.queues[queue] = discovered
        return bool(changed)

    @property
    def has_objects(self) -> bool:
        """Whether the first listing found any object at all, such as a broker's lease."""
        return bool(self._manifest_names)

    def _narrow_prefixes(self) -> list[str]:
        """The prefixes of the wanted topics, if they are few and the brokers are known; empty: list everything.

        A new broker is found by the next full listing.
        """
        if self._rounds % ROUNDS_NARROW == 0 or not 0 < len(self._topics) * len(self.brokers) <= PREFIXES_MAX:
            return []
        return [f"{broker_directory(*broker)}/{topic}/" for broker in self.brokers for topic in sorted(self._topics)]

    def _list_everything(self, infos: defaultdict[QueueKey, list[SegmentInfo]]) -> None:
        brokers: set[tuple[str, str]] = set()
        index: defaultdict[tuple[str, str], list[SegmentInfo]] = defaultdict(list)
        self.segment_count = self.stored_bytes = 0
        for info in self._tier.list_segments():
            queue = info.key.queue
            brokers.add((queue.cluster, queue.broker))
            self.segment_count += 1
            self.stored_bytes += info.size
            if queue.topic == INDEX_TOPIC:
                index[queue.cluster, queue.broker].append(info)
            elif self._wanted(queue):
                infos[queue].append(info)
        if self._manifest_names is None:
            self._note_manifests(infos, brokers)
        self.brokers = sorted(brokers | set(self.brokers))
        self.index_infos = dict(index)

    def _note_manifests(self, infos: defaultdict[QueueKey, list[SegmentInfo]], brokers: set[tuple[str, str]]) -> None:
        """List the manifests once, also those of queues without segments."""
        self._manifest_names = set(self._tier.list_objects())
        for name in self._manifest_names:
            queue = queue_of_manifest(name)
            if queue is None:
                continue
            brokers.add((queue.cluster, queue.broker))
            if queue.topic != INDEX_TOPIC and self._wanted(queue):
                infos[queue] += []

    def _look(self, queue: QueueKey, infos: Sequence[SegmentInfo]) -> ColdQueue | None:
        before = self.queues.get(queue)
        # Only the first refresh lists the names of all manifests; later ones read each.
        may_have_manifest = self._rounds > 1 or manifest_name(queue) in (self._manifest_names or ())
        found, remarks = read_manifest(self._tier, queue) if may_have_manifest else (None, [])
        if found is None and not infos:
            return None
        return look_at_queue(self._tier, queue, infos, found, self._clock.now_ms(), before, remarks)


def look_at_queue(
    tier: CountedTier,
    queue: QueueKey,
    infos: Sequence[SegmentInfo],
    manifest: QueueManifest | None,
    now_ms: int,
    before: ColdQueue | None = None,
    remarks: Iterable[Remark] = (),
) -> ColdQueue:
    """One queue by its listing, manifest and units; `before` saves reading what was known."""
    base = manifest
    if before is not None and _goes_on(before, infos, manifest):
        base = _as_manifest(before, manifest)
    discovered = discover_queue(tier, queue, infos, base, now_ms)
    return _cold_queue(discovered, manifest, remarks)


def find_cold_queue(tier: CountedTier, queue: QueueKey, now_ms: int) -> ColdQueue | None:
    """One queue, looked up now: for a task whose plan is out of date. None when the tier has nothing of it."""
    infos = [info for info in tier.list_segments(queue.directory + "/") if info.key.queue == queue]
    manifest, remarks = read_manifest(tier, queue)
    if manifest is None and not infos:
        return None
    return look_at_queue(tier, queue, infos, manifest, now_ms, None, remarks)


def read_manifest(tier: CountedTier, queue: QueueKey) -> tuple[QueueManifest | None, list[Remark]]:
    """The queue's manifest; None with a remark for a damaged one. Raises FutureManifest for a newer version."""
    name = manifest_name(queue)
    stored = tier.get_object(name)
    if stored is None:
        return None, []
    try:
        manifest = decode_manifest(stored.data, name)
    except FutureManifest as error:
        raise FutureManifest(f"{tier.url}: {error}") from error
    except CorruptManifest as error:
        return None, [Remark(Finding.CORRUPT_MANIFEST, name, str(error))]
    if manifest.key != queue:
        return None, [Remark(Finding.MISPLACED_MANIFEST, name, f"it is of {manifest_name(manifest.key)}")]
    return manifest, []


def _fingerprint(infos: Iterable[SegmentInfo]) -> Fingerprint:
    return tuple(sorted((int(info.key.type), info.key.base, info.size, info.sealed) for info in infos))


def _goes_on(before: ColdQueue, infos: Sequence[SegmentInfo], manifest: QueueManifest | None) -> bool:
    """Whether the queue only grew since `before`, and `before` covers more than its manifest."""
    if manifest is not None and (
        manifest.topic_id != before.topic_id
        or manifest.max_offset >= before.max_offset
        or manifest.min_offset > before.min_offset
    ):
        return False
    sizes = {(info.key.type, info.key.base): info.size for info in infos}
    for segments in (before.logs, before.units):
        for segment in segments:
            if sizes.pop((segment.key.type, segment.key.base), -1) < segment.size:
                return False
    ends = {
        SegmentType.COMMIT_LOG: max((segment.end for segment in before.logs), default=0),
        SegmentType.CONSUME_QUEUE: max((segment.end for segment in before.units), default=0),
    }
    return all(base >= ends.get(kind, 0) for kind, base in sizes)


def _as_manifest(before: ColdQueue, manifest: QueueManifest | None) -> QueueManifest:
    known = manifest if manifest is not None else QueueManifest(before.key, topic_id=before.topic_id)
    return replace(
        known,
        min_offset=before.min_offset,
        max_offset=before.max_offset,
        segments=before.logs + before.units,
        time_index=before.time_entries,
        gaps=before.gaps,
    )


def _cold_queue(discovered: DiscoveredQueue, manifest: QueueManifest | None, remarks: Iterable[Remark]) -> ColdQueue:
    live = [segment for segment in discovered.segments if segment.status is not SegmentStatus.DELETED and segment.size]

    def of(kind: SegmentType) -> tuple[Segment, ...]:
        return tuple(sorted((s for s in live if s.key.type is kind), key=lambda segment: segment.key.base))

    return ColdQueue(
        discovered.queue.key,
        discovered.queue.min_offset,
        discovered.queue.max_offset,
        of(SegmentType.COMMIT_LOG),
        of(SegmentType.CONSUME_QUEUE),
        tuple(discovered.time_entries),
        tuple(discovered.gaps),
        manifest.topic_id if manifest is not None else -1,
        manifest is not None and manifest.topic_status == TopicStatus.DELETING,
        (*remarks, *discovered.remarks),
    )


def require_one_broker(brokers: Sequence[tuple[str, str]], url: str, store: str) -> tuple[str, str]:
    """The only broker of a tier, which then owns the store. Raises BadHistory when there are several."""
    if len(brokers) == 1:
        return brokers[0]
    names = ", ".join(f"{broker} of {cluster}" for cluster, broker in brokers)
    raise BadHistory(
        f"{store}: expected the broker of this store, found {len(brokers)} brokers in {url} ({names}); "
        "give cluster and broker of the store"
    )
