"""`tiermq pipeline compact`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tiermq.cli.pipeline.options import BROKER, CLUSTER, NO_WAIT, STORE, finish, job_options, runner_for
from tiermq.cli.terminal import bar
from tiermq.pipeline.job_report import counted_noun

if TYPE_CHECKING:
    from tiermq.pipeline.job_report import JobReport


@click.command()
@click.argument("tier", metavar="URL")
@CLUSTER
@BROKER
@STORE
@click.option("--no-seal", is_flag=True, help="Leave segments in their parts, open ones too.")
@click.option("--no-index", is_flag=True, help="Leave index files as they are.")
@click.option(
    "--items-max",
    type=click.IntRange(min=2),
    default=20_000_000,
    show_default=True,
    help="Maximum items of a merged index file.",
)
@click.option("--small-items", type=click.IntRange(min=1), help="Merge files with fewer items [half of --items-max].")
@NO_WAIT
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
    no_wait: bool,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Merge small objects of the tier at URL. History stays the same.

    Full segments that are stored in parts become one object each, and small parts of segments that still
    grow become fewer. Small index files, which every restart of
    a broker leaves, are merged: a query then reads one file instead of many. Segments whose manifest has no
    block checksums get them. Readers are not interrupted.

    The job holds the broker's lease: a broker that uploads, or a continuous offload over the wire, lends it.
    If the broker's store directory still exists, give it as --store: its tier metadata must change with the tier.

    Exit code: 0, or 1 if something could not be done or the tier cannot be read.

    \b
    Examples:
      tiermq pipeline compact s3://history --dry-run
      tiermq pipeline compact s3://history --store ~/store
      tiermq pipeline compact s3://history --no-seal --json \\
          | jq '.details.merged[]'
    """
    from tiermq.pipeline.compact import compact as run

    with runner_for(master, conf, needed=not dry_run) as runner, bar("compacting", quiet=as_json) as progress:
        found = run(
            runner,
            tier=tier,
            cluster=cluster,
            broker=broker,
            store=store,
            dry_run=dry_run,
            progress=progress,
            wait=None if no_wait else time.sleep,
            seal=not no_seal,
            index=not no_index,
            items_max=items_max,
            small_items=small_items,
        )
    finish(found, as_json=as_json, details=_lines)


def _lines(report: JobReport) -> Iterator[str]:
    for row in report.details.get("seal", ()) if report.dry_run else ():
        yield f"would seal {row['path']} ({row['bytes']:,} bytes in {counted_noun(row['parts'], 'part')})"
    for row in report.details.get("parts", ()) if report.dry_run else ():
        yield f"would merge parts of {row['path']} ({row['bytes']:,} bytes in {counted_noun(row['parts'], 'part')})"
    for row in report.details.get("merged", ()):
        yield f"{row['path']}: {counted_noun(row['items'], 'item')} of {counted_noun(len(row['from']), 'file')}"
