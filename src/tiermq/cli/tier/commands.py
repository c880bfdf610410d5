"""`tiermq tier`: a tier from outside. Everything but `restore`, `import`, `repair` and `orphans --clean` only reads."""

from __future__ import annotations

from pathlib import Path

import click

from tiermq.cli.tier_far import show_timers, timer_values
from tiermq.cli.tier_metadata import export_metadata, import_, restore
from tiermq.cli.tier_options import (
    BROKER,
    CLUSTER,
    EXIT_PROBLEMS,
    JSON,
    STORE,
    TOPIC,
    URL,
    broker_metadata,
    no_history,
    opened,
    print_json,
)
from tiermq.cli.tier_output import (
    bar,
    show_totals,
    show_verification,
    show_view,
    total_values,
    view_values,
)
from tiermq.cli.tier_repair import repair
from tiermq.delivery.far.timer_survey import survey_timers, verify_timers
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.orphans import GRACE_MS, clean, find_orphans
from tiermq.tier.tier_listing import TierScope
from tiermq.tier.tier_view import QueueView, TierView, view_tier
from tiermq.tier.verify import verify_tier

HOUR_MS = 3_600_000


@click.group()
def tier() -> None:
    """Look into a tier, of TierMQ or of RocketMQ, dead or in use, and rebuild what a broker knows of it.

    \b
    URL is one of
      file:///dir          a directory, as RocketMQ's POSIX back end writes it
      s3://bucket/prefix   credentials from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL
      gs://bucket/prefix   credentials from GOOGLE_APPLICATION_CREDENTIALS
      az://container/dir   credentials from AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY

    \b
    Examples:
      tiermq tier stat s3://history/broker-a
      tiermq tier cat file:///var/tier --topic orders --queue 0 --offset 1000 --count 10
      tiermq tier verify file:///var/tier
    """


def _viewed(driver: TierDriver, scope: TierScope, *, quiet: bool) -> TierView:
    with bar("looking", quiet=quiet) as progress:
        return view_tier(driver, scope, progress=lambda _done, total: progress(1, total))


@tier.command()
@URL
@CLUSTER
@BROKER
@TOPIC
@click.option("--segments", is_flag=True, help="List each segment too.")
@JSON
def ls(url: str, cluster: str | None, broker: str | None, topic: str | None, segments: bool, as_json: bool) -> None:
    """Topics, queues and segments of the tier at URL, with sizes, offsets and times, and the timers that wait in it.

    The bucket alone is asked: its listing, its manifests, and the units of queues whose manifest is missing or behind.

    Exit code: 0, 1 if there is no history at all, 2 if the tier cannot be read.

    \b
    Examples:
      tiermq tier ls file:///var/tier
      tiermq tier ls s3://history --topic orders --segments
      tiermq tier ls s3://history --json | jq '.queues[] | select(.gaps != [])'
    """
    with opened(url) as driver:
        view = _viewed(driver, TierScope(cluster, broker, topic), quiet=as_json)
        timers = survey_timers(driver, TierScope(cluster, broker, topic))
    if as_json:
        print_json({**view_values(view), "timers": timer_values(timers, with_objects=True)})
    elif view.brokers or timers:
        show_view(view, segments)
        show_timers(timers, with_objects=segments)
    if not view.brokers and not timers:
        no_history(view.url, cluster, broker, topic)


@tier.command()
@URL
@CLUSTER
@BROKER
@JSON
def stat(url: str, cluster: str | None, broker: str | None, as_json: bool) -> None:
    """Totals of the tier at URL: brokers, topics, messages, bytes, times, gaps, timers.

    Exit code: 0, 1 if there is no history at all, 2 if the tier cannot be read.

    \b
    Examples:
      tiermq tier stat file:///var/tier
      tiermq tier stat s3://history --json | jq .size
    """
    with opened(url) as driver:
        view = _viewed(driver, TierScope(cluster, broker), quiet=as_json)
        timers = survey_timers(driver, TierScope(cluster, broker))
    if as_json:
        print_json({**total_values(view), "timers": timer_values(timers, with_objects=False)})
    elif view.brokers or timers:
        show_totals(view)
        show_timers(timers)
    if not view.brokers and not timers:
        no_history(view.url, cluster, broker)


