"""Output of `tiermq tier`: tables and JSON values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from tiermq.cli.conventions import FINDINGS_SHOWN_MAX
from tiermq.cli.terminal import print_table, size_words, terminal_width
from tiermq.delivery.tiered_timers.timer_discovery import TimerListing
from tiermq.delivery.tiered_timers.timer_name import TimerName
from tiermq.errors import TierError
from tiermq.pipeline.job_report import counted_noun
from tiermq.tier.metadata.broker_state import SETTINGS, StoredTable
from tiermq.tier.metadata.metadata_values import NEVER_MS, Segment
from tiermq.tier.names import SegmentType
from tiermq.tier.restore.restore_report import Remark, RestoredTable, RestoreReport
from tiermq.tier.retention.retention_plan import KEPT_FOR_EVER, Kept
from tiermq.tier.tier_config import kept_by_settings
from tiermq.tier.tier_view import QueueView, TierView
from tiermq.tier.verify.verify_report import VerifyReport


def moment(timestamp_ms: int) -> str:
    """A readable time; empty if unknown."""
    if not 0 < timestamp_ms < NEVER_MS:
        return ""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError):
        return str(timestamp_ms)


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
            for gap in queue.discovered.gaps
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


def table_values(table: RestoredTable) -> dict[str, Any]:
    return {
        "kind": table.name, "file": table.file, "takenMs": table.taken_ms, "entries": table.count,
        "kept": table.is_kept,
    }  # fmt: skip


def show_tables(report: RestoreReport) -> None:
    """One line for each table of the broker: how many entries, and how old."""
    for table in report.tables:
        age = f"as of {moment(table.taken_ms)}, {_beside_last(table.taken_ms, report.last_message_ms)}"
        kept = f"; config/{table.file} was there already and is kept" if table.is_kept else ""
        click.echo(f"{table.words} ({table.count:,}) {age}{kept}")


def _beside_last(taken_ms: int, last_ms: int) -> str:
    if not last_ms:
        return "no message"
    seconds = abs(taken_ms - last_ms) // 1000
    return f"{seconds:,} s {'before' if taken_ms < last_ms else 'after'} the last message"


States = Mapping[tuple[str, str], tuple[Mapping[str, StoredTable], Mapping[str, TierError]]]
"""By cluster and broker: the tables of a broker, and by object name what is wrong with others."""


def state_values(states: States) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "cluster": cluster, "broker": broker, "kind": table.kind.name, "takenMs": table.taken_ms,
            "epoch": table.epoch, "writer": table.writer,
        }
        for (cluster, broker), (tables, _) in states.items()
        for table in tables.values()
    ]  # fmt: skip
    errors = {path: error for _, found in states.values() for path, error in found.items()}
    return rows + [{"path": path, "problem": str(error)} for path, error in errors.items()]


def show_states(states: States) -> None:
    """A line for each broker with tables, and one for each table that cannot be read."""
    for (_, broker), (tables, errors) in states.items():
        if tables:
            taken = ", ".join(f"{table.kind.words} {moment(table.taken_ms)}" for table in tables.values())
            click.echo(f"  tables     of {broker}: {taken}")
        for error in errors.values():
            click.echo(f"  tables     {error}")


Column = tuple[str, Callable[[QueueView], str]]
_QUEUE: Column = ("queue", lambda queue: str(queue.key.queue_id))
_ENDS: tuple[Column, ...] = (
    ("from", lambda queue: f"{queue.min_offset:,}"), ("to", lambda queue: f"{queue.max_offset:,}"),
)  # fmt: skip
_WIDE: tuple[Column, ...] = (
    _QUEUE,
    ("messages", lambda queue: f"{queue.message_count:,}"),
    *_ENDS,
    ("bytes", lambda queue: f"{queue.size_bytes:,}"),
    ("segments", lambda queue: str(len(queue.segments()))),
    ("oldest", lambda queue: moment(queue.begin_ms)),
    ("newest", lambda queue: moment(queue.end_ms)),
)
_NARROW: tuple[Column, ...] = (
    _QUEUE,
    *_ENDS,
    ("size", lambda queue: size_words(queue.size_bytes)),
    ("oldest (UTC)", lambda queue: minute(queue.begin_ms)),
    ("newest (UTC)", lambda queue: minute(queue.end_ms)),
)
_WIDE_COLUMNS = 130
"""A terminal below this has fewer columns: a row that wraps is not readable as one."""


def minute(timestamp_ms: int) -> str:
    return moment(timestamp_ms)[:16].replace("T", " ")


def show_view(view: TierView, with_segments: bool) -> None:
    names: tuple[Column, ...] = (("topic", lambda queue: queue.key.topic),)
    if len(view.brokers) > 1:
        names = (("broker", lambda queue: queue.key.broker), *names)
    width = terminal_width()
    columns = (*names, *(_WIDE if width is None or width >= _WIDE_COLUMNS else _NARROW))
    rows = [[value(queue) for _, value in columns] for queue in view.queues]
    print_table([name for name, _ in columns], rows, texts=len(names))
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


def total_values(view: TierView, states: States) -> dict[str, Any]:
    segments = [segment for queue in view.queues for segment in queue.segments()] + view.index
    sizes: Counter[SegmentType] = Counter()
    for segment in segments:
        sizes[segment.key.type] += segment.size
    begins = [queue.begin_ms for queue in view.queues if queue.begin_ms >= 0]
    return {
        "url": view.url,
        "brokers": [{"cluster": cluster, "broker": broker} for cluster, broker in view.brokers],
        "topics": len({(queue.key.cluster, queue.key.topic) for queue in view.queues}),
        "queues": len(view.queues),
        "messages": sum(queue.message_count for queue in view.queues),
        "gaps": sum(len(queue.discovered.gaps) for queue in view.queues),
        "segments": len(segments),
        "size": sum(sizes.values()),
        "commit_log_size": sizes[SegmentType.COMMIT_LOG],
        "consume_queue_size": sizes[SegmentType.CONSUME_QUEUE],
        "index_size": sizes[SegmentType.INDEX],
        "begin_ms": min(begins, default=None),
        "end_ms": max((queue.end_ms for queue in view.queues if queue.end_ms >= 0), default=None),
        "without_manifest": sum(queue.manifest is None for queue in view.queues),
        "retention": retention_values(view),
        "broker_retention": broker_retention_values(states),
        "remarks": [remark_values(remark) for remark in view.remarks],
    }


def retention_values(view: TierView) -> list[dict[str, Any]]:
    """The topics with retention of their own, from their manifests."""
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


def broker_retention_values(states: States) -> list[dict[str, Any]]:
    """What applies to topics without retention of their own, by the settings of their brokers in the tier.

    `problem`: why it is not known; None where it is.
    """
    rows: list[dict[str, Any]] = []
    for (cluster, broker), (tables, errors) in states.items():
        table = tables.get(SETTINGS.name)
        kept = KEPT_FOR_EVER if table is None else kept_by_settings(table.document[SETTINGS.table])
        problem = None if table is not None else "; ".join(map(str, errors.values())) or "no settings in the tier"
        limits = {"hours": kept.hours, "max_bytes": kept.max_bytes, "problem": problem}
        rows.append({"cluster": cluster, "broker": broker, **limits})
    return rows


def _others_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """For each retention the brokers that have it, where they differ."""
    homes: dict[str, list[str]] = {}
    for row in rows:
        problem = row["problem"]
        words = str(Kept(row["hours"], row["max_bytes"])) if problem is None else f"not known ({problem})"
        homes.setdefault(words, []).append(row["broker"])
    if len(homes) == 1:
        return next(iter(homes))
    return "; ".join(f"{words} ({', '.join(brokers)})" for words, brokers in homes.items())


def _show_retention(values: dict[str, Any]) -> None:
    own = values["retention"]
    count = len({(row["cluster"], row["topic"]) for row in own})
    others = _others_words(values["broker_retention"])
    words = f"own: {count:,} of {counted_noun(values['topics'], 'topic')}"
    click.echo(f"  retention  {words}" + (f"; others: {others}" if others else ""))
    for row in own[:FINDINGS_SHOWN_MAX]:
        click.echo(f"    {row['topic']:9}  {_own_words(row['hours'], row['max_bytes'])}")
    if len(own) > FINDINGS_SHOWN_MAX:
        click.echo(f"    and {len(own) - FINDINGS_SHOWN_MAX:,} more; --json has all of them")


def _own_words(hours: int | None, max_bytes: int | None) -> str:
    """A topic's own retention; what it does not set comes from the broker's settings."""
    limit = "" if max_bytes is None else f"at most {max_bytes:,} bytes"
    time = "" if hours is None else str(Kept.by(hours, -1, -1, -1))
    return ", ".join(filter(None, (time, limit)))


def show_totals(view: TierView, states: States) -> None:
    values = total_values(view, states)
    brokers = ", ".join(f"{row['broker']} of {row['cluster']}" for row in values["brokers"]) or "none"
    click.echo(view.url)
    click.echo(f"  brokers    {brokers}")
    click.echo(
        f"  messages   {values['messages']:,} in {counted_noun(values['queues'], 'queue')} of "
        f"{counted_noun(values['topics'], 'topic')}"
    )
    click.echo(
        f"  stored     {moment(values['begin_ms'] or -1) or 'never'} to {moment(values['end_ms'] or -1) or 'never'}"
    )
    click.echo(f"  bytes      {values['size']:,} in {counted_noun(values['segments'], 'segment')}")
    for name, text in (("commit_log", "records"), ("consume_queue", "units"), ("index", "key index")):
        click.echo(f"    {text:9}  {values[f'{name}_size']:,}")
    click.echo(f"  gaps       {values['gaps']}")
    _show_retention(values)
    click.echo(
        f"  manifests  {values['queues'] - values['without_manifest']:,} of {counted_noun(values['queues'], 'queue')}"
    )
    show_remarks(view.remarks)


# Verification


def show_verification(report: VerifyReport) -> None:
    counts = report.counts
    click.echo(f"{report.url}: {'clean' if report.is_clean else counted_noun(report.problem_count, 'problem')}")
    click.echo(f"  read     {counts['bytes']:,} bytes in {counted_noun(counts['segments'], 'segment')}")
    click.echo(f"  records  {counts['records']:,}")
    click.echo(
        f"  units    {counts['units']:,} in {counted_noun(counts['queues'], 'queue')}, "
        f"{counts['blank_units']:,} of them blank, "
        f"{counts['expired_units']:,} expired"
    )
    click.echo(
        f"  index    {counted_noun(counts['index_items'], 'item')} in {counted_noun(counts['index_files'], 'file')}, "
        f"{counts['stale_items']:,} stale; {counted_noun(counts['keys'], 'key')} of covered messages, "
        f"{counted_noun(counts['missing_items'], 'message')} without items"
    )
    if counts["timer_objects"]:
        click.echo(f"  timers   {counts['timers']:,} in {counted_noun(counts['timer_objects'], 'object')}")
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


def timer_values(listings: Sequence[TimerListing], *, with_objects: bool) -> list[dict[str, Any]]:
    """One row for each broker; times are the first and the last delivery time."""
    return [
        {
            "cluster": listing.cluster,
            "broker": listing.broker,
            "timers": listing.count,
            "size": listing.size_bytes,
            "first_due_ms": listing.first_ms if listing.live else None,
            "last_due_ms": listing.last_ms if listing.live else None,
            "damaged": len(listing.manifest.damaged),
            "trouble": listing.trouble,
            "objects": [_object_values(listing, name) for name in listing.objects]
            if with_objects
            else len(listing.live),
        }
        for listing in listings
    ]


def _object_values(listing: TimerListing, name: TimerName) -> dict[str, Any]:
    return {
        "timers": name.count,
        "size": name.size_bytes,
        "first_due_ms": name.first_ms,
        "last_due_ms": name.last_ms,
        "path": name.path(listing.directory),
    }


def show_timers(listings: Sequence[TimerListing], *, with_objects: bool = False) -> None:
    """A line for each broker with timers, and on request one for each object."""
    for listing in listings:
        if listing.live:
            until = f"due {moment(listing.first_ms)} to {moment(listing.last_ms)}"
            objects = f"{listing.size_bytes:,} bytes in {counted_noun(len(listing.live), 'object')}"
            click.echo(f"  timers     {listing.count:,} of {listing.broker}, {until}, {objects}")
        if listing.trouble:
            click.echo(f"  timers     {listing.trouble}")
        for name in listing.objects if with_objects else ():
            times = f"{moment(name.first_ms)} {moment(name.last_ms)}"
            click.echo(f"{name.size_bytes:>14,}  {'TIMERS':6}  {name.path(listing.directory)}  {times}")
