"""Settings of a broker, by RocketMQ's names and with RocketMQ's defaults.

`brokerIP1` of a `broker.conf` is `broker_ip1` here and in the `[broker]` table of a TOML file. Invariants: those of
`tiermq.settings`; besides, a configuration has the broker's name and address. One default differs from the
original on purpose: `enable_property_filter` (SQL92 filters work without being switched on). `message_delay_level` is
a setting of the store too, which writes due times: both must get the same value.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import socket
from collections.abc import Mapping
from typing import ClassVar

from tiermq.config import DELAY_LEVELS
from tiermq.errors import BadConfig
from tiermq.log_levels import levels_in
from tiermq.message.hosts import LOOPBACK
from tiermq.remoting.proxy_protocol import Networks
from tiermq.settings import Configuration, whole

DEFAULT_PORT = 10911
BROKER_NAME_BYTES_MAX = 255
"""Maximum length of a broker's name: POP receipts hold it, and sends reserve space for them in their properties."""
CHANGEABLE_OF_BROKER = frozenset(
    {
        "auto_create_subscription_group",
        "auto_create_topic_enable",
        "broker_permission",
        "channel_expired_timeout",
        "cold_pace_bytes_min",
        "enable_property_filter",
        "log_levels",
        "long_polling_enable",
        "notify_consumer_ids_changed_enable",
        "reject_transaction_message",
        "short_polling_time_mills",
        "store_reply_message_enable",
        "transaction_check_interval",
        "transaction_check_max",
        "transaction_time_out",
        "wait_time_mills_in_pull_queue",
    }
)
CHANGEABLE_OF_STORE = frozenset(
    {
        "clean_file_forcibly_enable",
        "delete_file_batch_max",
        "delete_when",
        "disk_max_used_space_ratio",
        "file_reserved_time",
        "max_message_size",
    }
)
"""What can be changed over the network while a broker runs; the second of its store."""


