"""expire: what is too old or too much leaves the tier, for every broker in it, orphans included.

    for each broker, with its lease held:
      retention   deletions that were begun, topics that are being deleted, time, size, index files    (tier.retention)
      manifests   of every queue that lost something
      orphans     what nobody refers to and is old enough, if asked for                                (tier.orphans)

How long messages are kept is a topic's own `reserve.time`, which is in the manifests, or else `keep_hours`. That has no
default: whoever forgets it must not lose history. Without it only topics with a time of their own lose by time.

It is all requests and no bytes, so it runs here and not on executors. Each step may be repeated: a job that was killed
is simply run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, TierError
from tiermq.spark.jobs.expire_plan import Leaving, planned_expiry
from tiermq.spark.jobs.held_broker import HeldBroker, hold_broker, homes_of
from tiermq.spark.jobs.job_report import JobReport
from tiermq.spark.jobs.job_tasks import JobTasks
from tiermq.spark.jobs.offload_task import driver_of
from tiermq.spark.jobs.task_runner import Progress
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.index.compacted_index import CompactedIndex, companion_name
from tiermq.tier.index.index_upkeep import live_segments
from tiermq.tier.metadata.manifest_policy import ManifestCause
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey
from tiermq.tier.orphans import GRACE_MS, clean, find_orphans
from tiermq.tier.retention import Retention
from tiermq.tier.tier_config import TierConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def expire(
    spark: SparkSession | None = None,
    *,
    tier: str,
    keep_hours: int | None = None,
    max_bytes_per_topic: int = -1,
    cluster: str | None = None,
    broker: str | None = None,
    store: str | None = None,
    orphans: bool = True,
    grace_ms: int = GRACE_MS,
    dry_run: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> JobReport:
    """Expire the tier at URL `tier`. `spark` is not needed; it is there so that all jobs are called alike.

    `keep_hours`: for topics without a time of their own; None keeps them. `max_bytes_per_topic`: the same for sizes, -1
    for any size. `store`: the directory of one broker, whose metadata then follow. `grace_ms`: younger orphans stay.
    A dry run shows in `details["leaving"]` what would go, and why. Raises BadConfig, LeaseHeld, StoreLocked, TierError;
    what fails for one queue is a problem in the report, and left to the next run.
    """
    if keep_hours is not None and keep_hours < 1:
        raise BadConfig(f"keep_hours is a number of hours from 1 on, found {keep_hours}")
    if max_bytes_per_topic == 0 or max_bytes_per_topic < -1:
        raise BadConfig(f"max_bytes_per_topic is positive, or -1 for any size, found {max_bytes_per_topic}")
    clock = clock or SystemClock()
    driver = driver_of(tier)
    report = JobReport("expire", driver.url, dry_run, JobTasks(spark, "expire").master)
    config = TierConfig(
        tiered_store_file_reserved_time=-1 if keep_hours is None else keep_hours,
        tier_max_bytes_per_topic=max_bytes_per_topic,
    )
    with report.timed():
        homes = homes_of(driver, cluster=cluster, broker=broker, store=store)
        for number, home in enumerate(homes, 1):
            with hold_broker(driver, home, "expire", dry_run=dry_run, clock=clock) as held:
                _Expiry(held, config, report, grace_ms if orphans else None).run()
            if progress is not None:
                progress(number, len(homes))
    return report


@dataclass(frozen=True, slots=True)
class _Expiry:
    """The expiry of one broker."""

    held: HeldBroker
    config: TierConfig
    report: JobReport
    grace_ms: int | None

    def run(self) -> None:
        held, report = self.held, self.report
        report.details.setdefault("notes", []).extend(held.notes)
        files = FlatFileStore(held.driver, held.metadata, held.home.cluster, held.home.broker, held.clock)
        changed: dict[QueueKey, None] = {}

        def on_changed(queue: QueueKey, _cause: ManifestCause) -> None:
            changed[queue] = None

        index = _BucketIndex(held, self.config)
        retention = Retention(
            files, held.metadata, held.driver, index, self.config, held.clock,
            on_changed=on_changed, on_gone=self._forget_manifest, check_owner=held.check,
            before_emptied=held.write_manifest,
        )  # fmt: skip
        index.retention = retention
        leaving = planned_expiry(held.metadata, retention.kept_ms, retention.bytes_max, held.clock.now_ms())
        leaving += index.leaving()
        self._plan(leaving)
        if report.dry_run:
            self._orphans()
            return
        found = retention.run()
        report.problems += [str(failure) for failure in found.failures]
        report.problems += [f"{'-'.join(map(str, name))}: {error}" for name, error in files.damaged.items()]
        for queue in changed:
            if held.metadata.queue(queue) is not None:
                self._told(queue)
        report.add(
            segments=len(found.segments) + found.finished_count,
            bytes=found.bytes_freed,
            topics=len(found.topics),
            index_files=found.index_file_count,
            rolled=found.rolled_count,
        )
        report.details.setdefault("removed", []).extend(
            {"path": segment.key.path, "bytes": segment.size} for segment in found.segments
        )
        self._orphans()

    def _plan(self, leaving: list[Leaving]) -> None:
        planned = self.report.planned
        for name, number in (("segments", len(leaving)), ("bytes", sum(each.size for each in leaving))):
            planned[name] = planned.get(name, 0) + number
        self.report.details.setdefault("leaving", []).extend(each.as_row() for each in leaving)

    def _told(self, queue: QueueKey) -> None:
        try:
            self.held.write_manifest(queue)
        except TierError as error:
            self.report.problems.append(f"{queue.logical_path}: what it lost is not in its manifest yet: {error}")

    def _forget_manifest(self, queue: QueueKey) -> None:
        if self.held.manifests is not None:
            self.held.manifests.delete(queue)

    def _orphans(self) -> None:
        if self.grace_ms is None:
            return
        held, report = self.held, self.report
        # From the bucket alone the metadata are the listing itself: only manifests can say that something is too much.
        metadata = held.metadata if held.home.store is not None else None
        found = find_orphans(held.driver, metadata, held.home.scope, grace_ms=self.grace_ms, clock=held.clock)
        known = {row["path"] for row in report.details["leaving"]}
        self._plan([Leaving(o.path, o.size, o.kind.value) for o in found.orphans if o.path not in known])
        report.problems += [
            f"{each.path}: expected {each.expected_bytes} bytes by the {each.known_to}, found {each.found_bytes}; "
            "`tiermq pipeline verify --repair` looks at it"
            for each in found.missing
        ]
        if not report.dry_run:
            held.check()
            gone = set(clean(held.driver, found.orphans, metadata))
            report.add(orphans=len(gone), bytes=sum(o.size for o in found.orphans if o.path in gone))


class _BucketIndex:
    """The uploaded index files of a broker, as retention asks for them; what a store has of them locally stays."""

    retention: Retention

    def __init__(self, held: HeldBroker, config: TierConfig) -> None:
        self._held, self._config = held, config

    def _expired(self) -> Iterator[Segment]:
        held = self._held
        for segment in live_segments(held.metadata, held.home.index):
            remote = CompactedIndex(held.driver, segment)
            if self.retention.is_unneeded(remote, knows_all_topics=held.home.store is not None):
                yield segment

    def leaving(self) -> list[Leaving]:
        reason = "an index file that leads to no message any more"
        return [Leaving(segment.key.path, segment.size, reason) for segment in self._expired()]

    def expire(self) -> int:
        held = self._held
        begun = [row for row in held.metadata.segments_being_deleted() if row.key.queue == held.home.index]
        expired = list(self._expired())
        for segment in expired:
            held.metadata.mark_deleted(segment.key)  # First, so that no query asks a file that goes.
        for segment in (*begun, *expired):
            held.driver.delete(segment.key)
            held.driver.delete_object(companion_name(segment.key))
            held.metadata.delete_segment(segment.key)
        if begun or expired:
            self._tell_manifest()
        return len(expired)

    def _tell_manifest(self) -> None:
        """An index need not have a manifest; one that has it must not go on naming what is gone."""
        held = self._held
        if held.manifests is not None and held.manifests.read(held.home.index) is not None:
            held.write_manifest(held.home.index)

    def forget_queue(self, topic: str, queue_id: int) -> None:
        """Its coverage is the store's, if there is one: a queue of a new topic id begins anew there by itself."""
