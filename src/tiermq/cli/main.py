"""The front door of the command line. Sub-commands are loaded when they are called, so that help comes at once."""

from __future__ import annotations

import errno
import os
import sys

import click

from tiermq import __version__
from tiermq.cli.lazy_group import Entry, LazyGroup

COMMANDS = {
    "demo": Entry(
        "tiermq.cli.demo", "demo", "The whole way on this machine: send, kill, tier, evict, read, SQL, restore."
    ),
    "dump": Entry("tiermq.cli.dump", "dump", "Show any file of a store directory or a tier as JSON lines."),
    "namesrv": Entry("tiermq.cli.namesrv", "namesrv", "Run a name server for RocketMQ's brokers and clients."),
    "serve": Entry("tiermq.cli.serve", "serve", "Run a broker for RocketMQ's clients, with a name server beside it."),
    "produce": Entry("tiermq.cli.produce", "produce", "Send messages to a topic: one, the lines of a file, many."),
    "consume": Entry("tiermq.cli.consume", "consume", "Print the messages of a topic, to its end or as they come."),
    "query": Entry("tiermq.cli.query", "query", "Find messages by key, by id or by place."),
    "delayed": Entry("tiermq.cli.delayed", "delayed", "Look at messages that wait for their time, and cancel them."),
    "topic": Entry("tiermq.cli.topic", "topic", "Look at topics, make and delete them."),
    "group": Entry("tiermq.cli.group", "group", "Look at groups of consumers, make, move and delete them."),
    "dlq": Entry("tiermq.cli.dlq", "dlq", "Look at the dead letters of a group, and send them again."),
    "transaction": Entry(
        "tiermq.cli.transaction", "transaction", "Look at open transactions, and what became of others."
    ),
    "store": Entry("tiermq.cli.store", "store", "Look into a store directory: stat, check."),
    "tier": Entry("tiermq.cli.tier", "tier", "Look into a tier: ls, stat, cat, verify, repair, restore, import, …"),
    "pipeline": Entry(
        "tiermq.cli.pipeline", "pipeline", "Move, tend and open up history on Spark: offload, verify, export, sql, …"
    ),
    "bench": Entry("tiermq.cli.bench", "bench", "Run a benchmark: put, get, recover, tier, coldread, spark, …"),
}


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="tiermq")
def cli() -> None:
    """A message store that keeps RocketMQ's bytes.

    \b
    Start here:
      tiermq demo                      see the whole way on this machine, with pictures
      tiermq serve ~/store             a broker for RocketMQ's clients, and its name server
      tiermq produce orders hello      send a message; tiermq consume orders prints it
      tiermq store stat ~/store        what a RocketMQ or TierMQ store directory holds
      tiermq store check ~/store       whether it agrees with itself
      tiermq dump ~/store/commitlog    every message, as JSON lines
      tiermq tier stat s3://history    what a tier holds, of TierMQ or of RocketMQ

    Every command has --help with examples, and --json for programs.
    """


def main() -> None:
    """A stdout that is closed, that has no reader or no room gets no traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # Closed by the shell: `tiermq … >&-`.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process
    try:
        cli(prog_name="tiermq")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        from tiermq.cli.say_event import drop_stdout

        drop_stdout()
        click.echo(f"Error: cannot write: {os.strerror(error.errno)}", err=True)
        sys.exit(1)
