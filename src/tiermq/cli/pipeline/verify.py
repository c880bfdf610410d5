"""`tiermq pipeline verify`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tiermq.cli.option_values import topic_option
from tiermq.cli.pipeline.options import BROKER, CLUSTER, NO_WAIT, STORE, finish, job_options, runner_for
from tiermq.cli.terminal import bar

if TYPE_CHECKING:
    from tiermq.pipeline.job_report import JobReport


@click.command()
@click.argument("tier", metavar="URL")
@CLUSTER
@BROKER
@topic_option(help="Only this topic; skips the key index.")
@STORE
@click.option("--no-index", is_flag=True, help="Do not read the key index.")
@click.option("--repair", is_flag=True, help="Repair what can be repaired, and verify again.")
@click.option("--keep", is_flag=True, help="Keep the result in the tier, where consoles show it.")
@click.option("--report", metavar="PATH", help="Write a table: JSON lines (*.jsonl), or a directory for Parquet.")
@NO_WAIT
@job_options
def verify(
    tier: str,
    cluster: str | None,
    broker: str | None,
    topic: str | None,
    store: str | None,
    no_index: bool,
    repair: bool,
    keep: bool,
    report: str | None,
    no_wait: bool,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Read and check every byte of the tier at URL, in parallel on Spark.

    The checks and repairs are those of `tiermq tier verify` and `tiermq tier repair`, which need no Spark. Use this
    job for tiers that are too large for one machine, or for a table of the results (--report).

    Records, units, checksums, manifests and the key index are compared with each other, and with --store with that
    broker's tier metadata. A broker may be running; what it changes is a note, not a problem.

    --repair rebuilds consume queues, manifests and index files from the commit log, and with --store records that the
    store still has. It holds the broker's lease: a broker that uploads, or a continuous offload over the
    wire, lends it. Replaced objects are kept under another name. With --dry-run it only
    reports what it would repair.

    Exit code: 0 clean or repaired, 1 problems are left or the tier cannot be read.

    \b
    Examples:
      tiermq pipeline verify s3://history
      tiermq pipeline verify s3://history --report ./verified \\
          --master spark://host:7077
      tiermq pipeline verify s3://history --store ~/store --repair
      tiermq pipeline verify s3://history --json | jq '.problems[]'
    """
    from tiermq.pipeline.verify import verify as run

    with runner_for(master, conf, needed=repair or not dry_run) as runner, bar("verifying", quiet=as_json) as progress:
        found = run(
            runner,
            tier=tier,
            cluster=cluster,
            broker=broker,
            topic=topic,
            store=store,
            with_index=not no_index,
            repair=repair,
            keep=keep,
            dry_run=dry_run,
            report_path=report,
            progress=progress,
            wait=None if no_wait else time.sleep,
        )
    finish(found, as_json=as_json, details=_repairs)


def _repairs(report: JobReport) -> Iterator[str]:
    for repair in report.details.get("repairs", ()):
        for text in (*repair["changes"], *repair["not_possible"]):
            yield f"{repair['state']}: {repair['where']}: {text}"
