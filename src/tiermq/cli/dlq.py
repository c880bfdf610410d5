"""`tiermq dlq`: the dead letters of a group: looked at, and sent again to where they came from."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import click

from tiermq.cli.cluster_options import cluster_options
from tiermq.cli.dlq_record import ResentRecord
from tiermq.cli.moments import Moment
from tiermq.cli.progress_line import ProgressLine
from tiermq.cli.tier_output import moment
from tiermq.client.access import Access
from tiermq.client.cluster_client import ClusterClient
from tiermq.client.dead_letters import DLQ_PREFIX, DeadLetter, Resending, Unreadable, Wanted, dead_letters
from tiermq.errors import CorruptRecord, RemotingError

EXIT_LEFT = 1
BATCH = 128
BODY_SHOWN_MAX = 80
F = TypeVar("F")

_GROUP = click.argument("group")


def _filters(command: F) -> F:
    options = (
        click.option("--topic", help="Only those that were sent to this topic."),
        click.option("--since", type=Moment(), default=0, help="Only those that died since: a time, or an age as 2h."),
        click.option("--key", help="Only those with this key, this unique key, or this id."),
        click.option("--limit", type=click.IntRange(1), help="At most so many."),
    )
    made: Any = command
    for option in reversed(options):
        made = option(made)
    decorated: F = made
    return decorated


@click.group()
def dlq() -> None:
    """Look at the dead letters of a group, and send them again.

    A message that a group of consumers failed to consume too often, or did not want to see again, lies in the topic
    %DLQ%GROUP. It stays there until it expires like any other message, also after it was sent again.

    \b
    Examples:
      tiermq dlq ls audit
      tiermq dlq ls audit --topic orders --since 2h --json
      tiermq dlq resend audit --key order-42 --dry-run
      tiermq dlq resend audit --topic orders
    """


@dlq.command("ls")
@_GROUP
@cluster_options
@_filters
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
def list_letters(
    access: Access, group: str, topic: str | None, since: int, key: str | None, limit: int | None, as_json: bool
) -> None:
    """The dead letters of GROUP, the oldest first: where they came from, how often they were tried, when they died.

    Exit code: 0, also when there is none; 1 when the cluster cannot be asked, or a letter is damaged.

    \b
    Examples:
      tiermq dlq ls audit
      tiermq dlq ls audit --since 2026-01-31T12:00:00Z --limit 20
      tiermq dlq ls audit --json | jq -r 'select(.tries > 16) | .key'
    """
    name = group.removeprefix(DLQ_PREFIX)

    async def listed(client: ClusterClient) -> int:
        count = 0
        async for letter in _limited(dead_letters(client, name, Wanted(topic, since, key)), limit):
            click.echo(json.dumps(_values(letter)) if as_json else _line(letter))
            count += 1
        return count

    count = _run(access, listed)
    if not as_json:
        click.echo(f"{count:,} dead letter{'' if count == 1 else 's'} of {name}", err=True)


@dlq.command()
@_GROUP
@cluster_options
@_filters
@click.option("--to", help="Send all of them to this topic, instead of those that they came from.")
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that remembers what was sent again, for letters that outlive what became of them.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def resend(
    access: Access,
    group: str,
    topic: str | None,
    since: int,
    key: str | None,
    limit: int | None,
    to: str | None,
    record: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send the dead letters of GROUP again, each to the topic that it came from. Every group of that topic gets them.

    One that was sent again already is not sent a second time: it has a key that follows from its place, and brokers
    are asked for that key. They know it as long as they or their tier keep the topic's messages; --record remembers it
    for longer. After an error simply run it again. Two of these for one group at the same time may send some twice.

    Exit code: 0, 1 when some could not be sent, or the cluster cannot be asked.

    \b
    Examples:
      tiermq dlq resend audit --dry-run
      tiermq dlq resend audit --topic orders --since 1d
      tiermq dlq resend audit --to orders-repair --limit 100 --json
    """
    name = group.removeprefix(DLQ_PREFIX)
    remembered = ResentRecord(record, name) if record is not None else None
    line = ProgressLine("resent")
    told: dict[str, Any] = {"group": name, "dry_run": dry_run, "found": 0, "resent": 0, "already": 0, "unconfirmed": 0}
    told["unreadable"] = []

    async def resent(client: ClusterClient) -> None:
        resending = Resending(client, name, to)
        batch: list[DeadLetter] = []
        async for letter in _limited(dead_letters(client, name, Wanted(topic, since, key)), limit):
            told["found"] += 1
            if remembered is not None and letter.identity in remembered:
                told["already"] += 1
                continue
            batch.append(letter)
            if len(batch) >= BATCH:
                await _send(resending, batch, told, line, remembered, dry_run)
                batch = []
        await _send(resending, batch, told, line, remembered, dry_run)

    try:
        _run(access, resent)
    finally:
        line.end()
        _tell(told, as_json=as_json)
    if told["unreadable"]:
        raise SystemExit(EXIT_LEFT)


