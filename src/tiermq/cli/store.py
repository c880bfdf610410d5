"""`tiermq store stat` and `tiermq store check`: inspect a store directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click

from tiermq.cli.conventions import EXIT_NO_STORE, EXIT_PROBLEMS, FINDINGS_SHOWN_MAX, SuggestingGroup
from tiermq.cli.option_values import StoreDirectory
from tiermq.cli.terminal import bar, is_watched, print_table
from tiermq.console.json_case import camel
from tiermq.delivery.transactions.open_halves import open_halves
from tiermq.delivery.waiting_view import WaitingView
from tiermq.errors import StoreError
from tiermq.pipeline.job_report import counted_noun
from tiermq.store.readonly.check import CheckReport, check_store
from tiermq.store.readonly.directory import is_store
from tiermq.store.readonly.stat import StoreStat, stat_store


@click.group(cls=SuggestingGroup)
def store() -> None:
    """Inspect a store directory of TierMQ or RocketMQ, in use or not.

    \b
    Examples:
      tiermq store stat ~/store
      tiermq store check ~/store
    """


def directory_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of both commands."""
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option(
            "--slots", type=click.IntRange(min=1), help="maxHashSlotNum of the index files, if it cannot be detected."
        ),
        click.option(
            "--log",
            "logs",
            multiple=True,
            type=StoreDirectory(exists=True),
            help="Commit log directory outside of DIRECTORY (storePathCommitLog); repeatable.",
        ),
        click.argument("directory", type=StoreDirectory(exists=True)),
    ):
        command = decorate(command)
    return command


@store.command()
@directory_options
def stat(directory: Path, logs: tuple[Path, ...], slots: int | None, as_json: bool) -> None:
    """Show what the store in DIRECTORY holds. Fast on large stores too.

    Reports log, queues, index, checkpoint, delayed messages and disk use.

    Exit code: 0, or 2 if DIRECTORY is no store.

    \b
    Examples:
      tiermq store stat ~/store
      tiermq store stat ~/store --log /disk2/commitlog
      tiermq store stat ~/store --json \\
          | jq '.queues[] | select(.topic == "orders")'
    """
    try:
        found = stat_store(directory, commit_log_paths=logs, slot_count=slots)
        open_transactions = sum(1 for _ in open_halves(directory, logs))
        with WaitingView(directory, commit_log_paths=logs) as view:
            waiting = view.summary()
    except StoreError as error:
        _no_store(error)
    if as_json:
        click.echo(json.dumps(camel({**found.to_dict(), "open_transactions": open_transactions, "waiting": waiting})))
    else:
        _show_stat(found, open_transactions, waiting)


@store.command()
@directory_options
def check(directory: Path, logs: tuple[Path, ...], slots: int | None, as_json: bool) -> None:
    """Read and check every file of the store in DIRECTORY.

    Every record must be intact and have its unit, every unit its record, every key its index entry, and every index
    entry a record with such a key. What the next start repairs is a note, not a problem.

    Exit code: 0 clean, 1 problems, 2 no store.

    \b
    Examples:
      tiermq store check ~/store
      tiermq store check ~/store --json | jq '.problems[].text'
    """
    try:
        report = _checked(directory, logs, slots, quiet=as_json)
    except StoreError as error:
        _no_store(error)
    if as_json:
        click.echo(json.dumps(camel(report.to_dict())))
    else:
        _show_report(report)
    if not report.is_clean:
        raise SystemExit(EXIT_PROBLEMS)


def _no_store(error: StoreError) -> NoReturn:
    click.echo(f"Error: {error}", err=True)
    raise SystemExit(EXIT_NO_STORE) from error


def _checked(directory: Path, logs: tuple[Path, ...], slots: int | None, *, quiet: bool) -> CheckReport:
    """The check, with a progress bar on a terminal."""
    if quiet or not is_watched() or not is_store(directory):
        return check_store(directory, commit_log_paths=logs, slot_count=slots)
    from tiermq.store.readonly.directory import FileKind, list_store

    walked = (FileKind.COMMIT_LOG, FileKind.CONSUME_QUEUE, FileKind.BATCH_CONSUME_QUEUE)
    total = sum(file.path.stat().st_size for file in list_store(directory, logs) if file.kind in walked)
    with bar("checking", in_bytes=True, adds=True) as progress:
        return check_store(
            directory, commit_log_paths=logs, slot_count=slots, progress=lambda done: progress(done, total)
        )


