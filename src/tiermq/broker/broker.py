"""Broker: a store served to RocketMQ's clients.

    with Broker.open("store", tier="s3://bucket/history", config=BrokerConfig(listen_port=0)) as broker:
        print(broker.address)

One thread with one loop serves every connection. What it asks of the store is memory work; what may wait (a flush, the
tier, a scan) is done in other threads and comes back as a call. A separate thread registers at the name servers.

    open:   port bound ─► store open, since message ids name the port ─► services, processors
    start:  listening ─► registered (an elected master: once it may answer), periodic work ─► services
    stop:   unregistered ─► no new requests, open ones answered ─► services and processors stop ─► store closed

`PROCESSORS` serve requests. What serves none is a service (`DeliveryServices`, and what processors give to
`BrokerHooks.run`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import platform
import ssl
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tiermq import __version__
from tiermq.broker.acting.acting_master import ActingMaster
from tiermq.broker.acting.member_group import MemberGroup
from tiermq.broker.acting.returning_master import ReturningMaster
from tiermq.broker.admin.rates import Rates
from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.broker_context import BrokerContext, BrokerHooks, config_directory, local_half
from tiermq.broker.delivery.delivery_services import DeliveryServices
from tiermq.broker.group.client_table import ClientTable
from tiermq.broker.group.consumer_offsets import ConsumerOffsets
from tiermq.broker.group.group_table import GroupTable
from tiermq.broker.http_endpoint import METRICS_TYPE, OPENMETRICS_TYPE, Answer, HttpEndpoint, status_answer
from tiermq.broker.listen_address import LISTEN_PORT, BoundSockets, broker_sockets, port_of, store_host
from tiermq.broker.pull.cold_flow import ColdFlow
from tiermq.broker.replication.metadata_sync import MetadataSync
from tiermq.broker.replication.replication import (
    NO_HA_SOCKET,
    Elected,
    HaSocket,
    HaTls,
    Replication,
    Term,
    check_role,
    ha_socket,
)
from tiermq.broker.replication.table_log import NOTE_S, SETTLED, TableLog
from tiermq.broker.replication.table_replay import TableReplay
from tiermq.broker.rpc_latency import NODE, RpcLatency
from tiermq.broker.topic.attributes import with_retention
from tiermq.broker.topic.broker_registration import BrokerIdentity, BrokerRegistration, NameServerStatus
from tiermq.broker.topic.table_file import FLUSH_PERIOD_S
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.clock import Clock, SystemClock
from tiermq.config import BrokerRole, StoreConfig
from tiermq.consumequeue.queue_table import QueueType
from tiermq.errors import TIER_REFUSALS, RemotingError, RequestRefused, StoreClosed, StoreError
from tiermq.kernel import KERNEL
from tiermq.log_levels import change_log_levels
from tiermq.message.topic_name import is_light_queue
from tiermq.metrics import Registry, register_process, render_openmetrics
from tiermq.remoting.client import BlockingClient, parse_name_servers
from tiermq.remoting.connection import AccessCheck
from tiermq.remoting.limits import ServerLimits
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.permissions import Credentials
from tiermq.remoting.server import DRAIN_S, RemotingServer
from tiermq.remoting.tls import TlsMode, TlsSettings
from tiermq.replication.ha_master import HaMaster
from tiermq.service import COLLECTOR_PAUSE, SHORT_TURNS
from tiermq.store.local_store import LocalStore
from tiermq.store.tier_continuation import broker_names, recorded_names
from tiermq.store.topic_attributes import ATTRIBUTE as QUEUE_TYPE

if TYPE_CHECKING:
    from tiermq.broker.broker_context import Store
    from tiermq.broker.grpc.grpc_service import GrpcService
    from tiermq.broker.otlp_export import OtlpExport
    from tiermq.broker.replication.tier_tables import TierTables
    from tiermq.tier.tiered_store import NotUploaded


from tiermq.broker.admin.drain_processor import DrainProcessor
from tiermq.broker.admin.group_admin_processor import GroupAdminProcessor
from tiermq.broker.admin.offset_admin_processor import OffsetAdminProcessor
from tiermq.broker.admin.relay_processor import RelayProcessor
from tiermq.broker.admin.runtime_processor import RuntimeProcessor
from tiermq.broker.admin.settings_processor import SettingsProcessor
from tiermq.broker.admin.topic_admin_processor import TopicAdminProcessor
from tiermq.broker.admin.unserved_processor import UnservedProcessor
from tiermq.broker.delivery.end_transaction_processor import EndTransactionProcessor
from tiermq.broker.group.assignment_processor import AssignmentProcessor
from tiermq.broker.group.client_processor import ClientProcessor, LockProcessor
from tiermq.broker.group.offset_processor import OffsetProcessor
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.broker.pull.cold_flow import ColdFlowProcessor
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.broker.pull.query_processor import QueryProcessor
from tiermq.broker.replication.ha_processor import SLAVE_REFUSES, UNGATED, HaProcessor, master_identity
from tiermq.broker.replication.role_processor import RoleProcessor
from tiermq.broker.send.recall_processor import RecallProcessor
from tiermq.broker.send.reply_processor import ReplyProcessor
from tiermq.broker.send.send_back_processor import SendBackProcessor
from tiermq.broker.send.send_processor import SendProcessor
from tiermq.namesrv.topic_config import RETENTION, TopicConfig, retention_of

PROCESSORS: tuple[Callable[[BrokerContext], object], ...] = (
    AssignmentProcessor,
    ClientProcessor,
    ColdFlowProcessor,
    DrainProcessor,
    EndTransactionProcessor,
    GroupAdminProcessor,
    HaProcessor,
    LockProcessor,
    OffsetAdminProcessor,
    OffsetProcessor,
    PopProcessor,
    PullProcessor,
    QueryProcessor,
    RecallProcessor,
    RelayProcessor,
    ReplyProcessor,
    RoleProcessor,
    RuntimeProcessor,
    SendBackProcessor,
    SendProcessor,
    SettingsProcessor,
    TopicAdminProcessor,
    UnservedProcessor,
)
"""In the order of their names; each is made with the broker's context and declares what it serves (`@serves`)."""
MASTER_ONLY = frozenset({PopProcessor, RecallProcessor, ReplyProcessor, SendBackProcessor})
"""What a slave does not run: it stores messages, and its master's log has them."""
_log = logging.getLogger(__name__)
REGISTRATION_WAIT_S = 3.0
"""How long the answer to a changed topic waits for the name servers. RocketMQ's tools wait five seconds for it."""
BUSY_LOOK_S = 0.01
SETTLED_LOOK_S = 0.2
SERVICES_AFTER_S = 1.0
"""How long after the broker its services begin, as in RocketMQ."""


