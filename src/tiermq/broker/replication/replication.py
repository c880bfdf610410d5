"""Replication: the role of a broker, by its settings, and the streams that belong to it.

    ASYNC_MASTER   HA port; sends do not wait for slaves
    SYNC_MASTER    HA port; sends are committed once `inSyncReplicas` replicas have them, the master included
    SLAVE          copies log and tables of its master; takes no messages

The role of an open broker never changes. Where an election gives roles (`Term`), `ElectedBroker` stops the broker and
opens it again in the other role. A slave that acts for its master (`broker/acting`) stays a slave. The
rest is refused at the start: see `rocketmq_settings`.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.listen_address import bound_socket, port_of
from tiermq.clock import Clock
from tiermq.config import BrokerRole, FlushDiskType
from tiermq.errors import BadConfig, RequestRefused
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.hosts import LOOPBACK
from tiermq.metrics import Registry
from tiermq.namesrv.route_table import MASTER_ID
from tiermq.remoting.codes import ResponseCode
from tiermq.replication.election import Decision, Election, Role
from tiermq.replication.epoch_file import FILE as EPOCH_FILE
from tiermq.replication.epoch_file import EpochEntry, EpochFile
from tiermq.replication.ha_master import HaMaster, HaMasterSettings
from tiermq.replication.ha_observer import HaObserver
from tiermq.replication.ha_slave import HaSlave, HaSlaveSettings
from tiermq.replication.replica_acks import ReplicaRules, ReplicaState
from tiermq.replication.sync_set import SyncSet
from tiermq.settings import LONG_MAX
from tiermq.store.local_store import LocalStore

_log = logging.getLogger(__name__)

_PROPOSALS = itertools.count(1)
"""Numbers of in-sync sets: a broker that is opened again in its term goes on with them."""


class Term(NamedTuple):
    """A role that an election gave, with the log's epochs: brokers in terms speak the auto-switch dialect.

    With an `election` every member of its in-sync set must have a message, and answers leave only while it vouches that
    this broker is the master. Without one, replicas are counted as the settings say.
    """

    epoch: int
    epochs: EpochFile
    replica_id: int
    election: Election | None = None


class Elected(NamedTuple):
    """What an election has decided for a broker that is about to be opened."""

    decision: Decision
    election: Election
    is_empty: bool = False
    """Of a master that was not in sync: its log is empty, so that everything comes from the tier."""

    @property
    def role(self) -> BrokerRole:
        return BrokerRole.SYNC_MASTER if self.decision.role is Role.MASTER else BrokerRole.SLAVE

    def applied_to(self, config: BrokerConfig) -> BrokerConfig:
        """The settings with the broker's id, and a slave's master."""
        if self.decision.role is Role.MASTER:
            return config.with_settings(broker_id=MASTER_ID)
        return config.with_settings(
            broker_id=self.decision.replica_id,
            ha_master_address=self.decision.ha_address,
            master_address=self.decision.address,
        )

    def term(self, root: str) -> Term:
        """With the epochs of the store in `root`. Raises StoreDamaged."""
        epochs = EpochFile(OsFileAccess(), os.path.join(root, EPOCH_FILE))
        return Term(self.decision.epoch, epochs, self.decision.replica_id, self.election)


class RoleKeeper(Protocol):
    """The owner of a broker whose role changes, for requests of operators. Any thread may call."""

    @property
    def problem(self) -> str: ...

    def status(self) -> dict[str, object]:
        """As JSON."""

    def cut_tails(self) -> list[str]:
        """Files with bytes of replaced masters."""

    def demote(self, successor: int, timeout_s: float) -> None:
        """Of a master: hand over to another replica, without loss. Raises RequestRefused."""

    def accept_loss(self) -> None:
        """Let this replica become the master although it may lack acknowledged messages."""

    def look_soon(self) -> None:
        """The master has resigned."""


class HaTls(NamedTuple):
    """How the HA port speaks TLS. Asked at each connection, so that certificates can be replaced."""

    server: Callable[[], ssl.SSLContext]
    client: Callable[[], ssl.SSLContext]


class Acting(Protocol):
    """Of a slave with `enableSlaveActingMaster`. Any thread may call."""

    @property
    def is_acting(self) -> bool: ...

    @property
    def has_master(self) -> bool: ...

    def master_announced(self, ha_address: str, address: str) -> None:
        """The master is back: stop acting. May wait. Raises RemotingError."""

    def timer_check_point(self) -> bytes: ...

    def look_soon(self) -> None: ...


class HaSocket(NamedTuple):
    """The bound socket of a master's HA port, or why there is none."""

    socket: socket.socket | None
    why_not: str = ""


