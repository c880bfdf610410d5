"""expire: deletes expired history and orphans of every broker of a tier.

    for each broker, a task that holds its lease:
      retention   deletions that were begun, topics that are being deleted, time, size, index files    (tier.retention)
      manifests   of every queue that lost something
      orphans     unreferenced objects that are old enough, on request                                 (tier.orphans)

How long messages are kept is a topic's own `reserve.time`, or else `keep_hours`, or else what the settings of a broker
say that leaves its tier to jobs (`tierDispatchEnable=false`). Nothing else has a default, so that forgetting it deletes
nothing. A topic's own is what the broker's topic table in the tier has, and settings are in a table beside it, which
`offload` brings there; for topics that are in no table, the manifests.

A task is repeatable: each step may be repeated, and a job that was killed is run again. A broker that is in use
does not keep the others from being expired. With a store directory the one task runs in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tiermq.clock import Clock, SystemClock
from tiermq.errors import BadConfig, TierError, TierMQError, TierUnavailable
from tiermq.namesrv.topic_config import retention_of
from tiermq.pipeline.expire.plan import Leaving, planned_expiry
from tiermq.pipeline.index_files import write_index_manifest
from tiermq.pipeline.job_report import JobReport
from tiermq.pipeline.leased_broker import BrokerResult, Home, LeasedBroker, Sleep, homes_of, lease_broker, refusals
from tiermq.pipeline.task_runner import JobTasks, Progress, TaskRunner
from tiermq.pipeline.worker_cache import driver_of
from tiermq.tier.flat.flat_file_store import FlatFileStore
from tiermq.tier.index.compacted_index import CompactedIndex, companion_name
from tiermq.tier.index.index_upkeep import live_segments
from tiermq.tier.metadata.broker_state import SETTINGS as STATE_OF_SETTINGS
from tiermq.tier.metadata.broker_state import TOPICS, load_broker_state
from tiermq.tier.metadata.manifest import ManifestCause
from tiermq.tier.metadata.metadata_values import Segment
from tiermq.tier.names import QueueKey
from tiermq.tier.retention.orphans import GRACE_MS, clean, find_orphans
from tiermq.tier.retention.retention import Retention
from tiermq.tier.retention.retention_plan import KEPT_FOR_EVER, Kept
from tiermq.tier.tier_config import SETTINGS, TierConfig, kept_by_settings


def expire(
    runner: TaskRunner | None = None,
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
    wait: Sleep | None = None,
) -> JobReport:
    """Expire the tier at URL `tier`, one task for each broker. Without a `runner` in this process.

    `keep_hours`: for topics without a time of their own; None: the broker's settings, or for ever.
    `max_bytes_per_topic`: the same for sizes, -1 for those settings, or any size.
    `store`: the directory of one broker, whose metadata then follow. `grace_ms`: younger orphans stay.
    A dry run shows in `details["leaving"]` what would go, and why. Raises BadConfig, LeaseHeld, StoreLocked, TierError;
    what fails for one queue, or for one of several brokers, is a problem in the report, and left to the next run.
    """
    if keep_hours is not None and keep_hours < 1:
        raise BadConfig(f"keep_hours is a number of hours from 1 on, found {keep_hours}")
    if max_bytes_per_topic == 0 or max_bytes_per_topic < -1:
        raise BadConfig(f"max_bytes_per_topic is positive, or -1 for any size, found {max_bytes_per_topic}")
    driver = driver_of(tier)
    tasks = JobTasks(runner if store is None else None, "expire", progress)
    report = JobReport("expire", driver.url, dry_run, tasks.master)
    limits = (-1 if keep_hours is None else keep_hours, max_bytes_per_topic, grace_ms if orphans else None)
    with report.timed():
        homes = homes_of(driver, cluster=cluster, broker=broker, store=store)
        results = tasks.run(
            expire_broker, [ExpireTask(tier, home, *limits, dry_run, clock or SystemClock(), wait) for home in homes]
        )
        for result in results:
            report.join(result.value)
        report.problems += refusals(results)
    return report


@dataclass(frozen=True, slots=True)
class ExpireTask:
    """The expiry of one broker. `grace_ms`: None keeps orphans."""

    tier: str
    home: Home
    keep_hours: int
    max_bytes_per_topic: int
    grace_ms: int | None
    dry_run: bool
    clock: Clock
    wait: Sleep | None = None


def expire_broker(task: ExpireTask) -> BrokerResult[JobReport]:
    """Do a task. Raises TierUnavailable; other errors of the tier are in the result, with what was done before."""
    driver = driver_of(task.tier)
    report = JobReport("expire", driver.url, task.dry_run)
    config = TierConfig(
        tiered_store_file_reserved_time=task.keep_hours, tier_max_bytes_per_topic=task.max_bytes_per_topic
    )
    try:
        with lease_broker(driver, task.home, "expire", dry_run=task.dry_run, clock=task.clock, wait=task.wait) as held:
            _Expiry(held, config, report, task.grace_ms).run()
    except TierUnavailable:
        raise
    except TierMQError as error:
        return BrokerResult(task.home, report, error)
    return BrokerResult(task.home, report)


@dataclass(frozen=True, slots=True)
class _Expiry:
    """The expiry of one broker."""

    held: LeasedBroker
    config: TierConfig
    report: JobReport
    grace_ms: int | None

    def run(self) -> None:
        held, report = self.held, self.report
        notes = report.details.setdefault("notes", [])
        notes += held.notes
        config = self._with_broker_settings(notes)
        files = FlatFileStore(held.driver, held.metadata, held.home.cluster, held.home.broker, held.clock)
        changed: dict[QueueKey, None] = {}

        def on_changed(queue: QueueKey, _cause: ManifestCause) -> None:
            changed[queue] = None

        index = _BucketIndex(held, config)
        retention = Retention(
            files, held.metadata, held.driver, index, config, held.clock,
            on_changed=on_changed, on_gone=self._forget_manifest, check_owner=held.check,
            before_emptied=held.write_manifest, own=_own_retention(held),
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
                self._write_manifest(queue)
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

    def _with_broker_settings(self, notes: list[str]) -> TierConfig:
        """Where the caller set no limit, that of a broker that leaves its tier to jobs. Raises TierError."""
        limits: dict[str, int] = {}
        kept = _follower_kept(self.held)
        for name, value in (
            ("tiered_store_file_reserved_time", kept.hours), ("tier_max_bytes_per_topic", kept.max_bytes),
        ):  # fmt: skip
            if value is not None and getattr(self.config, name) < 0:
                limits[name] = value
                setting = SETTINGS[name].property_name
                notes.append(f"{self.held.home}: topics without a limit of their own: the broker's {setting}={value}")
        return self.config.with_settings(**limits)

    def _plan(self, leaving: list[Leaving]) -> None:
        planned = self.report.planned
        for name, number in (("segments", len(leaving)), ("bytes", sum(each.size for each in leaving))):
            planned[name] = planned.get(name, 0) + number
        self.report.details.setdefault("leaving", []).extend(each.as_row() for each in leaving)

    def _write_manifest(self, queue: QueueKey) -> None:
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
        # From the bucket alone the metadata are the listing: only manifests show that something is too much.
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


def _follower_kept(held: LeasedBroker) -> Kept:
    """The retention of a broker that leaves its tier to jobs, as far as the tier has its settings.

    Raises TierError for a table that is damaged: nothing expires before it was written again.
    """
    tables, problems = load_broker_state(held.driver, held.home.cluster, held.home.broker, [STATE_OF_SETTINGS])
    for error in problems.values():
        raise error
    table = tables.get(STATE_OF_SETTINGS.name)
    found = {} if table is None else table.document[STATE_OF_SETTINGS.table]
    return kept_by_settings(found) if found.get("tierDispatchEnable") == "false" else KEPT_FOR_EVER


def _own_retention(held: LeasedBroker) -> dict[str, tuple[int, int]]:
    """Hours and bytes of each topic in the broker's topic table, as far as the tier has one. Raises TierError.

    A damaged table could name a longer time than the manifests do, so nothing expires before it was written again.
    """
    tables, problems = load_broker_state(held.driver, held.home.cluster, held.home.broker, [TOPICS])
    for error in problems.values():
        raise error
    table = tables.get(TOPICS.name)
    rows = {} if table is None else table.document.get(TOPICS.table) or {}
    return {str(name): retention_of(row.get("attributes") or {}) for name, row in rows.items()}


class _BucketIndex:
    """The uploaded index files of a broker, as retention asks for them; what a store has of them locally stays."""

    retention: Retention

    def __init__(self, held: LeasedBroker, config: TierConfig) -> None:
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
        held.publish()
        for segment in (*begun, *expired):
            held.driver.delete(segment.key)
            held.driver.delete_object(companion_name(segment.key))
            held.metadata.delete_segment(segment.key)
        if begun or expired:
            write_index_manifest(held)
        return len(expired)

    def forget_queue(self, topic: str, queue_id: int) -> None:
        """Its coverage is the store's, if there is one: a queue of a new topic id starts again there."""