async def _send(
    resending: Resending,
    batch: list[DeadLetter],
    told: dict[str, Any],
    line: ProgressLine,
    remembered: ResentRecord | None,
    dry_run: bool,
) -> None:
    found = await resending.resend(batch, dry_run=dry_run)
    if remembered is not None and not dry_run:
        remembered.add([letter.identity for letter in (*found.sent, *found.already)])
    told["resent"] += len(found.sent)
    told["already"] += len(found.already)
    told["unconfirmed"] += found.unconfirmed
    told["unreadable"] += [_problem(each) for each in found.unreadable]
    line.add(len(found.sent), sum(len(letter.message.body) for letter in found.sent))


def _problem(letter: Unreadable) -> dict[str, str]:
    return {"letter": letter.name, "reason": letter.reason}


def _tell(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(told))
        return
    verb = "would be sent" if told["dry_run"] else "were sent again"
    click.echo(
        f"{told['found']:,} dead letters of {told['group']}: {told['resent']:,} {verb}, {told['already']:,} had been "
        f"before, {len(told['unreadable']):,} cannot be"
    )
    if told["unconfirmed"]:
        click.echo(
            f"Note: {told['unconfirmed']:,} of them are stored, but brokers do not find them by their keys "
            "(messageIndexEnable?): run again, this would send them again; --record FILE remembers them",
            err=True,
        )
    for each in told["unreadable"]:
        click.echo(f"  {each['letter']}: {each['reason']}", err=True)


def _run(access: Access, work: Any) -> Any:
    try:
        return access.run(work)
    except CorruptRecord as error:
        raise RemotingError(f"a dead letter that a broker gave is damaged: {error}") from error


async def _limited(letters: AsyncIterator[DeadLetter], limit: int | None) -> AsyncIterator[DeadLetter]:
    left = limit
    async for letter in letters:
        yield letter
        if left is not None:
            left -= 1
            if left <= 0:
                return


def _values(letter: DeadLetter) -> dict[str, Any]:
    message = letter.message
    return {
        "letter": letter.name,
        "broker": letter.place.broker_name,
        "queue_id": letter.place.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "unique_key": message.unique_key,
        "origin_topic": letter.origin_topic,
        "origin_message_id": letter.origin_id,
        "tries": letter.tries,
        "key": " ".join(message.keys) or None,
        "tags": message.tags,
        "born_ms": message.born_timestamp_ms,
        "born_host": message.born_host,
        "died_ms": message.store_timestamp_ms,
        "body_bytes": len(message.body),
    }


def _line(letter: DeadLetter) -> str:
    message = letter.message
    body = message.body[:BODY_SHOWN_MAX].decode(errors="backslashreplace")
    keys = f" {' '.join(message.keys)}" if message.keys else ""
    born, died = moment(message.born_timestamp_ms), moment(message.store_timestamp_ms)
    times = f"born {born}, dead {died} after {letter.tries} tries"
    return f"{letter.name:24} {letter.origin_topic or '?'}{keys}: {times}: {body}"
