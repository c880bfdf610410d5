"""`tiermq dlq`: list the dead letters of a group, and resend them to their topics."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from tiermq.cli.cluster_command import ProgressLine, cluster_options
from tiermq.cli.completion import group_names
from tiermq.cli.conventions import EXIT_LEFT, SuggestingGroup
from tiermq.cli.option_values import Moment, topic_option
from tiermq.cli.source_options import as_visitor
from tiermq.cli.tier.output import moment
from tiermq.client.cluster_client import Access, ClusterClient
from tiermq.client.dead_letters import DeadLetter, Resending, Unreadable, Wanted, dead_letters
from tiermq.console.json_case import camel
from tiermq.errors import CorruptRecord, RemotingError, StoreDamaged
from tiermq.message.topic_name import DEAD_LETTER_PREFIX, dead_letter_topic
from tiermq.pipeline.job_report import counted_noun

BATCH = 128
BODY_SHOWN_MAX = 80
F = TypeVar("F")

_GROUP = click.argument("group", shell_complete=group_names)


class ResentRecord:
    """Which dead letters of a group were sent again, a JSON line each in a file of the operator.

    Lines are appended and synced after the letters were stored. A torn last line, left by a crash, is cut off,
    and its letters are looked up at the brokers, as without a record. Used by one process at a time.
    """

    def __init__(self, path: Path, group: str) -> None:
        """Raises StoreDamaged for a file of another format, OSError when it cannot be read."""
        self._path = path
        self._group = group
        self._known: set[str] = set()
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                of_group, letter = entry["group"], entry["letter"]
            except (ValueError, TypeError, LookupError) as error:
                raise StoreDamaged(
                    f"{path}:{number}: expected a record of dead letters that were sent again, found {line[:60]!r}; "
                    "name another file"
                ) from error
            if of_group == group:
                self._known.add(letter)
        if len(whole) < len(data):
            with path.open("r+b") as file:
                file.truncate(len(whole))

    def __contains__(self, letter: str) -> bool:
        return letter in self._known

    def add(self, letters: Sequence[str]) -> None:
        """Durable when it returns."""
        fresh = [letter for letter in letters if letter not in self._known]
        if not fresh:
            return
        lines = "".join(json.dumps({"group": self._group, "letter": letter}) + "\n" for letter in fresh)
        with self._path.open("ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())
        self._known.update(fresh)


def _filters(command: F) -> F:
    options = (
        topic_option(help="Only dead letters of this topic."),
        click.option(
            "--since", type=Moment(), default=0, help="Only dead letters since this time, or an age such as 2h."
        ),
        click.option("--key", help="Only dead letters with this key, unique key or id."),
        click.option("--limit", type=click.IntRange(1), help="Maximum number of dead letters."),
    )
    made: Any = command
    for option in reversed(options):
        made = option(made)
    decorated: F = made
    return decorated


@click.group(cls=SuggestingGroup)
def dlq() -> None:
    """List the dead letters of a consumer group, and resend them.

    A message that a consumer group failed to consume too often, or rejected, is stored in the topic
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
    """List the dead letters of GROUP, oldest first.

    Exit code: 0, also when there are none; 1 when no broker knows the group, the cluster cannot be reached, or a
    letter is damaged.

    \b
    Examples:
      tiermq dlq ls audit
      tiermq dlq ls audit --since 2026-01-31T12:00:00Z --limit 20
      tiermq dlq ls audit --json | jq -r 'select(.tries > 16) | .key'
    """
    name = group.removeprefix(DEAD_LETTER_PREFIX)

    async def listed(client: ClusterClient) -> int:
        count = 0
        async for letter in _limited(dead_letters(client, name, Wanted(topic, since, key)), limit):
            click.echo(json.dumps(camel(_values(letter))) if as_json else _line(letter))
            count += 1
        return count

    _require_group(access, name)
    count = _run(access, listed)
    if not as_json:
        click.echo(f"{count:,} dead letter{'' if count == 1 else 's'} of {name}", err=True)


