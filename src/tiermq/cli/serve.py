"""`tiermq serve`: run a broker, with a name server in the same process unless configured otherwise."""

from __future__ import annotations

import dataclasses
import errno
import gc
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tiermq.broker.broker import Broker
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.elected_broker import ElectedBroker
from tiermq.broker.replication.controller_election import controller_election
from tiermq.broker.replication.replication import check_acting
from tiermq.broker.rocketmq_settings import CONTROLLER, ENDPOINT, NAMESRV, TIER
from tiermq.broker.settings_file import FileSettings, read_settings_file
from tiermq.cli.broker_supervisor import (
    NOT_PASSED_ON,
    BrokerSupervisor,
    broker_commands,
    check_one_broker,
    check_several_brokers,
)
from tiermq.cli.option_values import StoreDirectory
from tiermq.cli.server_log import log_options
from tiermq.cli.server_process import (
    ACCEPT_WEAKER,
    OPEN,
    EndSignals,
    SecurityOptions,
    TierTroubleFilter,
    check_weaker,
    give_up,
    limit_heaps,
    reload_security,
    report_settings,
    say_event,
    security_options,
)
from tiermq.client.cluster_client import Access
from tiermq.config import BrokerRole, StoreConfig
from tiermq.errors import TIER_REFUSALS, BadConfig, RemotingError, TierMQError, TierUnavailable
from tiermq.files.store_lock import StoreLock
from tiermq.history.scan_values import StorePlace
from tiermq.message.hosts import LOOPBACK
from tiermq.namesrv.name_server import NameServer
from tiermq.namesrv.name_server_config import NameServerConfig
from tiermq.pipeline.job_report import counted_noun
from tiermq.remoting.permissions import AccessFile, Account, Credentials
from tiermq.remoting.server import RemotingServer
from tiermq.remoting.tls import KEY_PASSWORD, TlsMode, TlsSettings
from tiermq.replication.election import Decision, Election, Role
from tiermq.store.tier_continuation import broker_names, recorded_names
from tiermq.tier.tier_config import TierConfig

_log = logging.getLogger(__name__)

