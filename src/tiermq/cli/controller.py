"""`tiermq controller`: run a controller."""

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
from tiermq.controller.controller import Controller
from tiermq.controller.controller_config import ControllerConfig
from tiermq.controller.set_store import object_name
from tiermq.errors import BadConfig, TierMQError
from tiermq.remoting.security_promises import SECURITY_PROMISES
from tiermq.settings import unkept_in_file
from tiermq.tier.driver.tier_url import check_tier, open_driver

STATE_TIMEOUT_S = 2.0
"""Brokers wait for three seconds for an answer."""


@click.command()
@click.option(
    "--state",
    "state_url",
    required=True,
    help="Where the state of broker sets is kept, for all controllers: s3://bucket/prefix, gs://, az:// or file:///dir.",
)
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen here [9878]; 0 takes a free one.")
@click.option("--bind", help="Listen on this address [bindAddress of the file, or 127.0.0.1].")
@click.option("--advertise", help="HOST:PORT under which brokers reach it [the address to which they connected].")
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A properties file as RocketMQ's controller takes it, TOML (*.toml) or flat YAML (*.yml).",
)
@ACCEPT_WEAKER
@security_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
def controller(
    state_url: str,
    port: int | None,
    bind: str | None,
    advertise: str | None,
    config_file: Path | None,
    accept_weaker: bool,
    as_json: bool,
    security: SecurityOptions,
) -> None:
    """Run a controller for broker sets of TierMQ and RocketMQ in controller mode: it elects their masters.

    Its state is one object per broker set, changed by compare-and-set. Any number of controllers may run on one state;
    name all of them in controllerAddr of every broker. With file:///dir all must run on this machine.

    Only this machine can connect, unless --bind or the file's bindAddress is set: 0.0.0.0 is every address.

    Options override the file. Ends cleanly on SIGTERM and on Ctrl-C; SIGHUP reads accounts and certificates again.

    Exit code: 0 after a clean end, 2 if it cannot start.

    \b
    Settings of the file (RocketMQ's names): listenPort, bindAddress,
    scanNotActiveBrokerInterval, scanInactiveMasterInterval,
    enableElectUncleanMaster, notifyBrokerRoleChanged

    \b
    Examples:
      tiermq controller --state file:///var/lib/tiermq/controller
      tiermq controller --state s3://bucket/controller --acl accounts.toml
    """
    config, ignored = _configured(port, bind, advertise, config_file)
    weaker = [] if config_file is None else unkept_in_file(config_file, SECURITY_PROMISES, security.kept)
    try:
        check_weaker("controller", config_file, weaker, accepted=accept_weaker)
    except BadConfig as error:
        _give_up(str(error))
    ignored = without_kept(ignored, SECURITY_PROMISES, weaker)
    if ignored:
        text = f"settings that a controller here does not have: {', '.join(ignored)}"
        say_event(as_json, text, event="ignored", settings=ignored)
    # Handle signals first, so that none is lost during the start.
    with EndSignals() as ending:
        try:
            acl = security.acl()
            check_tier(state_url, object_name("check"), writes=True)
            driver = open_driver(state_url, request_timeout_s=STATE_TIMEOUT_S)
            credentials = None if acl is None else acl.table.administrator()
            server = Controller(config, driver, tls=security.tls(), acl=acl, credentials=credentials)
            server.start()
        except (OSError, TierMQError) as error:
            _give_up(f"cannot start at {config.bind_address}:{config.listen_port}: {error}")
        is_open = security.is_open(config.bind_address)
        say_event(
            as_json,
            f"controller ready at {config.bind_address}:{server.port}, state in {driver.url}"
            + (f", {OPEN}" if is_open else ""),
            event="ready",
            address=config.bind_address,
            port=server.port,
            state=driver.url,
            open=is_open,
        )
        ending.wait(on_hangup=lambda: reload_security([server.server], acl, as_json))
        server.stop()
        driver.close()
    say_event(as_json, "controller ended", event="ended")


def _configured(
    port: int | None, bind: str | None, advertise: str | None, config_file: Path | None
) -> tuple[ControllerConfig, list[str]]:
    try:
        config = ControllerConfig()
        ignored: list[str] = []
        if config_file is not None:
            config, ignored = ControllerConfig.from_file(config_file)
        wanted = {"listen_port": port, "bind_address": bind, "advertised_address": advertise}
        return config.with_settings(**{name: each for name, each in wanted.items() if each is not None}), ignored
    except (BadConfig, OSError, UnicodeDecodeError) as error:
        _give_up(str(error))


def _give_up(text: str) -> NoReturn:
    click.echo(f"tiermq controller: {text}", err=True)
    sys.exit(EXIT_CANNOT_START)
