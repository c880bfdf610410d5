"""`tiermq namesrv`: a name server alone in a process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from tiermq.cli.end_signals import EndSignals
from tiermq.cli.say_event import say_event
from tiermq.cli.server_security import SecurityOptions, reload_security, security_options
from tiermq.errors import BadConfig, TierMQError
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig, unkept_in_file

EXIT_CANNOT_START = 2


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen here [9876]; 0 takes a free one.")
@click.option("--bind", help="Listen at this address [0.0.0.0, every one].")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A properties file as RocketMQ's name server takes it, or TOML (*.toml).",
)
@click.option("--accept-weaker", is_flag=True, help="Start although the file asks for safety that is not provided.")
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
    """Run a name server: brokers of TierMQ and of RocketMQ register here, clients ask here where topics are.

    Options win over the file. Ends cleanly on SIGTERM and on Ctrl-C; SIGHUP reads accounts and certificates again.

    Exit code: 0 after a clean end, 2 if it cannot start.

    \b
    Settings of the file (RocketMQ's names): listenPort, bindAddress, kvConfigPath, scanNotActiveBrokerInterval,
    orderMessageEnable, returnOrderTopicConfigToBroker, deleteTopicWithBrokerRegistration, supportActingMaster

    \b
    Examples:
      tiermq namesrv
      tiermq namesrv --bind 127.0.0.1 --port 9877
      tiermq namesrv --config /etc/rocketmq/namesrv.conf --json
      tiermq namesrv --tls enforcing --tls-cert server.pem --acl accounts.toml
    """
    config, ignored = _configured(port, bind, config_file)
    if config_file is not None and not accept_weaker:
        provided = [] if security.accounts is None else ["--acl"]
        if weaker := unkept_in_file(str(config_file), provided):
            listed = "\n  ".join([f"{config_file} asks for what is not provided:", *weaker])
            _give_up(f"{listed}\nTo start without it: --accept-weaker")
    if ignored:
        say_event(
            as_json,
            f"settings that a name server here does not have: {', '.join(ignored)}",
            event="ignored",
            settings=ignored,
        )
    # Signals first, so that one that comes while it starts is not lost.
    with EndSignals() as ending:
        try:
            acl = security.acl()
            server = NameServer(config, tls=security.tls(), acl=acl)
            server.start()
        except (OSError, TierMQError) as error:
            _give_up(f"cannot start at {config.bind_address}:{config.listen_port}: {error}")
        kept = config.kv_config_path or "nowhere"
        say_event(
            as_json,
            f"name server ready at {config.bind_address}:{server.port}, settings kept in {kept}",
            event="ready",
            address=config.bind_address,
            port=server.port,
            kvConfigPath=config.kv_config_path,
        )
        ending.wait(on_hangup=lambda: reload_security([server.server], acl, as_json))
        server.stop()
    say_event(as_json, "name server ended", event="ended")


def _configured(port: int | None, bind: str | None, config_file: Path | None) -> tuple[NameServerConfig, list[str]]:
    try:
        config = NameServerConfig()
        ignored: list[str] = []
        if config_file is not None:
            config, ignored = NameServerConfig.from_file(str(config_file))
        wanted = {"listen_port": port, "bind_address": bind}
        return config.with_settings(**{name: each for name, each in wanted.items() if each is not None}), ignored
    except (BadConfig, OSError, UnicodeDecodeError) as error:
        _give_up(str(error))


def _give_up(text: str) -> NoReturn:
    click.echo(f"tiermq namesrv: {text}", err=True)
    sys.exit(EXIT_CANNOT_START)
