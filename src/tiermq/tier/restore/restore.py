"""Rebuild a broker's metadata from the tier alone: from what is listed, from manifests, and from the records.

    list segments and objects ──► read manifests ──► discover each queue (in parallel) ──► topic ids ──► one transaction

Either all of it is written to the store or nothing. The tier is only read, so a restore may run beside a broker that
writes; it then shows the tier at about the time of the listing. Irregularities are in the report.

`Discovery`, also used by `TierView`: segments by queue, and the manifests. They are read once, in parallel; a damaged
one is a remark, and its queue is discovered without it. `orphans` and repairs read manifests with `read_manifests`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from tiermq.clock import Clock, SystemClock
from tiermq.errors import FutureManifest, TierError
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.broker_lease import decode_lease, lease_name
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, manifest_name, queue_of_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus, Topic
from tiermq.tier.names import INDEX_TOPIC, QueueKey, broker_of_state
from tiermq.tier.queue.segments import TierListing, TierScope, list_tier
from tiermq.tier.restore.queue_discovery import DiscoveredQueue, discover_index, discover_queue, topic_ids_in_index
from tiermq.tier.restore.restore_report import Finding, Remark, RestoreProgress, RestoreReport

DEFAULT_THREADS = 8


@dataclass(slots=True)
class ManifestsRead:
    """The manifests of queues, those of a newer TierMQ by queue, and a remark about each that is no good."""

    manifests: dict[QueueKey, QueueManifest] = field(default_factory=dict)
    newer: set[QueueKey] = field(default_factory=set)
    remarks: list[Remark] = field(default_factory=list)

    @property
    def unread(self) -> list[str]:
        """The names of those that cannot be read, or are of another queue."""
        return [remark.where for remark in self.remarks]


def read_manifests(driver: TierDriver, names: Iterable[str], threads: int = DEFAULT_THREADS) -> ManifestsRead:
    """Read the manifests among some names of objects. Raises what the driver raises; damage is in the remarks."""
    keys = {name: key for name in names if (key := queue_of_manifest(name)) is not None}
    found = ManifestsRead()
    if threads <= 1 or len(keys) <= 1:
        objects = {name: driver.get_object(name) for name in keys}
    else:
        with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="tier-manifests") as pool:
            objects = dict(zip(keys, pool.map(driver.get_object, keys), strict=True))
    for name, stored in objects.items():
        if stored is None:
            continue  # Deleted since it was listed.
        try:
            manifest = decode_manifest(stored.data, name)
        except FutureManifest as error:
            found.newer.add(keys[name])
            found.remarks.append(Remark(Finding.FUTURE_MANIFEST, name, str(error).removeprefix(f"{name}: ")))
        except CorruptManifest as error:
            found.remarks.append(Remark(Finding.CORRUPT_MANIFEST, name, str(error).removeprefix(f"{name}: ")))
        else:
            if manifest.key == keys[name]:
                found.manifests[manifest.key] = manifest
            else:
                text = f"it is of {manifest_name(manifest.key)}"
                found.remarks.append(Remark(Finding.MISPLACED_MANIFEST, name, text))
    return found


@dataclass(slots=True)
class Discovery:
    """What there is of the queues within a listing, before any of their bytes are read."""

    infos: dict[QueueKey, list[SegmentInfo]]
    read: ManifestsRead

    @classmethod
    def of(cls, driver: TierDriver, listing: TierListing, threads: int = DEFAULT_THREADS) -> Discovery:
        return cls(listing.by_queue(), read_manifests(driver, listing.objects, threads))

    def queues(self, left_out: Iterable[QueueKey] = ()) -> list[QueueKey]:
        """All queues that have segments or a manifest, in order; without indexes."""
        known = (self.infos.keys() | self.read.manifests.keys()) - set(left_out)
        return sorted(key for key in known if key.topic != INDEX_TOPIC)

    def discover(
        self,
        driver: TierDriver,
        queues: Sequence[QueueKey],
        now_ms: int,
        threads: int = DEFAULT_THREADS,
        progress: Callable[[int, int, QueueKey], None] = lambda _done, _total, _key: None,
    ) -> list[DiscoveredQueue]:
        """Discover these queues, in parallel: most of it is waiting. Raises what the driver raises."""
        found: dict[QueueKey, DiscoveredQueue] = {}
        with ThreadPoolExecutor(max_workers=max(threads, 1), thread_name_prefix="tier-discovery") as pool:
            jobs = {
                pool.submit(
                    discover_queue, driver, key, self.infos.get(key, ()), self.read.manifests.get(key), now_ms
                ): key
                for key in queues
            }
            try:
                for done, job in enumerate(as_completed(jobs), start=1):
                    found[jobs[job]] = job.result()
                    progress(done, len(jobs), jobs[job])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [found[key] for key in queues]


# The topics of a tier and their ids, as manifests and index entries remember them.
#
# A topic's id is in every manifest of its queues; when they disagree, the one written last is right (a topic was
# deleted and created again). A topic that no manifest knows gets a new id, above every id that any manifest or index
# entry carries, so that an old entry is never taken for one of another topic.


@dataclass(frozen=True, slots=True)
class DiscoveredTopics:
    """The topics, and the last id that must not be assigned again."""

    topics: list[Topic]
    serial_number: int


def discover_topics(
    driver: TierDriver,
    names: Collection[str],
    manifests: Collection[QueueManifest],
    index_segments: Sequence[Segment],
    now_ms: int,
) -> tuple[DiscoveredTopics, list[Remark]]:
    """Every name gets its topic. Index entries are read only when some topic's id is not known."""
    remarks: list[Remark] = []
    remembered = _remembered(manifests, remarks)
    known = {name: topic for name, topic in remembered.items() if name in names}
    serial_number = max((max(known.topic_id, known.topic_serial_number) for known in manifests), default=-1)
    unknown = sorted(set(names) - known.keys())
    if unknown:
        counts = topic_ids_in_index(driver, index_segments)
        ids = {topic.id for topic in known.values()}
        remarks += [
            Remark(Finding.UNKNOWN_TOPIC_IN_INDEX, f"topic id {topic_id}", f"{count} entries")
            for topic_id, count in sorted(counts.items())
            if topic_id not in ids
        ]
        serial_number = max([serial_number, *counts])
    topics = list(known.values())
    for name in unknown:
        serial_number += 1
        topics.append(Topic(serial_number, name, updated_ms=now_ms))
        remarks.append(Remark(Finding.TOPIC_ID_ASSIGNED, f"topic {name}", f"id {serial_number}"))
    return DiscoveredTopics(sorted(topics, key=lambda topic: topic.id), serial_number), remarks


