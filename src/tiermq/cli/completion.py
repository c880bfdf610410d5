"""`tiermq completion`: a shell's completion script; names of topics and groups come from the name server."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from tiermq.cli.cluster_command import DEFAULT_NAME_SERVER
from tiermq.client.cluster_client import Access
from tiermq.console.operations import groups, topics
from tiermq.console.sources import SourcePlace, Sources, Visit
from tiermq.errors import TierMQError

NAMES_MAX = 200


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    Examples:
      tiermq completion bash > /etc/bash_completion.d/tiermq
      source <(tiermq completion zsh)
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click has a class for each choice"
    click.echo(kind(ctx.find_root().command, {}, "tiermq", "_TIERMQ_COMPLETE").source())


def topic_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topics that begin with the text; none when no name server answers."""
    return _names(ctx, "topic", incomplete)


def group_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The same of consumer groups."""
    return _names(ctx, "group", incomplete)


def _names(ctx: click.Context, noun: str, incomplete: str) -> list[str]:
    access = Access.of_environment(str(ctx.params.get("namesrv") or DEFAULT_NAME_SERVER))
    sources = Sources(SourcePlace(access))
    try:
        visit = Visit(sources)  # Names alone: figures would cost requests for each.
        if noun == "topic":
            found = topics.topic_names(visit, everything=False)
        else:
            found = groups.group_names(visit.tables(), everything=False)
    except TierMQError:
        return []
    finally:
        sources.close()
    return [name for name in found if name.startswith(incomplete)][:NAMES_MAX]
