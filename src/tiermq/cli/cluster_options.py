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
from tiermq.remoting.tls import KEY_PASSWORD, ClientTls

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False)
DEFAULT_NAME_SERVER = "127.0.0.1:9876"


def cluster_options(command: F) -> F:
    """Add the options to a command; it gets them together, as `access`."""

    @functools.wraps(command)
    def with_access(
        *arguments: Any,
        namesrv: str,
        access_key: str,
        secret_key: str,
        tls: bool,
        tls_cert: str | None,
        tls_key: str | None,
        tls_ca: str | None,
        **others: Any,
    ) -> Any:
        access = Access(namesrv, access_key, secret_key, tls, ClientTls(tls_cert, tls_key, tls_ca))
        return command(*arguments, access=access, **others)

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
        click.option("--tls", is_flag=True, help="Connect by TLS; without --tls-ca any server is accepted."),
        click.option(
            "--tls-cert", type=_FILE, help="PEM certificate to show to servers that ask for one; implies --tls."
        ),
        click.option(
            "--tls-key",
            type=_FILE,
            help=f"PEM key of --tls-cert [in the same file]; its password comes from {KEY_PASSWORD}.",
        ),
        click.option(
            "--tls-ca",
            type=_FILE,
            help="Accept servers only whose certificate one of these (PEM) signed; implies --tls.",
        ),
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
