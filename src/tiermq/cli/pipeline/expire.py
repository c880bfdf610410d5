"""`tiermq pipeline expire`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tiermq.cli.parse_amounts import parse_bytes, parse_hours
from tiermq.cli.pipeline_options import BROKER, CLUSTER, STORE, bar, finish, job_options, parsed_conf

if TYPE_CHECKING:
    from tiermq.spark.jobs.job_report import JobReport


@click.command()
@click.argument("tier", metavar="URL")
@click.option("--keep", metavar="TIME", help="Messages of topics without a time of their own: 72h, 30d, 8w.")
@click.option("--max-bytes", metavar="SIZE", help="Of a topic without a limit of its own, such as 10G.")
@CLUSTER
@BROKER
@STORE
@click.option("--no-orphans", is_flag=True, help="Leave alone what nobody refers to.")
@click.option(
    "--grace", type=click.IntRange(min=0), default=24, show_default=True, metavar="HOURS", help="Orphans so young stay."
)
@job_options
def expire(
    tier: str,
    keep: str | None,
    max_bytes: str | None,
    cluster: str | None,
    broker: str | None,
    store: str | None,
    no_orphans: bool,
    grace: int,
    master: str,  # noqa: ARG001 - all jobs have it
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete from the tier at URL what is too old or too much, and what nobody refers to.

    The rule is the broker's: a topic's own time (reserve.time) and limit (reserve.bytes) come first. --keep and
    --max-bytes are for all others, as tieredStoreFileReservedTime and tierMaxBytesPerTopic are, and have no default:
    without them only topics with settings of their own lose anything, and deletions that were begun are ended.

    Look first: --dry-run lists every object that would go, and why. The broker's lease is held meanwhile; a store that
    tiers by itself expires by itself, and need not be helped. If the broker's store directory still exists, give it as
    --store: what it knows of the tier must change with the tier.

    These are requests and no bytes, so nothing runs on executors: --master and --conf are accepted and not used.

    Exit code: 0, or 1 if something could not be deleted, is missing, or the tier cannot be read.

    \b
    Examples:
      tiermq pipeline expire s3://history --keep 30d --dry-run
      tiermq pipeline expire s3://history --keep 30d --store ~/store
      tiermq pipeline expire s3://history --max-bytes 500G --json | jq '.done.bytes'
    """
    from tiermq.spark.jobs.expire import expire as run

    parsed_conf(conf)
    with bar("expiring", quiet=as_json) as progress:
        found = run(
            tier=tier,
            keep_hours=None if keep is None else parse_hours("--keep", keep),
            max_bytes_per_topic=-1 if max_bytes is None else parse_bytes("--max-bytes", max_bytes),
            cluster=cluster,
            broker=broker,
            store=store,
            orphans=not no_orphans,
            grace_ms=grace * 3_600_000,
            dry_run=dry_run,
            progress=progress,
        )
    finish(found, as_json=as_json, details=_leaving)


def _leaving(report: JobReport) -> Iterator[str]:
    verb = "would go" if report.dry_run else "went"
    for row in report.details.get("leaving", ()):
        yield f"{verb}: {row['path']} ({row['bytes']:,} bytes): {row['reason']}"
