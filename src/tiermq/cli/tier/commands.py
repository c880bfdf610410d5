"""`tiermq tier`: inspect a tier.

Everything but `restore`, `import`, `repair`, `takeover`, `orphans --clean` and `verify --keep` only reads.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

import click

from tiermq.cli.conventions import EXIT_PROBLEMS, SuggestingGroup
from tiermq.cli.option_values import Span, StoreDirectory, topic_option
from tiermq.cli.terminal import bar
from tiermq.cli.tier.metadata import export_metadata, import_, restore
from tiermq.cli.tier.options import (
    BROKER,
    CLUSTER,
    JSON,
    STORE,
    TOPIC,
    URL,
    broker_metadata,
    metadata_path,
    no_history,
    opened,
    print_json,
)
from tiermq.cli.tier.output import (
    moment,
    show_states,
    show_timers,
    show_totals,
    show_verification,
    show_view,
    state_values,
    timer_values,
    total_values,
    view_values,
)
from tiermq.clock import HOUR_MS, SystemClock
from tiermq.delivery.tiered_timers.timer_discovery import discover_timers, verify_timers
from tiermq.errors import TierError
from tiermq.history.scan_values import DEFAULT_CLUSTER
from tiermq.pipeline.job_report import counted_noun
from tiermq.store.readonly.directory import is_store
from tiermq.store.readonly.store import ReadOnlyStore
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.broker_lease import BrokerLease, Lease, LeaseRole, broker_of_lease
from tiermq.tier.metadata.broker_state import SETTINGS, load_broker_state
from tiermq.tier.metadata.document import CorruptManifest
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.metadata_values import UNKNOWN_OFFSET
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.queue.tier_queue import MessageRow
from tiermq.tier.repair.repair import repair_tier
from tiermq.tier.repair.repair_plan import RepairOutcome, RepairReport
from tiermq.tier.retention.orphans import GRACE_MS, clean, find_orphans
from tiermq.tier.tier_identity import open_known_metadata
from tiermq.tier.tier_view import QueueView, TierView, view_tier
from tiermq.tier.verify.verification_record import Run, keep_run, run_of
from tiermq.tier.verify.verify import verify_tier


@click.group(cls=SuggestingGroup)
def tier() -> None:
    """Inspect, verify, repair and restore a tier of TierMQ or RocketMQ, in use or not.

    \b
    URL is one of
      file:///dir          a directory, as RocketMQ's POSIX back end writes it
      s3://bucket/prefix   credentials from AWS_ACCESS_KEY_ID,
                           AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL
      gs://bucket/prefix   credentials from GOOGLE_APPLICATION_CREDENTIALS
      az://container/dir   credentials from AZURE_STORAGE_ACCOUNT_NAME,
                           AZURE_STORAGE_ACCOUNT_KEY

    \b
    Examples:
      tiermq tier stat s3://history/broker-a
      tiermq tier cat file:///var/tier --topic orders --queue 0 \\
          --offset 1000 --count 10
      tiermq tier verify file:///var/tier
    """


def _viewed(driver: TierDriver, scope: TierScope, *, quiet: bool) -> TierView:
    with bar("looking", adds=True, quiet=quiet) as progress:
        return view_tier(driver, scope, progress=lambda _done, total: progress(1, total))


@tier.command()
@URL
@CLUSTER
@BROKER
@TOPIC
@click.option("--segments", is_flag=True, help="List each segment too.")
@JSON
def ls(url: str, cluster: str | None, broker: str | None, topic: str | None, segments: bool, as_json: bool) -> None:
    """List topics, queues, segments, timers and broker tables.

    Reads the bucket only: its listing, its manifests, and the units of queues whose manifest is missing or stale.

    Exit code: 0, 1 if there is no history at all, 2 if the tier cannot be read.

    \b
    Examples:
      tiermq tier ls file:///var/tier
      tiermq tier ls s3://history --topic orders --segments
      tiermq tier ls s3://history --json | jq '.queues[] | select(.gaps != [])'
    """
    with opened(url) as driver:
        view = _viewed(driver, TierScope(cluster, broker, topic), quiet=as_json)
        timers = discover_timers(driver, TierScope(cluster, broker, topic))
        states = {} if topic else {home: load_broker_state(driver, *home) for home in view.brokers}
    if as_json:
        timer_rows, table_rows = timer_values(timers, with_objects=True), state_values(states)
        print_json({**view_values(view), "timers": timer_rows, "tables": table_rows})
    elif view.brokers or timers:
        show_view(view, segments)
        show_states(states)
        show_timers(timers, with_objects=segments)
    if not view.brokers and not timers:
        no_history(view.url, cluster, broker, topic)


@tier.command()
@URL
@CLUSTER
@BROKER
@JSON
def stat(url: str, cluster: str | None, broker: str | None, as_json: bool) -> None:
    """Show the totals of the tier at URL.

    Totals are brokers, topics, messages, bytes, times, gaps, retention and timers.

    Exit code: 0, 1 if there is no history at all, 2 if the tier cannot be read.

    \b
    Examples:
      tiermq tier stat file:///var/tier
      tiermq tier stat s3://history --json | jq .size
    """
    with opened(url) as driver:
        view = _viewed(driver, TierScope(cluster, broker), quiet=as_json)
        timers = discover_timers(driver, TierScope(cluster, broker))
        states = {home: load_broker_state(driver, *home, [SETTINGS]) for home in view.brokers}
    if as_json:
        print_json({**total_values(view, states), "timers": timer_values(timers, with_objects=False)})
    elif view.brokers or timers:
        show_totals(view, states)
        show_timers(timers)
    if not view.brokers and not timers:
        no_history(view.url, cluster, broker)


@tier.command()
@URL
@CLUSTER
@BROKER
@topic_option(required=True, help="Only this topic.")
@click.option("--queue", type=click.IntRange(min=0), help="Only this queue [all, one after the other].")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Start at this queue offset.")
@click.option(
    "--count", type=click.IntRange(min=1), default=1_000_000_000, help="Maximum number of messages of each queue."
)
@click.option("--key", help="Only messages with this key or unique id, from the uploaded key index.")
@click.option("--json", "as_json", is_flag=True, help="Accepted for uniformity: the output always is JSON lines.")
def cat(
    url: str,
    cluster: str | None,
    broker: str | None,
    topic: str,
    queue: int | None,
    offset: int,
    count: int,
    key: str | None,
    as_json: bool,  # noqa: ARG001 - see its help
) -> None:
    """Print messages of the tier as JSON lines.

    Messages are in queue order; with --key, newest index file first.

    A lost message is a line with "gap", a damaged one a line with "error"; with --key also one that may have the
    key, as its own keys cannot be trusted. What a broker has not uploaded of its key index yet is not found by --key;
    stderr reports it.

    Exit code: 0, 1 if a message was damaged, 2 if the tier cannot be read or has no such queue.

    \b
    Examples:
      tiermq tier cat file:///var/tier --topic orders --queue 0 \\
          --offset 1000 --count 10
      tiermq tier cat s3://history --topic orders --key order-42
      tiermq tier cat s3://history --topic orders | jq -r .body
    """
    with opened(url) as driver:
        scope = TierScope(cluster, broker, topic, queue if key is None else None)
        view = view_tier(driver, scope, with_index=key is not None)
        if not view.queues:
            _refuse(view_tier(driver, TierScope(cluster, broker), with_index=False), topic, queue)
        queues = view.queues if queue is None else [view.find(topic, queue)]
        damaged = False
        if key is not None:
            for each, row in view.find_by_key(topic, key, count, queue):
                damaged |= _print_row(each, row)
            _tell_unindexed(view, topic)
        else:
            for each in queues:
                damaged |= _print_queue(view, each, offset, count)
            _tell_ends(queues, topic, offset)
    if damaged:
        raise SystemExit(EXIT_PROBLEMS)


def _tell_ends(queues: list[QueueView], topic: str, offset: int) -> None:
    """Report that nothing was printed because the offset is past the end of every queue."""
    if all(offset >= queue.max_offset for queue in queues):
        shown = [f"{each.key.broker} {topic}-{each.key.queue_id} at {each.max_offset}" for each in queues[:5]]
        more = f" and {len(queues) - 5} more" if len(queues) > 5 else ""
        click.echo(
            f"Note: there is no message at offset {offset} or later in the tier, which ends {', '.join(shown)}{more}",
            err=True,
        )


def _tell_unindexed(view: TierView, topic: str) -> None:
    unindexed = view.unindexed(topic)
    if unindexed:
        names = ", ".join(f"{queue.key.broker} {topic}-{queue.key.queue_id}" for queue in unindexed[:5])
        more = f" and {len(unindexed) - 5} more" if len(unindexed) > 5 else ""
        click.echo(
            f"Note: {view.url}: the key index in the tier is not known to hold every key of {names}{more}, so messages "
            f"may be missing here. `tiermq pipeline reindex {view.url}` completes it; a store that still has its own "
            "index, or `tiermq pipeline sql`, finds them now",
            err=True,
        )


def _refuse(whole: TierView, topic: str, queue_id: int | None) -> NoReturn:
    """There is no such topic, or no such queue in it: an error that lists what exists."""
    if queue_id is not None:
        whole.find(topic, queue_id)
    raise whole.no_topic(topic)


def _print_queue(view: TierView, queue: QueueView, offset: int, count: int) -> bool:
    damaged = False
    for row in view.messages(queue, offset, count):
        damaged |= _print_row(queue, row)
    return damaged


def _print_row(queue: QueueView, row: MessageRow) -> bool:
    """Print what is at one queue offset. Returns whether it is damaged."""
    place: dict[str, Any] = {"topic": queue.key.topic, "queue_id": queue.key.queue_id}
    if row.queue_offset != UNKNOWN_OFFSET:
        place["queue_offset"] = row.queue_offset
    if row.message is not None:
        print_json(row.message.to_dict())
    elif row.error:
        print_json({**place, "error": row.error})
    else:
        print_json({**place, "gap": True})
    return bool(row.error)


@tier.command()
@URL
@CLUSTER
@BROKER
@TOPIC
@STORE
@click.option("--no-index", is_flag=True, help="Do not read the key index.")
@click.option("--keep", is_flag=True, help="Keep the result in the tier, where consoles show it.")
@JSON
def verify(
    url: str,
    cluster: str | None,
    broker: str | None,
    topic: str | None,
    store: Path | None,
    no_index: bool,
    keep: bool,
    as_json: bool,
) -> None:
    """Read and check every byte of the tier at URL.

    Compares records, units, manifests and key index with each other. Also reads tiered timers, except with --topic.

    With --store, also compares that broker's tier metadata. Nothing is written, but with --keep the result; a broker
    may be running: what it adds or expires meanwhile is a note, not a problem. With --topic the key index is left out.

    Runs in this process, without Spark. `tiermq pipeline verify` makes the same checks in parallel on Spark, for
    tiers that are too large for one machine.

    Exit code: 0 clean, 1 problems or no history at all, 2 the tier cannot be read.

    \b
    Examples:
      tiermq tier verify file:///var/tier
      tiermq tier verify s3://history --topic orders
      tiermq tier verify s3://history --keep
      tiermq tier verify s3://history --json \\
          | jq '.problems[] | .where + ": " + .text'
    """
    scope, clock = TierScope(cluster, broker, topic), SystemClock()
    began_ms = clock.now_ms()
    with (
        opened(url) as driver,
        broker_metadata(store) as metadata,
        bar("reading", in_bytes=True, adds=True, quiet=as_json) as progress,
    ):
        report = verify_tier(
            driver,
            scope,
            metadata=metadata,
            with_index=not no_index,
            progress=progress,
        )
        for listing in discover_timers(driver, scope):
            verify_timers(driver, listing, report)
        is_empty = report.is_clean and not report.counts["segments"] and not report.counts["timer_objects"]
        if keep and not is_empty:
            _keep(driver, run_of(report, scope, "tier verify", began_ms, clock.now_ms()))
    if as_json:
        print_json(report.to_dict())
    elif not is_empty:
        show_verification(report)
    if is_empty:
        no_history(report.url, cluster, broker, topic)
    if not report.is_clean:
        raise SystemExit(EXIT_PROBLEMS)


def _keep(driver: TierDriver, run: Run) -> None:
    """Keep the result in the tier, if the account may write there."""
    try:
        keep_run(driver, run)
    except TierError as error:
        click.echo(
            f"Note: consoles will not show this verification, since the tier does not keep it: {error}", err=True
        )


@tier.command()
@URL
@CLUSTER
@BROKER
@TOPIC
@click.option(
    "--store",
    "stores",
    multiple=True,
    type=StoreDirectory(exists=True),
    help="Store directory that may still have lost messages; repeatable.",
)
@click.option("--no-index", is_flag=True, help="Do not read the key index, and do not repair it.")
@click.option("--dry-run", is_flag=True, help="Report what would be done; change nothing.")
@JSON
def repair(
    url: str,
    cluster: str | None,
    broker: str | None,
    topic: str | None,
    stores: tuple[Path, ...],
    no_index: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Verify the tier at URL, repair it, and verify again.

    Lost records come from the --store directories, consume queues and the key index from the records, manifests from
    the segments. A broker's tier metadata in a --store directory is used and updated. The
    broker must be stopped: the command takes its lease.

    Nothing is destroyed: a segment that gets other bytes is kept as <its name>.damaged-<time>, which neither TierMQ nor
    RocketMQ reads; remove those files when they are no longer needed. An interrupted repair can be run again.

    Runs in this process, without Spark. `tiermq pipeline verify --repair` makes the same repairs, and verifies before
    and after in parallel on Spark.

    Exit code: 0 clean or repaired, 1 problems are left, 2 the tier cannot be read or its broker is running.

    \b
    Examples:
      tiermq tier repair file:///var/tier --dry-run
      tiermq tier repair s3://history --store ~/store
      tiermq tier repair s3://history --topic orders --json \\
          | jq '.actions[] | .notPossible[]'
    """
    with opened(url) as driver, _opened_stores(stores) as (sources, metadata):
        report = repair_tier(
            driver,
            TierScope(cluster, broker, topic),
            sources=sources,
            metadata=metadata,
            dry_run=dry_run,
            with_index=not no_index,
            on_outcome=(lambda _outcome: None) if as_json else _show_outcome,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        _show_end(report)
    if not report.is_complete or (dry_run and report.outcomes):
        raise SystemExit(EXIT_PROBLEMS)


@contextmanager
def _opened_stores(paths: Sequence[Path]) -> Iterator[tuple[list[ReadOnlyStore], MetadataStore | None]]:
    """The stores, read-only, and the tier metadata of the first store that has any."""
    with ExitStack() as stack:
        known = next((path for path in paths if metadata_path(path).is_file()), None)
        metadata = None if known is None else stack.enter_context(open_known_metadata(known))
        # A directory may hold tier metadata only, and no messages.
        yield [stack.enter_context(ReadOnlyStore.open(path)) for path in paths if is_store(path)], metadata


def _show_outcome(outcome: RepairOutcome) -> None:
    click.echo(f"{outcome.state.value:12}  {outcome.action.kind.name.lower():8}  {outcome.action.where}")
    for change in outcome.changes:
        click.echo(f"    {change}")
    for path in outcome.kept:
        click.echo(f"    kept as {path}")
    for reason in outcome.not_possible:
        click.echo(f"    not possible: {reason}")


def _show_end(report: RepairReport) -> None:
    if not report.outcomes:
        click.echo(f"{report.url}: clean, there is nothing to repair")
    elif report.is_dry_run:
        click.echo(f"{report.url}: {counted_noun(report.problems_before, 'problem')}; nothing was changed")
    else:
        click.echo(
            f"{report.url}: {counted_noun(report.problems_before, 'problem')} before, {report.problems_after:,} after"
        )


@tier.command()
@URL
@click.option(
    "--cluster", help=f"The brokers' cluster (brokerClusterName) [{DEFAULT_CLUSTER}; with --all: every cluster]."
)
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="NAME",
    help="The broker whose lease is ended (brokerName), or a pattern ('broker-*'); repeatable.",
)
@click.option("--all", "is_all", is_flag=True, help="All brokers whose lease is held.")
@click.option(
    "--role",
    type=click.Choice([role.value for role in LeaseRole]),
    default=LeaseRole.LOG.value,
    show_default=True,
    help="log: messages, manifests and index. delivery: tiered timers.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@JSON
def takeover(
    url: str, cluster: str | None, brokers: tuple[str, ...], is_all: bool, role: str, yes: bool, as_json: bool
) -> None:
    """End the leases of brokers whose holder is dead.

    Another process can then write their tier at once.

    Shows each holder, and asks. The epoch rises, so a holder that is not dead after all is fenced: it commits nothing
    more under this lease. The lease is free then. A broker that still runs and tiers takes it again when it renews, a
    continuous job at its next wave: stop it first.

    Without this command a lease ends by itself after its term (tierLeaseTerm, a minute).

    Exit code: 0 the leases are free, 1 the operator refused or there is no such lease, 2 the tier cannot be read.

    \b
    Examples:
      tiermq tier takeover s3://history --cluster prod --broker broker-a
      tiermq tier takeover s3://history --cluster prod --broker 'broker-*' --yes
      tiermq tier takeover s3://history --all --yes --json
      tiermq tier takeover s3://history --broker broker-a --role delivery --yes
    """
    if is_all == bool(brokers):
        raise click.UsageError("name brokers by --broker, or give --all")
    if as_json and not yes:
        raise click.UsageError("--json asks nothing: it needs --yes")
    with opened(url) as driver:
        owner = f"{socket.gethostname()}:{os.getpid()} (tier takeover)"
        rows = []
        for home in _brokers_named(driver, cluster, brokers, LeaseRole(role)):
            lease = BrokerLease(driver, *home, owner, role=LeaseRole(role))
            row = _ended(lease, home, yes=yes, quiet=as_json)
            rows += [] if row is None and (is_all or any(map(_is_pattern, brokers))) else [(home, lease, row)]
        missing = [lease.name for _, lease, row in rows if row is None]
        if missing or not rows:
            known = ", ".join("/".join(names) for names in list_tier(driver, TierScope()).brokers)
            found = missing[0] if missing else "/".join([cluster or "*", ", ".join(brokers) or "*"])
            click.echo(f"Error: {found}: {url} has no such lease; brokers there: {known or 'none'}", err=True)
        if as_json:
            print_json({"leases": [row for _, _, row in rows if row is not None]})
        if missing or not rows:
            raise SystemExit(EXIT_PROBLEMS)


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _brokers_named(
    driver: TierDriver, cluster: str | None, brokers: tuple[str, ...], role: LeaseRole
) -> list[tuple[str, str]]:
    """(cluster, broker) of those that were named; of all that have a lease by default."""
    if brokers and not any(map(_is_pattern, brokers)):
        return [(cluster or DEFAULT_CLUSTER, broker) for broker in brokers]
    scope = cluster or (DEFAULT_CLUSTER if brokers else None)
    found = (broker_of_lease(name, role) for name in driver.list_objects(TierScope(scope).prefix))
    known = sorted(home for home in found if home is not None)
    return [home for home in known if not brokers or any(fnmatchcase(home[1], pattern) for pattern in brokers)]


def _ended(lease: BrokerLease, home: tuple[str, str], *, yes: bool, quiet: bool) -> dict[str, Any] | None:
    """End one lease, and what it was; None when there is none. Exit code 1 when the operator refuses."""
    now_ms, found = SystemClock().now_ms(), None
    row: dict[str, Any] = {"cluster": home[0], "broker": home[1], "holder": None, "was_held": True}
    say = (lambda _text: None) if quiet else click.echo
    try:
        found = lease.read()
    except CorruptManifest as error:
        say(f"The holder is not known: {error}")
    else:
        if found is None:
            return None
        if not found.is_held(now_ms):
            say(f"{lease.name} is free (epoch {found.epoch}); there is nothing to take over")
            return row | {"was_held": False, "epoch": found.epoch}
        row["holder"] = found.owner
        if not quiet:
            _show_lease(found, now_ms)
    if not yes and not click.confirm(f"End the lease of {'/'.join(home)} now?"):
        raise SystemExit(EXIT_PROBLEMS)
    row["epoch"] = lease.take_over()
    say(f"{lease.name} is free (epoch {row['epoch']})")
    return row


def _show_lease(lease: Lease, now_ms: int) -> None:
    since = f"since {moment(lease.acquired_ms)}" if lease.acquired_ms else "since an unknown time"
    click.echo(f"holder    {lease.owner}")
    click.echo(f"held      {since}, epoch {lease.epoch}, renewed {counted_noun(lease.renewals, 'time')}")
    click.echo(f"ends      in {-(-(lease.expires_ms - now_ms) // 1000)} s unless it is renewed")


@tier.command()
@URL
@CLUSTER
@BROKER
@STORE
@click.option(
    "--grace", "grace_s", type=Span("h"), default=f"{GRACE_MS // HOUR_MS}h", show_default=True, help="Minimum age."
)
@click.option("--clean", "do_clean", is_flag=True, help="Delete the orphans.")
@JSON
def orphans(
    url: str,
    cluster: str | None,
    broker: str | None,
    store: Path | None,
    grace_s: float,
    do_clean: bool,
    as_json: bool,
) -> None:
    """List orphaned objects and missing segments of the tier.

    Without --store only what a queue's own manifest rules out is called an orphan. What is younger than --grace is
    never called one.

    Exit code: 0 nothing found, 1 orphans left or segments missing, 2 the tier cannot be read.

    \b
    Examples:
      tiermq tier orphans s3://history --store ~/store --broker broker-a
      tiermq tier orphans s3://history --store ~/store --broker broker-a --clean
    """
    if store is not None and broker is None:
        raise click.UsageError(
            "--store is one broker's: give its --broker, or objects of other brokers look like orphans"
        )
    with opened(url) as driver, broker_metadata(store) as metadata:
        found = find_orphans(driver, metadata, TierScope(cluster, broker), grace_ms=round(grace_s * 1000))
        gone = clean(driver, found.orphans, metadata) if do_clean else []
    if as_json:
        print_json({
            "url": url, "deleted": gone, "unread_manifests": found.unread,
            "orphans": [{"kind": o.kind.name.lower(), "path": o.path, "size": o.size} for o in found.orphans],
            "missing": [
                {"path": m.path, "expected": m.expected_bytes, "found": m.found_bytes, "known_to": m.known_to}
                for m in found.missing
            ],
        })  # fmt: skip
    else:
        for orphan in found.orphans:
            click.echo(f"{'deleted' if orphan.path in gone else 'orphan'}  {orphan.size:>14,}  {orphan.path}")
        for missing in found.missing:
            click.echo(
                f"missing  {missing.expected_bytes - missing.found_bytes:>13,}  {missing.path} ({missing.known_to})"
            )
        for name in found.unread:
            click.echo(f"unread   {name}")
    if found.missing or len(gone) < len(found.orphans):
        raise SystemExit(EXIT_PROBLEMS)


for command in (restore, import_, export_metadata):
    tier.add_command(command)