def _remembered(manifests: Iterable[QueueManifest], remarks: list[Remark]) -> dict[str, Topic]:
    """The topics that manifests know, by name; an id belongs to the topic that was written last."""
    by_topic: defaultdict[str, list[QueueManifest]] = defaultdict(list)
    for manifest in manifests:
        if manifest.topic_id >= 0 and manifest.key.topic != INDEX_TOPIC:
            by_topic[manifest.key.topic].append(manifest)
    latest = {name: max(group, key=lambda manifest: manifest.written_ms) for name, group in by_topic.items()}
    for name, group in sorted(by_topic.items()):
        others = sorted({manifest.topic_id for manifest in group} - {latest[name].topic_id})
        if others:
            text = f"id {latest[name].topic_id} was written last, other manifests have {others}"
            remarks.append(Remark(Finding.TOPIC_ID_CONFLICT, f"topic {name}", text))
    holders: dict[int, QueueManifest] = {}
    for name in sorted(latest, key=lambda name: (-latest[name].written_ms, name)):
        holder = holders.setdefault(latest[name].topic_id, latest[name])
        if holder is not latest[name]:
            text = f"id {holder.topic_id} belongs to topic {holder.key.topic}, which was written later"
            remarks.append(Remark(Finding.TOPIC_ID_CONFLICT, f"topic {name}", text))
    return {manifest.key.topic: _topic(manifest) for manifest in holders.values()}


def _topic(manifest: QueueManifest) -> Topic:
    return Topic(
        manifest.topic_id,
        manifest.key.topic,
        manifest.topic_status,
        manifest.reserve_time_hours,
        manifest.max_bytes,
        manifest.written_ms,
    )


Progress = Callable[[RestoreProgress], None]


