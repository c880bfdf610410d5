"""The entry point of the command line, and LazyGroup: subcommands are imported when called, so that help is fast."""

from __future__ import annotations

import errno
import importlib
import os
import platform
import signal
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from tiermq import __version__
from tiermq.cli.conventions import SuggestingGroup
from tiermq.errors import NoNameServer, TierMQError, install_hint

EXTRAS = {
    **dict.fromkeys(("pyspark", "pyarrow", "pandas", "numpy", "py4j"), "spark"),
    **dict.fromkeys(("duckdb", "sqlglot"), "sql"),
    **dict.fromkeys(("deltalake", "pyiceberg", "fastavro", "google"), "tables"),
    **dict.fromkeys(("jinja2",), "console"),
}
"""The extra that installs a module which the plain package lacks."""


class Entry(NamedTuple):
    """A command's module, attribute and one-line help."""

    module: str
    attribute: str
    help: str
    is_server: bool = False
    """It runs until a signal ends it; SIGHUP is not such a signal."""


class LazyGroup(SuggestingGroup):
    """Pass to `click.group` as `cls`, with `entries` by name in the order of the help."""

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
        except NoNameServer as error:
            raise click.ClickException(f"{error}. Name one that runs by --namesrv host:port") from error
        except TierMQError as error:
            raise click.ClickException(str(error)) from error
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            if module not in EXTRAS:
                raise
            alone = "pip install numpy is enough for --master here; with Spark " if module == "numpy" else ""
            raise click.ClickException(
                f"{ctx.command_path} {ctx.invoked_subcommand} needs {module}, which is not installed here: "
                f"{alone}{install_hint(EXTRAS[module])}"
            ) from error


COMMANDS = {
    "demo": Entry("tiermq.cli.demo.command", "demo", "Run the end-to-end demo on this machine."),
    "dump": Entry("tiermq.cli.dump", "dump", "Print files of a store directory or a tier as JSON lines."),
    "namesrv": Entry("tiermq.cli.namesrv", "namesrv", "Run a name server for RocketMQ brokers and clients.", True),
    "controller": Entry(
        "tiermq.cli.controller", "controller", "Run a controller: it elects the masters of RocketMQ broker sets.", True
    ),
    "serve": Entry("tiermq.cli.serve", "serve", "Run a broker, with a name server in the same process.", True),
    "console": Entry("tiermq.cli.console", "console", "Serve pages about brokers, a tier and store directories.", True),
    "broker": Entry("tiermq.cli.broker", "broker", "Show and change the roles of a broker's replicas."),
    "follow": Entry("tiermq.cli.follow", "follow", "Copy a running RocketMQ master into a tier, as an observer.", True),
    "status": Entry("tiermq.cli.status", "status", "Show the overview, and what needs attention."),
    "config": Entry("tiermq.cli.config", "config", "Show, check and change settings of brokers."),
    "api": Entry("tiermq.cli.api", "api", "Run any operation of the console, and print its JSON."),
    "produce": Entry("tiermq.cli.produce", "produce", "Send one message, or many, to a topic."),
    "consume": Entry("tiermq.cli.consume", "consume", "Print the messages of a topic."),
    "query": Entry("tiermq.cli.query", "query", "Find messages by key, id or offset."),
    "delayed": Entry("tiermq.cli.delayed", "delayed", "List delayed messages and timers, and cancel timers."),
    "topic": Entry("tiermq.cli.topic", "topic", "List, create, change and delete topics."),
    "group": Entry("tiermq.cli.group", "group", "List, create, reset and delete consumer groups."),
    "dlq": Entry("tiermq.cli.dlq", "dlq", "List the dead letters of a consumer group, and resend them."),
    "transaction": Entry("tiermq.cli.transaction", "transaction", "List open transactions, and show how others ended."),
    "completion": Entry("tiermq.cli.completion", "completion", "Print a shell's completion script."),
    "store": Entry("tiermq.cli.store", "store", "Inspect a store directory: stat, check."),
    "tier": Entry("tiermq.cli.tier.commands", "tier", "Inspect, verify, repair and restore a tier."),
    "sql": Entry("tiermq.cli.sql", "sql", "Query history in SQL, at once and without Spark."),
    "pipeline": Entry(
        "tiermq.cli.pipeline.commands",
        "pipeline",
        "Batch jobs on Spark: offload, compact, verify, export, SQL.",
    ),
}


def _print_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        from tiermq.kernel import KERNEL

        click.echo(f"tiermq, version {__version__} ({KERNEL} kernel, Python {platform.python_version()})")
        context.exit()


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version, and which kernel runs, and exit.",
)
def cli() -> None:
    """RocketMQ-compatible message store and broker with tiered storage.

    \b
    Start here:
      tiermq demo                      run the end-to-end demo on this machine
      tiermq serve ~/store             run a broker and its name server
      tiermq produce orders hello      send a message
      tiermq consume orders            print it
      tiermq store stat ~/store        show what a store directory holds
      tiermq store check ~/store       verify its log, queues and key index
      tiermq dump ~/store/commitlog    print every message as JSON lines
      tiermq tier stat s3://history    show what a tier holds

    Store directories and tiers may be TierMQ's or RocketMQ's.

    Every command has --help with examples, and --json for programs.
    """


def main() -> None:
    """Run the command; a closed stdout, or one without reader or space, gives no traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # Closed by the shell: `tiermq … >&-`.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process
    entry = COMMANDS.get(sys.argv[1]) if len(sys.argv) > 1 else None
    if entry is not None and entry.is_server and hasattr(signal, "SIGHUP"):
        # A reload that is asked for before the server's own handler is set must not end the process.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        cli(prog_name="tiermq")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        from tiermq.cli.server_process import drop_stdout

        drop_stdout()
        click.echo(f"Error: cannot write: {os.strerror(error.errno)}", err=True)
        sys.exit(1)