HA_PORT = "haListenPort"
HA_PORT_ABOVE = "haListenPort (by default one above listenPort)"
NO_HA_SOCKET = HaSocket(None, "no port was bound")


def check_role(config: BrokerConfig, role: BrokerRole, *, has_tier: bool, is_elected: bool = False) -> None:
    """Raises BadConfig for a role that cannot be served with these settings."""
    check_acting(config, is_elected=is_elected)
    if is_elected:
        return
    if config.read_only:
        if not has_tier:
            raise BadConfig("readOnly: expected a tier to read from, found none: give --tier")
        return
    if config.ha_observer:
        if role is not BrokerRole.SLAVE or not has_tier:
            raise BadConfig("haObserver: expected brokerRole=SLAVE and a tier, found another role, or none")
        return
    if role is BrokerRole.SLAVE:
        if config.broker_id == MASTER_ID:
            raise BadConfig("brokerRole=SLAVE: expected a brokerId above 0, found 0, which is the master's")
        if not config.ha_master_address and not config.namesrv_addr:
            raise BadConfig(
                "brokerRole=SLAVE: expected haMasterAddress, or namesrvAddr to find the master, found neither"
            )
        return
    if config.broker_id != MASTER_ID:
        raise BadConfig(f"brokerId: expected 0 for brokerRole={role.name}, found {config.broker_id}: write SLAVE")
    if role is not BrokerRole.SYNC_MASTER and config.in_sync_replicas > 1:
        raise BadConfig(
            f"inSyncReplicas={config.in_sync_replicas}: expected brokerRole=SYNC_MASTER, found {role.name}, which "
            "waits for no replica"
        )


def check_acting(config: BrokerConfig, *, is_elected: bool) -> None:
    """Raises BadConfig for a slave that could not act for its master, or must not."""
    if config.enable_remote_escape and not config.enable_slave_acting_master:
        raise BadConfig("enableRemoteEscape: expected enableSlaveActingMaster=true beside it, found it off")
    if not config.enable_slave_acting_master:
        return
    if is_elected or config.enable_controller_mode:
        raise BadConfig(
            "enableSlaveActingMaster: expected roles by brokerRole, found an election (--standby, "
            "enableControllerMode), which makes a slave the master: leave it out"
        )
    if not config.takes_messages:
        raise BadConfig(
            "enableSlaveActingMaster: expected a broker with a log of its own, found readOnly or haObserver"
        )
    if not config.namesrv_addr:
        raise BadConfig(
            "enableSlaveActingMaster: expected namesrvAddr, by which members of a set are known, found none"
        )


def ha_socket(config: BrokerConfig, role: BrokerRole, port: int, *, is_guarded: bool) -> HaSocket:
    """The socket of the HA port beside the broker's `port`. Raises OSError when one that is needed cannot be had.

    The HA protocol has no accounts, and TLS only with `ha_tls_enable`: a broker that `is_guarded` by accounts or TLS
    opens the port only with that, or if its settings name it or the slaves' addresses. A broker on a port of the
    system's choice opens it only if they name the port.
    """
    if role is BrokerRole.SLAVE:
        return HaSocket(None, "this broker is a slave")
    host = config.ha_bind_address or config.bind_address
    if config.ha_listen_port >= 0:
        with port_of(HA_PORT, host, config.ha_listen_port):
            return HaSocket(bound_socket(host, config.ha_listen_port))
    is_needed = role is BrokerRole.SYNC_MASTER
    if is_guarded and not (config.ha_allowed_addresses or config.ha_tls_enable or is_needed):
        return HaSocket(
            None, "this port has no accounts and no TLS: set haTlsEnable, haAllowedAddresses or haListenPort"
        )
    if config.listen_port == 0:
        return HaSocket(bound_socket(host, 0)) if is_needed else HaSocket(None, "the port was chosen freely")
    try:
        with port_of(HA_PORT_ABOVE, host, port + 1):
            return HaSocket(bound_socket(host, port + 1))
    except (OSError, OverflowError) as error:
        if is_needed:
            raise
        reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
        return HaSocket(None, f"cannot listen at {port + 1}: {reason}")


