"""How `tiermq tier` shows what it found: tables for eyes, plain values for programs, a bar for those who wait."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment
from tiermq.tier.metadata.restore_report import Remark
from tiermq.tier.names import SegmentType
from tiermq.tier.retention_plan import Kept
from tiermq.tier.tier_view import QueueView, TierView
from tiermq.tier.verify_report import VerifyReport

FINDINGS_SHOWN_MAX = 20


def moment(timestamp_ms: int) -> str:
    """A time for eyes; nothing for one that is not known."""
    if not 0 < timestamp_ms < NEVER_MS:
        return ""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return str(timestamp_ms)


def is_watched() -> bool:
    return sys.stderr.isatty()


@contextmanager
def bar(text: str, *, in_bytes: bool = False, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A function to tell (done since the last time, in all); it draws where somebody is watching."""
    if quiet or not is_watched():
        yield lambda _done, _total: None
        return
    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn(text), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, advance=done, total=total)


# Queues and segments


def segment_values(segment: Segment) -> dict[str, Any]:
    return {
        "type": segment.key.type.name,
        "base": segment.key.base,
        "size": segment.size,
        "status": segment.status.name,
        "begin_ms": _known(segment.begin_ms),
        "end_ms": _known(segment.end_ms),
        "begin_offset": segment.begin_offset if segment.begin_offset >= 0 else None,
        "end_offset": segment.end_offset if segment.end_offset >= 0 else None,
        "path": segment.key.path,
    }


def queue_values(queue: QueueView) -> dict[str, Any]:
    return {
        "cluster": queue.key.cluster,
        "broker": queue.key.broker,
        "topic": queue.key.topic,
        "queue_id": queue.key.queue_id,
        "min_offset": queue.min_offset,
        "max_offset": queue.max_offset,
        "messages": queue.message_count,
        "size": queue.size_bytes,
        "begin_ms": queue.begin_ms if queue.begin_ms >= 0 else None,
        "end_ms": queue.end_ms if queue.end_ms >= 0 else None,
        "has_manifest": queue.manifest is not None,
        "epoch": queue.manifest.epoch if queue.manifest else None,
        "writer": queue.manifest.writer if queue.manifest else None,
        "gaps": [
            {"from_offset": gap.from_offset, "to_offset": gap.to_offset, "reason": gap.reason}
            for gap in queue.survey.gaps
        ],
        "segments": [segment_values(segment) for segment in queue.segments()],
    }


def view_values(view: TierView) -> dict[str, Any]:
    return {
        "url": view.url,
        "queues": [queue_values(queue) for queue in view.queues],
        "index": [segment_values(segment) for segment in view.index],
        "remarks": [remark_values(remark) for remark in view.remarks],
    }


def remark_values(remark: Remark) -> dict[str, str]:
    return {"kind": remark.finding.name.lower(), "where": remark.where, "text": remark.text}


def show_view(view: TierView, with_segments: bool) -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    table = Table("topic", "queue", "messages", "from", "to", "bytes", "segments", "oldest", "newest")
    for column in table.columns[1:7]:
        column.justify = "right"
    for queue in view.queues:
        table.add_row(
            queue.key.topic, str(queue.key.queue_id), f"{queue.message_count:,}", f"{queue.min_offset:,}",
            f"{queue.max_offset:,}", f"{queue.size_bytes:,}", str(len(queue.segments())), moment(queue.begin_ms),
            moment(queue.end_ms),
        )  # fmt: skip
    console.print(table)
    if with_segments:
        segments = [segment for queue in view.queues for segment in queue.segments()] + view.index
        for segment in segments:
            times = f"{moment(segment.begin_ms)} {moment(segment.end_ms)}".strip()
            click.echo(f"{segment.size:>14,}  {segment.status.name:6}  {segment.key.path}  {times}")
    show_remarks(view.remarks)


def show_remarks(remarks: Sequence[Remark]) -> None:
    if remarks:
        click.echo("\nremarks:")
    for remark in remarks[:FINDINGS_SHOWN_MAX]:
        click.echo(f"  {remark}")
    if len(remarks) > FINDINGS_SHOWN_MAX:
        click.echo(f"  and {len(remarks) - FINDINGS_SHOWN_MAX:,} more; --json has all of them")


# Totals


def total_values(view: TierView) -> dict[str, Any]:
    segments = [segment for queue in view.queues for segment in queue.segments()] + view.index
    sizes: Counter[SegmentType] = Counter()
    for segment in segments:
        sizes[segment.key.type] += segment.size
    begins = [queue.begin_ms for queue in view.queues if queue.begin_ms >= 0]
    return {
        "url": view.url,
        "brokers": [{"cluster": cluster, "broker": broker} for cluster, broker in view.brokers],
        "topics": len({(queue.key.broker, queue.key.topic) for queue in view.queues}),
        "queues": len(view.queues),
        "messages": sum(queue.message_count for queue in view.queues),
        "gaps": sum(len(queue.survey.gaps) for queue in view.queues),
        "segments": len(segments),
        "size": sum(sizes.values()),
        "commit_log_size": sizes[SegmentType.COMMIT_LOG],
        "consume_queue_size": sizes[SegmentType.CONSUME_QUEUE],
        "index_size": sizes[SegmentType.INDEX],
        "begin_ms": min(begins, default=None),
        "end_ms": max((queue.end_ms for queue in view.queues if queue.end_ms >= 0), default=None),
        "without_manifest": sum(queue.manifest is None for queue in view.queues),
        "retention": retention_values(view),
        "remarks": [remark_values(remark) for remark in view.remarks],
    }


