"""LazyGroup: a group of commands that are imported when one of them is called, so that help comes at once."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from tiermq.errors import TierMQError

EXTRAS = {
    **dict.fromkeys(("pyspark", "pyarrow", "pandas", "numpy", "py4j"), "spark"),
    **dict.fromkeys(("deltalake", "pyiceberg", "fastavro", "google"), "tables"),
}
"""Which extra of the package brings a module that is not part of a plain installation."""


class Entry(NamedTuple):
    """Where a command lives and what it does in half a line."""

    module: str
    attribute: str
    help: str


class LazyGroup(click.Group):
    """Give `click.group` this class and its `entries`, by name, in the order of its help."""

    def __init__(self, *args: Any, entries: Mapping[str, Entry], **options: Any) -> None:
        super().__init__(*args, **options)
        self.entries = dict(entries)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TierMQError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            if module not in EXTRAS:
                raise
            raise click.ClickException(
                f"{ctx.command_path} {ctx.invoked_subcommand} needs {module}, which is not installed here: "
                f"pip install 'tiermq[{EXTRAS[module]}]'"
            ) from error
