"""`tiermq pipeline verify`."""

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
@click.option("--topic", help="Only this topic; its broker's key index is left out then.")
@STORE
@click.option("--no-index", is_flag=True, help="Do not read the key index.")
@click.option("--repair", is_flag=True, help="Mend what can be mended, and verify again.")
@click.option("--report", metavar="PATH", help="A table of it: JSON lines (*.jsonl), or a directory for Parquet.")
@job_options
def verify(
    tier: str,
    cluster: str | None,
    broker: str | None,
    topic: str | None,
    store: str | None,
    no_index: bool,
    repair: bool,
    report: str | None,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Read every byte of the tier at URL on executors, and check it.

    Records, units, checksums, manifests and the key index are compared with each other, and with --store with what that
    broker knows of the tier. A broker may be at work meanwhile; what it changes is noted, not held against the tier.

    --repair rebuilds consume queues, manifests and index files from the commit log, and with --store records that the
    store still has. It holds the broker's lease: a store that tiers by itself must be stopped, or be told to leave that
    to jobs (tierDispatchEnable=false). What is replaced is kept beside it under another name. With --dry-run it reads,
    and says what it would mend.

    Exit code: 0 sound (or mended), 1 problems are left or the tier cannot be read.

    \b
    Examples:
      tiermq pipeline verify s3://history
      tiermq pipeline verify s3://history --report ./verified --master spark://host:7077
      tiermq pipeline verify s3://history --store ~/store --repair
      tiermq pipeline verify s3://history --json | jq '.problems[]'
    """
    from tiermq.spark.jobs.verify import verify as run

    with spark_for(master, conf, needed=repair or not dry_run) as spark, bar("verifying", quiet=as_json) as progress:
        found = run(
            spark,
            tier=tier,
            cluster=cluster,
            broker=broker,
            topic=topic,
            store=store,
            with_index=not no_index,
            repair=repair,
            dry_run=dry_run,
            report_path=report,
            progress=progress,
        )
    finish(found, as_json=as_json, details=_repairs)


def _repairs(report: JobReport) -> Iterator[str]:
    for repair in report.details.get("repairs", ()):
        for text in (*repair["changes"], *repair["not_possible"]):
            yield f"{repair['state']}: {repair['where']}: {text}"
