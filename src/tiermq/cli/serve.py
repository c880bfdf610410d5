"""`tiermq serve`: a broker, with a name server beside it unless told otherwise."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import LOOPBACK, BrokerConfig
from tiermq.broker.settings_file import FileSettings, read_settings_file
from tiermq.cli.end_signals import EndSignals
from tiermq.cli.heap_limits import limit_heaps
from tiermq.config import StoreConfig
from tiermq.errors import RemotingError, TierMQError
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.acl import Credentials
from tiermq.remoting.permissions import AccessFile, Account
from tiermq.remoting.tls import TlsMode, TlsSettings, trusting_client_context
from tiermq.tier.tier_config import TierConfig

_log = logging.getLogger(__name__)

EXIT_CANNOT_START = 2
REGISTERED_S = 5.0
ANY = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("directory", required=False, metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path))
@click.option("--tier", metavar="URL", help="Keep history there: s3://bucket/prefix, gs://…, az://…, file:///dir.")
@click.option("-c", "--config", "config_file", type=_FILE, help="RocketMQ's broker.conf, or TOML (*.toml).")
@click.option("--host", help="Listen at this address [127.0.0.1; with a file: its bindAddress, or every one].")
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen here [10911]; 0 takes a free one.")
@click.option("--name", help="The broker's name [brokerName, or this machine's].")
@click.option("--namesrv", metavar="ADDR", help="Register at host:port;host:port, and run no name server here.")
@click.option("--namesrv-port", type=click.IntRange(0, 65_535), help="Where the name server here listens [9876].")
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Serve /metrics, /health and /ready here.")
@click.option(
    "--tls",
    type=click.Choice([mode.value for mode in TlsMode]),
    default=TlsMode.PERMISSIVE.value,
    show_default=True,
    help="Who may connect: plain peers, both, or TLS peers only.",
)
@click.option("--tls-cert", type=_FILE, help="PEM certificate; without one a certificate is made at each start.")
@click.option("--tls-key", type=_FILE, help="PEM key of the certificate.")
@click.option("--tls-key-password", envvar="TIERMQ_TLS_KEY_PASSWORD", hidden=True)
@click.option("--tls-trusted", type=_FILE, help="PEM certificates that clients must show one of.")
@click.option("--acl", "acl_file", type=_FILE, help="Accounts and permissions: TOML, or RocketMQ's plain_acl.yml.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@click.option("-v", "--verbose", is_flag=True, help="Log what happens, not only what goes wrong.")
def serve(**options: Any) -> None:
    """Run a broker on the store in DIR; RocketMQ's clients can use it.

    DIR is made if there is none [storePathRootDir of the file, or ~/store]. Options win over the file. Without a file
    only this machine can connect. A name server runs in the same process, unless --namesrv or the file's namesrvAddr
    names another. SIGTERM and Ctrl-C answer what was asked, and close the store cleanly.

    Exit code: 0 after a clean end, 2 if it cannot start.

    \b
    Examples:
      tiermq serve ~/store
      tiermq serve ~/store --tier s3://bucket/history --metrics-port 5557
      tiermq serve -c /etc/rocketmq/broker.conf --namesrv 10.0.0.1:9876
      tiermq serve ~/store --port 0 --namesrv-port 0 --json
    """
    as_json: bool = options["as_json"]
    logging.basicConfig(
        level=logging.INFO if options["verbose"] else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    limit_heaps()
    # Signals first, so that one that comes while it starts is not lost.
    with EndSignals() as ending, ExitStack() as running:
        try:
            ready = _start(options, running)
        except (OSError, TierMQError) as error:
            _give_up(error)
        if ready["ignored"]:
            click.echo(f"tiermq serve: settings that mean nothing here: {', '.join(ready['ignored'])}", err=True)
        _say(as_json, _ready_line(ready), event="ready", **ready)
        ending.wait()
        _say(as_json, "broker ending", event="ending")
    _say(as_json, "broker ended", event="ended")


def _start(options: dict[str, Any], running: ExitStack) -> dict[str, Any]:
    """Start everything; what was started ends with `running`, last first. Gives what the ready line says."""
    file = FileSettings() if options["config_file"] is None else read_settings_file(options["config_file"])
    config = _broker_config(options, file)
    directory = str((options["directory"] or StoreConfig(**file.store).root_path).absolute())
    tier = options["tier"] or TierConfig(**file.tier).url or None
    tls = _tls(options)
    acl = None if options["acl_file"] is None else AccessFile(options["acl_file"])
    credentials = None if acl is None else acl.table.administrator()
    named_by = config.namesrv_addr
    if not named_by:
        own = _own_account()
        credentials = None if acl is None else Credentials(own.access_key, own.secret_key)
        name_server = _name_server(options, file, config, directory, tls, own)
        with _explained(f"name server, {name_server.config.bind_address}:{name_server.config.listen_port}"):
            name_server.start()
        running.callback(name_server.stop)
        named_by = f"{config.broker_ip1}:{name_server.port}"
        dialled = LOOPBACK if config.bind_address in ANY else config.bind_address
        config = config.with_settings(namesrv_addr=f"{dialled}:{name_server.port}")
    elif acl is not None and credentials is None:
        _log.warning("%s has no administrator: the broker registers at %s unsigned", acl.path, named_by)
    with _explained(f"broker, {config.bind_address}:{config.listen_port}"):
        broker = Broker.open(
            directory,
            tier=tier,
            config=config,
            tls=tls,
            acl=acl,
            credentials=credentials,
            name_server_tls=trusting_client_context() if tls.mode is TlsMode.ENFORCING else None,
            settings_file=options["config_file"],
            **{**(file.tier if tier else {}), **file.store},
        )
        running.callback(broker.stop)
        broker.start()
    if broker.registration is not None and not broker.registration.wait_registered(REGISTERED_S):
        _log.warning("not registered at %s yet: clients cannot find this broker there", named_by)
    gc.collect()
    gc.freeze()  # What is here now stays: the collector need not look at it again.
    return {
        "name": config.broker_name,
        "address": broker.address,
        "vipAddress": None if broker.fast_port is None else f"{config.broker_ip1}:{broker.fast_port}",
        "whyNoVip": broker.why_no_fast_port or None,
        "nameServer": named_by,
        "store": directory,
        "tier": tier,
        "metrics": broker.metrics_address,
        "ignored": list(file.ignored),
    }


def _broker_config(options: dict[str, Any], file: FileSettings) -> BrokerConfig:
    values: dict[str, Any] = {} if options["config_file"] is not None else {"bind_address": LOOPBACK}
    values |= file.broker
    wanted = {
        "bind_address": options["host"],
        "listen_port": options["port"],
        "broker_name": options["name"],
        "namesrv_addr": options["namesrv"],
        "metrics_port": options["metrics_port"],
    }
    return BrokerConfig(**values | {name: value for name, value in wanted.items() if value is not None})


def _tls(options: dict[str, Any]) -> TlsSettings:
    return TlsSettings(
        TlsMode(options["tls"]),
        options["tls_cert"],
        options["tls_key"],
        options["tls_key_password"],
        options["tls_trusted"],
        client_must_authenticate=options["tls_trusted"] is not None,
    )


def _name_server(
    options: dict[str, Any],
    file: FileSettings,
    config: BrokerConfig,
    directory: str,
    tls: TlsSettings,
    own: Account,
) -> NameServer:
    """The one beside the broker, with the same accounts, and the broker's own."""
    values: dict[str, Any] = {
        "bind_address": config.bind_address,
        "kv_config_path": f"{directory}/config/kvConfig.json",
    }
    values |= file.namesrv
    if options["namesrv_port"] is not None:
        values["listen_port"] = options["namesrv_port"]
    acl = None if options["acl_file"] is None else AccessFile(options["acl_file"], also=own)
    return NameServer(NameServerConfig(**values), tls=tls, acl=acl)


def _own_account() -> Account:
    """What a broker registers with at the name server in its process: known here only, and gone with the process."""
    return Account(f"broker-{secrets.token_hex(16)}", secrets.token_hex(32), admin=True)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """An address that cannot be had says whose it was to be."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
            raise
        raise RemotingError(f"{what}: cannot listen there: {os.strerror(error.errno)}") from error


def _ready_line(ready: dict[str, Any]) -> str:
    parts = [
        f"broker {ready['name']} ready at {ready['address']}",
        f"VIP port at {ready['vipAddress']}" if ready["vipAddress"] else f"no VIP port ({ready['whyNoVip']})",
        f"name server {ready['nameServer']}",
        f"store {ready['store']}",
        f"tier {ready['tier'] or 'none'}",
    ]
    if ready["metrics"]:
        parts.append(f"metrics http://{ready['metrics']}/metrics")
    return ", ".join(parts)


def _say(as_json: bool, text: str, **values: object) -> None:
    click.echo(json.dumps(values) if as_json else text)
    sys.stdout.flush()


def _give_up(error: Exception) -> NoReturn:
    click.echo(f"tiermq serve: {error}", err=True)
    sys.exit(EXIT_CANNOT_START)
