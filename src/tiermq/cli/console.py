"""`tiermq console`: the pages over brokers, a tier or a store directory."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from tiermq.cli.cluster_command import cluster_options
from tiermq.cli.option_values import NamedStore
from tiermq.cli.server_log import log_options
from tiermq.cli.server_process import EndSignals, give_up, say_event
from tiermq.cli.source_options import require_history, tier_place
from tiermq.client.cluster_client import Access
from tiermq.console.sources import SourcePlace, Sources
from tiermq.console.web.server import PORT, ConsoleServer
from tiermq.errors import TierMQError
from tiermq.history.scan_values import StorePlace
from tiermq.message.hosts import LOOPBACK
from tiermq.remoting.permissions import AccessFile


@click.command()
@partial(cluster_options, default="")
@click.option("--tier", metavar="URL", help="Read this tier: s3://bucket/prefix, gs://…, az://…, file:///dir.")
@click.option(
    "--store",
    "stores",
    multiple=True,
    metavar="DIR[=NAME]",
    type=NamedStore(),
    help="Read this store directory, in use or not, of the broker NAME; repeatable.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="KIND:PLACE",
    help="A table that messages are exported to (parquet:/dir, …); repeatable.",
)
@click.option("--spark-master", metavar="URL", help="Let queries run on this Spark, such as local[2] [do not].")
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="0 takes a free one.")
@click.option("--host", default=LOOPBACK, show_default=True, help="Listen at this address; others need accounts.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A further name that browsers use for it.")
@click.option(
    "--acl",
    "accounts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Accounts that may log in (TOML or plain_acl.yml) [those of the brokers].",
)
@click.option("--allow-changes", is_flag=True, help="Also change topics, groups, offsets and settings.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@log_options
def console(
    access: Access,
    tier: str | None,
    stores: tuple[StorePlace, ...],
    tables: tuple[str, ...],
    spark_master: str | None,
    port: int,
    host: str,
    hosts: tuple[str, ...],
    accounts: Path | None,
    allow_changes: bool,
    as_json: bool,
) -> None:
    """Serve pages about brokers, a tier and store directories.

    Give --namesrv, --tier, --store, or any of them together; the last two need no broker. Pages only read, unless
    --allow-changes is given. Only this machine can connect, unless --host is given with accounts in use. Where brokers
    use accounts, visitors log in with one of them. Ctrl-C ends it.

    Exit code: 0 after a clean end, 2 if it cannot start.

    \b
    Examples:
      tiermq console --store ~/store
      tiermq console --tier s3://bucket/history
      tiermq console --namesrv 127.0.0.1:9876 --tier s3://bucket/history
      tiermq console --namesrv 10.0.0.1:9876 --allow-changes --port 9090
    """
    with EndSignals() as ending, ExitStack() as running:
        try:
            acl = None if accounts is None else AccessFile(accounts)
            # Visitors sign with their own account, never with this process's.
            visitors = Access(access.name_servers, None, None, access.tls, access.certificates)
            place = SourcePlace(
                visitors if access.name_servers else None, tier_place(tier), stores,
                tables, spark_master,
            )  # fmt: skip
            sources = Sources(place)
            running.callback(sources.close)
            require_history(sources)
            server = ConsoleServer(
                sources, host=host, port=port, hosts=hosts, accounts=acl, allow_changes=allow_changes
            )
            running.callback(server.stop)
            server.start()
        except (OSError, TierMQError) as error:
            give_up("console", error)
        ready: dict[str, Any] = {"url": server.url, "allowChanges": allow_changes, "logIn": server.gate.needs_log_in}
        mode = "changes allowed" if allow_changes else "read-only"
        say_event(as_json, f"console ready at {server.url}, {mode}", event="ready", **ready)
        ending.wait(on_hangup=lambda: None, acl=acl)
    say_event(as_json, "console ended", event="ended")
