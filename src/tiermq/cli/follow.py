"""`tiermq follow`: copy a running master into a tier, as an observer that is none of its replicas."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.rocketmq_settings import ENDPOINT, NAMESRV, TIER
from tiermq.broker.settings_file import FileSettings, read_settings_file
from tiermq.cli.cluster_command import DEFAULT_NAME_SERVER, cluster_options
from tiermq.cli.conventions import EXIT_CANNOT_START
from tiermq.cli.option_values import StoreDirectory
from tiermq.cli.serve import check_access, own_account
from tiermq.cli.server_log import log_options
from tiermq.cli.server_process import (
    ACCEPT_WEAKER,
    OPEN,
    EndSignals,
    SecurityOptions,
    TierTroubleFilter,
    check_weaker,
    limit_heaps,
    reload_security,
    report_settings,
    say_event,
)
from tiermq.client.cluster_client import Access
from tiermq.client.observed_master import ObservedMaster, ask_master
from tiermq.config import BrokerRole
from tiermq.errors import BadConfig, RemotingError, ReplicationError, TierMQError
from tiermq.message.hosts import LOOPBACK
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.remoting.permissions import AccessFile, Account, Credentials
from tiermq.replication.ha_observer import GUARD_MS, HaObserver
from tiermq.service import Service
from tiermq.settings import settings_of
from tiermq.store.tier_continuation import recorded_names
from tiermq.tier.tier_config import TierConfig

LOOK_S = 5.0
LOOK_SOON_S = 1.0
GUARD_MORE_MS = 10_000
"""Beyond the time that a sender waits: for the master's threads, and for clocks that are set."""
ALL_HOURS = ";".join(f"{hour:02}" for hour in range(24))
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PORT = click.IntRange(0, 65_535)
_log = logging.getLogger(__name__)


@click.command()
@click.argument("directory", metavar="DIR", type=StoreDirectory())
@click.option(
    "--tier", metavar="URL", required=True, help="Upload there: s3://bucket/prefix, gs://…, az://…, file:///dir."
)
@click.option("--master", metavar="ADDR", help="The master's HA port, host:port.")
@click.option("--master-address", metavar="ADDR", help="The master's port for clients [the one below --master].")
@click.option("--broker", metavar="NAME", help="The master's name there [the only one].")
@click.option(
    "--newest-file", is_flag=True, help="Begin with the newest file of the master's log, not with its oldest."
)
@click.option(
    "--progress-every",
    metavar="S",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds between two reports of progress.",
)
@click.option("-c", "--config", "config_file", type=_FILE, help="Settings of the store and its tier, as of serve.")
@click.option("--host", default=LOOPBACK, show_default=True, help="Serve reads at this address.")
@click.option("--port", type=_PORT, default=0, help="Serve reads here [a free one].")
@click.option("--namesrv-port", type=_PORT, default=0, help="Port of this process's own name server [a free one].")
@click.option("--metrics-port", type=_PORT, help="Serve /metrics, /health and /ready here.")
@click.option("--acl", "acl_file", type=_FILE, help="Accounts that may read here, as of serve [every client may].")
@click.option("--tier-later", is_flag=True, help="Start even if the tier refuses access; upload once it accepts.")
@ACCEPT_WEAKER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@partial(cluster_options, default="")
@log_options
def follow(access: Access, **options: Any) -> None:
    """Copy the log of a running master into DIR, upload it at once, and serve reads.

    The master is RocketMQ 4.9, 5.3 or 5.5, or TierMQ. To it this process is an observer: it never acknowledges a
    message, registers nowhere in the cluster, and changes nothing there. DIR has the log byte by byte, until it is in
    the tier and proven. Topics, groups and offsets are copied, too. Accounts: ROCKETMQ_ACCESS_KEY, ROCKETMQ_SECRET_KEY.
    --tls is for the ports of name servers and the master; the HA port of a TierMQ master with haTlsEnable needs
    --tls-cert and --tls-ca.

    Reads are served without TLS, and to every client that reaches --host, unless --acl names accounts. The account for
    the master is an administrator here.

    Progress goes to stderr every ten seconds. SIGTERM and Ctrl-C upload what is left, and end.

    Exit code: 0 after a clean end, 2 if it cannot start.

    \b
    Examples:
      tiermq follow shadow --namesrv 10.0.0.1:9876 --broker broker-a \\
        --tier s3://bucket/history
      tiermq follow shadow --master 10.0.0.5:10912 --tier s3://bucket/history
    """
    limit_heaps()
    as_json: bool = options["as_json"]
    with EndSignals() as ending, ExitStack() as running:
        for handler in logging.getLogger().handlers:
            handler.addFilter(rare := TierTroubleFilter())
            running.callback(handler.removeFilter, rare)
        try:
            shadow = Shadow(options, access)
            running.callback(shadow.stop)
            shadow.start(
                lambda ready: say_event(
                    as_json, READY.format(**ready) + (f", {OPEN}" if ready["open"] else ""), event="ready", **ready
                )
            )
        except (OSError, TierMQError) as error:
            click.echo(f"tiermq follow: {error}", err=True)
            sys.exit(EXIT_CANNOT_START)
        ending.wait(on_hangup=lambda: reload_security([], shadow.acl, as_json), acl=shadow.acl)
        say_event(as_json, "ending", event="ending")
    say_event(as_json, "ended", event="ended", **shadow.left)


