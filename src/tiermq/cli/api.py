"""`tiermq api`: any operation of the catalogue in a terminal, with the names, checks and JSON of the HTTP API."""

from __future__ import annotations

import json

import click
from click.shell_completion import CompletionItem

from tiermq.cli.source_options import source_options
from tiermq.console.catalogue import found_operation, operations, run
from tiermq.console.sources import Visit


def _names(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [
        CompletionItem(name, help=each.summary)
        for name, each in sorted(operations().items())
        if name.startswith(incomplete)
    ]


@click.command()
@click.argument("operation", required=False, shell_complete=_names)
@click.argument("parameters", nargs=-1, metavar="[NAME=VALUE]...")
@source_options
@click.option("--list", "is_listed", is_flag=True, help="List the operations, or the parameters of OPERATION.")
def api(visit: Visit, operation: str | None, parameters: tuple[str, ...], is_listed: bool) -> None:
    """Run an OPERATION of the catalogue, and print its result as JSON.

    The console's pages, its HTTP API and this command run the same operations: /api/topic.list?search=ord is
    `tiermq api topic.list search=ord`.

    \b
    Examples:
      tiermq api --list
      tiermq api topic.list search=ord --tier s3://bucket/history
      tiermq api message.find topic=orders key=order-42 begin=1d
      tiermq api group.reset group=audit topic=orders to=1h
    """
    if operation is None or is_listed:
        if operation is not None:
            for each in found_operation(operation).parameters:
                click.echo(f"{each.name}{'' if each.is_required else ' (optional)'}: {each.help}")
            return
        for name, found in sorted(operations().items()):
            click.echo(f"{name:20} {found.summary}")
        return
    values = {}
    for text in parameters:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"expected NAME=VALUE, found {text!r}")
        values[name] = value
    click.echo(json.dumps(run(operation, visit, values), ensure_ascii=False))
