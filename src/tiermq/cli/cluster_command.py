"""Shared by commands that talk to brokers: options, progress line, end of the process.

@click.command()
@cluster_options
def command(access: Access, ...) -> None:
    access.run(lambda cluster: work(cluster, ...))
"""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tiermq.client.cluster_client import Access
from tiermq.remoting.tls import KEY_PASSWORD, ClientTls

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False)
DEFAULT_NAME_SERVER = "127.0.0.1:9876"
EVERY_S = 0.5


def cluster_options(command: F, *, default: str = DEFAULT_NAME_SERVER) -> F:
    """Add the options to a command, which receives them as `access`. `default` may be empty: name servers by choice."""

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
            default=default,
            show_default=bool(default),
            metavar="ADDR",
            help="Name server, or several: host:port;host:port (NAMESRV_ADDR).",
        ),
        # Never on the command line, where every user of the machine could read them.
        click.option("--access-key", envvar="ROCKETMQ_ACCESS_KEY", hidden=True),
        click.option("--secret-key", envvar="ROCKETMQ_SECRET_KEY", hidden=True),
        click.option("--tls", is_flag=True, help="Connect by TLS; without --tls-ca any server is accepted."),
        click.option("--tls-cert", type=_FILE, help="PEM client certificate; implies --tls."),
        click.option(
            "--tls-key",
            type=_FILE,
            help=f"PEM key of --tls-cert [in the same file]; its password comes from {KEY_PASSWORD}.",
        ),
        click.option(
            "--tls-ca",
            type=_FILE,
            help="Accept only server certificates signed by one of these (PEM); implies --tls.",
        ),
    )
    made: Any = with_access
    for option in reversed(options):
        made = option(made)
    decorated: F = made
    return decorated


def ending_signal() -> asyncio.Event:
    """Set by Ctrl-C and by SIGTERM, so that a command can finish its work. On the running loop."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    return asked


class ProgressLine:
    """Progress and rate on one line of a terminal, and totals at the end.

    Draws only if standard error is a terminal. Used by one thread.
    """

    def __init__(self, verb: str, *, clock: Callable[[], float] = time.monotonic, shown: bool | None = None) -> None:
        self.messages = 0
        self.bytes = 0
        self.failed = 0
        self._verb = verb
        self._clock = clock
        self._began = clock()
        self._drawn = (self._began, 0)
        self._shown = sys.stderr.isatty() if shown is None else shown

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        if self._shown:
            now = self._clock()
            at, before = self._drawn
            if now - at >= EVERY_S:
                rate = (self.messages - before) / (now - at)
                self._drawn = now, self.messages
                click.echo(f"\r{self._verb} {self.messages:,} messages, {rate:,.0f}/s ", nl=False, err=True)

    def end(self) -> dict[str, float | int]:
        """Close the line; returns the totals."""
        seconds = self._clock() - self._began
        if self._shown:
            click.echo("\r" + " " * 60 + "\r", nl=False, err=True)
        return {
            "messages": self.messages,
            "failed": self.failed,
            "bytes": self.bytes,
            "seconds": round(seconds, 3),
            "messagesPerSecond": round(self.messages / seconds, 1) if seconds > 0 else 0.0,
        }


def in_words(verb: str, figures: dict[str, float | int]) -> str:
    """The totals as a sentence."""
    failed = f", {figures['failed']:,} failed" if figures["failed"] else ""
    rate = f"{figures['messagesPerSecond']:,.0f}/s, {figures['bytes'] / 1e6 / max(figures['seconds'], 1e-3):,.1f} MB/s"
    what = "message" if figures["messages"] == 1 else "messages"
    return f"{verb} {figures['messages']:,} {what} in {figures['seconds']:,.2f} s ({rate}){failed}"