READY = "following broker {name} into {tier}, reads at {address}, name server {nameServer}"


def guard_ms(master: ObservedMaster) -> int:
    """How much older than the newest message one is for which no sender waits any more."""
    return max(GUARD_MS, master.wait_ms + GUARD_MORE_MS)


class Shadow:
    """The observer, its store and its broker, in one process. Used by one thread."""

    def __init__(self, options: dict[str, Any], access: Access) -> None:
        """Raises BadConfig, RemotingError."""
        self._options = options
        self._access = access if access.name_servers else replace(access, name_servers=DEFAULT_NAME_SERVER)
        self.left: dict[str, Any] = {}
        self._running = ExitStack()
        if not options["master"] and not access.name_servers:
            raise BadConfig("expected --master, or --namesrv and --broker, found neither")
        file = FileSettings() if options["config_file"] is None else read_settings_file(options["config_file"])
        self._own: Account | None = None
        """Signs requests to the master, and the registration at the name server here."""
        self.acl = self._checked(file)
        self._directory = options["directory"].absolute()
        known = recorded_names(self._directory)
        master: ObservedMaster | None = None
        try:
            master = self.ask()
        except RemotingError as error:
            if len(known) != 1:
                raise
            _log.warning("the master does not answer yet, what was copied before is served: %s", error)
        self._guard_ms = GUARD_MS if master is None else guard_ms(master)
        cluster, name = known[0] if master is None else (master.cluster, master.name)
        self._settings = self._store_settings(file, master)
        certificates = self._access.certificates
        is_mutual = bool(certificates.certificate_path and certificates.trusted_path)
        has_tls = is_mutual if master is None else master.has_tls
        if has_tls and not is_mutual:
            raise BadConfig(
                "expected --tls-cert and --tls-ca for a master whose HA port speaks TLS (haTlsEnable), found none"
            )
        self._config = BrokerConfig(
            **{
                **file.broker,
                "broker_cluster_name": cluster,
                "broker_name": name,
                "bind_address": options["host"],
                "listen_port": options["port"],
                "ha_observer": True,
                "ha_tls_enable": has_tls,
                "ha_master_address": "" if master is None else master.ha_address,
                "master_address": "" if master is None else master.address,
                **({} if options["metrics_port"] is None else {"metrics_port": options["metrics_port"]}),
            }
        )

    def _checked(self, file: FileSettings) -> AccessFile | None:
        """Check what the settings file and a protected master ask for. The accounts that may read. Raises BadConfig."""
        options, access = self._options, self._access
        security = SecurityOptions(accounts=options["acl_file"])
        weaker = file.unkept(security.kept | {TIER, NAMESRV} | ({ENDPOINT} if os.environ.get(ENDPOINT) else set()))
        if any(each.startswith(("tls.", "useTLS")) for each in weaker):
            weaker.append("TLS: reads are served without it here; `tiermq serve --read-only --tls enforcing` has it")
        if access.access_key and access.secret_key:
            self._own = Account(access.access_key, access.secret_key, admin=True)
        elif options["acl_file"] is not None:
            self._own = own_account()
        if access.access_key and security.is_open(options["host"]):
            weaker.append(
                "the master asks for accounts (ROCKETMQ_ACCESS_KEY is set): its messages could be read at "
                f"{options['host']} without one; give --acl"
            )
        check_weaker("follow", options["config_file"] or "the master", weaker, accepted=options["accept_weaker"])
        report_settings("follow", file.ignored, file.unknown)
        return security.acl(also=self._own)

    def ask(self) -> ObservedMaster:
        """The master as it is now. Raises RemotingError, BadConfig."""
        options = self._options
        where = {
            "broker": options["broker"] or "",
            "address": options["master_address"] or "",
            "ha_address": options["master"] or "",
        }
        return self._access.run(lambda cluster: ask_master(cluster, **where))

    def _store_settings(self, file: FileSettings, master: ObservedMaster | None) -> dict[str, Any]:
        files = sorted((self._directory / "commitlog").glob("[0-9]*"))
        own = files[0].stat().st_size if files else None
        if master is not None and own not in (None, master.file_bytes):
            raise BadConfig(
                f"{self._directory}: expected log files of {master.file_bytes} bytes, as the master has, found {own}: "
                "it is the copy of another master"
            )
        size = own if master is None else master.file_bytes
        cleaning = {"file_reserved_time": 0, "delete_when": ALL_HOURS}
        fixed = {"broker_role": BrokerRole.SLAVE, **({} if size is None else {"mapped_file_size_commit_log": size})}
        return {**cleaning, **file.tier, **file.store, **fixed}

    def start(self, announce: Callable[[dict[str, Any]], None]) -> None:
        """`announce` takes the values of the ready line, before progress is reported. Raises OSError, TierMQError."""
        options, running = self._options, self._running
        name_server = NameServer(
            NameServerConfig(
                bind_address=options["host"],
                listen_port=options["namesrv_port"],
                kv_config_path=f"{self._directory}/config/kvConfig.json",
            ),
            acl=self.acl,
        )
        name_server.start()
        running.callback(name_server.stop)
        dialled = LOOPBACK if options["host"] in ("0.0.0.0", "::") else options["host"]  # noqa: S104 - compared
        config = self._config.with_settings(namesrv_addr=f"{dialled}:{name_server.port}")
        if not options["tier_later"]:
            tier = {name: value for name, value in self._settings.items() if name in settings_of(TierConfig)}
            check_access(options["tier"], TierConfig(**tier), config, reads=False)
        access = self._access
        broker = Broker.open(
            self._directory,
            tier=options["tier"],
            config=config,
            acl=self.acl,
            credentials=None if self._own is None else Credentials(self._own.access_key, self._own.secret_key),
            master_tls=access.certificates.context if access.tls or access.certificates else None,
            **self._settings,
        )
        running.callback(self._note_left, broker)
        running.callback(broker.stop)
        observer = broker.replication.slave
        assert isinstance(observer, HaObserver)
        observer.guard_ms = self._guard_ms
        observer.begin = lambda: 0 if options["newest_file"] else self._begin()
        broker.start()
        watch = Watch(self, broker, observer, every_s=options["progress_every"], as_json=options["as_json"])
        announce(
            {
                "name": config.broker_name,
                "cluster": config.broker_cluster_name,
                "master": observer.master or None,
                "address": broker.address,
                "nameServer": f"{config.broker_ip1}:{name_server.port}",
                "store": str(self._directory),
                "tier": options["tier"],
                "metrics": broker.metrics_address,
                "open": SecurityOptions(accounts=options["acl_file"]).is_open(options["host"]),
            }
        )
        watch.start()
        running.callback(watch.stop)

    def _begin(self) -> int:
        """On the observer's thread, with an empty log. Raises ReplicationError."""
        try:
            return self.ask().begin
        except TierMQError as error:
            raise ReplicationError(f"expected to know where its log begins, found: {error}") from error

    def _note_left(self, broker: Broker) -> None:
        if (left := broker.not_uploaded) is not None:
            self.left = {"notUploaded": {"queues": left.queues, "messages": left.messages}}

    def stop(self) -> None:
        self._running.close()