REGISTERED_S = 5.0
FIRST_ROLE_S = 5.0
ANY = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
OF_CONSOLE = {
    "allow_changes": "--allow-changes", "hosts": "--allow-host", "tables": "--table", "spark_master": "--spark-master",
}  # fmt: skip
USUAL_TLS = "TLS permissive"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("directory", required=False, metavar="[DIR]", type=StoreDirectory())
@click.option("--tier", metavar="URL", help="Keep history there: s3://bucket/prefix, gs://…, az://…, file:///dir.")
@click.option(
    "-c",
    "--config",
    "config_file",
    type=_FILE,
    help="RocketMQ's broker.conf, its keys in YAML (*.yml), or TOML (*.toml).",
)
@click.option("--host", help="Listen at this address [bindAddress of the file, or 127.0.0.1].")
@click.option("--port", type=click.IntRange(0, 65_535), help="Listen here [10911]; 0 takes a free one.")
@click.option("--name", help="The broker's name [brokerName, the store's own, or this machine's].")
@click.option("--cluster", help="The cluster's name [brokerClusterName, or DefaultCluster].")
@click.option("--broker-id", type=click.IntRange(0), help="0 for a master, above 0 for a slave [brokerId, or 0].")
@click.option("--read-only", is_flag=True, help="Serve the history in the tier; write nothing there, keep none in DIR.")
@click.option("--namesrv", metavar="ADDR", help="Register at host:port;host:port, and run no name server here.")
@click.option("--namesrv-port", type=click.IntRange(0, 65_535), help="Port of the name server in this process [9876].")
@click.option("--grpc-port", type=click.IntRange(0, 65_535), help="Serve RocketMQ 5's clients by gRPC here; 0: do not.")
@click.option("--metrics-port", type=click.IntRange(0, 65_535), help="Serve /metrics, /health and /ready here.")
@click.option(
    "--otlp", metavar="URL", help="Send metrics to this OpenTelemetry collector: http://host:4318/v1/metrics."
)
@click.option("--console", "with_console", is_flag=True, help="Serve the console's pages at --console-port.")
@click.option(
    "--console-port",
    type=click.IntRange(0, 65_535),
    default=8080,
    show_default=True,
    help="Port of the console, at loopback.",
)
@click.option("--allow-changes", is_flag=True, help="Let the console change topics, groups, offsets and settings.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A further name that browsers use for it.")
@click.option(
    "--table", "tables", multiple=True, metavar="KIND:PLACE", help="A table for the console, as --table of `console`."
)
@click.option("--spark-master", metavar="URL", help="Let the console's queries run on this Spark [do not].")
@click.option(
    "--brokers",
    metavar="N",
    type=click.IntRange(1, 256),
    default=1,
    help="Run N brokers, a process each, on the stores DIR/0, DIR/1, …: one broker uses about one core.",
)
@click.option("--standby", is_flag=True, help="Run as a replica; a lease in the tier decides which one is the master.")
@click.option("--lease", metavar="URL", help="Where that lease is [the tier]: file:///shared/dir, s3://….")
@click.option("--tier-later", is_flag=True, help="Start even if the tier refuses access; upload once it accepts.")
@click.option("--supervised", is_flag=True, hidden=True, help="--namesrv is the supervisor's, and gone with it.")
@ACCEPT_WEAKER
@security_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@log_options
def serve(security: SecurityOptions, **options: Any) -> None:
    """Run a broker on the store in DIR, for RocketMQ's clients.

    DIR is created if missing [storePathRootDir of the file, or ~/store]. Options override the file. Only this
    machine can connect, unless --host or the file's bindAddress or brokerIP1 is set. A name server runs in the
    same process, unless --namesrv or the file's namesrvAddr names another. SIGTERM and Ctrl-C answer open requests,
    upload what the tier lacks (for up to 4/5 of tierCloseTimeout), and close the store cleanly; a second signal ends
    the process at once, and the store recovers at its next start. SIGHUP reads accounts and certificates again.

    Exit code: 0 after a clean end, 2 if it cannot start.

    \b
    Examples:
      tiermq serve ~/store
      tiermq serve ~/store --tier s3://bucket/history --metrics-port 5557
      tiermq serve ~/store --console
      tiermq serve -c /etc/rocketmq/broker.conf --namesrv 10.0.0.1:9876
      tiermq serve ~/store --grpc-port 8081
      tiermq serve ~/store --port 0 --namesrv-port 0 --json
      tiermq serve ~/store --brokers 4 --tier s3://bucket/history
      tiermq serve ~/store --standby --tier s3://bucket/history --name orders-a
      tiermq serve --read-only --tier s3://bucket/history --name broker-a

    Of several brokers the ports are 10 apart, and the names end in -0, -1, …; one that ends by itself is started again.
    Replicas of one broker have its --name and tier in common, and a store each. See `tiermq broker --help`.
    """
    as_json: bool = options["as_json"]
    limit_heaps()
    left: dict[str, Any] = {}
    # Handle signals first, so that none is lost during the start.
    with EndSignals() as ending, ExitStack() as running:
        for handler in logging.getLogger().handlers:
            handler.addFilter(rare := TierTroubleFilter())
            running.callback(handler.removeFilter, rare)
        try:
            if options["brokers"] > 1:
                _serve_brokers(options, security, running, ending)
                return
            ready, reload, announce, acl, served = _start(options, security, running, left)
        except (OSError, TierMQError) as error:
            give_up("serve", error)
        report_settings("serve", ready["ignored"], ready["unknown"])
        say_event(as_json, _ready_line(ready), event="ready", **ready)
        announce()
        ending.wait(on_hangup=reload, acl=acl, servers=served)
        say_event(as_json, "broker ending", event="ending")
    say_event(as_json, f"broker ended{_left_words(left)}", event="ended", **left)


