"""`tiermq completion`: a shell's completion script; names of topics and groups come from the name server."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from tiermq.cli.cluster_command import DEFAULT_NAME_SERVER
from tiermq.cli.source_options import tier_place
from tiermq.client.cluster_client import Access
from tiermq.console.operations import groups, topics
from tiermq.console.sources import SourcePlace, Sources, Visit
from tiermq.errors import TierMQError
from tiermq.history.scan_values import StorePlace

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
    """Topics that begin with the text, of what the command reads; none where that cannot be read."""
    return _names(ctx, "topic", incomplete)


def group_names(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The same of consumer groups."""
    return _names(ctx, "group", incomplete)


def _place(ctx: click.Context) -> SourcePlace:
    """What the command reads, by the words before the cursor: a tier, store directories, else brokers."""
    params = ctx.params
    # An option without its value yet leaves arguments unread.
    url = ctx.args[0] if "url" in params and ctx.args else None
    tier = params.get("tier") or params.get("url") or url
    given = params.get("stores") or params.get("store") or ()
    stores = [
        each if isinstance(each, StorePlace) else StorePlace(str(each).partition("=")[0])
        for each in (given if isinstance(given, tuple | list) else (given,))
    ]
    if tier or stores:
        return SourcePlace(None, tier_place(tier), tuple(stores))
    return SourcePlace(Access.of_environment(str(params.get("namesrv") or DEFAULT_NAME_SERVER)))


def _names(ctx: click.Context, noun: str, incomplete: str) -> list[str]:
    sources = Sources(_place(ctx))
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
