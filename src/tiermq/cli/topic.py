"""`tiermq topic`: list, show, create, alter and delete topics."""

from __future__ import annotations

import json
from typing import Any

import click

from tiermq.cli.cluster_command import cluster_options
from tiermq.cli.completion import topic_names
from tiermq.cli.conventions import SuggestingGroup
from tiermq.cli.option_values import parse_bytes, parse_hours
from tiermq.cli.source_options import as_visitor, every_page, source_options
from tiermq.cli.terminal import print_table
from tiermq.client.cluster_client import Access
from tiermq.console.sources import Visit
from tiermq.console.web.figures import number, size
from tiermq.pipeline.job_report import counted_noun
from tiermq.tier.retention.retention_plan import FOR_EVER_HOURS

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_CLUSTER = click.option("--cluster", help="Only at the brokers of this cluster [all].")


@click.group(cls=SuggestingGroup)
def topic() -> None:
    """List, create, change and delete topics.

    \b
    Examples:
      tiermq topic list
      tiermq topic create orders --queues 8 --retention 365d
      tiermq topic alter orders --retention forever
      tiermq topic show orders
      tiermq topic delete orders --yes
    """


@topic.command("list")
@source_options
@click.option("--all", "everything", is_flag=True, help="Include system, retry and dead letter topics.")
@click.option("--search", help="Only names that contain this text.")
@click.option("--names", is_flag=True, help="Print names only, one per line.")
@_JSON
def list_topics(visit: Visit, everything: bool, search: str | None, names: bool, as_json: bool) -> None:
    """List topics with their messages, bytes in the tier, and lag.

    Asks the name server; with --tier or --store alone no broker is needed.

    \b
    Examples:
      tiermq topic list
      tiermq topic list --tier s3://bucket/history --store ~/store
      tiermq topic list --json | jq -r '.topics[] | select(.behind > 0) | .topic'
    """
    found = every_page("topic.list", visit, "topics", all=everything, search=search)
    if as_json:
        click.echo(json.dumps(found))
    elif names:
        for row in found["topics"]:
            click.echo(row["topic"])
    else:
        print_table(
            ("topic", "queues", "messages", "tier", "groups", "behind"),
            [
                (row["topic"], number(row["queues"]), number(row["messages"]), size(row["tierBytes"]),
                 number(row["groups"]), number(row["behind"]))
                for row in found["topics"]
            ],
        )  # fmt: skip


_RETENTION = click.option(
    "--retention",
    metavar="TIME",
    help="How long the tier keeps its messages: 72h, 365d, 8w, 10y, forever [the broker's setting].",
)
_RETENTION_BYTES = click.option(
    "--retention-bytes",
    metavar="SIZE",
    help="Maximum bytes that the tier keeps, such as 500G [the broker's setting].",
)


@topic.command()
@click.argument("name")
@cluster_options
@click.option("--queues", type=click.IntRange(1), default=8, show_default=True, help="Queues at each broker.")
@click.option(
    "--perm", type=click.Choice(["rw", "r", "w"]), default="rw", show_default=True, help="Permission of clients."
)
@click.option("--order", is_flag=True, help="Create an ordered topic.")
@click.option(
    "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Attribute, such as queue.type=BatchCQ."
)
@_RETENTION
@_RETENTION_BYTES
@_CLUSTER
@_JSON
def create(access: Access, name: str, as_json: bool, **options: Any) -> None:
    """Create or update the topic NAME at every broker."""
    kept = _retention_attributes(options)
    attributes = ",".join(f"+{each}" for each in (*options["attributes"], *(f"{k}={v}" for k, v in kept.items())))

    made = as_visitor(
        access,
        "topic.create",
        topic=name,
        queues=options["queues"],
        perm=options["perm"],
        order=options["order"],
        attributes=attributes or None,
        cluster=options["cluster"],
    )
    brokers, is_known = made["brokers"], made["knownEverywhere"]
    if not is_known:
        click.echo(f"topic {name}: the name server does not know it everywhere yet", err=True)
    if as_json:
        click.echo(json.dumps({"topic": name, "queues": options["queues"], "brokers": brokers}))
    else:
        click.echo(f"topic {name}: {counted_noun(options['queues'], 'queue')} at {', '.join(brokers)}")


@topic.command()
@click.argument("name", shell_complete=topic_names)
@cluster_options
@_RETENTION
@_RETENTION_BYTES
@click.option(
    "--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Attribute, such as message.type=FIFO."
)
@_CLUSTER
@_JSON
def alter(access: Access, name: str, as_json: bool, **options: Any) -> None:
    """Change attributes of the topic NAME. Queues and permissions stay.

    \b
    Examples:
      tiermq topic alter orders --retention 365d --retention-bytes 500G
      tiermq topic alter orders --retention default
    """
    wanted = _retention_attributes(options)
    for each in options["attributes"]:
        key, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"expected NAME=VALUE after --attribute, found {each!r}")
        wanted[key] = value
    if not wanted:
        raise click.UsageError("expected --retention, --retention-bytes or --attribute, found none")

    text = ",".join(f"{key}={value}" for key, value in wanted.items())
    brokers = as_visitor(access, "topic.alter", topic=name, attributes=text, cluster=options["cluster"])["brokers"]
    if as_json:
        click.echo(json.dumps({"topic": name, "attributes": wanted, "brokers": brokers}))
    else:
        words = ", ".join(f"{key}={value}" for key, value in wanted.items())
        click.echo(f"topic {name}: {words} at {', '.join(brokers)}")


def _retention_attributes(options: dict[str, Any]) -> dict[str, str]:
    """The attributes that the options request. Raises UsageError."""
    found = {}
    if (text := options["retention"]) is not None:
        hours = {"forever": FOR_EVER_HOURS, "default": -1}.get(text.strip().lower())
        words = ", or the word forever or default"
        found["reserve.time"] = str(parse_hours("--retention", text, words) if hours is None else hours)
    if (text := options["retention_bytes"]) is not None:
        is_default = text.strip().lower() == "default"
        words = ", or the word default"
        found["reserve.bytes"] = str(-1 if is_default else parse_bytes("--retention-bytes", text, words))
    return found


@topic.command()
@click.argument("name", shell_complete=topic_names)
@cluster_options
@_CLUSTER
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_JSON
def delete(access: Access, name: str, cluster: str | None, yes: bool, as_json: bool) -> None:
    """Delete the topic NAME and its messages, at every broker."""
    if not yes:
        click.confirm(f"Delete the topic {name} and all its messages?", abort=True, err=True)

    brokers = as_visitor(access, "topic.delete", topic=name, cluster=cluster)["brokers"]
    if as_json:
        click.echo(json.dumps({"topic": name, "deleted": True, "brokers": brokers}))
    else:
        click.echo(f"topic {name}: deleted at {', '.join(brokers)}")


@topic.command()
@click.argument("name", shell_complete=topic_names)
@cluster_options
@_JSON
def show(access: Access, name: str, as_json: bool) -> None:
    """Show queues, offsets and tier retention of the topic NAME."""

    shown = as_visitor(access, "topic.show", topic=name)
    found, kept, messages = shown["queues"], shown["retention"], shown["messages"]
    if as_json:
        click.echo(json.dumps(shown))
        return
    print_table(
        ("broker", "queue", "first", "next", "messages"),
        [
            (row["broker"], number(row["queueId"]), number(row["minOffset"]), number(row["maxOffset"]),
             number(row["maxOffset"] - row["minOffset"]))
            for row in found
        ],
    )  # fmt: skip
    click.echo(f"{counted_noun(messages, 'message')} in {counted_noun(len(found), 'queue')}")
    for broker, row in kept.items():
        if row.get("tier"):
            click.echo(f"kept in the tier of {broker}: {row['words']} ({'its own' if row['own'] else 'by default'})")
        elif "error" in row:
            click.echo(f"kept in the tier of {broker}: not known, {row['error']}")