def _start(
    options: dict[str, Any], security: SecurityOptions, running: ExitStack, left: dict[str, Any]
) -> tuple[
    dict[str, Any], Callable[[], None], Callable[[], None], AccessFile | None, Callable[[], list[RemotingServer]]
]:
    """Start everything; `running` stops it in reverse order, and then `left` receives what the tier lacks. Returns the
    ready line's values, what SIGHUP calls, what is called after that line, the accounts, and the servers that run now.
    """
    file = FileSettings() if options["config_file"] is None else read_settings_file(options["config_file"])
    _take_options(options, file, running)
    directory = str((options["directory"] or StoreConfig(**file.store).root_path).absolute())
    config = _broker_config(options, file, directory)
    tier = options["tier"] or TierConfig(**file.tier).url or None
    weaker = file.unkept(_kept(security, tier, config))
    _check_options(options, file, config, weaker)
    _check_places(options, file, config, directory, tier)
    named_by = config.namesrv_addr
    own = None if named_by else own_account()
    tls, acl = security.tls(), security.acl(also=own)
    credentials = None if acl is None else acl.table.administrator()
    servers: list[RemotingServer] = []
    if own is not None:
        credentials = None if acl is None else Credentials(own.access_key, own.secret_key)
        name_server = _own_name_server(_name_server_config(options, file, config, directory), tls, acl, running)
        servers.append(name_server.server)
        named_by = f"{config.broker_ip1}:{name_server.port}"
        dialled = LOOPBACK if config.bind_address in ANY else config.bind_address
        config = config.with_settings(namesrv_addr=f"{dialled}:{name_server.port}")
    elif acl is not None and credentials is None:
        _log.warning("%s has no administrator: the broker registers at %s unsigned", acl.path, named_by)
    peers_tls = tls.client_context() if tls.mode is TlsMode.ENFORCING else None
    open_broker = partial(
        Broker.open,
        directory,
        tier=tier,
        tls=tls,
        acl=acl,
        credentials=credentials,
        name_server_tls=peers_tls,
        settings_file=options["config_file"],
        accept_weaker=options["accept_weaker"],
        with_name_server=own is not None or options["supervised"],
        **{**(file.tier if tier else {}), **file.store},
    )
    election: Election | None = None
    if config.enable_controller_mode:
        election = controller_election(config, directory, credentials, peers_tls)
    elif options["standby"]:
        election = _bucket_election(options["lease"] or tier, config, directory)
    store = StoreConfig(**{**file.store, "store_path_root_dir": directory})
    broker, current, announce = _started(options["as_json"], config, store, election, open_broker, running, left)
    if broker.registration is not None and not broker.registration.wait_registered(REGISTERED_S):
        _log.warning("not registered at %s yet: clients cannot find this broker there", named_by)
    gc.collect()
    if election is None:  # A change of roles lets go of the broker.
        gc.freeze()  # Objects of the start live as long as the process: keep the collector from scanning them.
    console = _console(options, security, acl, named_by, tier, [_place(directory, broker.config)], running)

    def served() -> list[RemotingServer]:
        return [*servers, *_server_of(current())]

    reported = {**console, "ignored": list(file.ignored), "unknown": list(file.unknown), "weaker": weaker}
    return (
        {**_ready(broker, tier, security), "nameServer": named_by, "store": directory, **reported},
        lambda: reload_security(served(), acl, options["as_json"]),
        announce,
        acl,
        served,
    )


def _check_places(
    options: dict[str, Any], file: FileSettings, config: BrokerConfig, directory: str, tier: str | None
) -> None:
    """The directory must be of one broker, its store free, and the tier give access. Raises BadConfig, StoreLocked,
    TierError.
    """
    check_one_broker(Path(directory))
    if os.path.exists(lock := f"{directory}/lock"):
        StoreLock(lock).release()  # The owner of the store is better news than the owner of its port.
    if tier and not options["tier_later"]:
        reads = config.read_only or StoreConfig(**file.store).broker_role is BrokerRole.SLAVE
        check_access(tier, TierConfig(**file.tier), config, reads=reads)


