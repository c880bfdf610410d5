"""Read every byte of a tier, or of one topic, and say whether it agrees with itself.

* every record is sound, lies where it says, belongs to its queue, and carries the next number
* every unit leads to its record, with its size and its tag; blank units lie in recorded gaps
* segments follow each other, and have the sizes and checksums that manifests (and the broker's metadata) know
* manifests, leases and companions can be read; time indexes are true
* index files are whole, and every item leads to a message that has such a key

Only the tier is needed; the metadata of a broker adds what it knows. Nothing is written. A writer may be at work: what
it adds or expires meanwhile is a note, not a problem.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tiermq.errors import FutureManifest, StoreDamaged
from tiermq.tier.driver.contract import SegmentInfo, TierDriver
from tiermq.tier.index.index_coverage import CoverageRecord
from tiermq.tier.metadata.broker_lease import decode_lease, lease_name
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, queue_of_manifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, Segment
from tiermq.tier.names import INDEX_TOPIC, OBJECT_SUFFIX, QueueKey, SegmentType, segment_at
from tiermq.tier.tier_listing import TierScope, list_tier
from tiermq.tier.verify_index import IndexVerifier, LogPlaces
from tiermq.tier.verify_layout import check_layout
from tiermq.tier.verify_queue import QueueVerifier
from tiermq.tier.verify_report import Problem, VerifyReport

Progress = Callable[[int, int], None]
"""Told (bytes read since the last time, bytes in all)."""

DEFAULT_THREADS = 4


def verify_tier(
    driver: TierDriver,
    scope: TierScope | None = None,
    *,
    metadata: MetadataStore | None = None,
    with_index: bool = True,
    threads: int = DEFAULT_THREADS,
    progress: Progress = lambda _done, _total: None,
) -> VerifyReport:
    """Verify what lies within `scope` (default: all of it). The index is a broker's: a topic alone is read without it.

    Raises what the driver raises when the tier cannot be reached; all else is in the report.
    """
    return _Verification(driver, scope or TierScope(), metadata, with_index, progress).run(threads)


class _Verification:
    """One run."""

    def __init__(
        self,
        driver: TierDriver,
        scope: TierScope,
        metadata: MetadataStore | None,
        with_index: bool,
        progress: Progress,
    ) -> None:
        self._driver, self._metadata = driver, metadata
        self._report = VerifyReport(driver.url)
        self._listing = list_tier(driver, scope)
        self._with_index = with_index and scope.topic is None
        self._manifests: dict[QueueKey, QueueManifest] = {}
        self._infos: dict[QueueKey, list[SegmentInfo]] = defaultdict(list)
        for info in self._listing.segments:
            self._infos[info.key.queue].append(info)
        wanted = (i.size for i in self._listing.segments if i.key.topic != INDEX_TOPIC or self._with_index)
        total = sum(wanted)
        self._progress = lambda done: progress(done, total)

    def run(self, threads: int) -> VerifyReport:
        for name in self._listing.objects:
            self._read_object(name)
        queues = sorted(self._known_queues())
        work: list[Callable[[], None]] = [self._queue(key).run for key in queues if key.topic != INDEX_TOPIC]
        if self._with_index:
            work += [verifier.run for key in queues if key.topic == INDEX_TOPIC for verifier in self._indexes(key)]
        with ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="tier-verify") as pool:
            jobs = [pool.submit(step) for step in work]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return self._report

    def _known_queues(self) -> Iterable[QueueKey]:
        known = self._infos.keys() | self._manifests.keys()
        if self._metadata is None:
            return known
        return known | {key for queue in self._metadata.queues() if self._listing.scope.holds(key := queue.key)}

    # Small objects

    def _read_object(self, name: str) -> None:
        key = queue_of_manifest(name)
        segment = segment_at(name.removesuffix(OBJECT_SUFFIX))
        stored = self._driver.get_object(name)
        if stored is None:
            return  # Deleted since it was listed.
        try:
            if key is not None:
                manifest = decode_manifest(stored.data, name)
                if manifest.key != key:
                    raise CorruptManifest(f"expected the manifest of {key.directory}, found that of {manifest.key}")
                self._manifests[key] = manifest
            elif segment is not None:
                CoverageRecord.decode(stored.data, name)
            elif name in self._lease_names():
                decode_lease(stored.data, name)
        except (CorruptManifest, FutureManifest, StoreDamaged) as error:
            self._report.problem(Problem.MANIFEST, name, str(error))

    def _lease_names(self) -> set[str]:
        return {lease_name(*home) for home in self._listing.brokers}

    # Queues and indexes

    def _queue(self, key: QueueKey) -> QueueVerifier:
        rows, gaps = self._rows(key)
        return QueueVerifier(
            self._driver,
            key,
            self._infos.get(key, ()),
            self._manifests.get(key),
            rows,
            gaps,
            self._report,
            self._progress,
        )

    def _rows(self, key: QueueKey) -> tuple[Sequence[Segment], Sequence[Gap]]:
        """What the broker's metadata knows of a queue."""
        if self._metadata is None:
            return (), ()
        deleted = [row for row in self._metadata.segments_being_deleted() if row.key.queue == key]
        return [*self._metadata.segments(key), *deleted], self._metadata.gaps(key)

    def _indexes(self, key: QueueKey) -> list[IndexVerifier]:
        infos = sorted(self._infos.get(key, ()), key=lambda info: info.key.base)
        manifest = self._manifests.get(key)
        rows = [*(manifest.segments if manifest else ()), *self._rows(key)[0]]
        check_layout(infos, rows, self._report)
        self._report.count("segments", len(infos))
        places = self._places(key)
        return [
            IndexVerifier(
                self._driver, info, [row for row in rows if row.key == info.key], places, self._report, self._progress
            )
            for info in infos
        ]

    def _places(self, index: QueueKey) -> LogPlaces:
        topics = {
            manifest.topic_id & 0xFFFFFFFF: key.topic
            for key, manifest in self._manifests.items()
            if (key.cluster, key.broker) == (index.cluster, index.broker) and manifest.topic_id >= 0
        }
        if self._metadata is not None:
            topics |= {topic.id & 0xFFFFFFFF: topic.name for topic in self._metadata.topics()}
        logs = {
            key: sorted((i for i in infos if i.key.type is SegmentType.COMMIT_LOG), key=lambda i: i.key.base)
            for key, infos in self._infos.items()
        }
        return LogPlaces(topics, logs)
