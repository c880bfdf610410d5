"""`tiermq namesrv`: run a name server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from tiermq.cli.conventions import EXIT_CANNOT_START
from tiermq.cli.server_process import (
    ACCEPT_WEAKER,
    OPEN,
    EndSignals,
    SecurityOptions,
    check_weaker,
    reload_security,
    say_event,
    security_options,
    without_kept,
)
from tiermq.errors import BadConfig, TierMQError
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import PROMISES, NameServerConfig
from tiermq.settings import unkept_in_file


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen here [9876]; 0 takes a free one.")
@click.option("--bind", help="Listen on this address [bindAddress of the file, or 127.0.0.1].")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A properties file as RocketMQ's name server takes it, TOML (*.toml) or flat YAML (*.yml).",
)
@ACCEPT_WEAKER
@security_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
def namesrv(
    port: int | None,
    bind: str | None,
    config_file: Path | None,
    accept_weaker: bool,
    as_json: bool,
    security: SecurityOptions,
) -> None:
    """Run a name server for brokers and clients of TierMQ and RocketMQ.

    Only this machine can connect, unless --bind or the file's bindAddress is set: 0.0.0.0 is every address.

    Options override the file. Ends cleanly on SIGTERM and on Ctrl-C; SIGHUP reads accounts and certificates again.

    Exit code: 0 after a clean end, 2 if it cannot start.

    Settings of the file (RocketMQ's names): listenPort, bindAddress, kvConfigPath, scanNotActiveBrokerInterval,
    orderMessageEnable, returnOrderTopicConfigToBroker, deleteTopicWithBrokerRegistration, supportActingMaster

    \b
    Examples:
      tiermq namesrv
      tiermq namesrv --bind 0.0.0.0 --port 9877
      tiermq namesrv --config /etc/rocketmq/namesrv.conf --json
      tiermq namesrv --tls enforcing --tls-cert server.pem --acl accounts.toml
    """
    config, ignored = _configured(port, bind, config_file)
    weaker = [] if config_file is None else unkept_in_file(config_file, PROMISES, security.kept)
    try:
        check_weaker("namesrv", config_file, weaker, accepted=accept_weaker)
    except BadConfig as error:
        _give_up(str(error))
    ignored = without_kept(ignored, PROMISES, weaker)
    if ignored:
        say_event(
            as_json,
            f"settings that a name server here does not have: {', '.join(ignored)}",
            event="ignored",
            settings=ignored,
        )
    # Handle signals first, so that none is lost during the start.
    with EndSignals() as ending:
        try:
            acl = security.acl()
            server = NameServer(config, tls=security.tls(), acl=acl)
            server.start()
        except (OSError, TierMQError) as error:
            _give_up(f"cannot start at {config.bind_address}:{config.listen_port}: {error}")
        kept, is_open = config.kv_config_path or "nowhere", security.is_open(config.bind_address)
        say_event(
            as_json,
            f"name server ready at {config.bind_address}:{server.port}, settings kept in {kept}"
            + (f", {OPEN}" if is_open else ""),
            event="ready",
            address=config.bind_address,
            port=server.port,
            kvConfigPath=config.kv_config_path,
            open=is_open,
        )
        ending.wait(on_hangup=lambda: reload_security([server.server], acl, as_json))
        server.stop()
    say_event(as_json, "name server ended", event="ended")


def _configured(port: int | None, bind: str | None, config_file: Path | None) -> tuple[NameServerConfig, list[str]]:
    try:
        config = NameServerConfig()
        ignored: list[str] = []
        if config_file is not None:
            config, ignored = NameServerConfig.from_file(config_file)
        wanted = {"listen_port": port, "bind_address": bind}
        return config.with_settings(**{name: each for name, each in wanted.items() if each is not None}), ignored
    except (BadConfig, OSError, UnicodeDecodeError) as error:
        _give_up(str(error))


def _give_up(text: str) -> NoReturn:
    click.echo(f"tiermq namesrv: {text}", err=True)
    sys.exit(EXIT_CANNOT_START)
