"""RouteTable: which brokers are alive and which topics they serve. Pure state over a clock.

    topic ─► broker name ─► QueueData          told by the master, or by the slave that acts for it
    broker name ─► cluster, broker id ─► address
    (broker name, address) ─► liveness: last word, timeout, DataVersion, channel

Rules of a registration, by RocketMQ's:
* The first one of a (name, id) with exactly one topic is refused: it can only be a change to a table we never saw.
* An address has one id: another one it had before is dropped.
* Another address under a known id takes its place, unless the known one has a higher state version.
* Queue data are taken when the broker is new, its DataVersion is another than before, or the topic is new for it. So
  permissions that an administrator took away stay away until the broker changes something.
* Topics that a later registration does not name are kept, unless `delete_missing_topics`.

Invariants: every address of every broker has exactly one liveness entry and the other way round; a broker has at least
one address; queue data name known brokers only; a topic has at least one of them. Where the original lets a broker name
stay in two clusters, or an address that was replaced stay alive, this table keeps the latest word only.

Belongs to one thread (the loop's); it never waits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace

from tiermq.clock import Clock
from tiermq.errors import RequestRefused
from tiermq.message.topic_name import SYSTEM_PREFIX
from tiermq.namesrv.route_values import MASTER_ID, BrokerData, QueueData, TopicRoute
from tiermq.namesrv.topic_config import NO_VERSION, PERM_READ, PERM_WRITE, DataVersion, TopicConfig

BROKER_TIMEOUT_MS = 120_000
MEMBER_TOPIC_PREFIX = SYSTEM_PREFIX + "SYNC_BROKER_MEMBER_"
LiveKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself. `acting_master` is None when the sender is too old to know of it."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    topics: tuple[TopicConfig, ...] = ()
    data_version: DataVersion = NO_VERSION
    filter_servers: tuple[str, ...] = ()
    timeout_ms: int = BROKER_TIMEOUT_MS
    acting_master: bool | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer: a slave learns who its master is. `accepted` is False when another address has the better right."""

    accepted: bool = True
    master_address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class _Broker:
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None


@dataclass(slots=True)
class _Live:
    cluster: str
    seen_s: float
    timeout_ms: int
    data_version: DataVersion
    ha_address: str
    filter_servers: tuple[str, ...]
    channel: Hashable | None


class RouteTable:
    """See the module."""

    def __init__(
        self, clock: Clock, *, delete_missing_topics: bool = False, support_acting_master: bool = False
    ) -> None:
        self._clock = clock
        self.delete_missing_topics = delete_missing_topics
        self.support_acting_master = support_acting_master
        self._brokers: dict[str, _Broker] = {}
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._live: dict[LiveKey, _Live] = {}
        self._by_channel: dict[Hashable, set[LiveKey]] = {}

    # What brokers say.

    def register(self, told: Registration, channel: Hashable | None = None) -> Registered:
        """Take a registration. `channel` is what it came over: when that ends, so does the broker's presence."""
        _check(told)
        broker = self._brokers.get(told.broker_name)
        known_id = broker is not None and told.broker_id in broker.addresses
        if not known_id and len(told.topics) == 1:
            raise RequestRefused(
                f"expected the whole topic table of broker {told.broker_name} {told.broker_id} in its first "
                "registration, found one topic: register the whole table first"
            )
        if broker is None:
            broker = self._brokers[told.broker_name] = _Broker(told.cluster)
        for other_id in [each for each, address in broker.addresses.items() if address == told.address]:
            if other_id != told.broker_id:
                del broker.addresses[other_id]
        replaced = broker.addresses.get(told.broker_id)
        if replaced is not None and replaced != told.address:
            version = self._live[told.broker_name, replaced].data_version
            if version.state_version > told.data_version.state_version:
                self._forget_live((told.broker_name, told.address))
                return Registered(accepted=False)
            self._forget_live((told.broker_name, replaced))
        broker.cluster = told.cluster
        broker.acting_master = bool(told.acting_master)
        broker.zone = told.zone
        broker.addresses[told.broker_id] = told.address
        self._take_topics(told, broker, is_first=not known_id)
        self._note_live(told, channel)
        return self._master_of(broker, told)

    def __contains__(self, key: LiveKey) -> bool:
        """Whether a broker of this name is alive at this address."""
        return key in self._live

    def add_topics(self, told: Registration, topics: tuple[TopicConfig, ...], *, is_changed: bool) -> None:
        """More topics of a registration that was accepted a moment ago; `is_changed`: its version was new then."""
        self._take_topics(replace(told, topics=topics), self._brokers[told.broker_name], is_first=is_changed)

    def _take_topics(self, told: Registration, broker: _Broker, *, is_first: bool) -> None:
        is_master = told.broker_id == MASTER_ID
        acts = not is_master and told.acting_master is not None and told.broker_id == min(broker.addresses)
        if not is_master and not acts:
            return
        if self.delete_missing_topics:
            named = {topic.name for topic in told.topics}
            for topic in [each for each, found in self._queues.items() if told.broker_name in found]:
                if topic not in named:
                    self._drop_queue(topic, told.broker_name)
        changed = is_first or self.is_changed(told.cluster, told.broker_name, told.address, told.data_version)
        for config in told.topics:
            queues = self._queues.setdefault(config.name, {})
            if changed or told.broker_name not in queues:
                queue = QueueData.of_topic(told.broker_name, config)
                if acts and broker.acting_master:
                    queue = replace(queue, perm=queue.perm & ~PERM_WRITE)
                queues[told.broker_name] = queue

    def _note_live(self, told: Registration, channel: Hashable | None) -> None:
        key = (told.broker_name, told.address)
        self._forget_live(key)
        self._live[key] = _Live(
            told.cluster,
            self._clock.monotonic(),
            told.timeout_ms,
            told.data_version,
            told.ha_address,
            told.filter_servers,
            channel,
        )
        if channel is not None:
            self._by_channel.setdefault(channel, set()).add(key)

    def _master_of(self, broker: _Broker, told: Registration) -> Registered:
        master = broker.addresses.get(MASTER_ID)
        if told.broker_id == MASTER_ID or master is None:
            return Registered()
        return Registered(True, master, self._live[told.broker_name, master].ha_address)

    def unregister(self, broker_name: str, address: str) -> bool:
        """The broker is gone, and with the last of its name its topics. False when it was not known."""
        broker = self._brokers.get(broker_name)
        if broker is None or (broker_name, address) not in self._live:
            return False
        self._forget_live((broker_name, address))
        broker.addresses = {each: known for each, known in broker.addresses.items() if known != address}
        if not broker.addresses:
            del self._brokers[broker_name]
            for topic in [each for each, found in self._queues.items() if broker_name in found]:
                self._drop_queue(topic, broker_name)
        elif broker.acting_master and MASTER_ID not in broker.addresses:
            # Whoever acts for a master may be read from, never written to.
            self._change_perm(broker_name, clear=PERM_WRITE)
        return True

    def heartbeat(self, cluster: str, broker_name: str, address: str) -> bool:
        """A sign of life. False when the broker is not known: it must register."""
        live = self._live.get((broker_name, address))
        if live is None or live.cluster != cluster:
            return False
        live.seen_s = self._clock.monotonic()
        return True

    def data_version(self, cluster: str, broker_name: str, address: str) -> DataVersion | None:
        """The version of the broker's topics that we know; None when we know nothing."""
        live = self._live.get((broker_name, address))
        return live.data_version if live is not None and live.cluster == cluster else None

    def is_changed(self, cluster: str, broker_name: str, address: str, version: DataVersion) -> bool:
        """Whether `version` is another one than we know."""
        return self.data_version(cluster, broker_name, address) != version

    # Who is gone.

    def expire(self) -> list[tuple[str, str, Hashable | None]]:
        """Drop brokers that were silent for longer than their timeout: (name, address, channel) of each."""
        now = self._clock.monotonic()
        silent = [
            (name, address, live.channel)
            for (name, address), live in self._live.items()
            if (now - live.seen_s) * 1000 > live.timeout_ms
        ]
        for name, address, _ in silent:
            self.unregister(name, address)
        return silent

    def channel_closed(self, channel: Hashable) -> list[LiveKey]:
        """Drop brokers whose last registration came over `channel`; says which."""
        gone = sorted(self._by_channel.get(channel, ()))
        for name, address in gone:
            self.unregister(name, address)
        return gone

    # What clients and administrators ask.

    def route(self, topic: str) -> TopicRoute | None:
        """Where `topic` is; None when no broker has it."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = [self.broker(name) for name in sorted(queues)]
        found = tuple(each for each in brokers if each is not None)
        if self.support_acting_master and not topic.startswith(MEMBER_TOPIC_PREFIX):
            found = tuple(self._acted_for(each, queues[each.broker_name]) for each in found)
        filters = {
            address: live.filter_servers
            for broker in found
            for address in broker.addresses.values()
            if (live := self._live.get((broker.broker_name, address))) is not None and live.filter_servers
        }
        return TopicRoute(found, tuple(queues[name] for name in sorted(queues)), filters)

    def _acted_for(self, broker: BrokerData, queue: QueueData) -> BrokerData:
        lacks_master = MASTER_ID not in broker.addresses and broker.acting_master and not queue.is_writable
        return broker.with_acting_master() if lacks_master else broker

    def broker(self, name: str) -> BrokerData | None:
        """The broker of that name, as a value that does not change any more."""
        known = self._brokers.get(name)
        if known is None:
            return None
        return BrokerData(known.cluster, name, dict(known.addresses), known.acting_master, known.zone)

    def brokers(self) -> list[BrokerData]:
        found = [self.broker(name) for name in sorted(self._brokers)]
        return [each for each in found if each is not None]

    def clusters(self) -> dict[str, list[str]]:
        """Broker names by cluster."""
        found: dict[str, list[str]] = {}
        for name in sorted(self._brokers):
            found.setdefault(self._brokers[name].cluster, []).append(name)
        return found

    def topics(self) -> list[str]:
        """Any thread may call."""
        return sorted(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        names = {name for name, broker in self._brokers.items() if broker.cluster == cluster}
        return sorted(topic for topic, queues in self._queues.items() if not names.isdisjoint(queues))

    def topics_with_flags(self, has: int, lacks: int = 0) -> list[str]:
        """Topics whose system flags have all of the one and none of the other; any broker speaks for the others."""
        flags = {topic: next(iter(queues.values())).sys_flag for topic, queues in self._queues.items()}
        return sorted(topic for topic, found in flags.items() if found & has == has and not found & lacks)

    # What administrators change.

    def wipe_write_permission(self, broker_name: str) -> int:
        """Nobody is sent to that broker any more; says how many topics it had."""
        return self._change_perm(broker_name, clear=PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """All its topics are readable and writable; says how many."""
        return self._change_perm(broker_name, to=PERM_READ | PERM_WRITE)

    def _change_perm(self, broker_name: str, *, clear: int = 0, to: int | None = None) -> int:
        count = 0
        for queues in self._queues.values():
            queue = queues.get(broker_name)
            if queue is not None:
                queues[broker_name] = replace(queue, perm=queue.perm & ~clear if to is None else to)
                count += 1
        return count

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Everywhere, or at the brokers of one cluster. A broker that still has it brings it back by registering."""
        for name in list(self._queues.get(topic, ())):
            if cluster is None or self._brokers[name].cluster == cluster:
                self._drop_queue(topic, name)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add a topic at those of the brokers that are known; others are left out."""
        wanted = {queue.broker_name: queue for queue in queues if queue.broker_name in self._brokers}
        if wanted:
            self._queues.setdefault(topic, {}).update(wanted)

    # Inside.

    def _drop_queue(self, topic: str, broker_name: str) -> None:
        queues = self._queues[topic]
        del queues[broker_name]
        if not queues:
            del self._queues[topic]

    def _forget_live(self, key: LiveKey) -> None:
        live = self._live.pop(key, None)
        if live is not None and live.channel is not None:
            keys = self._by_channel[live.channel]
            keys.discard(key)
            if not keys:
                del self._by_channel[live.channel]


def _check(told: Registration) -> None:
    """A registration that could not be answered to any client is refused at the door."""
    for name, value in (("brokerName", told.broker_name), ("brokerAddr", told.address), ("clusterName", told.cluster)):
        if not value.strip():
            raise RequestRefused(f"expected a {name} in the registration, found none")
    if told.broker_id < 0:
        raise RequestRefused(f"expected a brokerId of 0 or more, found {told.broker_id}")
    if told.timeout_ms <= 0:
        raise RequestRefused(f"expected a heartbeat timeout above 0, found {told.timeout_ms}")
