"""The front door of the command line. Sub-commands are loaded when they are called, so that help comes at once."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import click

from tiermq import __version__
from tiermq.errors import TierMQError


class Entry(NamedTuple):
    """Where a command lives and what it does in half a line."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "demo": Entry("tiermq.cli.demo", "demo", "Write a store, kill it, recover it, prove that nothing was lost."),
    "dump": Entry("tiermq.cli.dump", "dump", "Show any file of a store directory or a tier as JSON lines."),
    "store": Entry("tiermq.cli.store", "store", "Look into a store directory: stat, check."),
    "tier": Entry("tiermq.cli.tier", "tier", "Look into a tier: ls, stat, cat, verify, restore, import, …"),
    "bench": Entry("tiermq.cli.bench", "bench", "Run a benchmark: put, get, dispatch, recover, index."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when one of them is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TierMQError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tiermq")
def cli() -> None:
    """A message store that keeps RocketMQ's bytes.

    \b
    Start here:
      tiermq demo                      see it survive a crash, on this machine
      tiermq store stat ~/store        what a RocketMQ or TierMQ store directory holds
      tiermq store check ~/store       whether it agrees with itself
      tiermq dump ~/store/commitlog    every message, as JSON lines
      tiermq tier stat s3://history    what a tier holds, of TierMQ or of RocketMQ

    Every command has --help with examples, and --json for programs.
    """


def main() -> None:
    cli(prog_name="tiermq")