def _place(directory: str, config: BrokerConfig) -> StorePlace:
    return StorePlace(directory, config.broker_cluster_name, config.broker_name)


def _console(
    options: dict[str, Any],
    security: SecurityOptions,
    acl: AccessFile | None,
    name_server: str,
    tier: str | None,
    stores: Sequence[StorePlace],
    running: ExitStack,
) -> dict[str, Any]:
    """The console of these brokers, and its address for the ready line; nothing unless it is asked for."""
    if not options["with_console"]:
        for name, word in OF_CONSOLE.items():
            if options[name]:
                raise BadConfig(f"{word}: expected --console beside it, found none")
        return {}
    from tiermq.console.sources import SourcePlace, Sources
    from tiermq.console.web.server import ConsoleServer

    access = Access(name_server, tls=security.tls().mode is TlsMode.ENFORCING)
    server = ConsoleServer(
        Sources(SourcePlace(access, tier, tuple(stores), options["tables"], options["spark_master"])),
        port=options["console_port"], hosts=options["hosts"], accounts=acl, allow_changes=options["allow_changes"],
    )  # fmt: skip
    running.callback(server.stop)
    with _explained(f"--console-port of the console, {server.host}:{server.port}"):
        server.start()
    return {"console": server.url}


def _serve_brokers(options: dict[str, Any], security: SecurityOptions, running: ExitStack, ending: EndSignals) -> None:
    """Run brokers in processes of their own, under a name server in this one, until an end signal. Raises OSError,
    TierMQError.
    """
    as_json: bool = options["as_json"]
    file = FileSettings() if options["config_file"] is None else read_settings_file(options["config_file"])
    directory = (options["directory"] or StoreConfig(**file.store).root_path).absolute()
    check_several_brokers(directory, options["brokers"])  # Before the names, which a store of one broker has recorded.
    config = _broker_config({**options, "name": options["name"] or "brokers"}, file, str(directory))
    _check_name_server(options, config)
    acl = security.acl()
    if acl is not None and acl.table.administrator() is None:
        raise BadConfig(f"{security.accounts}: expected an administrator, as whom brokers register, found none")
    named_by, servers = config.namesrv_addr, []
    if not named_by:
        own = _name_server_config(options, file, config, str(directory))
        name_server = _own_name_server(own, security.tls(), acl, running)
        servers.append(name_server.server)
        named_by = f"{LOOPBACK if config.bind_address in ANY else config.bind_address}:{name_server.port}"
    if security.key_password is not None:
        os.environ[KEY_PASSWORD] = security.key_password  # Not on a command line.
    commands = broker_commands(options, file, directory, named_by, _passed_on(), with_name_server=bool(servers))
    supervisor = BrokerSupervisor(commands, lambda words, values: say_event(as_json, words, **values))
    running.callback(supervisor.stop)
    brokers = supervisor.start()
    tier, count = brokers[0]["tier"], options["brokers"]
    stores = [StorePlace(each["store"], config.broker_cluster_name, each["name"]) for each in brokers]
    console = _console(options, security, acl, named_by, tier, stores, running)
    words = ", ".join(f"{each['name']} at {each['address']}" for each in brokers)
    is_open = security.is_open(config.bind_address)
    say_event(
        as_json,
        f"{len(brokers) if len(brokers) == count else f'{len(brokers)} of {count}'} brokers ready: {words}, "
        f"name server {named_by}, stores {directory}/0 to {count - 1}, "
        f"tier {tier or 'none'}"
        + (f", console {console['console']}" if console else "")
        + (f", {OPEN}" if is_open else ""),
        event="ready",
        brokers=brokers,
        nameServer=named_by,
        store=str(directory),
        open=is_open,
        **console,
    )
    supervisor.keep_running()

    def reload() -> None:
        supervisor.hang_up()
        reload_security(servers, acl, as_json)

    ending.wait(on_hangup=reload, acl=acl, servers=lambda: servers)
    supervisor.ask_to_stop()  # Before the console ends: who signals the whole group has signalled the brokers, too.
    say_event(as_json, "brokers ending", event="ending")
    running.close()
    left = {"messages": supervisor.messages_left, "queues": supervisor.queues_left}
    more = f", only in the stores and not in the tier: {left['messages']} messages" if left["messages"] else ""
    say_event(as_json, f"brokers ended{more}", event="ended", notUploaded=left)


def _passed_on() -> list[str]:
    """The options of this command line that are every broker's: all that have no other place among several brokers.

    What was set by a variable, the brokers inherit.
    """
    context = click.get_current_context()
    words: list[str] = []
    for option in context.command.params:
        name = str(option.name)
        if name in NOT_PASSED_ON or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        word = next(each for each in option.opts if each.startswith("--"))
        value = context.params[name]
        if isinstance(value, bool):
            words += [word] * value
        else:
            words += [part for each in (value if option.multiple else [value]) for part in (word, str(each))]
    return words


def _started(
    as_json: bool,
    config: BrokerConfig,
    store: StoreConfig,
    election: Election | None,
    open_broker: Callable[..., Broker],
    running: ExitStack,
    left: dict[str, Any],
) -> tuple[Broker, Callable[[], Broker | None], Callable[[], None]]:
    """The broker, how to find the one that runs later, and what is called when the ready line was printed."""
    if election is None:
        broker = open_broker(config=config)
        running.callback(lambda: left.update(_left(broker)))
        running.callback(broker.stop)
        broker.start()
        return broker, lambda: broker, lambda: None
    keeper = ElectedBroker(election, config, store, lambda config, elected: open_broker(config=config, elected=elected))
    running.callback(lambda: left.update({} if keeper.last is None else _left(keeper.last)))
    running.callback(keeper.stop)
    keeper.start()
    broker = keeper.wait_for_role(FIRST_ROLE_S + config.master_lease_term / 1000)
    return broker, lambda: keeper.broker, partial(setattr, keeper, "on_role", partial(_say_role, as_json))


def _check_options(options: dict[str, Any], file: FileSettings, config: BrokerConfig, weaker: list[str]) -> None:
    """Raises BadConfig."""
    check_weaker("serve", options["config_file"], weaker, accepted=options["accept_weaker"])
    _check_name_server(options, config)
    how = "--standby" if options["standby"] else "enableControllerMode" if config.enable_controller_mode else ""
    if how and not config.takes_messages:
        raise BadConfig(f"{how}: expected a broker that takes messages, found one that only reads or follows")
    if how and not config.namesrv_addr:
        raise BadConfig(f"{how}: expected --namesrv with name servers that all replicas share, found none")
    if options["standby"] and config.enable_controller_mode:
        raise BadConfig("--standby: expected no enableControllerMode, found true: a lease or a controller gives roles")
    if how:
        _require_no_role(file, config)
    if options["lease"] and not options["standby"]:
        raise BadConfig("--lease: expected --standby, found none: only replicas of one broker share a lease")


def _server_of(broker: Broker | None) -> list[RemotingServer]:
    return [] if broker is None else [broker.parts.server]


def _say_role(as_json: bool, decision: Decision, broker: Broker) -> None:
    of = f" of {decision.address}" if decision.role is Role.SLAVE else ""
    words = f"broker {broker.config.broker_name}: {decision.role.value}{of}, epoch {decision.epoch}"
    values = {"epoch": decision.epoch, "replicaId": decision.replica_id, "master": decision.address}
    say_event(as_json, words, event="role", role=broker.replication.role.name, **values)


