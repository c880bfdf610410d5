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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from tiermq.cli.cluster_client import ClusterClient
from tiermq.errors import BadConfig
from tiermq.remoting.acl import Credentials
from tiermq.remoting.tls import trusting_client_context

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_NAME_SERVER = "127.0.0.1:9876"


@dataclass(frozen=True, slots=True)
class Access:
    """How the cluster is reached."""

    name_servers: str
    access_key: str | None = None
    secret_key: str | None = None
    tls: bool = False

    def client(self) -> ClusterClient:
        """Raises BadConfig for options that do not go together."""
        if (self.access_key is None) != (self.secret_key is None):
            raise BadConfig("expected both ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY, found one of them")
        credentials = None
        if self.access_key is not None and self.secret_key is not None:
            credentials = Credentials(self.access_key, self.secret_key)
        return ClusterClient(
            self.name_servers, credentials=credentials, tls=trusting_client_context() if self.tls else None
        )

    def run(self, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
        """What the work gives, done with a client that is closed afterwards."""

        async def working() -> T:
            async with self.client() as cluster:
                return await work(cluster)

        return asyncio.run(working())


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
