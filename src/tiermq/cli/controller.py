"""`tiermq controller`: run a controller."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from tiermq.cli.server_log import log_options
from tiermq.cli.server_process import ACCEPT_WEAKER, SecurityOptions, run_server, security_options, server_settings
from tiermq.controller.controller import Controller
from tiermq.controller.controller_config import ControllerConfig
from tiermq.controller.set_store import object_name
from tiermq.remoting.permissions import AccessFile
from tiermq.remoting.security_promises import SECURITY_PROMISES
from tiermq.tier.driver.tier_url import check_tier, open_driver, require_conditional_writes

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
@click.option("--host", "--bind", "host", help="Listen at this address [bindAddress of the file, or 127.0.0.1].")
@click.option("--advertise", help="HOST:PORT under which brokers reach it [the address to which they connected].")
@click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A properties file as RocketMQ's controller takes it, TOML (*.toml) or flat YAML (*.yml).",
)
@ACCEPT_WEAKER
@security_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@log_options
def controller(
    state_url: str,
    port: int | None,
    host: str | None,
    advertise: str | None,
    config_file: Path | None,
    accept_weaker: bool,
    as_json: bool,
    security: SecurityOptions,
) -> None:
    """Run a controller for broker sets of TierMQ and RocketMQ in controller mode: it elects their masters.

    Its state is one object per broker set, changed by compare-and-set. Any number of controllers may run on one state;
    name all of them in controllerAddr of every broker. With file:///dir all must run on this machine.

    Only this machine can connect, unless --host or the file's bindAddress is set: 0.0.0.0 is every address.

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
    config, ignored = server_settings(
        "controller",
        ControllerConfig,
        config_file,
        SECURITY_PROMISES,
        security,
        accept_weaker=accept_weaker,
        listen_port=port,
        bind_address=host,
        advertised_address=advertise,
    )

    def make(acl: AccessFile | None, opened: ExitStack) -> tuple[Controller, str, dict[str, object]]:
        check_tier(state_url, object_name("check"), writes=True)
        driver = open_driver(state_url, request_timeout_s=STATE_TIMEOUT_S)
        opened.callback(driver.close)
        require_conditional_writes(driver, object_name("check"))
        credentials = None if acl is None else acl.table.administrator()
        server = Controller(config, driver, tls=security.tls(), acl=acl, credentials=credentials)
        return server, f"state in {driver.url}", {"state": driver.url}

    run_server("controller", config, ignored, Controller, make, security, as_json)