class Broker:
    """See the module. Started and stopped once, by one thread."""

    _otlp: OtlpExport | None = None
    _endpoint: HttpEndpoint | None = None
    _registration: BrokerRegistration | None = None
    _thread: LoopThread | None = None

    def __init__(
        self,
        store: Store,
        config: BrokerConfig | None = None,
        *,
        clock: Clock | None = None,
        tls: TlsSettings | None = None,
        acl: AccessCheck | None = None,
        limits: ServerLimits | None = None,
        credentials: Credentials | None = None,
        name_server_tls: ssl.SSLContext | None = None,
        listening: BoundSockets | None = None,
        ha: HaSocket = NO_HA_SOCKET,
        term: Term | None = None,
        settings_file: Path | None = None,
        master_tls: Callable[[], ssl.SSLContext] | None = None,
        with_name_server: bool = False,
    ) -> None:
        """The store is the broker's from now on: it is closed when the broker stops. So are the sockets."""
        self.config = config = config or BrokerConfig()
        self.store = store
        self._credentials, self._name_server_tls, self._listening = credentials, name_server_tls, listening
        self._timers: list[asyncio.TimerHandle] = []
        self.not_uploaded: NotUploaded | None = None
        """What the tier lacks of a store that was closed; None before, and without a tier."""
        clock = clock or SystemClock()
        directory = config_directory(store.config.root_path)
        sockets = () if listening is None else listening.sockets
        place = config.bind_address, config.listen_port
        server = RemotingServer(*place, limits=limits, tls=tls, acl=acl, clock=clock, listening=sockets)
        topics = TopicTable(directory, config, clock, store.topics())
        groups, metrics = GroupTable(directory, config, clock), Registry()
        self._hooks = BrokerHooks()
        self._hooks.every(FLUSH_PERIOD_S, self._flush_tables)
        self._hooks.on_stop(self._last_flush)
        offsets = ConsumerOffsets(directory, clock)
        self.table_replay = TableReplay(local_half(store), topics, groups, offsets, clock)
        self.table_replay.catch_up()  # Before anything reads what it brings.
        self.delivery = DeliveryServices(store, config, clock, topics, metrics, self._hooks)
        secured = _ha_tls(config, tls, master_tls)
        replica_tls = name_server_tls if master_tls is None else master_tls()
        self.replication = Replication(local_half(store), config, clock, ha, metrics, term, secured)
        _begin_term(self.replication, term, topics, server, local_half(store))
        self.parts = BrokerContext(
            config=config,
            store=store,
            clock=clock,
            metrics=metrics,
            server=server,
            topics=topics,
            groups=groups,
            offsets=offsets,
            clients=ClientTable(config, clock, topics, groups, server),
            put_rates=Rates(clock),
            given_rates=Rates(clock),
            cold_flow=ColdFlow(clock),
            timers=self.delivery.timers,
            replication=self.replication,
            hooks=self._hooks,
            wait_registered=self._wait_registered,
            ask_name_server=functools.partial(BlockingClient, tls=name_server_tls, credentials=credentials),
            ask_replica=functools.partial(BlockingClient, tls=replica_tls, credentials=credentials),
            settings_file=settings_file,
            protection=_protection(tls, acl),
            with_name_server=with_name_server,
        )
        register_broker_metrics(self.parts, self._name_servers)
        topics.listeners.append(self._tell_queue_types)
        self._connect_tier()
        self._make_processors()

    def _serve_grpc(self) -> None:
        self.grpc: GrpcService | None = None
        if self._listening is None or self._listening.grpc is None or self.replication.is_slave:
            return  # A slave takes no messages and no acknowledgements: clients find a master elsewhere.
        from tiermq.broker.grpc.grpc_service import GrpcService

        [pops] = (each for each in self.processors if isinstance(each, PopProcessor))
        self.grpc = GrpcService(self.parts, pops)
        self.parts.server.also_listen(self._listening.grpc, self.grpc.connection)

    def _make_processors(self) -> None:
        self._set_member: ActingMaster | ReturningMaster | None = None
        """With `enable_slave_acting_master`: made at the start, when the port is known."""
        self.metadata_sync: MetadataSync | None = None
        """Of a slave: copies the master's tables."""
        self.tier_tables: TierTables | None = None
        """Of a read-only broker: copies them from the tier."""
        self.table_log: TableLog | None = None
        """Of a master with an HA port: changes of its tables, for replicas."""
        is_slave = self.replication.is_slave
        kinds = [kind for kind in PROCESSORS if not (is_slave and kind in MASTER_ONLY)]
        self.processors: list[object] = [kind(self.parts) for kind in kinds]
        for processor in self.processors:
            self.parts.server.serve(processor)
        if is_slave:
            self._become_slave()
        elif self.replication.master is not None:
            self._log_tables(self.replication.master)
        self._serve_grpc()

    def _log_tables(self, master: HaMaster) -> None:
        """Write the changes of tables into the log, for replicas."""
        parts = self.parts
        is_elected = self.replication.last_epoch > 0
        self.table_log = log = TableLog(
            parts.local, parts.topics, parts.groups, parts.offsets, master, parts.clock, is_elected=is_elected
        )
        [assignments] = (each for each in self.processors if isinstance(each, AssignmentProcessor))
        if self.table_replay.modes is not None:
            assignments.follow(self.table_replay.modes)
        log.take_modes, log.take_delays = assignments.encoded_modes, self.delivery.delay_levels.delivered
        parts.metrics.counter(
            "tiermq_table_log_records_total", "changes of tables in the log", (), lambda: log.record_count
        )
        parts.server.settle_after(SETTLED, log.settle)
        self._hooks.every(NOTE_S, self._note_tables)

    def _note_tables(self) -> None:
        """On the loop: let the pool write offsets that were committed since."""
        may_answer = self.parts.server.may_answer
        if self.table_log is not None and self.table_log.has_work and (may_answer is None or may_answer()):
            self.parts.server.run_in_pool(self.table_log.note, _note_flush)

    def _become_slave(self) -> None:
        """Copy the master's tables, and refuse to change them."""
        [ha] = (each for each in self.processors if isinstance(each, HaProcessor))
        self.parts.server.refuse(SLAVE_REFUSES, ha.refuse)
        if self.config.read_only and self.parts.tiered is not None:
            from tiermq.broker.replication.tier_tables import TierTables

            self.tier_tables = TierTables(self.parts, self.parts.tiered, self.processors)
            self.tier_tables.look()  # Clients that come at once find the topics.
            self._hooks.run(self.tier_tables)
            return
        for table in (self.parts.topics, self.parts.groups):
            table.is_followed = True
        replay = self.table_replay
        self.metadata_sync = MetadataSync(self.parts, self.processors, replay)
        counters = {
            "applied": ("changes of the master's tables, of its log", lambda: replay.applied_count),
            "skipped": ("records of the table log that could not be used", lambda: replay.skipped.count),
        }
        for name, (text, read) in counters.items():
            self.parts.metrics.counter(f"tiermq_table_log_{name}_total", text, (), read)
        replay.follow()
        self.replication.sync_tables = self.metadata_sync.sync_now
        if self.replication.slave is not None:
            self.replication.slave.identify = functools.partial(master_identity, self.parts)
        self._hooks.run(self.metadata_sync)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        tier: str | None = None,
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
        tls: TlsSettings | None = None,
        acl: AccessCheck | None = None,
        limits: ServerLimits | None = None,
        credentials: Credentials | None = None,
        name_server_tls: ssl.SSLContext | None = None,
        settings_file: Path | None = None,
        accept_weaker: bool = False,
        elected: Elected | None = None,
        master_tls: Callable[[], ssl.SSLContext] | None = None,
        with_name_server: bool = False,
        **settings: Any,
    ) -> Self:
        """A broker, not started, on the store in `path`. `settings` are the store's (and the tier's) by name;
        `accept_weaker` opens it even if they ask for guarantees that TierMQ does not give.

        Settings that are changed while it runs are written to `settings_file`, which the caller has read before.
        `elected`: the role that an election gave, in place of `broker_role`. A slave reads the tier, as one by its
        settings does, and neither its opening nor its end waits for the tier: it may be the next master.
        `master_tls`: how an observer speaks TLS with its master, at both of its ports, in place of the other two.
        `with_name_server`: `namesrv_addr` is a name server of this process or its supervisor, and gone with it.

        Raises OSError when the port cannot be had, BadConfig when the store has other names in its tier than `config`,
        and what opening the store raises.
        """
        config = config or BrokerConfig()
        if elected is not None:
            config, settings["broker_role"] = elected.applied_to(config), elected.role
        config = _without_sends(config, settings)
        role = StoreConfig(broker_role=settings.get("broker_role", BrokerRole.ASYNC_MASTER)).broker_role
        check_role(config, role, has_tier=tier is not None, is_elected=elected is not None)
        settings = {"accept_weaker": accept_weaker, "with_replication": True, **settings}
        settings.setdefault("message_delay_level", config.message_delay_level)
        with contextlib.ExitStack() as undo:
            listening = broker_sockets(config)
            undo.callback(listening.close)
            port = listening.main.getsockname()[1]
            ha = ha_socket(config, role, port, is_guarded=_is_guarded(tls, acl))
            if ha.socket is not None:
                undo.callback(ha.socket.close)
            opening = {**settings, "clock": clock, "store_host": store_host(config.broker_ip1, port)}
            store = _opened_store(path, tier, config, role, elected, opening)
            undo.callback(store.close)
            made = cls(
                store,
                config,
                clock=clock,
                tls=tls,
                acl=acl,
                limits=limits,
                credentials=credentials,
                name_server_tls=name_server_tls,
                listening=listening,
                ha=ha,
                term=None if elected is None else elected.term(os.fspath(path)),
                settings_file=settings_file,
                master_tls=master_tls,
                with_name_server=with_name_server,
            )
            undo.pop_all()
        return made

    # Life.

    @property
    def port(self) -> int:
        """The real one, once it was started."""
        return self.parts.server.port

    @property
    def fast_port(self) -> int | None:
        """Where clients with `vipChannelEnabled` send, once it was started; None when `why_no_fast_port`."""
        ports = self.parts.server.ports
        return ports[1] if len(ports) > 1 else None

    @property
    def why_no_fast_port(self) -> str:
        return "only one port was bound" if self._listening is None else self._listening.why_not_fast

    @property
    def address(self) -> str:
        return f"{self.config.broker_ip1}:{self.port}"

    @property
    def grpc_address(self) -> str | None:
        """Where gRPC is served, if it is."""
        host, port = self.config.broker_ip1, self.config.grpc_server_port
        if self.grpc is None:
            return None
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        """Listen, register, and begin periodic work. Raises OSError when the address cannot be had."""
        if self._thread is not None:
            raise RemotingError("expected a broker that was not started, found one that was: make another")
        if self.config.log_levels:
            change_log_levels(self.config.log_levels)
        self._thread = LoopThread("broker-loop")
        try:
            with port_of(LISTEN_PORT, self.config.bind_address, self.config.listen_port):
                self._thread.run(self.parts.server.start())
            if self.config.enable_slave_acting_master:
                self._set_member = self._made_member()
            self._thread.call(self._open)
            if self.config.otlp_endpoint:
                from tiermq.broker.otlp_export import OtlpExport

                self._otlp = OtlpExport(self.config, lambda: self.registries)
            if self.config.metrics_port >= 0:
                pages = {"/metrics": self._metrics_page, "/health": self._health_page, "/ready": self._ready_page}
                host = self.config.metrics_host or self.config.bind_address
                self._endpoint = HttpEndpoint(host, self.config.metrics_port, pages)
                with port_of("metricsPort or --metrics-port", host, self.config.metrics_port):
                    self._endpoint.start()
        except BaseException:
            self._thread.run(self.parts.server.stop())
            self._thread.stop()
            self._thread = None
            raise
        if self._otlp is not None:
            self._otlp.start()
        self.replication.start()
        if self._set_member is not None:
            self._set_member.start()
        if not self._returns and (servers := parse_name_servers(self.config.namesrv_addr)):
            self.register_at(servers)

    @property
    def _returns(self) -> bool:
        """Whether it goes online only when it has taken over from its slaves."""
        return isinstance(self._set_member, ReturningMaster)

    def _go_online(self) -> None:
        self.register_at(parse_name_servers(self.config.namesrv_addr))
        self.parts.server.call_threadsafe(self._hooks.start_services)

    def _made_member(self) -> ActingMaster | ReturningMaster:
        config, servers = self.config, parse_name_servers(self.config.namesrv_addr)
        group = MemberGroup(config, self.address, servers, self.parts.ask_name_server)
        if self.metadata_sync is None:
            return ReturningMaster(self.parts, self.delivery, group, self._go_online)
        reach = (config.namesrv_addr, self._credentials, self._name_server_tls)
        return ActingMaster(self.parts, group, self.metadata_sync, *reach)

    def _open(self) -> None:
        for every_s, call in self._hooks.periodic:
            self._repeat(every_s, call)
        if not self._returns:
            self._timers.append(self.parts.server.loop.call_later(SERVICES_AFTER_S, self._hooks.start_services))

    def _repeat(self, every_s: float, call: Callable[[], None]) -> None:
        place = len(self._timers)
        loop = self.parts.server.loop

        def again() -> None:
            try:
                call()
            except Exception:  # noqa: BLE001 - periodic work continues; errors are logged
                _log.exception("periodic work failed")
            self._timers[place] = loop.call_later(every_s, again)

        self._timers.append(loop.call_later(every_s, again))

    def register_at(self, name_servers: list[tuple[str, int]]) -> None:
        """Register at these name servers, now and periodically."""
        config = self.config
        identity = BrokerIdentity(
            cluster=config.broker_cluster_name,
            name=config.broker_name,
            address=self.address,
            broker_id=config.broker_id,
            ha_address=self.replication.ha_address,
            timeout_ms=config.broker_not_active_timeout_millis if config.enable_slave_acting_master else None,
            acting_master=config.enable_slave_acting_master,
        )
        self._registration = BrokerRegistration(
            identity,
            self.parts.topics,
            name_servers,
            period_s=config.register_name_server_period / 1000,
            credentials=self._credentials,
            tls=self._name_server_tls,
            on_order_topics=None if self.replication.is_slave else self.parts.topics.set_order,
            on_master=self.replication.follow if self.replication.finds_master_by_name else None,
            may_begin=self.parts.server.may_answer,  # Else clients would find a master that refuses them.
        )
        self.parts.topics.listeners.append(self._registration.topics_changed)
        self._registration.start()

    def _name_servers(self) -> list[NameServerStatus]:
        return [] if self._registration is None else self._registration.status()

    def _wait_registered(self) -> bool:
        return self._registration is None or self._registration.wait_accepted(REGISTRATION_WAIT_S)

    @property
    def registration(self) -> BrokerRegistration | None:
        return self._registration

    def _tell_queue_types(self, names: Collection[str]) -> None:
        """The store reads the types of queues from the topics' file when it opens; later ones are passed to it."""
        for name in names:
            topic = self.parts.topics.get(name)
            try:
                kind = QueueType((topic.attributes if topic else {}).get(QUEUE_TYPE, QueueType.SIMPLE))
                self.parts.local.set_queue_type(name, kind)
            except StoreClosed:
                return
            except (StoreError, ValueError) as error:
                _log.error("topic %s: the store cannot create queues of this type: %s", name, error)

    def _connect_tier(self) -> None:
        if self.parts.tiered is None:
            return
        self.parts.tiered.tier.state.settings = self._changed_settings
        if not self.replication.is_slave and not self.replication.is_settled:
            self.parts.tiered.tier.engine.pause()
            self._hooks.every(SETTLED_LOOK_S, self._upload_when_settled)
        if self.parts.tiered.restored is not None:  # The topics' file was written after the store was opened.
            self._tell_queue_types(self.parts.topics.table.keys())
        self._apply_retention()

    def _upload_when_settled(self) -> None:
        engine = None if self.parts.tiered is None else self.parts.tiered.tier.engine
        if engine is not None and engine.paused and self.replication.is_settled:
            engine.resume()

    def _apply_retention(self) -> None:
        """At the start: the tier uses retention of the topics' file. If that has none, as after a restore, the
        topic is given what the tier has.
        """
        tiered = self.parts.tiered
        if tiered is None or tiered.tier.follower is not None:
            return  # A job writes the tier, and reads retention from manifests.
        learned = []
        known = {each.name: (each.reserve_time_hours, each.max_bytes) for each in tiered.tier.metadata.topics()}
        for topic in list(self.parts.topics.table.values()):
            own = known.get(topic.name, (-1, -1))
            try:
                wanted = retention_of(topic.attributes)
            except RequestRefused as error:  # Of a file that was edited, or restored.
                _log.error("the retention of topic %s is ignored: %s", topic.name, error)
                continue
            if wanted == own or self.parts.topics.is_system(topic.name):
                continue
            if any(name in topic.attributes for name in RETENTION):
                tiered.set_retention(topic.name, *wanted)
            else:
                learned.append(replace(topic, attributes=with_retention(topic.attributes, *own)))
        if learned:
            self.parts.topics.put_all(learned)

    def _changed_settings(self) -> dict[str, str]:
        """The settings that are not the defaults, by RocketMQ's names, and that the broker is protected.

        A broker that is restored with them must not be open where this one was not, nor wait for a name server that
        was part of this process.
        """
        tiered = self.parts.tiered
        configurations = [self.config, self.parts.local.config, *([] if tiered is None else [tiered.tier.config])]
        changed = {name: text for each in configurations for name, text in each.changed_properties().items()}
        if self.parts.with_name_server:
            changed.pop("namesrvAddr", None)
        return {**changed, **self.parts.protection}

    def _flush_tables(self) -> None:
        """On the loop: let the pool write what the journals of topics and groups have."""
        if self.parts.topics.is_behind or self.parts.groups.is_behind:
            self.parts.server.run_in_pool(self._last_flush, _note_flush)

    def _last_flush(self) -> None:
        self.parts.topics.flush()
        self.parts.groups.flush()

    # What watchers ask.

    @property
    def metrics_port(self) -> int | None:
        return None if self._endpoint is None else self._endpoint.port

    @property
    def metrics_address(self) -> str | None:
        """Where /metrics, /health and /ready are, if they are."""
        if self._endpoint is None:
            return None
        host = self.config.metrics_host or self.config.broker_ip1
        return f"[{host}]:{self._endpoint.port}" if ":" in host else f"{host}:{self._endpoint.port}"

    def render_metrics(self) -> str:
        """The figures of the broker, its store and its tier, in Prometheus' text format."""
        return "".join(registry.render_prometheus() for registry in self.registries)

    @property
    def registries(self) -> list[Registry]:
        """Of the broker, its store and its tier."""
        found = [self.parts.metrics, self.parts.local.metrics]
        return found if self.parts.tiered is None else [*found, self.parts.tiered.metrics]

    def _metrics_page(self, accept: str) -> Answer:
        with SHORT_TURNS, COLLECTOR_PAUSE:  # Of many topics and groups a page takes a second.
            if OPENMETRICS_TYPE.partition(";")[0] in accept:
                return Answer(200, OPENMETRICS_TYPE, render_openmetrics(self.registries).encode())
            return Answer(200, METRICS_TYPE, self.render_metrics().encode())

    def _health_page(self, _accept: str) -> Answer:
        return status_answer({} if self.store.running else {"store": "expected it open, found it closed"})

    def _ready_page(self, _accept: str) -> Answer:
        return status_answer(self.problems(), self.warnings())

    def problems(self) -> dict[str, str]:
        """What keeps clients from being sent here; nothing when all is well."""
        found = {}
        if self.replication.keeper is not None and self.replication.keeper.problem:
            found["role"] = self.replication.keeper.problem
        if (may_answer := self.parts.server.may_answer) is not None and not may_answer():
            found["lease"] = (
                "expected to hold the lease of the master, found that it has ended: nothing is answered"
                if self.replication.is_settled
                else "expected all replicas in sync to have this master's log, found that one lacks a part: nothing is "
                "answered"
            )
        if isinstance(self._set_member, ReturningMaster) and self._set_member.problem:
            found["slaves"] = f"expected to take over from its slaves, found: {self._set_member.problem}"
        if self.replication.is_slave:
            if not self.replication.is_acting and (problem := self.replication.problem):
                found["replication"] = f"expected to copy a master's log, found: {problem}"
        elif why_not := self.parts.local.why_not_writeable:
            found["store"] = f"expected a store that takes messages, found it closed to them: {why_not}"
        states = self._name_servers()
        if states and not any(each.is_registered for each in states):
            reasons = "; ".join(f"{each.address}: {each.last_error or 'no answer yet'}" for each in states)
            found["name servers"] = f"expected to be registered at one, found none: {reasons}"
        trouble = None if self.parts.tiered is None else self.parts.tiered.trouble
        if isinstance(trouble, TIER_REFUSALS):
            found["tier"] = str(trouble)
        return found

    def warnings(self) -> dict[str, str]:
        """What is wrong and keeps clients from nothing: a tier that does not answer, or that a job has, whose uploads
        wait; queues whose uploads fail, or whose history in the tier is another one; tables of a master that a slave
        cannot copy.
        """
        found = {}
        trouble = None if self.parts.tiered is None else self.parts.tiered.trouble
        if trouble is not None and not isinstance(trouble, TIER_REFUSALS):
            found["tier"] = str(trouble)
        elif self.parts.tiered is not None and (job := self.parts.tiered.tier.writer.job):
            found["tier"] = f"standby: {job} has the broker's lease; uploads go on when it ends"
        elif self.parts.tiered is not None and (failing := self.parts.tiered.tier.engine.failing()):
            found["uploads"] = failing
        if self.parts.tiered is not None and (forked := self.parts.tiered.tier.engine.forked()):
            named = ", ".join(f"{topic}-{queue} from offset {at}" for (topic, queue), at in sorted(forked.items())[:3])
            found["forked queues"] = (
                f"the tier has other messages under the numbers of {named}"
                f"{f' and {len(forked) - 3} more queues' if len(forked) > 3 else ''}: they are not uploaded, and reads "
                "return this disk's. Keep the directory, restore into an empty one, and put the messages again that "
                "only the old one has"
            )
        if self.replication.keeper is not None and (tails := self.replication.keeper.cut_tails()):
            found["cut tails"] = (
                f"unacknowledged bytes of replaced masters are kept in {', '.join(tails[-3:])}"
                f"{f' and {len(tails) - 3} more' if len(tails) > 3 else ''}: look at them with `tiermq dump`, then "
                "remove them"
            )
        if self.replication.is_acting:
            found["acting"] = "the master is away, and this slave acts for it"
        for tables in (self.metadata_sync, self.tier_tables):
            if tables is not None and tables.problem:
                found["tables"] = tables.problem
        return found

    @property
    def owes_answers(self) -> bool:
        """Whether a client waits for an answer that will come."""
        return self._hooks.is_busy or self.parts.server.is_busy

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Leave the name servers, answer what was asked, close the store. Twice does no harm."""
        thread, self._thread = self._thread, None
        if thread is None:
            if self._listening is not None:
                self._listening.close()
            self.replication.stop()
            self._close_store()
            return
        if self._set_member is not None:
            self._set_member.stop()
        if self._registration is not None:
            self._registration.stop()
        if self._otlp is not None:
            self._otlp.stop()
        if self._endpoint is not None:
            self._endpoint.stop()
        thread.run(self._close(drain_s))
        self._upload_when_settled()  # The close uploads the rest, also of a master that ends before the next look.
        self.replication.stop()  # Behind the drain: open sends may wait for slaves.
        thread.stop()
        self._hooks.stop()
        self._close_store()

    def _close_store(self) -> None:
        if isinstance(self.store, LocalStore):
            self.store.close()
        else:
            self.not_uploaded = self.store.close()

    async def _close(self, drain_s: float) -> None:
        loop = self.parts.server.loop
        deadline = loop.time() + drain_s
        while self._hooks.is_busy and loop.time() < deadline:
            await asyncio.sleep(BUSY_LOOK_S)
        for timer in self._timers:
            timer.cancel()
        await self.parts.server.stop(max(0.0, deadline - loop.time()))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _is_guarded(tls: TlsSettings | None, acl: AccessCheck | None) -> bool:
    """Whether strangers are kept from the port for clients."""
    return acl is not None or (tls is not None and tls.mode is TlsMode.ENFORCING)


def _protection(tls: TlsSettings | None, acl: AccessCheck | None) -> dict[str, str]:
    """Settings of RocketMQ that ask for the protection that this broker has; no secrets and no paths."""
    has = {
        "aclEnable": "" if acl is None else "true",
        "tls.server.mode": "enforcing" if tls is not None and tls.mode is TlsMode.ENFORCING else "",
        "tls.server.need.client.auth": "require" if tls is not None and tls.client_must_authenticate else "",
    }
    return {name: value for name, value in has.items() if value}


def _ha_tls(config: BrokerConfig, tls: TlsSettings | None, client: Callable[[], ssl.SSLContext] | None) -> HaTls | None:
    """How the HA port speaks TLS, if it does. `client`: of an observer, which has no port. Raises BadConfig."""
    if not config.ha_tls_enable:
        return None
    settings = tls or TlsSettings(TlsMode.DISABLED)
    if client is None:
        settings.require_mutual("haTlsEnable")
    return HaTls(settings.server_context, client or settings.peer_context)


def _begin_term(
    replication: Replication, term: Term | None, topics: TopicTable, server: RemotingServer, local: LocalStore
) -> None:
    """Of an elected master: name servers prefer it, and it answers while it is the master for certain."""
    if term is None or replication.is_slave:
        return
    unknown = {
        name: ids
        for name, ids in local.topics().items()
        if ids and name not in topics.table and not topics.is_system(name) and not is_light_queue(name)
    }
    created = []
    for name, ids in unknown.items():
        newest_ms = max(local.store_time_of(name, each, local.max_offset(name, each) - 1) for each in ids)
        if topics.is_newer(newest_ms):
            _log.warning("topic %s: created again, since it has messages of an earlier master", name)
            created.append(TopicConfig(name, max(ids) + 1, max(ids) + 1))
    if created:
        topics.put_all(created)
    topics.begin_epoch(term.epoch)
    if term.election is not None:
        server.answer_while(functools.partial(replication.may_answer, term), also=UNGATED)


def _opened_store(
    path: str | os.PathLike[str],
    tier: str | None,
    config: BrokerConfig,
    role: BrokerRole,
    elected: Elected | None,
    settings: dict[str, Any],
) -> Store:
    """The store of a broker, with its tier if it has one. Raises what opening it raises."""
    if tier is None:
        broker_names(path, recorded_names(path), config.broker_cluster_name, config.broker_name)
        return LocalStore.open(path, **settings)
    from tiermq.tier.open_tier import put_tables_aside, take_over_leases
    from tiermq.tier.tiered_store import TieredStore

    names = {"broker_name": config.broker_name, "broker_cluster_name": config.broker_cluster_name}
    reads = role is BrokerRole.SLAVE and not config.ha_observer  # The master uploads.
    if elected is not None and reads:
        broker_names(path, recorded_names(path), config.broker_cluster_name, config.broker_name)
    elif elected is not None:
        if elected.is_empty:
            put_tables_aside(path)
            settings = {**settings, "restore": True, "index_later": True}  # Producers wait for a master.
        take_over_leases(tier, path, config.broker_cluster_name, config.broker_name)
    passing = elected is not None and reads
    return TieredStore.open(path, tier=tier, reader=reads, passing=passing, **{**settings, **names})


def _without_sends(config: BrokerConfig, settings: dict[str, Any]) -> BrokerConfig:
    """The settings of a broker that takes no messages at all; `settings` of its store are changed."""
    if config.takes_messages:
        return config
    settings["broker_role"] = BrokerRole.SLAVE
    return config.with_settings(auto_create_topic_enable=False)


def _note_flush(_result: object, failure: Exception | None) -> None:
    if failure is not None:
        _log.error("topics or groups could not be written, retrying; the journal has them: %s", failure)


def register_broker_metrics(parts: BrokerContext, name_servers: Callable[[], list[NameServerStatus]]) -> None:
    """Once per registry."""
    config, registry, server = parts.config, parts.metrics, parts.server
    node = (config.broker_cluster_name, "broker", config.broker_name)
    gauges = {
        "rocketmq_broker_permission": ("4 read, 2 write", lambda: config.broker_permission),
        "rocketmq_topic_number": ("topics, the system's too", lambda: len(parts.topics)),
        "rocketmq_consumer_group_number": ("consumer groups", lambda: len(parts.groups)),
        "tiermq_connections": ("peers that are connected", lambda: len(server.connections)),
    }
    counters = {
        "tiermq_connections_refused_total": ("connections refused at the limit", lambda: server.refused_connections),
        "tiermq_request_errors_total": ("requests that failed by a mistake of ours", lambda: server.handler_errors),
        "tiermq_registrations_total": (
            "registrations that name servers accepted",
            lambda: sum(each.accepted_count for each in name_servers()),
        ),
        "tiermq_registration_failures_total": (
            "registrations that failed",
            lambda: sum(each.failed_count for each in name_servers()),
        ),
    }
    for name, (text, read) in gauges.items():
        registry.gauge(name, text, NODE).labels(*node).set_function(read)
    for name, (text, read) in counters.items():
        registry.counter(name, text, NODE).labels(*node).set_function(read)
    server.note_latency = RpcLatency(registry, node, lambda: server.codes).note
    register_process(registry, version=__version__, python=platform.python_version(), kernel=KERNEL)