class FastListenPort(enum.Enum):
    """Whether a broker also listens at `listenPort` - 2, where clients with `vipChannelEnabled` send."""

    AUTO = "AUTO"
    """Yes, unless `listenPort` is 0 or the other port is in use, which the ready line reports."""
    ON = "ON"
    """Yes, or the broker does not start; `listenPort` 0 takes two ports that fit."""
    OFF = "OFF"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Configuration):
    """All settings of a broker except those of its store. Intervals are milliseconds."""

    TABLE: ClassVar[str] = "broker"
    DOCUMENT: ClassVar[str] = "docs/broker.md"
    AT_TOP: ClassVar[bool] = True
    ACRONYMS: ClassVar[Mapping[str, str]] = {"Ip1": "IP1", "Ip2": "IP2"}

    # Name and addresses.
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = ""
    """Empty: this machine's name."""
    broker_id: int = whole(0)
    broker_ip1: str = ""
    """The address that clients connect to. Empty: this machine's outgoing address."""
    listen_port: int = whole(DEFAULT_PORT, high=65_535)
    """0 takes a free port."""
    fast_listen_port: FastListenPort = FastListenPort.AUTO
    """Whether `listenPort` - 2 is served too. RocketMQ always does."""
    bind_address: str = "0.0.0.0"  # noqa: S104 - RocketMQ's default: clients of other machines must reach it.
    grpc_server_port: int = whole(0, high=65_535)
    """Where RocketMQ 5's clients connect by gRPC; 0: nowhere."""
    grpc_proxy_protocol_peers: str = ""
    """Addresses and networks of load balancers before that port that speak the PROXY protocol, separated by commas."""
    min_invisible_time_mills_for_recv: int = whole(10_000, low=1, high=12 * 3_600_000)
    """The shortest invisible time that a gRPC client may ask for, as `rmq-proxy.json` names it."""
    grpc_client_consumer_min_long_polling_timeout_millis: int = whole(5_000, high=20_000)
    """The shortest time that a receive by gRPC waits, as `rmq-proxy.json` names it."""
    max_lite_subscription_count: int = whole(100_000)
    """Lite topics that all gRPC clients together may subscribe to."""
    lite_ttl_check_interval: int = whole(120_000, low=1)
    """How often lite topics are looked at for those that have expired."""
    namesrv_addr: str = ""
    register_name_server_period: int = whole(30_000, low=1)
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    trace_topic_enable: bool = False

    # Topics and groups.
    broker_permission: int = whole(6, high=7)
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = whole(8, low=1)
    auto_create_subscription_group: bool = True
    broker_topic_enable: bool = True
    cluster_topic_enable: bool = True
    reject_transaction_message: bool = False
    store_reply_message_enable: bool = True

    # Consumers.
    long_polling_enable: bool = True
    short_polling_time_mills: int = whole(1_000, low=1)
    notify_consumer_ids_changed_enable: bool = True
    enable_property_filter: bool = True
    filter_support_retry: bool = False
    flush_consumer_offset_interval: int = whole(5_000, low=1)
    use_server_side_reset_offset: bool = True
    channel_expired_timeout: int = whole(120_000, low=1)
    max_lock_live_time: int = whole(60_000, low=1)
    transfer_msg_by_heap: bool = True

    # Back-pressure.
    send_thread_pool_queue_capacity: int = whole(10_000, low=1)
    """Sends that may wait at once for the disk or for their topic; beyond it they are answered SYSTEM_BUSY."""
    wait_time_mills_in_send_queue: int = whole(200, low=1)
    wait_time_mills_in_pull_queue: int = whole(5_000, low=1)
    pull_held_max: int = whole(100_000, low=1)
    """Pulls that may wait for messages at once; beyond it they are answered at once."""
    cold_pace_bytes_min: int = whole(2 * 1024 * 1024)
    """Bytes per second that pulls from the tier have in any case beside producers and consumers that keep the machine
    busy; 0 lets them take what they can get."""

    # POP.
    max_pop_polling_size: int = whole(100_000, low=1)
    pop_polling_size: int = whole(1_024, low=1)
    revive_queue_num: int = whole(8, low=1)
    revive_interval: int = whole(1_000, low=1)
    pop_ck_stay_buffer_time_out: int = whole(3_000, low=1)
    pop_ck_max_buffer_size: int = whole(200_000, low=1)
    enable_retry_topic_v2: bool = False

    # Delivery.
    message_delay_level: str = DELAY_LEVELS
    flush_delay_offset_interval: int = whole(10_000, low=1)
    timer_wheel_enable: bool = True
    timer_precision_ms: int = whole(1_000, low=1)
    timer_roll_window_slot: int = whole(172_800)
    timer_max_delay_sec: int = whole(259_200, low=1)
    """The longest delay of a broker without a tier; with a tier there is no limit."""
    timer_congest_num_each_slot: int = whole(2**31 - 1, low=1)
    timer_flush_interval_ms: int = whole(1_000, low=1)
    mapped_file_size_timer_log: int = whole(104_857_600, low=4_096)
    timer_stop_enqueue: bool = False
    timer_stop_dequeue: bool = False
    far_timer_horizon: int = whole(0)
    """Timers due later than this number of ms are stored in the tier, if there is one; 0: a day, or half of
    `fileReservedTime` if that is shorter."""
    recall_message_enable: bool = False
    transaction_time_out: int = whole(6_000, low=1)
    transaction_check_max: int = whole(15)
    transaction_check_interval: int = whole(30_000, low=1)
    transaction_op_msg_max_size: int = whole(4_096, low=1, high=1 << 20)
    transaction_op_batch_interval: int = whole(3_000, low=1)

    # Replication. Roles and `slaveTimeout` are settings of the store.
    ha_listen_port: int = whole(-1, low=-1, high=65_535)
    """Where slaves copy this master's log. -1: the port above `listenPort`; 0: a free one."""
    ha_bind_address: str = ""
    """Where that port listens. Empty: `bind_address`."""
    ha_allowed_addresses: str = ""
    """Addresses and networks of slaves, separated by commas. Empty: every machine that reaches the port."""
    ha_tls_enable: bool = False
    """Whether that port speaks TLS only, between brokers that check each other's certificates; of a slave: whether its
    master's does. Brokers of RocketMQ have no TLS there."""
    broker_ip2: str = ""
    """The address at which slaves find that port. Empty: `broker_ip1`."""
    ha_master_address: str = ""
    """Of a slave: the master's HA port. Empty: what the name server knows."""
    master_address: str = ""
    """Of a slave: the master's address for clients, which topics, groups and offsets are copied from. Empty: what the
    name server knows."""
    master_sync_interval: int = whole(10_000, low=1)
    """How often a slave copies them."""
    ha_send_heartbeat_interval: int = whole(5_000, low=1)
    ha_housekeeping_interval: int = whole(20_000, low=1)
    ha_transfer_batch_size: int = whole(32_768, low=1, high=4_000_000)
    ha_max_gap_not_in_sync: int = whole(268_435_456)
    ha_max_time_slave_not_catchup: int = whole(15_000, low=1)
    """Of an elected master: a replica that is behind for longer leaves the in-sync set."""
    sync_from_last_file: bool = False
    """Whether an empty slave gets only the newest file of the log, as from RocketMQ, and not all of it."""
    in_sync_replicas: int = whole(1, low=1)
    """Of a SYNC_MASTER: how many replicas have a message before it is acknowledged, the master included."""
    min_in_sync_replicas: int = whole(1, low=1)
    """Of a SYNC_MASTER: with fewer replicas in sync, sends are refused."""
    enable_auto_in_sync_replicas: bool = False
    """Whether `in_sync_replicas` goes down to what is in sync, and at most to `min_in_sync_replicas`."""
    enable_controller_mode: bool = False
    """Whether a controller of RocketMQ or TierMQ gives this broker its id and role."""
    controller_addr: str = ""
    """Its controllers, as `host:port;host:port`."""
    broker_heartbeat_interval: int = whole(1_000, low=1)
    controller_heart_beat_timeout_mills: int = whole(10_000, low=1)
    """For how long a controller waits for a heartbeat before it takes this broker for dead."""
    sync_broker_metadata_period: int = whole(5_000, low=1)
    """Between two looks at the controller's state; a notification causes one at once."""
    broker_election_priority: int = whole(2**31 - 1)
    """Of replicas with the same log, the one with the smallest number is elected."""
    master_lease_term: int = whole(10_000, low=100)
    """Of a standby: the lease of the master lasts this long without a renewal."""
    master_lease_renewal: int = whole(3_000, low=10)
    """How often the master renews it."""
    master_lease_margin: int = whole(2_000, low=10)
    """How long before its end the master acknowledges nothing more: for clocks that do not run equally fast."""
    master_lease_look: int = whole(1_000, low=10)
    """How often the other replicas read it."""
    enable_slave_acting_master: bool = False
    """Of all members of a set: whether the slave with the smallest id acts for a master that is away."""
    enable_remote_escape: bool = False
    """Whether an acting slave delivers what is due to other masters of the cluster."""
    broker_not_active_timeout_millis: int = whole(10_000, low=1)
    """With `enable_slave_acting_master`: a member that is silent for this long is away."""
    skip_pre_online: bool = False
    """Whether a master that starts does not take over from its slaves first."""
    slave_read_enable: bool = False
    """Whether consumers that are far behind are sent to a slave."""
    read_only: bool = False
    """Serve the history that a broker of this name has in the tier, without a log, a lease and writes to the tier."""

    ha_observer: bool = False
    """Copy the log of a master without counting as its replica, and upload it: what `tiermq follow` runs."""

    # Metrics and health over HTTP; -1: off, 0: a free port.
    metrics_port: int = whole(-1, low=-1, high=65_535)
    metrics_host: str = ""
    """Where they are served. Empty: `bind_address`."""
    otlp_endpoint: str = ""
    """Also send metrics to this collector of OpenTelemetry by OTLP/HTTP, such as http://127.0.0.1:4318/v1/metrics."""
    otlp_interval: int = whole(60_000, low=100)
    """ms between two of them."""

    log_levels: str = ""
    """Levels of single modules, or of the whole log: `tiermq.tier=DEBUG,INFO`. Can be changed while the broker runs."""

    def __post_init__(self) -> None:
        self.check_settings()
        levels_in(self.log_levels)
        if not self.broker_name:
            object.__setattr__(self, "broker_name", socket.gethostname() or "DEFAULT_BROKER")
        if len(self.broker_name.encode()) > BROKER_NAME_BYTES_MAX:
            raise BadConfig(
                f"brokerName: expected at most {BROKER_NAME_BYTES_MAX} bytes, found {self.broker_name[:80]!r}…"
            )
        for name, value in (("broker_name", self.broker_name), ("broker_cluster_name", self.broker_cluster_name)):
            if value in (".", "..") or "/" in value or not value.isprintable():  # A tier makes directories of them.
                raise BadConfig(f"{name} is a name without slashes and control characters, found {value!r}")
        if not self.bind_address:
            raise BadConfig("bind_address: expected an address to listen at, found none: 0.0.0.0 is every one")
        if not self.broker_ip1:
            loopback = self.bind_address in (LOOPBACK, "localhost")
            object.__setattr__(self, "broker_ip1", LOOPBACK if loopback else outward_address())
        if self.enable_controller_mode and not self.controller_addr:
            raise BadConfig("controllerAddr: expected host:port;host:port with enableControllerMode=true, found none")
        if self.min_in_sync_replicas > self.in_sync_replicas and not self.enable_controller_mode:
            raise BadConfig(
                f"minInSyncReplicas: expected at most inSyncReplicas ({self.in_sync_replicas}), found "
                f"{self.min_in_sync_replicas}"
            )
        if self.master_lease_renewal + self.master_lease_margin >= self.master_lease_term:
            raise BadConfig(
                "masterLeaseTerm: expected more than masterLeaseRenewal and masterLeaseMargin together "
                f"({self.master_lease_renewal + self.master_lease_margin}), found {self.master_lease_term}"
            )
        _ = self.allowed_slaves, self.grpc_proxies  # Parsed here so that errors are reported at start.

    @property
    def takes_messages(self) -> bool:
        """Whether producers may be sent here at all, whatever its role is."""
        return not (self.read_only or self.ha_observer)

    @property
    def allowed_slaves(self) -> Networks:
        """The networks of `ha_allowed_addresses`. Raises BadConfig."""
        return _networks("haAllowedAddresses", self.ha_allowed_addresses)

    @property
    def grpc_proxies(self) -> Networks:
        """The networks of `grpc_proxy_protocol_peers`. Raises BadConfig."""
        return _networks("grpcProxyProtocolPeers", self.grpc_proxy_protocol_peers)


def _networks(name: str, text: str) -> Networks:
    """Raises BadConfig."""
    try:
        pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
        return tuple(ipaddress.ip_network(piece, strict=False) for piece in pieces)
    except ValueError as error:
        raise BadConfig(f"{name}: expected addresses and networks, found {error}") from error


def outward_address() -> str:
    """This machine's outgoing address, or loopback without a network. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # An address for documentation: no packet leaves for a datagram's connect.
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK
