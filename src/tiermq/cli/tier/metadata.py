"""`tiermq tier restore | import | export-metadata`: what a broker knows of its tier, made anew or handed on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from tiermq.cli.tier_options import (
    BROKER,
    CLUSTER,
    EXIT_PROBLEMS,
    JSON,
    STORE,
    URL,
    broker_metadata,
    new_metadata,
    opened,
    print_json,
)
from tiermq.cli.tier_output import bar, remark_values, show_remarks
from tiermq.delivery.far.timer_survey import survey_timers
from tiermq.errors import TierError
from tiermq.tier.metadata.metadata_store import MetadataStore
from tiermq.tier.metadata.restore import restore as restore_metadata
from tiermq.tier.metadata.restore_report import NOT_IN_THE_TIER, RestoreProgress
from tiermq.tier.metadata.rocketmq_json import export_rocketmq_json
from tiermq.tier.rocketmq_import import import_rocketmq
from tiermq.tier.tier_listing import TierScope


def _told(progress: Callable[[int, int], None]) -> Callable[[RestoreProgress], None]:
    return lambda told: progress(1, told.total)


@click.command()
@URL
@CLUSTER
@BROKER
@click.option(
    "--store",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The store directory to fill; it must not know of a tier yet.",
)
@JSON
def restore(url: str, cluster: str | None, broker: str | None, store: Path, as_json: bool) -> None:
    """Rebuild, in the store directory --store, what a broker knows of the tier at URL, from the bucket alone.

    The tier is only read. Say --cluster and --broker when the bucket holds more than one. A broker that then opens the
    directory goes on where the lost one ended, and delivers the timers that wait in the tier.

    Not in the tier, and so not restored: consumer groups and their offsets, numbers of queues (a topic gets as many as
    have messages in the tier), permissions, order and attributes of topics except how long they are kept. A copy of the
    lost store's config directory has them: put its consumerOffset.json, subscriptionGroup.json and topics.json into the
    new one before the broker starts.

    Exit code: 0, 1 if something in the tier was odd (it is said what), 2 if nothing was restored.

    \b
    Examples:
      tiermq tier restore s3://history --store ~/store
      tiermq tier restore file:///var/tier --store ~/store --cluster DefaultCluster --broker broker-a
    """
    with opened(url) as driver, new_metadata(store) as metadata, bar("restoring", quiet=as_json) as progress:
        report = restore_metadata(driver, metadata, _told(progress), cluster=cluster, broker=broker)
        timers = sum(survey.count for survey in survey_timers(driver, TierScope(cluster, broker)))
        if not report.broker and not timers:
            raise TierError(f"{url}: expected a broker's tier, found none; nothing was restored")
        path = metadata.path
    if as_json:
        print_json({
            "path": path, "cluster": report.cluster, "broker": report.broker, "topics": report.topic_count,
            "queues": report.queue_count, "segments": report.segment_count, "messages": report.message_count,
            "size": report.size_bytes, "epoch": report.epoch_max, "clean": report.is_clean, "timers": timers,
            "not_restored": list(NOT_IN_THE_TIER),
            "remarks": [remark_values(remark) for remark in report.remarks],
        })  # fmt: skip
    else:
        click.echo(
            f"{path}: {report.message_count:,} messages in {report.queue_count:,} queues of {report.topic_count:,} "
            f"topics, {report.segment_count:,} segments, {report.size_bytes:,} bytes"
        )
        if timers:
            click.echo(f"{timers:,} timers wait in the tier: the broker that opens the store delivers them")
        click.echo(f"not in the tier, so not restored: {'; '.join(NOT_IN_THE_TIER)}")
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
@click.option("--store", required=True, type=click.Path(file_okay=False, path_type=Path), help="The directory to fill.")
@JSON
def import_(url: str, file: Path, cluster: str, broker: str | None, store: Path, as_json: bool) -> None:
    """Take over the tier at URL from RocketMQ: its metadata file says what is meant, the tier what is there.

    Topic ids and reserve times come from the file, so that RocketMQ's key index stays true. Nothing in the tier is
    changed; stop RocketMQ's broker before ours writes there.

    Exit code: 0, 1 if file and tier disagree or something is odd (it is said what), 2 if nothing was imported.

    \b
    Examples:
      tiermq tier import file:///var/tier --metadata ~/store/config/tieredStoreMetadata.json --store ~/new-store
    """
    with opened(url) as driver, new_metadata(store) as metadata, bar("importing", quiet=as_json) as progress:
        report = import_rocketmq(
            driver,
            metadata,
            file.read_bytes(),
            cluster=cluster,
            broker=broker,
            name=str(file),
            progress=_told(progress),
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
        click.echo(
            f"{path}: {report.message_count:,} messages in {report.queue_count:,} queues of {report.topic_count:,} "
            f"topics, {report.segment_count:,} segments, {report.size_bytes:,} bytes"
        )
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
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to write; without it, print it.")
@click.option("--json", "as_json", is_flag=True, help="Print what was written as one JSON object; needs --output.")
def export_metadata(
    url: str, cluster: str | None, broker: str | None, store: Path | None, output: Path | None, as_json: bool
) -> None:
    """Write RocketMQ's tieredStoreMetadata.json for the tier at URL, so that RocketMQ can serve it.

    What is written comes from the bucket alone, or with --store from what that broker knows. RocketMQ reads a tier of
    file:/// only; put the file into its store's config folder while it is stopped.

    Exit code: 0, or 2 if the tier cannot be read.

    \b
    Examples:
      tiermq tier export-metadata file:///var/tier --output ~/rocketmq-store/config/tieredStoreMetadata.json
    """
    if as_json and output is None:
        raise click.UsageError("--json says what was written: give --output")
    with opened(url) as driver, broker_metadata(store) as known, bar("looking", quiet=as_json) as progress:
        if known is not None:
            data, count = export_rocketmq_json(known), known.segment_count()
        else:
            with (
                tempfile.TemporaryDirectory(prefix="tiermq-export-") as directory,
                MetadataStore(Path(directory) / "found.db") as found,
            ):
                restore_metadata(driver, found, _told(progress), cluster=cluster, broker=broker)
                data, count = export_rocketmq_json(found), found.segment_count()
    if output is None:
        click.echo(data.decode(), nl=False)
        return
    output.write_bytes(data)
    if as_json:
        print_json({"path": str(output), "size": len(data), "segments": count})
    else:
        click.echo(f"{output}: {count:,} segments, {len(data):,} bytes")