def _require_no_role(file: FileSettings, config: BrokerConfig) -> None:
    """Raises BadConfig for a role in the settings of a broker that gets it by an election."""
    check_acting(config, is_elected=True)
    role = StoreConfig(**file.store).broker_role
    if role is BrokerRole.SLAVE or config.broker_id:
        raise BadConfig(
            f"{'enableControllerMode' if config.enable_controller_mode else '--standby'}: expected no brokerRole and "
            f"brokerId, which the election gives, found {role.name} and {config.broker_id}: leave them out"
        )


def _bucket_election(url: str | None, config: BrokerConfig, directory: str) -> Election:
    """The lease of a standby. Raises BadConfig and TierError."""
    from tiermq.replication.bucket_election import BucketElection, LeaseTimes
    from tiermq.replication.master_lease import master_lease_name
    from tiermq.tier.driver.tier_url import open_driver, require_conditional_writes

    if not url:
        raise BadConfig(
            "--standby: expected --tier, or --lease with a directory that all replicas share, found neither"
        )
    times = LeaseTimes(
        term_s=config.master_lease_term / 1000,
        renew_s=config.master_lease_renewal / 1000,
        margin_s=config.master_lease_margin / 1000,
        look_s=config.master_lease_look / 1000,
    )
    driver = open_driver(url, retry=None, request_timeout_s=times.renew_s)  # So that a renewal can be tried again.
    cluster, broker = config.broker_cluster_name, config.broker_name
    try:
        require_conditional_writes(driver, master_lease_name(cluster, broker))
    except TierUnavailable as error:
        _log.warning("the store of the lease does not answer, so its conditional writes were not tested: %s", error)
    return BucketElection(driver, cluster, broker, directory, times=times)


def _take_options(options: dict[str, Any], file: FileSettings, running: ExitStack) -> None:
    """Let options override the file, and fill in what a read-only broker leaves open. Raises TierMQError."""
    for name, option in (("broker_id", "broker_id"), ("broker_cluster_name", "cluster")):
        if options[option] is not None:
            file.broker[name] = options[option]
    if options["read_only"] or BrokerConfig(read_only=file.broker.get("read_only", False)).read_only:
        _prepare_reader(options, file, running)


def _prepare_reader(options: dict[str, Any], file: FileSettings, running: ExitStack) -> None:
    """Fill in what the options of a read-only broker leave open; without a directory it gets one that `running`
    removes. Raises BadConfig, and TierError when the tier cannot be read.
    """
    url = options["tier"] or TierConfig(**file.tier).url
    if not url:
        raise BadConfig("--read-only: expected a tier to read from, found none: give --tier")
    if (options["namesrv"] or file.broker.get("namesrv_addr")) and not int(str(file.broker.get("broker_id", 0))):
        raise BadConfig(
            "--read-only: expected a --broker-id above 0, found none: at a name server of a cluster this broker is one "
            "more slave of the broker that it reads, and each needs an id of its own. Without --namesrv it runs a name "
            "server of its own"
        )
    cluster, name = file.broker.get("broker_cluster_name"), options["name"] or file.broker.get("broker_name")
    options["name"], file.broker["broker_cluster_name"] = _broker_in(url, name, cluster)
    file.broker["read_only"] = True
    if options["directory"] is None:
        directory = tempfile.mkdtemp(prefix="tiermq-reader-")
        running.callback(shutil.rmtree, directory, ignore_errors=True)
        options["directory"] = Path(directory)


def _broker_in(url: str, name: str | None, cluster: str | None) -> tuple[str, str]:
    """Name and cluster of the broker whose history is there. Raises BadConfig."""
    # A broker without a tier loads nothing of it.
    from tiermq.tier.driver.tier_url import open_driver
    from tiermq.tier.queue.segments import TierScope, list_tier

    driver = open_driver(url, reads=True)
    try:
        brokers = list_tier(driver, TierScope()).brokers
    finally:
        driver.close()
    fitting = [(home, each) for home, each in brokers if name in (None, each) and cluster in (None, home)]
    if len(fitting) == 1:
        [(home, each)] = fitting
        return each, home
    there = ", ".join(f"{each} of {home}" for home, each in brokers) or "none"
    wanted = "one broker" if name is None else f"the history of broker {name}" + (f" of {cluster}" if cluster else "")
    raise BadConfig(f"{url}: expected {wanted}, found {there}: give --name, and --cluster where two have the same")


