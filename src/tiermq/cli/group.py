"""`tiermq group`: list, show, create, reset and delete consumer groups."""

from __future__ import annotations

import json
from typing import Any

import click

from tiermq.cli.cluster_command import cluster_options
from tiermq.cli.completion import group_names, topic_names
from tiermq.cli.conventions import SuggestingGroup
from tiermq.cli.source_options import as_visitor, every_page, source_options
from tiermq.cli.terminal import print_table
from tiermq.client.cluster_client import Access
from tiermq.console.operations.groups import goal_of
from tiermq.console.sources import Visit
from tiermq.console.web.figures import number
from tiermq.errors import BadRequest
from tiermq.message.topic_name import is_retry_topic
from tiermq.pipeline.job_report import counted_noun

_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_CLUSTER = click.option("--cluster", help="Only at the brokers of this cluster [all].")


@click.group(cls=SuggestingGroup)
def group() -> None:
    """List, create, reset and delete consumer groups.

    \b
    Examples:
      tiermq group list
      tiermq group show audit
      tiermq group create audit --retries 3
      tiermq group reset audit orders --to first
      tiermq group delete audit --yes
    """


@group.command("list")
@source_options
@_CLUSTER
@click.option("--all", "everything", is_flag=True, help="Include groups that every broker has.")
@click.option("--search", help="Only names that contain this text.")
@click.option("--names", is_flag=True, help="Print names only, one per line.")
@_JSON
def list_groups(
    visit: Visit, cluster: str | None, everything: bool, search: str | None, names: bool, as_json: bool
) -> None:
    """List consumer groups with their topics, lag and members.

    Asks the brokers; with --tier or --store alone none is needed, and members are not known.
    """
    found = every_page("group.list", visit, "groups", all=everything, search=search, cluster=cluster)
    if as_json:
        click.echo(json.dumps(found))
    elif names:
        for row in found["groups"]:
            click.echo(row["group"])
    else:
        print_table(
            ("group", "topics", "behind", "members"),
            [
                (row["group"], number(row["topics"]), number(row["behind"]), number(row["members"]))
                for row in found["groups"]
            ],
        )


@group.command()
@click.argument("name", shell_complete=group_names)
@cluster_options
@_JSON
def show(access: Access, name: str, as_json: bool) -> None:
    """Show offsets, lag and clients of the group NAME."""

    found = as_visitor(access, "group.show", group=name)
    if as_json:
        click.echo(json.dumps(found))
        return
    print_table(
        ("topic", "broker", "queue", "offset", "end", "behind"),
        [
            (row["topic"], row["broker"], *(number(row[key]) for key in ("queueId", "offset", "end", "behind")))
            for row in found["queues"]
            if not is_retry_topic(row["topic"]) or row["behind"]
        ],
        texts=2,
    )
    for member in found["members"]:
        click.echo(f"member {member['clientId']} at {member['address']} ({member['language']})")
    click.echo(f"{counted_noun(found['behind'], 'message')} behind, {counted_noun(len(found['members']), 'member')}")


@group.command()
@click.argument("name")
@cluster_options
@_CLUSTER
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=16,
    show_default=True,
    help="Retries before a message is a dead letter.",
)
@click.option("--disabled", is_flag=True, help="Do not allow it to consume.")
@click.option("--orderly", is_flag=True, help="Consume in order.")
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Attribute, such as lite.bind.topic=Sessions.",
)
@_JSON
def create(
    access: Access, name: str, cluster: str | None, as_json: bool, attributes: tuple[str, ...], **options: Any
) -> None:
    """Create or update the group NAME at every broker. Attributes that are not named stay."""
    changes = ",".join(f"+{each}" for each in attributes) or None
    brokers = as_visitor(access, "group.create", group=name, cluster=cluster, attributes=changes, **options)["brokers"]
    if as_json:
        click.echo(json.dumps({"group": name, **options, "brokers": brokers}))
    else:
        click.echo(f"group {name}: at {', '.join(brokers)}")


@group.command()
@click.argument("name", shell_complete=group_names)
@cluster_options
@_CLUSTER
@click.option("--keep-offsets", is_flag=True, help="Keep its offsets for a later group of that name.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_JSON
def delete(access: Access, name: str, cluster: str | None, keep_offsets: bool, yes: bool, as_json: bool) -> None:
    """Delete the group NAME at every broker."""
    if not yes:
        click.confirm(f"Delete the group {name}?", abort=True, err=True)

    values = {"group": name, "keepOffsets": keep_offsets, "cluster": cluster}
    brokers = as_visitor(access, "group.delete", **values)["brokers"]
    if as_json:
        click.echo(json.dumps({"group": name, "deleted": True, "keptOffsets": keep_offsets, "brokers": brokers}))
    else:
        click.echo(f"group {name}: deleted at {', '.join(brokers)}")


@group.command()
@click.argument("name", shell_complete=group_names)
@click.argument("topic", shell_complete=topic_names)
@cluster_options
@click.option(
    "--to", "goal", required=True, help="first, last, or a time: ISO 8601, milliseconds, or an age such as 1h."
)
@click.option("--preview", is_flag=True, help="Only report what it would skip and repeat.")
@_JSON
def reset(access: Access, name: str, topic: str, goal: str, preview: bool, as_json: bool) -> None:
    """Reset the offsets of the group NAME in TOPIC.

    \b
    Examples:
      tiermq group reset audit orders --to 1h --preview
      tiermq group reset audit orders --to 2026-01-31T12:00:00Z
    """
    try:
        goal_of(goal)
    except BadRequest as error:
        raise click.UsageError(f"--{error}") from error
    found = as_visitor(access, "group.preview" if preview else "group.reset", group=name, topic=topic, to=goal)
    if as_json:
        click.echo(json.dumps(found))
    elif preview:
        print_table(
            ("broker", "queue", "offset", "goal", "skips", "repeats"),
            [
                (row["broker"], *(number(row[key]) for key in ("queueId", "offset", "goal", "skipped", "repeated")))
                for row in found["queues"]
            ],
        )
        click.echo(f"would skip {found['skipped']:,} and repeat {found['repeated']:,} messages; nothing was changed")
    else:
        print_table(
            ("broker", "queue", "offset"),
            [(row["broker"], number(row["queueId"]), number(row["offset"])) for row in found["queues"]],
        )
