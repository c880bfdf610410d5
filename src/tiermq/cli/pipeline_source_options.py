"""Options by which the commands of `tiermq pipeline` say which messages they are about: places, topics, times.

They are those of `tiermq.spark.messages`, in the same words.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tiermq.errors import BadConfig

if TYPE_CHECKING:
    from tiermq.spark.jobs.job_report import JobReport

Command = TypeVar("Command", bound=Callable[..., Any])

PLACES = (
    click.option("--tier", metavar="URL", help="A tier: file:///dir, s3://bucket/prefix, …"),
    click.option(
        "--store",
        "stores",
        multiple=True,
        metavar="DIR[=broker]",
        help="A store directory, and its broker's name; may be repeated. With --tier: hot and cold as one.",
    ),
)
TOPICS = click.option("--topic", "topics", multiple=True, help="Only this topic; may be repeated. Without: all.")
TIMES = (
    click.option("--since", metavar="TIME", help="Stored at this time or later: 2026-01-31T10:00, or ms since 1970."),
    click.option("--until", metavar="TIME", help="Stored before this time."),
)
OFFSETS = click.option(
    "--offsets", metavar="FROM:TO", help="Only these offsets of every queue; either side may be empty: 100:200, 100:."
)
QUEUES = click.option("--queue", "queues", multiple=True, type=int, help="Only this queue id; may be repeated.")


def source_options(command: Command) -> Command:
    """--tier, --store, --topic, --queue, --since, --until, --offsets."""
    for option in (OFFSETS, *reversed(TIMES), QUEUES, TOPICS, *reversed(PLACES)):
        command = option(command)
    return command


def source_arguments(
    *,
    tier: str | None,
    stores: tuple[str, ...],
    topics: tuple[str, ...],
    queues: tuple[int, ...] = (),
    since: str | None = None,
    until: str | None = None,
    offsets: str | None = None,
) -> dict[str, Any]:
    """The same as arguments of `messages`. Raises BadConfig."""
    if tier is None and not stores:
        raise BadConfig("say where messages lie: --tier URL, --store DIR, or both")
    pairs = [text.partition("=") for text in stores]
    brokers = [broker.rsplit("/", 1)[-1] for _, _, broker in pairs]
    if any(brokers) and not all(brokers):
        raise BadConfig("name the broker of every --store (DIR=broker), or of none")
    arguments: dict[str, Any] = {
        "tier": tier,
        "store": [path for path, _, _ in pairs] or None,
        "topic": list(topics) or None,
        "queues": list(queues) or None,
        "since": since,
        "until": until,
        "offsets": offsets_of(offsets),
        "brokerName": brokers if any(brokers) else None,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def offsets_of(text: str | None) -> tuple[int | None, int | None] | None:
    """`FROM:TO` as numbers. Raises BadConfig."""
    if text is None:
        return None
    begin, colon, end = text.partition(":")
    if not colon or not all(each == "" or each.isdigit() for each in (begin, end)) or text == ":":
        raise BadConfig(f"--offsets is FROM:TO, such as 100:200, 100: or :200, found {text!r}")
    if begin and end and int(begin) > int(end):
        raise BadConfig(f"--offsets is FROM:TO, and FROM is not behind TO, found {text!r}")
    return (int(begin) if begin else None, int(end) if end else None)


@contextmanager
def stopped_by_signals(stop: threading.Event, what: str) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM set `stop`, and a second one end the process as it usually does."""
    before: dict[int, Any] = {}

    def ask(number: int, _frame: object) -> None:
        click.echo(f"stopping after this {what}; once more to stop at once", err=True)
        stop.set()
        signal.signal(number, before[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for changed, handler in before.items():
            signal.signal(changed, handler)


def queue_ranges(report: JobReport) -> Iterator[str]:
    """A line for each queue that a report names, with its ranges of offsets."""
    for row in report.details.get("queues", ()):
        ranges = ", ".join(f"{begin}..{end}" for begin, end in row["ranges"])
        yield f"{row['queue']}: {ranges}"