def _ready(broker: Broker, tier: str | None, security: SecurityOptions) -> dict[str, Any]:
    config = broker.parts.config
    return {
        "name": config.broker_name,
        "address": broker.address,
        "vipAddress": None if broker.fast_port is None else f"{config.broker_ip1}:{broker.fast_port}",
        "whyNoVip": broker.why_no_fast_port or None,
        "role": broker.replication.role.name,
        "replicaId": None if broker.replication.keeper is None else broker.replication.keeper.status()["replicaId"],
        "readOnly": config.read_only,
        "haAddress": broker.replication.ha_address or None,
        "tier": tier,
        **_retention(broker),
        "grpc": broker.grpc_address,
        "metrics": broker.metrics_address,
        "tls": security.shown,
        "open": security.is_open(config.bind_address),
    }


def check_access(url: str, tier: TierConfig, config: BrokerConfig, *, reads: bool) -> None:
    """A tier that refuses access ends the start; one that does not respond may do so later. Raises TierError."""
    from tiermq.tier.driver.tier_url import bare_driver, check_tier  # A broker without a tier loads nothing of it.
    from tiermq.tier.metadata.broker_lease import LeaseRole, lease_name

    bare_driver(url, os.environ).close()  # A bad URL or missing credentials: --tier-later would not start either.
    try:
        role = LeaseRole.LOG if tier.tier_dispatch_enable else LeaseRole.DELIVERY
        name = lease_name(config.broker_cluster_name, config.broker_name, role)
        check_tier(url, name, writes=not reads and (tier.tier_dispatch_enable or config.timer_wheel_enable))
    except TierUnavailable as error:
        _log.warning("the tier does not answer, so uploads wait: %s", error)
    except TIER_REFUSALS as error:
        raise type(error)(f"{str(error).rstrip('.')}. To start without it: --tier-later") from error


def _kept(security: SecurityOptions, tier: str | None, config: BrokerConfig) -> set[str]:
    """The operator's overrides for settings of a file that promise more than TierMQ gives."""
    said = {
        TIER: tier,
        NAMESRV: config.namesrv_addr,
        ENDPOINT: os.environ.get(ENDPOINT),
        CONTROLLER: config.enable_controller_mode,
    }
    return security.kept | {name for name, value in said.items() if value}


def _broker_config(options: dict[str, Any], file: FileSettings, directory: str) -> BrokerConfig:
    """Loopback, unless an option or the file sets an address; brokerIP1 of the file counts, too.

    The broker's names are those of the store's tier metadata; other names are rejected. Raises BadConfig.
    """
    dialled = str(file.broker.get("broker_ip1", LOOPBACK)).strip()
    values: dict[str, Any] = {} if dialled not in (LOOPBACK, "localhost") else {"bind_address": LOOPBACK}
    values |= file.broker
    wanted = {
        "bind_address": options["host"],
        "listen_port": options["port"],
        "broker_name": options["name"],
        "namesrv_addr": options["namesrv"],
        "metrics_port": options["metrics_port"],
        "otlp_endpoint": options["otlp"],
        "grpc_server_port": options["grpc_port"],
    }
    values |= {name: value for name, value in wanted.items() if value is not None}
    given = str(values.get("broker_cluster_name", "")), str(values.get("broker_name", ""))
    cluster, broker = broker_names(directory, recorded_names(directory), *given)
    names = {"broker_cluster_name": cluster, "broker_name": broker}
    return BrokerConfig(**values | {name: value for name, value in names.items() if value})