def restore(
    driver: TierDriver,
    store: MetadataStore,
    progress: Progress | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    topics: Collection[str] = (),
    threads: int = DEFAULT_THREADS,
    clock: Clock | None = None,
) -> RestoreReport:
    """Fill an empty store with one broker's topics, queues and segments, as the tier has them; `topics`: only these.

    Cluster and broker may be left out when the tier has only one. Raises TierError when the store is not empty or the
    broker is not certain, and what the driver raises when the tier cannot be read; the store is then unchanged. The
    report names no broker where the tier has nothing of it. Its own tables are restored by `restore_state`.
    """
    if not store.is_empty():
        raise TierError(
            f"{store.path}: expected empty metadata to restore into, found some: name one that does not exist yet"
        )
    now_ms = (clock or SystemClock()).now_ms()
    listing = list_tier(driver, TierScope(cluster, broker))
    with_tables = {home for name in listing.objects if (home := broker_of_state(name)) is not None}
    home = _one_broker(driver.url, sorted({*listing.brokers, *with_tables}))
    if home is None:
        return RestoreReport("", "")
    found = Discovery.of(driver, listing, threads)
    queues = [key for key in found.queues(left_out=found.read.newer) if not topics or key.topic in topics]
    remarks = [each for each in _manifest_remarks(found, queues) if not topics or _is_of(each, topics)]

    def report_progress(done: int, total: int, key: QueueKey) -> None:
        if progress is not None:
            progress(RestoreProgress(done, total, key.logical_path))

    discoveries = found.discover(driver, queues, now_ms, threads, report_progress)
    return _write(driver, store, home, found, discoveries, remarks, now_ms)


def _one_broker(url: str, homes: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    if len(homes) > 1:
        listed = ", ".join(f"{broker} of {cluster}" for cluster, broker in homes)
        raise TierError(f"{url}: expected one broker, found {len(homes)} ({listed}); name the one to restore")
    return homes[0] if homes else None


def _is_of(remark: Remark, topics: Collection[str]) -> bool:
    key = queue_of_manifest(remark.where)
    return key is None or key.topic in topics


def _manifest_remarks(found: Discovery, queues: Sequence[QueueKey]) -> list[Remark]:
    """What is wrong with manifests; a queue whose manifest a newer TierMQ wrote is left out."""
    newer = {manifest_name(key): len(found.infos.get(key, ())) for key in found.read.newer}
    remarks = [
        replace(remark, text=f"{remark.text}. {newer[remark.where]} segments were left out.")
        if remark.where in newer
        else remark
        for remark in found.read.remarks
    ]
    noted = {remark.where for remark in remarks}
    missing = [manifest_name(key) for key in queues if key not in found.read.manifests]
    return remarks + [Remark(Finding.MISSING_MANIFEST, name) for name in missing if name not in noted]


def _write(
    driver: TierDriver,
    store: MetadataStore,
    home: tuple[str, str],
    found: Discovery,
    discoveries: Sequence[DiscoveredQueue],
    remarks: list[Remark],
    now_ms: int,
) -> RestoreReport:
    report = RestoreReport(*home, queue_count=len(discoveries), remarks=remarks)
    segments = [segment for discovered in discoveries for segment in discovered.segments]
    index_segments: list[Segment] = []
    for key, infos in sorted(found.infos.items()):
        if key.topic == INDEX_TOPIC and key not in found.read.newer:
            index_rows, index_remarks = discover_index(driver, infos, found.read.manifests.get(key))
            index_segments += index_rows
            report.remarks += index_remarks
    names = {discovered.queue.key.topic for discovered in discoveries}
    topics, topic_remarks = discover_topics(driver, names, found.read.manifests.values(), index_segments, now_ms)
    report.remarks += topic_remarks
    with store.transaction():
        store.record_names(*home)
        for topic in topics.topics:
            store.put_topic(topic)
        store.raise_topic_serial_number(topics.serial_number)
        for discovered in discoveries:
            report.remarks += discovered.remarks
            store.put_queue(discovered.queue)
            store.add_time_entries(discovered.queue.key, discovered.time_entries)
            for gap in discovered.gaps:
                store.add_gap(discovered.queue.key, gap)
        for segment in segments + index_segments:
            store.put_segment(segment)
    live = [segment for segment in segments + index_segments if segment.status is not SegmentStatus.DELETED]
    report.topic_count = len(topics.topics)
    report.segment_count, report.size_bytes = len(live), sum(segment.size for segment in live)
    report.message_count = sum(discovered.queue.max_offset - discovered.queue.min_offset for discovered in discoveries)
    report.epoch_max = _epoch_max(driver, home, found.read.manifests.values(), report)
    return report


def _epoch_max(
    driver: TierDriver, home: tuple[str, str], manifests: Iterable[QueueManifest], report: RestoreReport
) -> int:
    epochs = [manifest.epoch for manifest in manifests]
    name = lease_name(*home)
    stored = driver.get_object(name)
    if stored is not None:
        try:
            epochs.append(decode_lease(stored.data, name).epoch)
        except CorruptManifest as error:
            report.remarks.append(Remark(Finding.CORRUPT_MANIFEST, name, str(error).removeprefix(f"{name}: ")))
        except FutureManifest as error:
            report.remarks.append(Remark(Finding.FUTURE_MANIFEST, name, str(error).removeprefix(f"{name}: ")))
    return max(epochs, default=0)
