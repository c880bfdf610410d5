"""`tiermq status`: the console's overview in a terminal."""

from __future__ import annotations

import json
from typing import Any

import click

from tiermq.cli.source_options import source_options
from tiermq.cli.terminal import print_table
from tiermq.console.catalogue import run
from tiermq.console.sources import Visit
from tiermq.console.web.figures import moment, number, percent, size


@click.command()
@source_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, as /api/overview answers.")
def status(visit: Visit, as_json: bool) -> None:
    """Show brokers, topics, groups, the tier, and what needs attention.

    Asks the name server, and reads a tier or a store directory if one is given; the last two need no broker.

    Exit code: 0 when nothing needs attention, 1 when something does.

    \b
    Examples:
      tiermq status
      tiermq status --namesrv 10.0.0.1:9876 --tier s3://bucket/history
      tiermq status --store ~/store --json | jq -r '.warnings[]'
    """
    found = run("overview", visit)
    if as_json:
        click.echo(json.dumps(found))
    else:
        _show(found)
    if found["warnings"]:
        raise SystemExit(1)


def _show(found: dict[str, Any]) -> None:
    if found["brokers"]:
        print_table(
            ("broker", "role", "sent/s", "read/s", "log", "disk", "in sync"),
            [_broker_row(row) for row in found["brokers"]],
        )
        click.echo()
    if found["putPerSecond"] is not None:
        click.echo(f"rates      {number(found['putPerSecond'])}/s sent, {number(found['getPerSecond'])}/s read")
    click.echo(f"topics     {found['topics']:,}, and {found['topicsInAll'] - found['topics']:,} of the system")
    click.echo(f"groups     {found['groups']:,}, {found['behind']:,} messages behind")
    for row in found["mostBehind"]:
        click.echo(f"           {row['group']}: {row['behind']:,} behind")
    for row in found["stores"]:
        click.echo(
            f"store      {row['path']}: {row['state']}, {size(row['logBytes'])} of log, {row['queues']:,} queues"
        )
    if (tier := found["tier"]) is not None:
        click.echo(f"tier       {tier['url']}: {size(tier['bytes'])} in {tier['objects']:,} objects")
        for row in tier["leases"]:
            held = f"until {moment(row['untilMs'])} UTC, epoch {row['epoch']}" if row["owner"] else "no writer"
            click.echo(f"           {row['broker']}: {row['owner'] or 'lease free'}, {held}")
    if (behind := found["tierBehind"]) is not None:
        click.echo(f"backlog    {_backlog(behind)}")
    for text in found["warnings"]:
        click.secho(f"! {text}", fg="yellow")
    if not found["warnings"]:
        click.echo("nothing needs attention")


def _backlog(behind: dict[str, Any]) -> str:
    """What is not in the tier yet."""
    log = f"{size(behind['bytes'])} of log not in the tier yet"
    if behind["messages"] is None:
        return f"{log}; a job uploads"
    oldest = f", the oldest since {behind['oldestMs'] // 1000:,} s" if behind["messages"] else ""
    return f"{behind['messages']:,} messages, {log}{oldest}"


def _broker_row(row: dict[str, Any]) -> tuple[str, ...]:
    name = f"{row['broker']} {row['address']}"
    if row["problem"]:
        return name, row["role"], "–", "–", "–", "–", "–"
    sync = f"{row['inSync']}/{row['replicas']}" if row.get("replicas") else "none" if row.get("isElected") else "–"
    return (
        name, row["role"], number(row.get("putPerSecond")), number(row.get("getPerSecond")), size(row.get("logBytes")),
        percent(row.get("diskRatio")), sync,
    )  # fmt: skip