def _name_server_config(
    options: dict[str, Any], file: FileSettings, config: BrokerConfig, directory: str
) -> NameServerConfig:
    """Settings of the name server in the broker's process."""
    values: dict[str, Any] = {
        "bind_address": config.bind_address,
        "kv_config_path": f"{directory}/config/kvConfig.json",
    }
    values |= file.namesrv
    if options["namesrv_port"] is not None:
        values["listen_port"] = options["namesrv_port"]
    return NameServerConfig(**values)


def _check_name_server(options: dict[str, Any], config: BrokerConfig) -> None:
    """Raises BadConfig for a port of a name server that this process does not run."""
    if config.namesrv_addr and options["namesrv_port"] is not None:
        where = "--namesrv" if options["namesrv"] else f"namesrvAddr of {options['config_file']}"
        raise BadConfig(
            f"--namesrv-port {options['namesrv_port']}: expected no other name server beside it, found {where} "
            f"{config.namesrv_addr}: no name server runs in this process then; leave out one of the two"
        )


def _own_name_server(
    config: NameServerConfig, tls: TlsSettings, acl: AccessFile | None, running: ExitStack
) -> NameServer:
    """Started, and stopped by `running`."""
    made = NameServer(config, tls=tls, acl=acl)
    with _explained(f"--namesrv-port of the name server, {config.bind_address}:{config.listen_port}"):
        made.start()
    running.callback(made.stop)
    return made


def own_account() -> Account:
    """The account with which the broker registers at the name server in its process; never stored."""
    return Account(f"broker-{secrets.token_hex(16)}", secrets.token_hex(32), admin=True)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """An error about an address names the server that wanted it. A broker does so by itself."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
            raise
        raise RemotingError(f"{what}: cannot listen there: {os.strerror(error.errno)}") from error


def _ready_line(ready: dict[str, Any]) -> str:
    parts = [
        f"broker {ready['name']} ready at {ready['address']}",
        f"name server {ready['nameServer']}",
        f"store {ready['store']}",
        f"tier {ready['tier'] or 'none'}"
        + (f", history kept {ready['retention']['words']}" if "retention" in ready else ""),
    ]
    if ready.get("readOnly"):
        parts.append("read-only")
    elif ready["role"] == BrokerRole.SLAVE.name:
        parts.append("a slave")
    if ready["haAddress"]:
        parts.append(f"slaves copy it at {ready['haAddress']}")
    if ready["grpc"]:
        parts.append(f"gRPC at {ready['grpc']}")
    if "console" in ready:
        parts.append(f"console {ready['console']}")
    if ready["metrics"]:
        parts.append(f"metrics http://{ready['metrics']}/metrics")
    if ready["whyNoVip"]:
        parts.append(f"no VIP port ({ready['whyNoVip']})")
    if ready["tls"] != USUAL_TLS:
        parts.append(ready["tls"])
    if ready["open"]:
        parts.append(OPEN)
    return ", ".join(parts)


def _retention(broker: Broker) -> dict[str, Any]:
    if broker.parts.tiered is None:
        return {}
    kept = broker.parts.tiered.tier.config.kept
    return {"retention": {"hours": kept.hours, "maxBytes": kept.max_bytes, "words": str(kept)}}


def _left(broker: Broker) -> dict[str, Any]:
    return {} if broker.not_uploaded is None else {"notUploaded": dataclasses.asdict(broker.not_uploaded)}


def _left_words(left: dict[str, Any]) -> str:
    found = left.get("notUploaded", {"messages": 0})
    if not found["messages"]:
        return ""
    messages, queues = counted_noun(found["messages"], "message"), counted_noun(found["queues"], "queue")
    words = f", only in the store and not in the tier: {messages} of {queues}"
    if found["stopped"]:
        words += (
            f"; {found['stopped']:,} of them will not be uploaded, since the tier has other messages under their "
            "numbers: keep the store, restore into an empty directory, and put them again"
        )
    return words