def retention_values(view: TierView) -> list[dict[str, Any]]:
    """The topics that have a time or a limit of their own, as their manifests say."""
    own = {
        (queue.key.cluster, queue.key.broker, queue.key.topic): (
            queue.manifest.reserve_time_hours,
            queue.manifest.max_bytes,
        )
        for queue in view.queues
        if queue.manifest is not None and (queue.manifest.reserve_time_hours > 0 or queue.manifest.max_bytes > 0)
    }
    return [
        {
            "cluster": cluster,
            "broker": broker,
            "topic": topic,
            "hours": hours if hours > 0 else None,
            "max_bytes": size if size > 0 else None,
        }
        for (cluster, broker, topic), (hours, size) in sorted(own.items())
    ]


def _show_retention(values: dict[str, Any]) -> None:
    own = values["retention"]
    click.echo(f"  retention  {len(own):,} of {values['topics']:,} topics have their own, others the broker's setting")
    for row in own[:FINDINGS_SHOWN_MAX]:
        click.echo(f"    {row['topic']:9}  {_own_words(row['hours'], row['max_bytes'])}")
    if len(own) > FINDINGS_SHOWN_MAX:
        click.echo(f"    and {len(own) - FINDINGS_SHOWN_MAX:,} more; --json has all of them")


def _own_words(hours: int | None, max_bytes: int | None) -> str:
    """What a topic says itself; of what it does not speak, the broker's setting decides."""
    limit = "" if max_bytes is None else f"at most {max_bytes:,} bytes"
    time = "" if hours is None else str(Kept.by(hours, -1, -1, -1))
    return ", ".join(filter(None, (time, limit)))


def show_totals(view: TierView) -> None:
    values = total_values(view)
    brokers = ", ".join(f"{row['broker']} of {row['cluster']}" for row in values["brokers"]) or "none"
    click.echo(view.url)
    click.echo(f"  brokers    {brokers}")
    click.echo(f"  messages   {values['messages']:,} in {values['queues']:,} queues of {values['topics']:,} topics")
    click.echo(
        f"  stored     {moment(values['begin_ms'] or -1) or 'never'} to {moment(values['end_ms'] or -1) or 'never'}"
    )
    click.echo(f"  bytes      {values['size']:,} in {values['segments']:,} segments")
    for name, text in (("commit_log", "records"), ("consume_queue", "units"), ("index", "key index")):
        click.echo(f"    {text:9}  {values[f'{name}_size']:,}")
    click.echo(f"  gaps       {values['gaps']}")
    _show_retention(values)
    click.echo(f"  manifests  {values['queues'] - values['without_manifest']:,} of {values['queues']:,} queues")
    show_remarks(view.remarks)


# Verification


def show_verification(report: VerifyReport) -> None:
    counts = report.counts
    click.echo(f"{report.url}: {'clean' if report.is_clean else f'{report.problem_count:,} problems'}")
    click.echo(f"  read     {counts['bytes']:,} bytes in {counts['segments']:,} segments")
    click.echo(f"  records  {counts['records']:,}")
    click.echo(
        f"  units    {counts['units']:,} in {counts['queues']:,} queues, {counts['blank_units']:,} of them blank, "
        f"{counts['expired_units']:,} expired"
    )
    click.echo(
        f"  index    {counts['index_items']:,} items in {counts['index_files']:,} files, "
        f"{counts['stale_items']:,} stale; {counts['keys']:,} keys of covered messages, "
        f"{counts['missing_items']:,} messages without items"
    )
    if counts["timer_objects"]:
        click.echo(f"  timers   {counts['timers']:,} in {counts['timer_objects']:,} objects")
    for title, findings, count in (
        ("problems", report.problems, report.problem_count),
        ("notes (no loss: a crash, a running writer or RocketMQ leaves these)", report.notes, report.note_count),
    ):
        if count:
            click.echo(f"\n{title}:")
            for finding in findings[:FINDINGS_SHOWN_MAX]:
                click.echo(f"  {finding.kind:21} {finding.where}: {finding.text}")
            if count > FINDINGS_SHOWN_MAX:
                click.echo(f"  and {count - FINDINGS_SHOWN_MAX:,} more; --json has the first thousand")


def _known(timestamp_ms: int) -> int | None:
    return None if timestamp_ms == NEVER_MS else timestamp_ms
