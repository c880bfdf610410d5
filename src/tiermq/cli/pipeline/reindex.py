"""`tiermq pipeline reindex`."""

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
@click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated.")
@STORE
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    help="tieredStoreIndexFileMaxHashSlotNum, which a RocketMQ that is to read the files must have too "
    "(default: as in the files that are there, else 5,000,000).",
)
@click.option(
    "--check",
    is_flag=True,
    help="Also read all messages that are covered, and index those that have no items all the same.",
)
@job_options
def reindex(
    tier: str,
    cluster: str | None,
    broker: str | None,
    topics: tuple[str, ...],
    store: str | None,
    slots: int | None,
    check: bool,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build the key index of history in the tier at URL that has none.

    That is what was offloaded with --index later, what a lost disk had not uploaded of its index, and what RocketMQ
    indexed: it drops keys now and then. What is covered already is not read, unless --check asks whether it is true
    (`tiermq tier verify` finds the same, as missing_items). Afterwards a query by key answers from the index alone, and
    says that its answer is complete.

    The broker's lease is held; a store that tiers by itself must be stopped, or leave that to jobs
    (tierDispatchEnable=false). If the broker's store directory still exists, give it as --store: what its own index has
    is not built again, and it learns what was built.

    Exit code: 0, or 1 if something could not be read.

    \b
    Examples:
      tiermq pipeline reindex s3://history --dry-run
      tiermq pipeline reindex s3://history --check --store ~/store
      tiermq pipeline reindex s3://history --topic orders --master spark://host:7077
      tiermq pipeline reindex s3://history --store ~/store --json | jq '.done.keys'
    """
    from tiermq.spark.jobs.reindex import reindex as run

    with spark_for(master, conf, needed=check or not dry_run) as spark, bar("indexing", quiet=as_json) as progress:
        found = run(
            spark,
            tier=tier,
            cluster=cluster,
            broker=broker,
            store=store,
            topics=topics,
            dry_run=dry_run,
            progress=progress,
            slots=slots,
            check=check,
        )
    finish(found, as_json=as_json, details=_lines)


def _lines(report: JobReport) -> Iterator[str]:
    for row in report.details.get("missing", ()) if report.dry_run else ():
        size = sum(stop - start for start, stop in row["ranges"])
        yield f"{row['topic']}-{row['queue']}: {size:,} bytes in {len(row['ranges'])} ranges"
    for row in report.details.get("files", ()):
        yield f"{row['path']}: {row['items']:,} keys, {row['bytes']:,} bytes"
