"""`tiermq pipeline reindex`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tiermq.cli.option_values import topic_option
from tiermq.cli.pipeline.options import BROKER, CLUSTER, NO_WAIT, STORE, finish, job_options, runner_for
from tiermq.cli.terminal import bar
from tiermq.pipeline.job_report import counted_noun

if TYPE_CHECKING:
    from tiermq.pipeline.job_report import JobReport


@click.command()
@click.argument("tier", metavar="URL")
@CLUSTER
@BROKER
@topic_option("topics", multiple=True, help="Only this topic; repeatable.")
@STORE
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    help="tieredStoreIndexFileMaxHashSlotNum, which a RocketMQ that reads the files must share "
    "[as in existing files, else 5,000,000].",
)
@click.option(
    "--check",
    is_flag=True,
    help="Also read indexed history, and index messages that have no items.",
)
@NO_WAIT
@job_options
def reindex(
    tier: str,
    cluster: str | None,
    broker: str | None,
    topics: tuple[str, ...],
    store: str | None,
    slots: int | None,
    check: bool,
    no_wait: bool,
    master: str,
    conf: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build missing parts of the key index of the tier at URL.

    Missing is what was offloaded with --index later, what a lost disk had not uploaded, and what RocketMQ
    indexed: it drops some keys. Indexed history is not read, except with --check
    (`tiermq tier verify` reports the same, as missing_items). Afterwards a query by key reads the index only, and
    its answer is complete.

    The job holds the broker's lease: a broker that uploads, or a continuous offload over the wire, lends it.
    If the broker's store directory still exists, give it as --store: what its index has is not built again, and
    its metadata is updated.

    Exit code: 0, or 1 if something could not be read.

    \b
    Examples:
      tiermq pipeline reindex s3://history --dry-run
      tiermq pipeline reindex s3://history --check --store ~/store
      tiermq pipeline reindex s3://history --topic orders \\
          --master spark://host:7077
      tiermq pipeline reindex s3://history --store ~/store --json \\
          | jq '.done.keys'
    """
    from tiermq.pipeline.reindex import reindex as run

    with runner_for(master, conf, needed=check or not dry_run) as runner, bar("indexing", quiet=as_json) as progress:
        found = run(
            runner,
            tier=tier,
            cluster=cluster,
            broker=broker,
            store=store,
            topics=topics,
            dry_run=dry_run,
            progress=progress,
            wait=None if no_wait else time.sleep,
            slots=slots,
            check=check,
        )
    finish(found, as_json=as_json, details=_lines)


def _lines(report: JobReport) -> Iterator[str]:
    for row in report.details.get("missing", ()) if report.dry_run else ():
        size = sum(stop - start for start, stop in row["ranges"])
        count = row.get("unindexed", 0)
        found = f", {counted_noun(count, 'message')} without items" if count else ""
        yield f"{row['topic']}-{row['queue']}: {size:,} bytes in {counted_noun(len(row['ranges']), 'range')}{found}"
    for row in report.details.get("files", ()):
        yield f"{row['path']}: {counted_noun(row['items'], 'key')}, {row['bytes']:,} bytes"