class Replication:
    """See the module. Made, started and stopped with its broker; the figures may be read by any thread."""

    def __init__(
        self,
        local: LocalStore,
        config: BrokerConfig,
        clock: Clock,
        ha: HaSocket,
        metrics: Registry,
        term: Term | None = None,
        tls: HaTls | None = None,
    ) -> None:
        """`term`: the role that the store was opened with was given by an election; None: by the settings."""
        self._tls = tls
        self.role = local.config.broker_role
        if ha.socket is None and self.role is not BrokerRole.SLAVE:
            _log.info("slaves cannot connect to this broker: %s", ha.why_not)
        self.master: HaMaster | None = None
        self.slave: HaSlave | None = None
        self.master_address = config.master_address
        """Of a slave: its master's address for clients; empty while it is not known."""
        self.election = None if term is None else term.election
        self._epochs = None if term is None else term.epochs
        self.keeper: RoleKeeper | None = None
        """Who changes this broker's role; None where the settings give it."""
        self.is_handing_over = False
        """Of a master: nothing is answered any more, because another replica gets its tables."""
        self.acting: Acting | None = None
        """Of a slave that acts for its master; None where the settings do not ask for it."""
        self.sync_tables: Callable[[float], str] = lambda _timeout_s: "this broker is no slave"
        """Of a slave: copies the master's tables now, and waits for it; why it did not work, as text."""
        self._local = local
        self._config = config
        self._opened_where, self._is_settled = local.max_physical_offset, False
        flushes = local.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        if config.read_only:
            pass  # It copies no log.
        elif self.role is BrokerRole.SLAVE:
            source = "" if config.bind_address in ("0.0.0.0", "::") else config.bind_address  # noqa: S104 - compared
            settings = HaSlaveSettings(
                flushes=flushes,
                heartbeat_s=config.ha_send_heartbeat_interval / 1000,
                housekeeping_s=config.ha_housekeeping_interval / 1000,
                source="" if source in (LOOPBACK, "localhost") else source,
                replica_id=0 if term is None else term.replica_id,
                epoch=0 if term is None else term.epoch,
                from_last_file=config.sync_from_last_file,
                tls=None if tls is None else tls.client,
            )
            slave = self._make_slave(settings, clock, None if term is None else term.epochs)
            self.slave = slave
            slave.why_not = lambda: local.why_not_dispatched
            local.require_replicas(lambda: slave.confirm_offset)
            slave.confirm_listeners.append(local.replicas_moved)
            self.slave.set_master(config.ha_master_address)
        elif ha.socket is not None:
            if term is not None:
                term.epochs.begin(term.epoch, max(0, local.min_physical_offset), local.max_physical_offset)
            self.master = self._make_master(ha.socket, flushes, clock, term)
        self._register_metrics(metrics)

    def _make_slave(self, settings: HaSlaveSettings, clock: Clock, epochs: EpochFile | None) -> HaSlave:
        local = self._local
        if not self._config.ha_observer:
            return HaSlave(local, settings, clock, epochs)
        observer = HaObserver(local, settings, clock, file_bytes=local.config.mapped_file_size_commit_log)
        local.add_eviction_veto(observer.must_stay)
        return observer

    def _make_master(self, listening: socket.socket, flushes: bool, clock: Clock, term: Term | None) -> HaMaster:
        config, local, election = self._config, self._local, self.election
        is_sync = self.role is BrokerRole.SYNC_MASTER
        rules = ReplicaRules(
            in_sync_replicas=config.in_sync_replicas if is_sync else 1,
            min_in_sync_replicas=config.min_in_sync_replicas if is_sync else 1,
            auto=is_sync and config.enable_auto_in_sync_replicas,
            gap_bytes_max=config.ha_max_gap_not_in_sync,
            by_set=election is not None,
        )
        settings = HaMasterSettings(
            file_bytes=local.config.mapped_file_size_commit_log,
            only_flushed=flushes,
            batch_bytes=config.ha_transfer_batch_size,
            heartbeat_s=config.ha_send_heartbeat_interval / 1000,
            housekeeping_s=config.ha_housekeeping_interval / 1000,
            from_last_file=config.sync_from_last_file,
            allowed=config.allowed_slaves,
            tls=None if self._tls is None else self._tls.server,
        )
        epochs = None if term is None else term.epochs
        sync = None
        if term is not None and election is not None:
            decided = election.decision
            is_recorded = decided.epoch == term.epoch and decided.is_recorded
            sync = SyncSet(
                term.replica_id,
                config.ha_max_time_slave_not_catchup / 1000,
                is_recorded=is_recorded,
                numbers=_PROPOSALS,
            )
            sync.knows = election.knows
            if is_recorded:
                # After a restart in its term a master still needs those that the election has recorded.
                sync.note_recorded(decided.members, decided.recording)
        master = HaMaster(local, rules, settings, listening, clock, epochs, sync)
        if term is not None and election is not None:
            master.propose = functools.partial(election.propose, term.epoch)
        if rules.waits:
            local.require_replicas(master.replicated_where)
            master.listeners.append(self._replicas_changed)
            self._replicas_changed(master.state)
        local.add_growth_listener(master.wake)
        return master

    def _replicas_changed(self, state: ReplicaState) -> None:
        """On the thread of the HA port: committed messages become readable; too few replicas stop sends."""
        least = self._config.min_in_sync_replicas
        self._local.set_few_replicas(f"{state.in_sync} of {least}" if state.in_sync < least else "")
        self._local.replicas_moved()

    def may_answer(self, term: Term) -> bool:
        """Of a master: whether answers may leave now."""
        may_acknowledge = term.election is None or term.election.may_acknowledge(term.epoch)
        return not self.is_handing_over and self.is_settled and may_acknowledge

    @property
    def is_slave(self) -> bool:
        return self.role is BrokerRole.SLAVE

    @property
    def epochs(self) -> tuple[EpochEntry, ...]:
        """Of the log, of a broker that was elected."""
        return () if self._epochs is None else self._epochs.entries

    @property
    def last_epoch(self) -> int:
        """The newest epoch in the log; 0 without an election."""
        return 0 if self._epochs is None else self._epochs.last_epoch

    @property
    def terms(self) -> Mapping[int, str]:
        """Of the epochs, as far as they are known."""
        return {} if self._epochs is None else self._epochs.terms

    @property
    def finds_master_by_name(self) -> bool:
        """Whether a slave's master is the one that the name server knows."""
        return self.is_slave and self.election is None

    @property
    def is_settled(self) -> bool:
        """Of an elected broker: whether everything that its log had when it was opened is committed, so that it may be
        read. A master that starts again in its own epoch may have messages that the others of its set lack, until they
        have them or have left the set; a slave may have ones that its next master cuts from its log. Any thread may
        call.
        """
        if not self._is_settled:
            committed = LONG_MAX
            if self.master is not None:
                committed = self.master.replicated_where()
            elif self.slave is not None and self.election is not None:
                committed = self.slave.master_confirm
            self._is_settled = committed >= self._opened_where
        return self._is_settled

    def require_settled(self) -> None:
        """Raises RequestRefused while what its log has may not be read."""
        if not self.is_settled:
            raise RequestRefused(
                "expected a log of which all is committed, found a replica that has just become a slave and may have "
                "messages that its master lacks: ask the master",
                ResponseCode.SERVICE_NOT_AVAILABLE,
            )

    @property
    def is_acting(self) -> bool:
        """Whether this slave acts for its master, which is away."""
        return self.acting is not None and self.acting.is_acting

    @property
    def follows_tables(self) -> bool:
        """Whether a slave copies its master's tables now."""
        return self.acting is None or self.acting.has_master

    @property
    def sends_back(self) -> bool:
        """Whether consumers that have read everything here go on at the master."""
        if self._config.read_only:
            return bool(self.master_address)
        return self.slave is not None and self.slave.is_connected and not self._config.ha_observer

    @property
    def why_read_only(self) -> str:
        """Of a slave: why it takes no messages and changes, and where to go."""
        if not self._config.takes_messages:
            what = "only reads a tier (readOnly)" if self._config.read_only else "follows a master (haObserver)"
            return f"expected a broker that takes messages and changes, found one that {what}" + (
                f": go to {self.master_address}" if self.master_address else ""
            )
        return (
            f"expected a master, found a slave of {self.master_address or 'an unknown master'}: topics, groups, "
            "offsets and messages are changed at the master"
        )

    @property
    def waiting_master(self) -> HaMaster | None:
        """The HA port of a master whose sends wait for slaves; None of any other broker."""
        return self.master if self.master is not None and self.master.rules.waits else None

    @property
    def ha_address(self) -> str:
        """Where slaves copy this master's log; empty where they cannot."""
        if self.master is None:
            return ""
        host = self._config.broker_ip2 or self._config.broker_ip1
        return f"[{host}]:{self.master.port}" if ":" in host else f"{host}:{self.master.port}"

    @property
    def problem(self) -> str:
        """Why a slave does not copy its master, as text; empty where all is well."""
        if self.slave is None or self.slave.is_connected:
            return ""
        return self.slave.problem or ("" if self.slave.master else "no name server knows the address of a master")

    def take_decision(self, decision: Decision) -> None:
        """What an election has decided, of a broker that has this role already. Any thread may call."""
        if self.master is not None and decision.role is Role.MASTER and decision.is_recorded:
            self.master.note_recorded(decision.members, decision.recording)
        elif self.slave is not None and decision.role is not Role.MASTER:
            self.master_address = decision.address  # Asked who it is by the slave.
            self.slave.set_master(decision.ha_address, decision.epoch)

    def follow(self, ha_address: str, address: str) -> None:
        """What a name server knows of the master; settings take precedence. Any thread may call."""
        if self._config.read_only:
            self.master_address = address or self._config.master_address  # Also when it has gone.
            return
        if self.slave is not None and ha_address and not self._config.ha_master_address:
            self.slave.set_master(ha_address)
        if address and not self._config.master_address:
            self.master_address = address

    def start(self) -> None:
        for each in (self.master, self.slave):
            if each is not None:
                each.start()

    def stop(self) -> None:
        """Twice does no harm, also before a start."""
        for each in (self.master, self.slave):
            if each is not None:
                each.stop()

    def _register_metrics(self, metrics: Registry) -> None:
        gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        counters: dict[str, tuple[str, Callable[[], float]]] = {}
        if (master := self.master) is not None:
            gauges["tiermq_slaves"] = ("connections of slaves", lambda: len(master.replicas()))
            gauges["tiermq_replicas_in_sync"] = ("replicas in sync, with this one", lambda: master.state.in_sync)
            gauges["tiermq_replication_behind_bytes"] = (
                "bytes that the slave furthest behind lacks",
                lambda: max((self._local.max_physical_offset - each.ack for each in master.replicas()), default=0),
            )
            counters["tiermq_slaves_refused_total"] = (
                "connections refused at the HA port",
                lambda: master.refused_count,
            )
        if (slave := self.slave) is not None:
            gauges["tiermq_slave_connected"] = ("1 while this slave copies its master", lambda: slave.is_connected)
            counters["tiermq_slave_received_bytes_total"] = ("log bytes of the master", lambda: slave.received_bytes)
        for name, (text, read) in gauges.items():
            metrics.gauge(name, text, (), read)
        for name, (text, read) in counters.items():
            metrics.counter(name, text, (), read)
