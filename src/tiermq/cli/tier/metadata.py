"""`tiermq tier restore | import | export-metadata`: rebuild, import or export a broker's tier metadata."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from tiermq.cli.conventions import EXIT_PROBLEMS
from tiermq.cli.option_values import StoreDirectory, topic_option
from tiermq.cli.terminal import bar
from tiermq.cli.tier.options import BROKER, CLUSTER, JSON, STORE, URL, broker_metadata, new_metadata, opened, print_json
from tiermq.cli.tier.output import remark_values, show_remarks, show_tables, table_values
from tiermq.clock import SystemClock
from tiermq.delivery.tiered_timers.timer_discovery import discover_timers
from tiermq.errors import TierError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.pipeline.job_report import counted_noun
from tiermq.tier.driver.contract import TierDriver
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.queue.segments import TierScope, list_tier
from tiermq.tier.restore.restore import restore as restore_metadata
from tiermq.tier.restore.restore_report import RestoreProgress, RestoreReport
from tiermq.tier.restore.rocketmq_json import ImportReport, export_rocketmq_json, import_rocketmq
from tiermq.tier.restore.state_restore import restore_state


def _no_broker(driver: TierDriver, cluster: str | None, broker: str | None) -> TierError:
    wanted = "/".join(name or "*" for name in (cluster, broker))
    there = ", ".join("/".join(names) for names in list_tier(driver, TierScope()).brokers)
    return TierError(
        f"{driver.url}: expected history of one broker, {wanted} (cluster/broker), found none; nothing was restored. "
        f"There is {there or 'no broker: check the address'}"
    )


def _counted(progress: Callable[[int, int], None]) -> Callable[[RestoreProgress], None]:
    return lambda restored: progress(1, restored.total)


def _totals(report: RestoreReport | ImportReport) -> str:
    queues, topics = counted_noun(report.queue_count, "queue"), counted_noun(report.topic_count, "topic")
    return (
        f"{counted_noun(report.message_count, 'message')} in {queues} of {topics}, "
        f"{counted_noun(report.segment_count, 'segment')}, {report.size_bytes:,} bytes"
    )


@click.command()
@URL
@CLUSTER
@BROKER
@click.option(
    "--store",
    required=True,
    type=StoreDirectory(),
    help="Store directory to fill; it must have no tier metadata yet.",
)
@topic_option("topics", multiple=True, help="Only this topic; repeatable.")
@JSON
def restore(
    url: str, cluster: str | None, broker: str | None, store: Path, topics: tuple[str, ...], as_json: bool
) -> None:
    """Rebuild a broker's store directory from the bucket.

    The tier is only read. Give --cluster and --broker when the bucket holds more than one. A broker that then opens the
    directory continues where the lost one ended, and delivers tiered timers.

    Topics, groups, group offsets, delay offsets and request modes come back as the bucket has them, and the report
    lists when each was taken; consumers receive again what they consumed later. An offset beyond the end of its queue
    in the tier is cut. Settings are written to config/restored-broker.conf, for `serve -c`. A file that is in
    the directory already is kept.

    With --topic, other topics, their queues and offsets are left out. The broker that opens the directory lists only
    these; it reads where the others end when it starts, so that their numbering continues too.

    Not in the tier, and so not restored: accounts, and messages of delay levels.

    Exit code: 0, 1 if the tier has inconsistencies (listed), 2 if nothing was restored.

    \b
    Examples:
      tiermq tier restore s3://history --store ~/store
      tiermq tier restore s3://history --store ~/store --topic orders \\
          --topic payments
      tiermq tier restore file:///var/tier --store ~/store \\
          --cluster DefaultCluster --broker broker-a
    """
    with opened(url) as driver, new_metadata(store) as metadata, bar("restoring", adds=True, quiet=as_json) as progress:
        report = restore_metadata(driver, metadata, _counted(progress), cluster=cluster, broker=broker, topics=topics)
        listings = [listing for listing in discover_timers(driver, TierScope(cluster, broker)) if listing.count]
        homes = {(listing.cluster, listing.broker) for listing in listings} - {("", "")}
        if not report.broker and len(homes) != 1:
            raise _no_broker(driver, cluster, broker)
        if not report.broker:
            [(report.cluster, report.broker)] = homes
            metadata.record_names(report.cluster, report.broker)
        timers = sum(listing.count for listing in listings)
        path = metadata.path
        now_ms = SystemClock().now_ms()
        restore_state(driver, metadata, OsFileAccess(), str(store), report, topics=topics, now_ms=now_ms)
    if as_json:
        print_json({
            "path": path, "cluster": report.cluster, "broker": report.broker, "topics": report.topic_count,
            "queues": report.queue_count, "segments": report.segment_count, "messages": report.message_count,
            "size": report.size_bytes, "epoch": report.epoch_max, "clean": report.is_clean, "timers": timers,
            "tables": [table_values(table) for table in report.tables], "lastMessageMs": report.last_message_ms,
            "not_restored": report.not_restored,
            "remarks": [remark_values(remark) for remark in report.remarks],
        })  # fmt: skip
    else:
        click.echo(f"{path}: {_totals(report)}")
        if timers:
            click.echo(
                f"waiting in the tier: {counted_noun(timers, 'timer')}; the broker that opens the store delivers them"
            )
        show_tables(report)
        click.echo(f"not in the tier, so not restored: {'; '.join(report.not_restored)}")
        show_remarks(report.remarks)
    if not report.is_clean:
        raise SystemExit(EXIT_PROBLEMS)


@click.command(name="import")
@URL
@click.option(
    "--metadata",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="RocketMQ's config/tieredStoreMetadata.json.",
)
@click.option("--cluster", default="DefaultCluster", show_default=True, help="The broker's brokerClusterName.")
@BROKER
@click.option("--store", required=True, type=StoreDirectory(), help="Store directory to fill.")
@JSON
def import_(url: str, file: Path, cluster: str, broker: str | None, store: Path, as_json: bool) -> None:
    """Take over a tier from RocketMQ, with its metadata file.

    Topic ids and reserve times come from the file, so that RocketMQ's key index stays valid. Nothing in the tier is
    changed; stop RocketMQ's broker before TierMQ's writes there.

    Exit code: 0, 1 if file and tier disagree or have inconsistencies (listed), 2 if nothing was imported.

    \b
    Examples:
      tiermq tier import file:///var/tier \\
          --metadata ~/store/config/tieredStoreMetadata.json \\
          --store ~/new-store
    """
    with opened(url) as driver, new_metadata(store) as metadata, bar("importing", adds=True, quiet=as_json) as progress:
        report = import_rocketmq(
            driver,
            metadata,
            file.read_bytes(),
            cluster=cluster,
            broker=broker,
            name=str(file),
            progress=_counted(progress),
        )
        path = metadata.path
    if as_json:
        print_json({
            "path": path, "cluster": report.cluster, "broker": report.broker, "topics": report.topic_count,
            "queues": report.queue_count, "segments": report.segment_count, "messages": report.message_count,
            "size": report.size_bytes, "not_in_tier": report.not_in_tier, "not_in_file": report.not_in_file,
            "index_files": report.index_file_count, "index_complete": report.index_file_count == 0,
            "remarks": [remark_values(remark) for remark in report.remarks],
        })  # fmt: skip
    else:
        click.echo(f"{path}: {_totals(report)}")
        for title, paths in (("not in the tier", report.not_in_tier), ("not in the file", report.not_in_file)):
            for each in paths:
                click.echo(f"  {title}: {each}")
        if report.index_note:
            click.echo(f"  note: {report.index_note}")
        show_remarks(report.remarks)
    if report.remarks or report.not_in_tier or report.not_in_file:
        raise SystemExit(EXIT_PROBLEMS)


@click.command(name="export-metadata")
@URL
@CLUSTER
@BROKER
@STORE
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Output file [standard output].")
@click.option("--json", "as_json", is_flag=True, help="Print a report as one JSON object; needs --output.")
def export_metadata(
    url: str, cluster: str | None, broker: str | None, store: Path | None, output: Path | None, as_json: bool
) -> None:
    """Write RocketMQ's tieredStoreMetadata.json for the tier.

    The source is the bucket, or with --store that broker's tier metadata. RocketMQ reads a tier of
    file:/// only; put the file into its store's config folder while it is stopped.

    Exit code: 0, or 2 if the tier cannot be read.

    \b
    Examples:
      tiermq tier export-metadata file:///var/tier \\
          --output ~/rocketmq-store/config/tieredStoreMetadata.json
    """
    if as_json and output is None:
        raise click.UsageError("--json reports what was written to --output: give --output")
    with opened(url) as driver, broker_metadata(store) as known, bar("looking", adds=True, quiet=as_json) as progress:
        if known is not None:
            data, count = export_rocketmq_json(known), known.segment_count()
        else:
            with (
                tempfile.TemporaryDirectory(prefix="tiermq-export-") as directory,
                MetadataStore(Path(directory) / "found.db") as found,
            ):
                report = restore_metadata(driver, found, _counted(progress), cluster=cluster, broker=broker)
                if not report.broker:
                    raise _no_broker(driver, cluster, broker)
                data, count = export_rocketmq_json(found), found.segment_count()
    if output is None:
        click.echo(data.decode(), nl=False)
        return
    output.write_bytes(data)
    if as_json:
        print_json({"path": str(output), "size": len(data), "segments": count})
    else:
        click.echo(f"{output}: {counted_noun(count, 'segment')}, {len(data):,} bytes")
