"""Rebuild a broker's metadata from the tier alone: from what is listed, from manifests, and from the records.

    list segments and objects ──► read manifests ──► survey each queue (in parallel) ──► topic ids ──► one transaction

Either all of it is written to the store or nothing. The tier is only read, so a restore may run beside a broker that
writes; it then shows the tier at about the time of the listing. Whatever is odd is in the report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from tiermq.clock import Clock, SystemClock
from tiermq.errors import FutureManifest, TierError
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.metadata.broker_lease import decode_lease, lease_name
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.index_survey import survey_index
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, manifest_name, queue_of_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Segment, SegmentStatus
from tiermq.tier.metadata.queue_survey import QueueSurvey, survey_queue
from tiermq.tier.metadata.restore_report import Finding, Remark, RestoreProgress, RestoreReport
from tiermq.tier.metadata.topic_survey import survey_topics
from tiermq.tier.names import INDEX_TOPIC, QueueKey, broker_directory, cluster_directory

Progress = Callable[[RestoreProgress], None]
DEFAULT_THREADS = 8


@dataclass(slots=True)
class _Broker:
    """What the tier has of one broker."""

    infos: dict[QueueKey, list[SegmentInfo]] = field(default_factory=lambda: defaultdict(list))
    manifests: dict[QueueKey, QueueManifest] = field(default_factory=dict)
    left_out: set[QueueKey] = field(default_factory=set)
    remarks: list[Remark] = field(default_factory=list)

    def queues(self) -> list[QueueKey]:
        """All queues to look at, in order; without the index."""
        known = (self.infos.keys() | self.manifests.keys()) - self.left_out
        return sorted(key for key in known if key.topic != INDEX_TOPIC)


def restore(
    driver: TierDriver,
    store: MetadataStore,
    progress: Progress | None = None,
    *,
    cluster: str | None = None,
    broker: str | None = None,
    threads: int = DEFAULT_THREADS,
    clock: Clock | None = None,
) -> RestoreReport:
    """Fill an empty store with one broker's topics, queues and segments, as the tier has them.

    Cluster and broker may be left out when the tier has only one. Raises TierError when the store is not empty or the
    broker is not certain, and what the driver raises when the tier cannot be read; the store is then unchanged.
    """
    if not store.is_empty():
        raise TierError(f"{store.path}: expected empty metadata to restore into, found some; give a new file")
    now_ms = (clock or SystemClock()).now_ms()
    prefix = "" if cluster is None else cluster_directory(cluster) + "/"
    prefix = prefix if cluster is None or broker is None else broker_directory(cluster, broker) + "/"
    infos = list(driver.list_segments(prefix))
    names = driver.list_objects(prefix)
    home = _one_broker(driver.url, infos, names, cluster, broker)
    if home is None:
        return RestoreReport(cluster or "", broker or "")
    found = _Broker()
    for info in infos:
        if (info.key.cluster, info.key.broker) == home:
            found.infos[info.key.queue].append(info)
    _read_manifests(driver, names, home, found, threads)
    surveys = _survey_all(driver, found, now_ms, threads, progress)
    return _write(driver, store, home, found, surveys, now_ms)


def _one_broker(
    url: str, infos: Sequence[SegmentInfo], names: Sequence[str], cluster: str | None, broker: str | None
) -> tuple[str, str] | None:
    homes = {(info.key.cluster, info.key.broker) for info in infos}
    homes |= {(key.cluster, key.broker) for key in map(queue_of_manifest, names) if key is not None}
    homes = {home for home in homes if cluster in (None, home[0]) and broker in (None, home[1])}
    if len(homes) > 1:
        listed = ", ".join(f"{broker} of {cluster}" for cluster, broker in sorted(homes))
        raise TierError(f"{url}: expected one broker, found {len(homes)} ({listed}); say which one to restore")
    return next(iter(homes), None)


def _read_manifests(
    driver: TierDriver, names: Iterable[str], home: tuple[str, str], found: _Broker, threads: int
) -> None:
    keys = {name: key for name in names if (key := queue_of_manifest(name)) is not None}
    keys = {name: key for name, key in keys.items() if (key.cluster, key.broker) == home}
    with ThreadPoolExecutor(max_workers=max(threads, 1), thread_name_prefix="tier-restore") as pool:
        objects = dict(zip(keys, pool.map(driver.get_object, keys), strict=True))
    for name, stored in objects.items():
        if stored is None:
            continue  # Deleted since it was listed.
        key = keys[name]
        try:
            manifest = decode_manifest(stored.data, name)
        except FutureManifest as error:
            found.left_out.add(key)
            text = f"{error}. {len(found.infos.get(key, ()))} segments were left out."
            found.remarks.append(Remark(Finding.FUTURE_MANIFEST, name, text))
        except CorruptManifest as error:
            found.remarks.append(Remark(Finding.CORRUPT_MANIFEST, name, str(error)))
        else:
            if manifest.key == key:
                found.manifests[key] = manifest
            else:
                text = f"it is of {manifest_name(manifest.key)}"
                found.remarks.append(Remark(Finding.MISPLACED_MANIFEST, name, text))
    told = {remark.where for remark in found.remarks}
    for key in found.queues():
        if key not in found.manifests and manifest_name(key) not in told:
            found.remarks.append(Remark(Finding.MISSING_MANIFEST, manifest_name(key)))


def _survey_all(
    driver: TierDriver, found: _Broker, now_ms: int, threads: int, progress: Progress | None
) -> list[QueueSurvey]:
    """Look at all queues, several at a time: most of it is waiting for the tier."""
    queues = found.queues()
    surveys: dict[QueueKey, QueueSurvey] = {}
    with ThreadPoolExecutor(max_workers=max(threads, 1), thread_name_prefix="tier-restore") as pool:
        jobs = {
            pool.submit(survey_queue, driver, key, found.infos.get(key, ()), found.manifests.get(key), now_ms): key
            for key in queues
        }
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                surveys[jobs[job]] = job.result()
                if progress is not None:
                    progress(RestoreProgress(done, len(jobs), jobs[job].logical_path))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [surveys[key] for key in queues]


def _write(
    driver: TierDriver,
    store: MetadataStore,
    home: tuple[str, str],
    found: _Broker,
    surveys: Sequence[QueueSurvey],
    now_ms: int,
) -> RestoreReport:
    report = RestoreReport(*home, queue_count=len(surveys), remarks=found.remarks)
    segments = [segment for survey in surveys for segment in survey.segments]
    index_segments: list[Segment] = []
    for key, infos in sorted(found.infos.items()):
        if key.topic == INDEX_TOPIC and key not in found.left_out:
            index_rows, remarks = survey_index(driver, infos, found.manifests.get(key))
            index_segments += index_rows
            report.remarks += remarks
    names = {survey.queue.key.topic for survey in surveys}
    topics, remarks = survey_topics(driver, names, found.manifests.values(), index_segments, now_ms)
    report.remarks += remarks
    with store.transaction():
        for topic in topics.topics:
            store.put_topic(topic)
        store.raise_topic_serial_number(topics.serial_number)
        for survey in surveys:
            report.remarks += survey.remarks
            store.put_queue(survey.queue)
            store.add_time_entries(survey.queue.key, survey.time_entries)
            for gap in survey.gaps:
                store.add_gap(survey.queue.key, gap)
        for segment in segments + index_segments:
            store.put_segment(segment)
    live = [segment for segment in segments + index_segments if segment.status is not SegmentStatus.DELETED]
    report.topic_count = len(topics.topics)
    report.segment_count, report.size_bytes = len(live), sum(segment.size for segment in live)
    report.message_count = sum(survey.queue.max_offset - survey.queue.min_offset for survey in surveys)
    report.epoch_max = _epoch_max(driver, home, found.manifests.values(), report)
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
            report.remarks.append(Remark(Finding.CORRUPT_MANIFEST, name, str(error)))
        except FutureManifest as error:
            report.remarks.append(Remark(Finding.FUTURE_MANIFEST, name, str(error)))
    return max(epochs, default=0)