@dlq.command()
@_GROUP
@cluster_options
@_filters
@click.option("--to", help="Send to this topic instead of the original topics.")
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that records what was resent, for longer than the topic's messages are kept.",
)
@click.option("--dry-run", is_flag=True, help="Report what would be sent; send nothing.")
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
    """Resend the dead letters of GROUP to their original topics. Every group of a topic receives them.

    One that was sent again already is not sent to the same topic a second time: it has a key derived from its
    queue offset, and brokers are asked for that key. They know it as long as they or their tier keep the topic's
    messages; --record remembers it for longer, and for all topics: one that --to sent elsewhere stays sent.
    After an error simply run it again. Two of these for one group at the same time may send some twice.

    Exit code: 0, 1 when some could not be sent, no broker knows the group, or the cluster cannot be reached.

    \b
    Examples:
      tiermq dlq resend audit --dry-run
      tiermq dlq resend audit --topic orders --since 1d
      tiermq dlq resend audit --to orders-repair --limit 100 --json
    """
    name = group.removeprefix(DEAD_LETTER_PREFIX)
    _require_group(access, name)
    remembered = ResentRecord(record, name) if record is not None else None
    line = ProgressLine("resent")
    report: dict[str, Any] = {
        "group": name,
        "dry_run": dry_run,
        "found": 0,
        "resent": 0,
        "already": 0,
        "unconfirmed": 0,
    }
    report["unreadable"] = []

    async def resent(client: ClusterClient) -> None:
        resending = Resending(client, name, to)
        batch: list[DeadLetter] = []
        async for letter in _limited(dead_letters(client, name, Wanted(topic, since, key)), limit):
            report["found"] += 1
            if remembered is not None and letter.identity in remembered:
                report["already"] += 1
                continue
            batch.append(letter)
            if len(batch) >= BATCH:
                await _send(resending, batch, report, line, remembered, dry_run)
                batch = []
        await _send(resending, batch, report, line, remembered, dry_run)

    try:
        _run(access, resent)
    finally:
        line.end()
        _print_report(report, as_json=as_json)
    if report["unreadable"]:
        raise SystemExit(EXIT_LEFT)


async def _send(
    resending: Resending,
    batch: list[DeadLetter],
    report: dict[str, Any],
    line: ProgressLine,
    remembered: ResentRecord | None,
    dry_run: bool,
) -> None:
    found = await resending.resend(batch, dry_run=dry_run)
    if remembered is not None and not dry_run:
        remembered.add([letter.identity for letter in (*found.sent, *found.already)])
    report["resent"] += len(found.sent)
    report["already"] += len(found.already)
    report["unconfirmed"] += found.unconfirmed
    report["unreadable"] += [_problem(each) for each in found.unreadable]
    line.add(len(found.sent), sum(len(letter.message.body) for letter in found.sent))


def _problem(letter: Unreadable) -> dict[str, str]:
    return {"letter": letter.name, "reason": letter.reason}


def _print_report(report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(camel(report)))
        return
    verb = "to be sent" if report["dry_run"] else "sent again"
    click.echo(
        f"{counted_noun(report['found'], 'dead letter')} of {report['group']}: {report['resent']:,} {verb}, "
        f"{report['already']:,} sent before, {len(report['unreadable']):,} cannot be"
    )
    if report["unconfirmed"]:
        click.echo(
            f"Note: {report['unconfirmed']:,} of them are stored, but brokers do not find them by their keys "
            "(messageIndexEnable?): run again, this would send them again; --record FILE remembers them",
            err=True,
        )
    for each in report["unreadable"]:
        click.echo(f"  {each['letter']}: {each['reason']}", err=True)


def _require_group(access: Access, name: str) -> None:
    """Raises RequestRefused for a group that no broker knows and that has no dead letters, which outlive a group."""
    if access.run(lambda client: client.find_route(dead_letter_topic(name))) is None:
        as_visitor(access, "group.show", group=name)


def _run(access: Access, work: Any) -> Any:
    try:
        return access.run(work)
    except CorruptRecord as error:
        raise RemotingError(f"a broker returned a damaged dead letter: {error}") from error


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
