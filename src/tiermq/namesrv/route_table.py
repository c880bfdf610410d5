"""RouteTable: which brokers are alive and which topics they serve. Pure state over a clock.

    topic ─► broker name ─► QueueData          registered by the master, or by its acting master
    broker name ─► cluster, broker id ─► address
    (broker name, address) ─► liveness: last word, timeout, DataVersion, channel

Rules of a registration, by RocketMQ's:
* The first one of a (name, id) with exactly one topic is refused: it can only be a change to a table we never saw.
* An address has one id: another one it had before is dropped.
* Another address under a known id replaces it, unless the known one has a higher state version.
* Queue data are taken when the broker is new, its DataVersion is another than before, or the topic is new for it. So
  permissions that an administrator took away stay away until the broker changes something.
* Topics that a later registration does not name are kept, unless `delete_missing_topics`.
* Registrations are bounded, because without accounts any peer may send them: names, addresses, topics of a broker, and
  all of them together. A broker that is known renews what it has also at the limits.

Invariants: every address of every broker has exactly one liveness entry and the other way round; a broker has at least
one address; queue data name known brokers, each of which lists its topics, and brokers that are gone until `sweep` has
dropped them; a topic has at least one of them. Where RocketMQ lets a broker name stay in two clusters, or an address
that was replaced stay alive, this table keeps the latest word only.

Belongs to one thread (the loop's); it never waits.

What a name server answers with: queue data, broker data, a topic's route, in the JSON that clients read.

    {"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a",
                     "cluster":"DefaultCluster","enableActingMaster":false}],
     "filterServerTable":{},
     "queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}

Clients before 4.9.4 were written for broker ids without quotes, `{0:"…"}`, and get them so; all others get standard
JSON in ASCII.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from typing import Any

from tiermq.clock import Clock
from tiermq.errors import RequestRefused
from tiermq.message.topic_name import SYSTEM_PREFIX
from tiermq.namesrv.topic_config import NO_VERSION, PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from tiermq.remoting.json_dialect import in_order, int32_in, object_in, text_in

MASTER_ID = 0
ZONE_NAME = "__ZONE_NAME"
"""The field of a registration with the broker's zone."""
BROKER_TIMEOUT_MS = 120_000
MEMBER_TOPIC_PREFIX = SYSTEM_PREFIX + "SYNC_BROKER_MEMBER_"
LiveKey = tuple[str, str]
Queues = Mapping[str, "QueueData"]
"""Of a topic, by broker name. It never changes: topics with the same queues share one."""
SHARED_MAX = 10_000
TOPICS_AT_ONCE = 1_000
"""Topics that are changed before others are served."""
BROKERS_MAX = 5_000
"""Broker names."""
ADDRESSES_MAX = 64
"""Of one broker name: a master and its slaves."""
BROKER_TOPICS_MAX = 200_000
ROUTES_MAX = 2_000_000
"""Topics of all brokers: one that three brokers have counts three times."""
NAME_CHARACTERS_MAX = 255
"""Of a cluster, a broker, an address, a zone or a topic."""


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues a topic has at one broker, and what may be done with them."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    @classmethod
    def of_topic(cls, broker_name: str, topic: TopicConfig) -> QueueData:
        return cls(broker_name, topic.read_queues, topic.write_queues, topic.perm, topic.sys_flag)

    @classmethod
    def from_json(cls, value: object) -> QueueData:
        """Raises RequestRefused."""
        table = object_in(value, "queue data")
        name = text_in(table.get("brokerName"), "brokerName")
        if not name:
            raise RequestRefused("expected queue data with a brokerName, found none")
        perm = int32_in(table, "perm", PERM_READ | PERM_WRITE)
        read, write = int32_in(table, "readQueueNums"), int32_in(table, "writeQueueNums")
        return cls(name, read, write, perm, int32_in(table, "topicSysFlag"))

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }


def queues_of_topics(broker_name: str, topics: Iterable[TopicConfig]) -> dict[str, QueueData]:
    """The queues of a broker by topic; topics with the same settings share one value. Raises RequestRefused."""
    found: dict[str, QueueData] = {}
    known: dict[QueueData, QueueData] = {}
    for topic in topics:
        check_name("topic", topic.name)
        queue = QueueData.of_topic(broker_name, topic)
        found[topic.name] = known.setdefault(queue, queue)
    return found


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The addresses of one broker name, by broker id; 0 is the master's."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    acting_master: bool = False
    zone: str | None = None

    def to_json(self) -> dict[str, Any]:
        zone = {} if self.zone is None else {"zoneName": self.zone}
        return {
            "brokerAddrs": {str(each): self.addresses[each] for each in sorted(self.addresses)},
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.acting_master,
            **zone,
        }

    def with_acting_master(self) -> BrokerData:
        """The same with the lowest id as master."""
        lowest = min(self.addresses)
        others = {each: address for each, address in self.addresses.items() if each != lowest}
        moved = {MASTER_ID: self.addresses[lowest], **others}
        return BrokerData(self.cluster, self.broker_name, moved, self.acting_master, self.zone)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic can be written and read."""

    brokers: tuple[BrokerData, ...]
    queues: tuple[QueueData, ...]
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    order_conf: str | None = None

    def encode(self, *, standard_json: bool = True) -> bytes:
        """The body of a route answer."""
        order = {} if self.order_conf is None else {"orderTopicConf": self.order_conf}
        value = {
            "brokerDatas": [broker.to_json() for broker in self.brokers],
            "filterServerTable": {address: list(found) for address, found in self.filter_servers.items()},
            **order,
            "queueDatas": [queue.to_json() for queue in self.queues],
        }
        if standard_json:
            return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        # Only the ids lose their quotes, so they are inserted as text.
        text = json.dumps({**value, "brokerDatas": []}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        brokers = ",".join(_with_bare_ids(broker) for broker in self.brokers)
        return text.replace('"brokerDatas":[]', f'"brokerDatas":[{brokers}]', 1).encode("utf-8", "replace")


def _with_bare_ids(broker: BrokerData) -> str:
    def text(value: object) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    rest = broker.to_json()
    del rest["brokerAddrs"]
    ids = ",".join(f"{each}:{text(broker.addresses[each])}" for each in sorted(broker.addresses))
    return f'{{"brokerAddrs":{{{ids}}},{text(rest)[1:]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A broker's registration. `acting_master` is None when the sender is too old to know of it."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    topics: Mapping[str, QueueData] = field(default_factory=dict)
    data_version: DataVersion = NO_VERSION
    filter_servers: tuple[str, ...] = ()
    timeout_ms: int = BROKER_TIMEOUT_MS
    acting_master: bool | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer: a slave gets its master's address. `accepted` is False when another address takes precedence."""

    accepted: bool = True
    master_address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class _Broker:
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    acting_master: bool = False
    zone: str | None = None
    topics: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Live:
    cluster: str
    seen_s: float
    timeout_ms: int
    data_version: DataVersion
    ha_address: str
    filter_servers: tuple[str, ...]
    channel: Hashable | None


@dataclass(frozen=True, slots=True)
class MinIdChange:
    """The smallest id of a broker set is another one: a member has gone, or has come."""

    broker_name: str
    broker_id: int
    address: str
    gone_address: str
    """Of the member that had it; empty where one with a smaller id has come."""
    gone_ha_address: str
    others: tuple[str, ...]
    """Addresses of the members that were there before."""


@dataclass(slots=True, eq=False)
class _PermissionChange:
    """Permissions of a broker's topics that are being changed, in steps."""

    broker_name: str
    clear: int
    to: int | None
    topics: Iterator[str]
    changed: dict[QueueData, QueueData] = field(default_factory=dict)
    count: int = 0


