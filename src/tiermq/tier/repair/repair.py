"""Repair: verify, plan, fix, verify again. Nothing is destroyed: what is replaced is kept under another name.

    verify_plan ──► plan_repair ──► run_repair for each action, in order ──► verify_tier

Each action finds the damage again and changes only that; so an interrupted repair is run again, and one that finds
nothing does nothing. The broker must not write meanwhile: its lease is taken first, and a broker that holds
it is named. What cannot be repaired is left unchanged, and reported.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tiermq.clock import Clock, SystemClock
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.index.compacted_index import companion_name
from tiermq.tier.metadata.broker_lease import BrokerLease, LeaseKeeper
from tiermq.tier.metadata.manifest import QueueManifest
from tiermq.tier.metadata.manifest_store import WriterLease
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import Gap, Segment, SegmentStatus
from tiermq.tier.names import BUNDLES_DIRECTORY, SegmentKey, broker_directory
from tiermq.tier.queue.segments import TierScope
from tiermq.tier.queue.units import offset_runs
from tiermq.tier.repair import manifest_repair, queue_repair
from tiermq.tier.repair.index_file_repair import (
    CannotIndex,
    RebuiltIndex,
    build_missing,
    missing_requests,
    rebuild_index,
    write_index,
    write_missing,
)
from tiermq.tier.repair.queue_facts import QueueFacts, read_facts, scan_log
from tiermq.tier.repair.queue_repair import RecordSource
from tiermq.tier.repair.repair_plan import (
    RepairAction,
    RepairKind,
    RepairOutcome,
    RepairReport,
    lost_manifests,
    plan_repair,
)
from tiermq.tier.verify.verify import run_verify_task, verify_plan, verify_tier
from tiermq.tier.verify.verify_plan import IndexTask, plan_verify
from tiermq.tier.verify.verify_report import Problem


@dataclass(frozen=True, slots=True)
class RepairContext:
    """What every action is run with."""

    driver: TierDriver
    sources: Sequence[RecordSource] = ()
    metadata: MetadataStore | None = None
    lease: WriterLease | None = None
    is_dry_run: bool = False
    writer: str = ""
    clock: Clock = field(default_factory=SystemClock)

    @property
    def aside(self) -> str:
        return f"damaged-{self.clock.now_ms()}"


def run_repair(
    driver: TierDriver,
    action: RepairAction,
    *,
    sources: Sequence[RecordSource] = (),
    metadata: MetadataStore | None = None,
    lease: WriterLease | None = None,
    dry_run: bool = False,
    clock: Clock | None = None,
) -> RepairOutcome:
    """Carry out one action, or with `dry_run` report what would be done. Idempotent.

    The caller excludes other writers of the queue. Raises what the driver raises when the tier is unreachable.
    """
    writer = f"repair {os.getpid()}@{socket.gethostname()}"
    context = RepairContext(driver, sources, metadata, lease, dry_run, writer, clock or SystemClock())
    changes: list[str] = []
    kept: list[str] = []
    failed: list[str] = []
    _WORK[action.kind](context, action, changes, kept, failed)
    return RepairOutcome.of(action, changes, kept, failed, is_dry_run=dry_run)


def _mend_bundles(context: RepairContext, action: RepairAction, changes: list[str]) -> bool:
    """Take lost and damaged bundles out of the sequence, so that the queue shows what it lacks.

    False: a dry run ends here, because what the bundles had is not known before.
    """
    key = action.queue
    if Problem.DAMAGED_LISTING.name.lower() not in action.reasons:
        return True
    damages = [info.damage for info in context.driver.list_segments(key.directory + "/") if info.damage]
    in_bundles = [damage for damage in damages if BUNDLES_DIRECTORY in damage]
    if not in_bundles:
        return True
    if context.is_dry_run:
        changes.append(f"{in_bundles[0]}: taken out, then restored from a local store")
        return False
    directory = broker_directory(key.cluster, key.broker)
    changes += [f"{path}: taken out" for path in context.driver.repair_bundles(directory, context.aside)]
    return True


def _mend_log(
    context: RepairContext, action: RepairAction, changes: list[str], kept: list[str], failed: list[str]
) -> None:
    if not _mend_bundles(context, action, changes):
        return
    facts = read_facts(context.driver, action.queue, context.metadata)
    scan = scan_log(context.driver, facts)
    lost, unknown = queue_repair.find_lost(context.driver, facts, scan, context.sources)
    patches, impossible = queue_repair.find_patches(facts, lost, context.sources)
    failed += unknown + impossible
    if context.is_dry_run:
        changes += [f"{facts.key.directory}/COMMIT_LOG: {queue_repair.describe(patch.lost)}" for patch in patches]
    elif patches:
        done, aside = queue_repair.apply_patches(context.driver, facts, patches, context.aside)
        changes += done
        kept += aside


def _mend_units(
    context: RepairContext, action: RepairAction, changes: list[str], kept: list[str], failed: list[str]
) -> None:
    if not _mend_bundles(context, action, changes):
        return
    facts = read_facts(context.driver, action.queue, context.metadata)
    made = queue_repair.rebuild_units(context.driver, facts)
    if made is None:
        failed.append("there are neither records nor units")
        return
    changed = queue_repair.changed_segments(context.driver, facts, made)
    if changed and not context.is_dry_run:
        kept += queue_repair.write_segments(context.driver, facts, changed, context.aside)
        if made.blanked:
            _record_gaps(context, facts, made.blanked)
    for base, data in changed:
        changes.append(f"{facts.key.directory}/CONSUME_QUEUE: {len(data)} bytes of units from offset {base} on")
    if made.blanked:
        changes.append(
            f"a gap for queue offsets {queue_repair.describe_offsets(made.blanked)}, of which nothing is left"
        )
    if made.lost:
        failed.append(f"the records of queue offsets {queue_repair.describe_offsets(made.lost)} are lost")


def _record_gaps(context: RepairContext, facts: QueueFacts, blanked: Sequence[int]) -> None:
    """At once, so that a crash before the manifest is repaired leaves no blank unit without a gap."""
    gaps = [
        Gap(first, behind, manifest_repair.BLANKED_REASON, context.clock.now_ms())
        for first, behind in offset_runs(blanked)
    ]
    now = read_facts(context.driver, facts.key, context.metadata)
    if now.is_future:
        return
    manifest = manifest_repair.rebuild_manifest(context.driver, now, context.clock, context.metadata, gaps)
    _write_manifest(context, now, manifest)


def _mend_manifest(
    context: RepairContext, action: RepairAction, changes: list[str], kept: list[str], failed: list[str]
) -> None:
    facts = read_facts(context.driver, action.queue, context.metadata)
    if facts.is_future:
        failed.append(f"its manifest is left alone: {facts.manifest_damage}")
        return
    manifest = manifest_repair.rebuild_manifest(context.driver, facts, context.clock, context.metadata)
    if manifest_repair.says_the_same(facts.manifest, manifest):
        return
    changes.append(
        f"{facts.key.directory}: a manifest of {len(manifest.segments)} segments, "
        f"queue offsets {manifest.min_offset} to {manifest.max_offset}"
    )
    if not context.is_dry_run:
        kept += _write_manifest(context, facts, manifest)


def _write_manifest(context: RepairContext, facts: QueueFacts, manifest: QueueManifest) -> list[str]:
    kept = manifest_repair.write_manifest(
        context.driver, facts, manifest, context.writer, context.lease, context.clock, context.aside
    )
    if context.metadata is not None:
        manifest_repair.write_metadata(context.metadata, manifest)
    return [kept] if kept else []


def _mend_index(
    context: RepairContext, action: RepairAction, changes: list[str], kept: list[str], failed: list[str]
) -> None:
    if action.segment is None:
        failed.append("no index file was named")
        return
    if _is_sound_index(context, action.segment):
        return  # What was wrong were the messages to which it leads.
    try:
        made = rebuild_index(context.driver, action.segment, context.metadata)
    except CannotIndex as error:
        failed.append(f"{action.segment.path}: {error}")
        return
    changes.append(f"{action.segment.path}: {made.facts.item_count} items in {len(made.data)} bytes")
    if context.is_dry_run:
        return
    kept += write_index(context.driver, made, context.aside)
    kept += _register_index(context, action, made)


def _mend_keys(
    context: RepairContext, action: RepairAction, changes: list[str], kept: list[str], failed: list[str]
) -> None:
    requests = missing_requests(context.driver, action.queue, action.key_ranges, context.metadata)
    if not requests:
        return
    try:
        made = build_missing(context.driver, action.queue, requests, context.clock)
    except CannotIndex as error:
        failed.append(f"{action.queue.directory}: {error}")
        return
    changes.append(f"{made.key.path}: {made.facts.item_count:,} items of {len(requests):,} messages that had none")
    if not context.is_dry_run:
        write_missing(context.driver, made)
        kept += _register_index(context, action, made)


def _register_index(context: RepairContext, action: RepairAction, made: RebuiltIndex) -> list[str]:
    """Let the broker's metadata and the index's manifest, where there are any, know the file. What was kept aside."""
    facts = read_facts(context.driver, action.queue, context.metadata)
    now_ms, file = context.clock.now_ms(), made.facts
    row = Segment(made.key, len(made.data), SegmentStatus.SEALED, now_ms, file.begin_ms, file.newest_ms, now_ms)
    if context.metadata is not None:
        context.metadata.put_segment(row)
    if facts.manifest is None:
        return []
    return _write_manifest(context, facts, manifest_repair.with_row(facts.manifest, row))


def _is_sound_index(context: RepairContext, key: SegmentKey) -> bool:
    plan = plan_verify(context.driver, TierScope(key.cluster, key.broker), metadata=context.metadata)
    results = [
        run_verify_task(context.driver, task)
        for task in plan.tasks
        if isinstance(task, IndexTask) and task.info.key == key
    ]
    companion = companion_name(key)
    is_known = not any(finding.where in (key.path, companion) for finding in plan.found.problems)
    return is_known and bool(results) and not any(result.problem_count for result in results)


def _mend_nothing(
    _context: RepairContext, action: RepairAction, _changes: list[str], _kept: list[str], failed: list[str]
) -> None:
    failed += [f"{reason}: there is no other source for it" for reason in action.reasons]


_Work = Callable[[RepairContext, RepairAction, list[str], list[str], list[str]], None]
_WORK: dict[RepairKind, _Work] = {
    RepairKind.LOG: _mend_log,
    RepairKind.UNITS: _mend_units,
    RepairKind.MANIFEST: _mend_manifest,
    RepairKind.INDEX: _mend_index,
    RepairKind.KEYS: _mend_keys,
    RepairKind.NONE: _mend_nothing,
}


def repair_tier(
    driver: TierDriver,
    scope: TierScope | None = None,
    *,
    sources: Sequence[RecordSource] = (),
    metadata: MetadataStore | None = None,
    dry_run: bool = False,
    with_index: bool = True,
    clock: Clock | None = None,
    on_outcome: Callable[[RepairOutcome], None] = lambda _outcome: None,
) -> RepairReport:
    """Verify and repair everything within `scope`. A dry run takes no lease and changes nothing.

    Raises LeaseHeld when a broker is at work, and what the driver raises when the tier is away: then run it again.
    """
    plan = plan_verify(driver, scope, metadata=metadata, with_index=with_index)
    before = verify_plan(driver, plan)
    report = RepairReport(driver.url, dry_run, before.problem_count)
    actions = [*plan_repair(before), *lost_manifests(plan, before)]
    if not actions:
        return report
    with _leases(driver, actions, dry_run=dry_run, clock=clock or SystemClock()) as leases:
        for action in actions:
            lease = leases.get((action.queue.cluster, action.queue.broker))
            if lease is not None:
                lease.renew()
            outcome = run_repair(
                driver, action, sources=sources, metadata=metadata, lease=lease, dry_run=dry_run, clock=clock
            )
            report.outcomes.append(outcome)
            on_outcome(outcome)
    if not dry_run:
        report.problems_after = verify_tier(driver, scope, metadata=metadata, with_index=with_index).problem_count
    return report


@contextmanager
def _leases(
    driver: TierDriver, actions: Sequence[RepairAction], *, dry_run: bool, clock: Clock
) -> Iterator[dict[tuple[str, str], BrokerLease]]:
    """The leases of all brokers to repair, released at the end."""
    homes = {(action.queue.cluster, action.queue.broker) for action in actions if action.kind is not RepairKind.NONE}
    held: dict[tuple[str, str], BrokerLease] = {}
    with ExitStack() as stack:
        for cluster, broker in sorted(homes) if not dry_run else ():
            owner = f"repair {os.getpid()}@{socket.gethostname()}"
            lease = BrokerLease(driver, cluster, broker, owner, clock=clock)
            lease.acquire(epoch_min=_epoch_min(driver, actions, cluster, broker))
            stack.callback(lease.release)
            held[cluster, broker] = lease
        keeper = LeaseKeeper(*(lease.keep for lease in held.values()))
        keeper.start()
        stack.callback(keeper.stop)
        yield held


def _epoch_min(driver: TierDriver, actions: Sequence[RepairAction], cluster: str, broker: str) -> int:
    """Above every epoch that a manifest carries: a lease that was lost must not make its next holder a stale one."""
    queues = {action.queue for action in actions if (action.queue.cluster, action.queue.broker) == (cluster, broker)}
    epochs = [facts.manifest.epoch for queue in queues if (facts := read_facts(driver, queue)).manifest is not None]
    return max(epochs, default=0) + 1