def _show_report(report: CheckReport) -> None:
    counts = report.counts
    click.echo(f"{report.directory}: {'clean' if report.is_clean else counted_noun(report.problem_count, 'problem')}")
    click.echo(f"  closed      {'in order' if report.ended_cleanly else 'no: it crashed, or is in use'}")
    click.echo(
        f"  commit log  {counted_noun(counts['records'], 'record')}, {counts['record_bytes']:,} bytes, "
        f"{counted_noun(counts['log_files'], 'file')}"
    )
    click.echo(
        f"  queues      {counted_noun(counts['units'], 'unit')} in {counted_noun(counts['queues'], 'queue')}, "
        f"{counts['units_expired']:,} expired"
    )
    click.echo(f"  index       {counts['index_entries']:,} entries in {counted_noun(counts['index_files'], 'file')}")
    for title, findings, count in (
        ("problems", report.problems, report.problem_count),
        ("notes (repaired by the next start, or only worth knowing)", report.notes, report.note_count),
    ):
        if count:
            click.echo(f"\n{title}:")
            for finding in findings[:FINDINGS_SHOWN_MAX]:
                click.echo(f"  {finding.kind:13} {finding.where}: {finding.text}")
            if count > FINDINGS_SHOWN_MAX:
                click.echo(f"  and {count - FINDINGS_SHOWN_MAX:,} more; --json has the first thousand")


def _waiting_lines(waiting: dict[str, Any]) -> Iterator[str]:
    """Delayed messages as lines of text; none if there are none."""
    if waiting["timers"] or waiting["timers_not_taken_in"]:
        due = f", the next is due {_moment(waiting['timers_next_due_ms'])}" if waiting["timers_next_due_ms"] else ""
        behind = f", {waiting['timers_not_taken_in']:,} more to take in" if waiting["timers_not_taken_in"] else ""
        yield f"  timers      {waiting['timers']:,} wait{due}{behind}"
        for topic, count in waiting["timers_by_topic"].items():
            yield f"  timers      {count:,} for {topic}"
    for level, count in waiting["delayed_by_level"].items():
        yield f"  delayed     {count:,} of level {level}"


def _show_stat(found: StoreStat, open_transactions: int, waiting: dict[str, Any]) -> None:
    span = found.log_max_offset - found.log_min_offset
    click.echo(str(found.directory))
    click.echo(f"  closed      {'in order' if found.ended_cleanly else 'no: it crashed, or is in use'}")
    click.echo(
        f"  commit log  {found.log_min_offset:,} to {found.log_max_offset:,} ({span:,} bytes), "
        f"{counted_noun(found.log_files, 'file')}"
    )
    click.echo(f"  index       {found.index_entries:,} entries in {counted_noun(found.index_files, 'file')}")
    for name, value in found.checkpoint.items():
        shown = _moment(value) if name.endswith("_ms") else f"{value:,}"
        click.echo(f"  checkpoint  {name.removesuffix('_ms')} {shown}")
    if open_transactions:
        click.echo(f"  transactions  {open_transactions:,} open, see `tiermq transaction ls`")
    for line in _waiting_lines(waiting):
        click.echo(line)
    click.echo(f"  disk        {sum(found.disk_bytes.values()):,} bytes")
    topics: dict[str, list[int]] = {}
    for queue in found.queues:
        topics.setdefault(queue.topic, []).append(queue.messages)
    rows = [
        [topic, str(len(each)), f"{sum(each):,}", f"{min(each):,}", f"{max(each):,}"] for topic, each in topics.items()
    ]
    print_table(["topic", "queues", "messages", "smallest", "largest"], rows)


def _moment(timestamp_ms: int) -> str:
    if timestamp_ms <= 0:
        return "never"
    return datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
