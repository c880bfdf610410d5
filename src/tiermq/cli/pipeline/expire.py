"""`tiermq pipeline expire`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tiermq.cli.option_values import Span, parse_bytes, parse_hours
from tiermq.cli.pipeline.options import BROKER, CLUSTER, NO_WAIT, STORE, finish, job_options, runner_for
from tiermq.cli.terminal import bar

if TYPE_CHECKING:
    from tiermq.pipeline.job_report import JobReport


@click.command()
@click.argument("tier", metavar="URL")
@click.option("--keep", metavar="TIME", help="Retention of topics without reserve.time: 72h, 30d, 8w.")
@click.option("--max-bytes", metavar="SIZE", help="Maximum bytes of a topic without reserve.bytes, such as 10G.")
@CLUSTER
@BROKER
@STORE
@click.option("--no-orphans", is_flag=True, help="Keep orphans.")
@click.option("--grace", "grace_s", type=Span("h"), default="24h", show_default=True, help="Keep younger orphans.")
@NO_WAIT
@job_options
def expire(
    tier: str,
    keep: str | None,
    max_bytes: str | None,
    cluster: str | None,
    broker: str | None,
    store: str | None,
    no_orphans: bool,
    grace_s: float,
    no_wait: bool,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete expired history and orphans of the tier at URL.

    The rules are the broker's: a topic's own reserve.time and reserve.bytes come first. --keep and
    --max-bytes are for all other topics. Without them tieredStoreFileReservedTime and tierMaxBytesPerTopic of a broker
    that leaves its tier to jobs (tierDispatchEnable=false) are, if an offload has brought its settings to the tier;
    without those only topics with their own settings expire, and interrupted deletions are completed.

    --dry-run lists every object that would be deleted, and why. The job holds the broker's lease, which a continuous
    offload over the wire lends it; a broker that uploads also expires, and needs no job. If the broker's store
    directory still exists, give it as --store: its tier metadata must change with the tier.

    One task for each broker, on the executors of a cluster (--master spark://…); with --store, and with a local
    master, in this process, since it moves no bytes. A broker that is in use does not keep others from expiring.

    Exit code: 0, or 1 if something could not be deleted, is missing, or the tier cannot be read.

    \b
    Examples:
      tiermq pipeline expire s3://history --keep 30d --dry-run
      tiermq pipeline expire s3://history --keep 30d --store ~/store
      tiermq pipeline expire s3://history --max-bytes 500G --json \\
          | jq '.done.bytes'
    """
    from tiermq.pipeline.expire import expire as run

    is_remote = not master.startswith("local") and not dry_run and store is None
    with runner_for(master, conf, needed=is_remote) as runner, bar("expiring", quiet=as_json) as progress:
        found = run(
            runner,
            tier=tier,
            keep_hours=None if keep is None else parse_hours("--keep", keep),
            max_bytes_per_topic=-1 if max_bytes is None else parse_bytes("--max-bytes", max_bytes),
            cluster=cluster,
            broker=broker,
            store=store,
            orphans=not no_orphans,
            grace_ms=round(grace_s * 1000),
            dry_run=dry_run,
            progress=progress,
            wait=None if no_wait else time.sleep,
        )
    finish(found, as_json=as_json, details=_leaving)


def _leaving(report: JobReport) -> Iterator[str]:
    verb = "would go" if report.dry_run else "went"
    for row in report.details.get("leaving", ()):
        yield f"{verb}: {row['path']} ({row['bytes']:,} bytes): {row['reason']}"
