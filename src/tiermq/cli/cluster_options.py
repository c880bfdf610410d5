"""The options of every command that talks to brokers, and how such a command runs and ends.

@click.command()
@cluster_options
def command(access: Access, ...) -> None:
    access.run(lambda cluster: work(cluster, ...))
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tiermq.client.access import Access

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_NAME_SERVER = "127.0.0.1:9876"


def cluster_options(command: F) -> F:
    """Add the options to a command; it gets them together, as `access`."""

    @functools.wraps(command)
    def with_access(*arguments: Any, namesrv: str, access_key: str, secret_key: str, tls: bool, **others: Any) -> Any:
        return command(*arguments, access=Access(namesrv, access_key, secret_key, tls), **others)

    options = (
        click.option(
            "-n",
            "--namesrv",
            envvar="NAMESRV_ADDR",
            default=DEFAULT_NAME_SERVER,
            show_default=True,
            metavar="ADDR",
            help="Name server, or several: host:port;host:port (NAMESRV_ADDR).",
        ),
        # Never on the command line, where every user of the machine could read them.
        click.option("--access-key", envvar="ROCKETMQ_ACCESS_KEY", hidden=True),
        click.option("--secret-key", envvar="ROCKETMQ_SECRET_KEY", hidden=True),
        click.option("--tls", is_flag=True, help="Connect by TLS; any certificate is accepted."),
    )
    made: Any = with_access
    for option in reversed(options):
        made = option(made)
    decorated: F = made
    return decorated


def ending_signal() -> asyncio.Event:
    """Set by Ctrl-C and by SIGTERM, so that a command can end what it has begun. On the running loop."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    return asked