class RouteTable:
    """See the module."""

    def __init__(
        self, clock: Clock, *, delete_missing_topics: bool = False, support_acting_master: bool = False
    ) -> None:
        self._clock = clock
        self.delete_missing_topics = delete_missing_topics
        self.support_acting_master = support_acting_master
        self._brokers: dict[str, _Broker] = {}
        self._queues: dict[str, Queues] = {}
        self._shared: dict[tuple[QueueData, ...], Queues] = {}
        self._live: dict[LiveKey, _Live] = {}
        self._by_channel: dict[Hashable, set[LiveKey]] = {}
        self._changes: deque[_PermissionChange] = deque()
        self._gone: deque[tuple[str, set[str]]] = deque()
        self._route_count = 0
        self._min_changes: list[MinIdChange] = []

    # Registrations.

    def register(
        self, registration: Registration, channel: Hashable | None = None, *, is_whole: bool = True
    ) -> Registered:
        """Take a registration. `channel` is what it came over: when that ends, so does the broker's presence.

        Unless it `is_whole`, `add_topics` and `drop_missing_topics` follow.
        """
        self.require_room(registration)
        self._finish_changes()
        broker = self._brokers.get(registration.broker_name)
        known_id = broker is not None and registration.broker_id in broker.addresses
        if not known_id and len(registration.topics) == 1:
            raise RequestRefused(
                f"expected the whole topic table of broker {registration.broker_name} {registration.broker_id} in its "
                "first registration, found one topic: register the whole table first"
            )
        if broker is None:
            broker = self._brokers[registration.broker_name] = _Broker(registration.cluster)
        for other_id in [each for each, address in broker.addresses.items() if address == registration.address]:
            if other_id != registration.broker_id:
                del broker.addresses[other_id]
        replaced = broker.addresses.get(registration.broker_id)
        if replaced is not None and replaced != registration.address:
            version = self._live[registration.broker_name, replaced].data_version
            if version.state_version > registration.data_version.state_version:
                self._forget_live((registration.broker_name, registration.address))
                return Registered(accepted=False)
            self._forget_live((registration.broker_name, replaced))
        broker.cluster = registration.cluster
        broker.acting_master = bool(registration.acting_master)
        broker.zone = registration.zone
        if broker.addresses and registration.broker_id < min(broker.addresses):
            self._note_min(registration.broker_name, broker, (registration.broker_id, registration.address))
        broker.addresses[registration.broker_id] = registration.address
        self._take_topics(registration, broker, is_first=not known_id)
        if is_whole:
            self.drop_missing_topics(registration)
        self._note_live(registration, channel)
        return self._master_of(broker, registration)

    def require_room(self, registration: Registration) -> None:
        """Raises RequestRefused for a registration that is invalid, or would grow the table beyond its limits."""
        _check(registration)
        broker = self._brokers.get(registration.broker_name)
        if broker is None and len(self._brokers) >= BROKERS_MAX:
            raise _full("broker names", BROKERS_MAX, f"broker {registration.broker_name} is one more")
        addresses = {} if broker is None else broker.addresses
        if registration.broker_id not in addresses and len(addresses) >= ADDRESSES_MAX:
            raise _full(
                f"addresses of broker {registration.broker_name}", ADDRESSES_MAX, f"{registration.address} is one more"
            )
        known = set() if broker is None else broker.topics
        self._require_routes(registration.broker_name, known, registration.topics)

    def _require_routes(self, broker_name: str, known: set[str], topics: Collection[str]) -> None:
        if len(known) + len(topics) <= BROKER_TOPICS_MAX and self._route_count + len(topics) <= ROUTES_MAX:
            return  # Whichever of them are new.
        new = sum(each not in known for each in topics)
        if new and len(known) + new > BROKER_TOPICS_MAX:
            raise _full(f"topics of broker {broker_name}", BROKER_TOPICS_MAX, f"it has {len(known)}, and {new} are new")
        if new and self._route_count + new > ROUTES_MAX:
            raise _full("topics of all brokers", ROUTES_MAX, f"there are {self._route_count}, and {new} are new")

    def __contains__(self, key: LiveKey) -> bool:
        """Whether a broker of this name is alive at this address."""
        return key in self._live

    def add_topics(self, registration: Registration, topics: Mapping[str, QueueData], *, is_changed: bool) -> None:
        """More topics of a registration that was accepted a moment ago; `is_changed`: its version was new then."""
        self._take_topics(
            replace(registration, topics=topics), self._brokers[registration.broker_name], is_first=is_changed
        )

    def drop_missing_topics(self, registration: Registration) -> None:
        """With `delete_missing_topics`: forget what a registration, which was accepted, does not name."""
        is_master, acts = _speaks(registration, self._brokers[registration.broker_name])
        if self.delete_missing_topics and (is_master or acts):
            for topic in self._brokers[registration.broker_name].topics - registration.topics.keys():
                self._drop_queue(topic, registration.broker_name)

    def _take_topics(self, registration: Registration, broker: _Broker, *, is_first: bool) -> None:
        is_master, acts = _speaks(registration, broker)
        if not is_master and not acts:
            return
        changed = is_first or self.is_changed(
            registration.cluster, registration.broker_name, registration.address, registration.data_version
        )
        for topic, queue in registration.topics.items():
            if changed or topic not in broker.topics:
                if acts and broker.acting_master:
                    self._set_queue(topic, replace(queue, perm=queue.perm & ~PERM_WRITE))
                else:
                    self._set_queue(topic, queue)

    def _note_live(self, registration: Registration, channel: Hashable | None) -> None:
        key = (registration.broker_name, registration.address)
        self._forget_live(key)
        self._live[key] = _Live(
            registration.cluster,
            self._clock.monotonic(),
            registration.timeout_ms,
            registration.data_version,
            registration.ha_address,
            registration.filter_servers,
            channel,
        )
        if channel is not None:
            self._by_channel.setdefault(channel, set()).add(key)

    def _master_of(self, broker: _Broker, registration: Registration) -> Registered:
        master = broker.addresses.get(MASTER_ID)
        if registration.broker_id == MASTER_ID or master is None:
            return Registered()
        return Registered(True, master, self._live[registration.broker_name, master].ha_address)

    def unregister(self, broker_name: str, address: str) -> bool:
        """Remove the broker, and with the last of its name its topics. False if it was unknown."""
        broker = self._brokers.get(broker_name)
        if broker is None or (broker_name, address) not in self._live:
            return False
        ha_address = self._live[broker_name, address].ha_address
        self._forget_live((broker_name, address))
        had_least = bool(broker.addresses) and broker.addresses[min(broker.addresses)] == address
        broker.addresses = {each: known for each, known in broker.addresses.items() if known != address}
        if had_least and broker.addresses:
            least = min(broker.addresses)
            self._note_min(broker_name, broker, (least, broker.addresses[least]), address, ha_address)
        if not broker.addresses:
            del self._brokers[broker_name]
            self._gone.append((broker_name, broker.topics))
            self.sweep()
        elif broker.acting_master and MASTER_ID not in broker.addresses:
            # An acting master is readable, never writable.
            self.wipe_write_permission(broker_name)
        return True

    def _note_min(
        self, name: str, broker: _Broker, least: tuple[int, str], gone: str = "", gone_ha_address: str = ""
    ) -> None:
        if broker.acting_master:
            self._min_changes.append(MinIdChange(name, *least, gone, gone_ha_address, tuple(broker.addresses.values())))

    def take_min_changes(self) -> list[MinIdChange]:
        """What happened since the last call to broker sets whose slaves act for their master."""
        taken, self._min_changes = self._min_changes, []
        return taken

    def sweep(self) -> bool:
        """Forget topics of brokers that are gone, TOPICS_AT_ONCE of them; whether more are left.

        Until then lists of topics may name them, routes do not.
        """
        if self._gone:
            name, topics = self._gone[0]
            for _ in range(min(len(topics), TOPICS_AT_ONCE)):
                topic = topics.pop()
                if not self._has(name, topic) and name in self._queues.get(topic, ()):
                    self._drop_queue(topic, name)
            if not topics:
                self._gone.popleft()
        return bool(self._gone)

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

    # Removed brokers.

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
        """Drop brokers whose last registration came over `channel`; returns them."""
        gone = sorted(self._by_channel.get(channel, ()))
        for name, address in gone:
            self.unregister(name, address)
        return gone

    # What clients and administrators ask.

    def route(self, topic: str) -> TopicRoute | None:
        """Where `topic` is; None when no broker has it."""
        queues = self._queues_of(topic)
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
        """Any thread may call."""
        found = [self.broker(name) for name in sorted(self._brokers)]
        return [each for each in found if each is not None]

    def clusters(self) -> dict[str, list[str]]:
        """Broker names by cluster. Any thread may call."""
        found: dict[str, list[str]] = {}
        for name, broker in sorted(self._brokers.items(), key=itemgetter(0)):
            found.setdefault(broker.cluster, []).append(name)
        return found

    def topics(self) -> list[str]:
        """Any thread may call."""
        return list(in_order(tuple(self._queues)))

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Any thread may call."""
        names = {name for name, broker in list(self._brokers.items()) if broker.cluster == cluster}
        return self._topics_where(lambda queues: not names.isdisjoint(queues))

    def topics_with_flags(self, has: int, lacks: int = 0) -> list[str]:
        """Topics whose system flags have all of `has` and none of `lacks`, as registered by any one broker.

        Any thread may call.
        """

        def is_wanted(queues: Queues) -> bool:
            first = next(iter(queues.values()), None)
            return first is not None and first.sys_flag & has == has and not first.sys_flag & lacks

        return self._topics_where(is_wanted)

    def _topics_where(self, is_wanted: Callable[[Queues], bool]) -> list[str]:
        """From any thread.

        Nothing that the garbage collector looks at is kept per topic: with a hundred thousand of them it would look at
        the whole process again, while every thread waits.
        """
        found = [
            topic
            for topic in tuple(self._queues)
            if (queues := self._queues.get(topic)) is not None and is_wanted(queues)
        ]
        return list(in_order(found))

    # What administrators change.

    def wipe_write_permission(self, broker_name: str) -> int:
        """Remove write permission of the broker; returns the number of its topics."""
        return _result_of(self.permission_steps(broker_name, clear=PERM_WRITE))

    def permission_steps(
        self, broker_name: str, *, clear: int = 0, to: int | None = None
    ) -> Generator[None, None, int]:
        """Remove or set permissions in steps: other requests are served in between; returns the number of topics.

        Changes are atomic and applied in order: each step belongs to the first unfinished
        change, and a registration, or closing the generator early, applies the remaining steps at once.
        """
        mine = _PermissionChange(broker_name, clear, to, iter(list(self._queues)))
        self._changes.append(mine)
        try:
            while mine in self._changes:
                self._step_of_change()
                yield
        except GeneratorExit:
            self._finish_changes()
            raise
        return mine.count

    def _finish_changes(self) -> None:
        while self._changes:
            self._step_of_change()

    def _step_of_change(self) -> None:
        change = self._changes[0]
        name = change.broker_name
        topics = list(islice(change.topics, TOPICS_AT_ONCE))
        for topic in topics:
            if (queue := self._queues_of(topic).get(name)) is not None:
                # Few are different, though there be many topics.
                if (wanted := change.changed.get(queue)) is None:
                    perm = queue.perm & ~change.clear if change.to is None else change.to
                    wanted = change.changed[queue] = replace(queue, perm=perm)
                self._set_queue(topic, wanted)
                change.count += 1
        if len(topics) < TOPICS_AT_ONCE:
            self._changes.popleft()

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Everywhere, or at the brokers of one cluster. The next registration of a broker may add it again."""
        for name in self._queues_of(topic):
            if cluster is None or self._brokers[name].cluster == cluster:
                self._drop_queue(topic, name)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add a topic at those of the brokers that are known; others are left out."""
        check_name("topic", topic)
        wanted = [queue for queue in queues if queue.broker_name in self._brokers]
        for queue in wanted:
            self._require_routes(queue.broker_name, self._brokers[queue.broker_name].topics, [topic])
        for queue in wanted:
            self._set_queue(topic, queue)

    # Inside.

    def _queues_of(self, topic: str) -> Queues:
        """Without those of brokers that are gone."""
        queues = self._queues.get(topic, {})
        return {name: each for name, each in queues.items() if self._has(name, topic)} if self._gone else queues

    def _has(self, broker_name: str, topic: str) -> bool:
        broker = self._brokers.get(broker_name)
        return broker is not None and topic in broker.topics

    def _set_queue(self, topic: str, queue: QueueData) -> None:
        queues = self._queues.get(topic, {})
        if queue.broker_name not in queues:
            self._route_count += 1
        self._brokers[queue.broker_name].topics.add(topic)
        self._queues[topic] = self._sharing({**queues, queue.broker_name: queue})

    def _drop_queue(self, topic: str, broker_name: str) -> None:
        queues = {name: each for name, each in self._queues[topic].items() if name != broker_name}
        if (broker := self._brokers.get(broker_name)) is not None:
            broker.topics.discard(topic)
        self._route_count -= 1
        if queues:
            self._queues[topic] = self._sharing(queues)
        else:
            del self._queues[topic]

    def _sharing(self, queues: Queues) -> Queues:
        """An equal one that other topics have, if there is one.

        Most topics of a broker have the same queues. With a value for each, a hundred thousand topics make every full
        collection of garbage stop the process for a quarter of a second.
        """
        if len(self._shared) >= SHARED_MAX:
            self._shared.clear()
        return self._shared.setdefault(tuple(queues.values()), queues)

    def _forget_live(self, key: LiveKey) -> None:
        live = self._live.pop(key, None)
        if live is not None and live.channel is not None:
            keys = self._by_channel[live.channel]
            keys.discard(key)
            if not keys:
                del self._by_channel[live.channel]


def _result_of(steps: Generator[None, None, int]) -> int:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return int(done.value)


def _speaks(registration: Registration, broker: _Broker) -> tuple[bool, bool]:
    """Whether the broker is the master, and whether it is an acting master: other brokers do not register topics."""
    is_master = registration.broker_id == MASTER_ID
    return is_master, not is_master and registration.acting_master is not None and registration.broker_id == min(
        broker.addresses
    )


def _check(registration: Registration) -> None:
    """A registration that could not be answered to any client is refused at the door."""
    for name, value in (
        ("brokerName", registration.broker_name),
        ("brokerAddr", registration.address),
        ("clusterName", registration.cluster),
    ):
        if not value.strip():
            raise RequestRefused(f"expected a {name} in the registration, found none")
        check_name(name, value)
    check_name("haServerAddr", registration.ha_address)
    check_name(ZONE_NAME, registration.zone or "")
    if registration.broker_id < 0:
        raise RequestRefused(f"expected a brokerId of 0 or more, found {registration.broker_id}")
    if registration.timeout_ms <= 0:
        raise RequestRefused(f"expected a heartbeat timeout above 0, found {registration.timeout_ms}")


def check_name(what: str, text: str) -> None:
    """Raises RequestRefused for one that is too long."""
    if len(text) > NAME_CHARACTERS_MAX:
        raise RequestRefused(
            f"expected a {what} of at most {NAME_CHARACTERS_MAX} characters, found {len(text)}: {text[:80]}"
        )


def _full(what: str, most: int, found: str) -> RequestRefused:
    return RequestRefused(
        f"expected at most {most} {what} at this name server, found more: {found[:300]}. Nothing was registered. "
        "Unregister brokers and delete topics that are not used; `--acl` keeps strangers from registering"
    )