class Watch(Service):
    """Finds the master again when it has moved, and reports progress."""

    def __init__(self, shadow: Shadow, broker: Broker, observer: HaObserver, *, every_s: float, as_json: bool) -> None:
        super().__init__("follow-watch")
        self._shadow, self._broker, self._observer = shadow, broker, observer
        self._every_s, self._as_json = every_s, as_json
        self._clock = broker.parts.clock
        self._said: dict[str, Any] = {}
        self._next_s = 0.0
        self._end: int | None = None
        """Where the master's log ended when it was asked last; None where it has not answered."""
        self._has_caught_up = False
        """Whether it had everything once since it was connected."""
        self._why = "the master was not asked yet"
        """Why that is not known, or why the master cannot be followed, as text."""
        broker.parts.metrics.gauge(
            "tiermq_follow_behind_bytes",
            "bytes of the master's log that are not copied yet; NaN while the master does not answer",
            (),
            self._behind_gauge,
        )
        broker.parts.metrics.gauge(
            "tiermq_follow_diverged", "1 while the master's log is not the one that was copied", (), self._has_diverged
        )

    def run_once(self) -> float:
        self._find()
        now_s = self._clock.monotonic()
        is_news = bool(self._problem) != bool(self._said.get("problem"))
        was_there, is_connected = self._has_caught_up, self._observer.is_connected
        self._has_caught_up = is_connected and (was_there or self._behind(self._copied_to) == 0)
        if now_s >= self._next_s or is_news or self._has_caught_up > was_there:
            self._next_s = now_s + self._every_s
            self._say()
        return min(self._every_s, LOOK_S if self._has_caught_up else LOOK_SOON_S)

    def _find(self) -> None:
        try:
            found = self._shadow.ask()
        except (OSError, TierMQError) as error:
            _log.info("the master is not found: %s", error)
            self._end, self._why = None, f"how far behind this copy is, is not known: {error}"
            return
        self._end, self._why = found.log_end, ""
        if self._observer.is_connected:
            return
        file_bytes = self._broker.parts.local.config.mapped_file_size_commit_log
        if found.has_tls != self._broker.config.ha_tls_enable:
            was = str(self._broker.config.ha_tls_enable).lower()
            self._why = f"expected a master with haTlsEnable={was}, as at the start, found another: start again"
            _log.error("%s", self._why)
            return
        if found.file_bytes != file_bytes:
            self._why = f"expected a master with log files of {file_bytes} bytes, found {found.file_bytes}"
            _log.error("%s", self._why)
            return
        self._observer.guard_ms = guard_ms(found)
        self._observer.set_master(found.ha_address)
        self._broker.replication.master_address = found.address

    @property
    def _problem(self) -> str:
        return self._observer.problem or self._why

    @property
    def _copied_to(self) -> int:
        return self._broker.parts.local.max_physical_offset

    def _behind(self, copied_to: int) -> int | None:
        """By the master's own figures: frames of its HA port do not show its end, a first heartbeat least of all."""
        return None if self._end is None else max(0, self._end - copied_to)

    def _behind_gauge(self) -> float:
        behind = self._behind(self._copied_to)
        return math.nan if behind is None else behind

    def _has_diverged(self) -> bool:
        return "is not the one that was copied" in self._observer.problem

    def _say(self) -> None:
        tiered = self._broker.parts.tiered
        assert tiered is not None
        copied_to = self._copied_to
        figures_now = {
            "connected": self._observer.is_connected,
            "copiedTo": copied_to,
            "behindBytes": self._behind(copied_to),
            "notUploaded": sum(tiered.tier.engine.not_uploaded().values()),
            "localFrom": self._broker.parts.local.min_physical_offset,
            "problem": self._problem or None,
        }
        if figures_now == self._said:
            return
        self._said = figures_now
        if self._as_json:
            say_event(True, "", event="progress", **figures_now)
        else:
            state = figures_now["problem"] or ("connected" if figures_now["connected"] else "not connected")
            behind = figures_now["behindBytes"]
            distance = "not known how far behind" if behind is None else f"{behind:,} bytes behind"
            figures = "copied to {copiedTo:,}, {distance}, {notUploaded:,} messages not uploaded"
            click.echo(f"tiermq follow: {figures.format(**figures_now, distance=distance)}: {state}", err=True)
