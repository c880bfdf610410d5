"""`tiermq pipeline compact`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tiermq.cli.pipeline_options import BROKER, CLUSTER, STORE, bar, finish, job_options, spark_for

if TYPE_CHECKING:
    from tiermq.spark.jobs.job_report import JobReport


@click.command()
@click.argument("tier", metavar="URL")
@CLUSTER
@BROKER
@STORE
@click.option("--no-seal", is_flag=True, help="Leave segments in their parts.")
@click.option("--no-index", is_flag=True, help="Leave index files as they are.")
@click.option(
    "--items-max", type=click.IntRange(min=2), default=20_000_000, show_default=True, help="Of a merged index file."
)
@click.option(
    "--small-items", type=click.IntRange(min=1), help="Merge files with fewer (default: half of --items-max)."
)
@job_options
def compact(
    tier: str,
    cluster: str | None,
    broker: str | None,
    store: str | None,
    no_seal: bool,
    no_index: bool,
    items_max: int,
    small_items: int | None,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make fewer and larger objects of the tier at URL, with the same history in them.

    Segments that have ended but still lie in parts become one object each. Small index files, such as every restart of
    a broker leaves, become large ones: a query then asks one file instead of many. Readers find everything meanwhile.

    The broker's lease is held; a store that tiers by itself must be stopped, or leave that to jobs
    (tierDispatchEnable=false). If the broker's store directory still exists, give it as --store: what it knows of the
    tier must change with the tier.

    Exit code: 0, or 1 if something could not be done or the tier cannot be read.

    \b
    Examples:
      tiermq pipeline compact s3://history --dry-run
      tiermq pipeline compact s3://history --store ~/store
      tiermq pipeline compact s3://history --no-seal --json | jq '.details.merged[]'
    """
    from tiermq.spark.jobs.compact import compact as run

    with spark_for(master, conf, needed=not dry_run) as spark, bar("compacting", quiet=as_json) as progress:
        found = run(
            spark,
            tier=tier,
            cluster=cluster,
            broker=broker,
            store=store,
            dry_run=dry_run,
            progress=progress,
            seal=not no_seal,
            index=not no_index,
            items_max=items_max,
            small_items=small_items,
        )
    finish(found, as_json=as_json, details=_lines)


def _lines(report: JobReport) -> Iterator[str]:
    for row in report.details.get("seal", ()) if report.dry_run else ():
        yield f"would seal {row['path']} ({row['bytes']:,} bytes in {row['parts']} parts)"
    for row in report.details.get("merged", ()):
        yield f"{row['path']}: {row['items']:,} items of {len(row['from'])} files"
