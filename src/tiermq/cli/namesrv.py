"""`tiermq namesrv`: run a name server."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from tiermq.cli.server_log import log_options
from tiermq.cli.server_process import ACCEPT_WEAKER, SecurityOptions, run_server, security_options, server_settings
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import PROMISES, NameServerConfig
from tiermq.remoting.permissions import AccessFile


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen here [9876]; 0 takes a free one.")
@click.option("--host", "--bind", "host", help="Listen at this address [bindAddress of the file, or 127.0.0.1].")
@click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A properties file as RocketMQ's name server takes it, TOML (*.toml) or flat YAML (*.yml).",
)
@ACCEPT_WEAKER
@security_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@log_options
def namesrv(
    port: int | None,
    host: str | None,
    config_file: Path | None,
    accept_weaker: bool,
    as_json: bool,
    security: SecurityOptions,
) -> None:
    """Run a name server for brokers and clients of TierMQ and RocketMQ.

    Only this machine can connect, unless --host or the file's bindAddress is set: 0.0.0.0 is every address.

    Options override the file. Ends cleanly on SIGTERM and on Ctrl-C; SIGHUP reads accounts and certificates again.

    Exit code: 0 after a clean end, 2 if it cannot start.

    Settings of the file (RocketMQ's names): listenPort, bindAddress, kvConfigPath, scanNotActiveBrokerInterval,
    orderMessageEnable, returnOrderTopicConfigToBroker, deleteTopicWithBrokerRegistration, supportActingMaster

    \b
    Examples:
      tiermq namesrv
      tiermq namesrv --host 0.0.0.0 --port 9877
      tiermq namesrv --config /etc/rocketmq/namesrv.conf --json
      tiermq namesrv --tls enforcing --tls-cert server.pem --acl accounts.toml
    """
    config, ignored = server_settings(
        "namesrv",
        NameServerConfig,
        config_file,
        PROMISES,
        security,
        accept_weaker=accept_weaker,
        listen_port=port,
        bind_address=host,
    )

    def make(acl: AccessFile | None, _opened: ExitStack) -> tuple[NameServer, str, dict[str, object]]:
        words = f"settings kept in {config.kv_config_path or 'nowhere'}"
        return NameServer(config, tls=security.tls(), acl=acl), words, {"kvConfigPath": config.kv_config_path}

    run_server("namesrv", config, ignored, NameServer, make, security, as_json)