@tier.command()
@URL
@CLUSTER
@BROKER
@click.option("--topic", required=True, help="Messages of this topic.")
@click.option("--queue", type=click.IntRange(min=0), help="Of this queue; without it, of every queue in turn.")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="From this queue offset on.")
@click.option("--count", type=click.IntRange(min=1), default=1_000_000_000, help="At most so many, of each queue.")
@click.option("--key", help="Messages that have this key, or this unique id, from the uploaded key index.")
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
    """Messages of the tier at URL as JSON lines, in the order of the queue, or by key, newest index file first.

    A message that is missing for good is a line with "gap", a damaged one a line with "error". What a broker has not
    uploaded of its key index yet is not found by --key; that there is such a thing is said on stderr.

    Exit code: 0, 1 if a message was damaged, 2 if the tier cannot be read or has no such queue.

    \b
    Examples:
      tiermq tier cat file:///var/tier --topic orders --queue 0 --offset 1000 --count 10
      tiermq tier cat s3://history --topic orders --key order-42
      tiermq tier cat s3://history --topic orders | jq -r .body
    """
    with opened(url) as driver:
        scope = TierScope(cluster, broker, topic, queue if key is None else None)
        view = view_tier(driver, scope, with_index=key is not None)
        queues = _wanted(view, topic, queue)
        damaged = False
        if key is not None:
            for message in view.find_by_key(topic, key, count):
                if queue in (None, message.queue_id):
                    print_json(message.to_dict())
            _tell_unindexed(view, topic)
        else:
            for each in queues:
                damaged |= _print_queue(view, each, offset, count)
            _tell_ends(queues, topic, offset)
    if damaged:
        raise SystemExit(EXIT_PROBLEMS)


def _tell_ends(queues: list[QueueView], topic: str, offset: int) -> None:
    """Why nothing was printed: the offset is behind the end of every queue."""
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


def _wanted(view: TierView, topic: str, queue_id: int | None) -> list[QueueView]:
    if queue_id is not None:
        return [view.find(topic, queue_id)]
    if not view.queues:
        view.find(topic, 0)  # Says what there is instead.
    return view.queues


def _print_queue(view: TierView, queue: QueueView, offset: int, count: int) -> bool:
    damaged = False
    for row in view.messages(queue, offset, count):
        place = {"topic": queue.key.topic, "queue_id": queue.key.queue_id, "queue_offset": row.queue_offset}
        if row.message is not None:
            print_json(row.message.to_dict())
        elif row.error:
            damaged = True
            print_json({**place, "error": row.error})
        else:
            print_json({**place, "gap": True})
    return damaged


@tier.command()
@URL
@CLUSTER
@BROKER
@TOPIC
@STORE
@click.option("--no-index", is_flag=True, help="Do not read the key index.")
@JSON
def verify(
    url: str,
    cluster: str | None,
    broker: str | None,
    topic: str | None,
    store: Path | None,
    no_index: bool,
    as_json: bool,
) -> None:
    """Read every byte of the tier at URL and compare records, units, manifests and key index with each other.

    Timers that wait in the tier are read too, except with --topic.

    With --store, what that broker knows of the tier is compared too. Nothing is written; a broker may be at work: what
    it adds or expires meanwhile is noted, not held against the tier. With --topic the key index is left out.

    Exit code: 0 clean, 1 problems or no history at all, 2 the tier cannot be read.

    \b
    Examples:
      tiermq tier verify file:///var/tier
      tiermq tier verify s3://history --topic orders
      tiermq tier verify s3://history --json | jq '.problems[] | .where + ": " + .text'
    """
    with (
        opened(url) as driver,
        broker_metadata(store) as metadata,
        bar("reading", in_bytes=True, quiet=as_json) as progress,
    ):
        report = verify_tier(
            driver,
            TierScope(cluster, broker, topic),
            metadata=metadata,
            with_index=not no_index,
            progress=progress,
        )
        for survey in survey_timers(driver, TierScope(cluster, broker, topic)):
            verify_timers(driver, survey, report)
    is_empty = report.is_clean and not report.counts["segments"] and not report.counts["timer_objects"]
    if as_json:
        print_json(report.to_dict())
    elif not is_empty:
        show_verification(report)
    if is_empty:
        no_history(report.url, cluster, broker, topic)
    if not report.is_clean:
        raise SystemExit(EXIT_PROBLEMS)


@tier.command()
@URL
@CLUSTER
@BROKER
@STORE
@click.option("--grace", type=click.IntRange(min=0), default=GRACE_MS // HOUR_MS, show_default=True, help="Hours.")
@click.option("--clean", "do_clean", is_flag=True, help="Delete what nobody refers to.")
@JSON
def orphans(
    url: str,
    cluster: str | None,
    broker: str | None,
    store: Path | None,
    grace: int,
    do_clean: bool,
    as_json: bool,
) -> None:
    """Bytes in the tier at URL that nobody refers to, and segments that somebody refers to and that are not there.

    Without --store only what a queue's own manifest rules out is called an orphan. Younger than --grace is none.

    Exit code: 0 nothing found, 1 something (left, or missing), 2 the tier cannot be read.

    \b
    Examples:
      tiermq tier orphans s3://history --store ~/store --broker broker-a
      tiermq tier orphans s3://history --store ~/store --broker broker-a --clean
    """
    if store is not None and broker is None:
        raise click.UsageError("--store is one broker's: say which with --broker, or others' bytes look like orphans")
    with opened(url) as driver, broker_metadata(store) as metadata:
        found = find_orphans(driver, metadata, TierScope(cluster, broker), grace_ms=grace * HOUR_MS)
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


for command in (repair, restore, import_, export_metadata):
    tier.add_command(command)
