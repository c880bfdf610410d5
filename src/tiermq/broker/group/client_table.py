"""ClientTable: connected producers and consumers by group, and the subscriptions of each consumer group.

    heartbeat ─► joined or refreshed ─► the group changed? ─► every member is notified (code 40), once per step
    connection closed, unregistered, or silent for too long ─► left ─► the same

Invariants: all state belongs to the loop's thread; other threads may read, and see each group as it was at some moment.
A client is a connection: when it closes, the client leaves all groups. A group has the subscriptions of its
newest heartbeat; a group without clients does not exist. Members of broadcasting groups are not notified of each other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.group.group_table import GroupTable
from tiermq.broker.group.subscription import (
    HEARTBEAT_GROUPS_MAX,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    Subscription,
)
from tiermq.broker.topic.topic_table import TopicTable
from tiermq.clock import Clock
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.limits import check_count
from tiermq.remoting.server import RemotingServer

_log = logging.getLogger(__name__)


class MessageQueue(NamedTuple):
    """A queue as clients name it; its order is the one that every client sorts by."""

    topic: str
    broker: str
    queue_id: int

    def to_json(self) -> dict[str, Any]:
        return {"brokerName": self.broker, "queueId": self.queue_id, "topic": self.topic}


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int


class QueueLocks:
    """Which client of a group may consume a queue in order.

    Invariants: a queue of a group has at most one holder; a lock that was not renewed for `max_lock_live_time` is
    free; only the holder releases it earlier. Locks are in memory: after a restart clients lock again.

    Any thread may call.
    """

    def __init__(self, live_ms: int, clock: Clock) -> None:
        self.live_ms = live_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Take or renew queues that are free, expired or this client's; returns which of `queues` it holds."""
        held = []
        now_ms = self._clock.now_ms()
        with self._lock:
            locks = self._groups.setdefault(group, {})
            for queue in queues:
                found = locks.get(queue)
                if found is None or found.client_id == client_id or self._is_over(found, now_ms):
                    locks[queue] = _Lock(client_id, now_ms)
                    held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those that this client holds."""
        with self._lock:
            locks = self._groups.get(group, {})
            for queue in queues:
                found = locks.get(queue)
                if found is not None and found.client_id == client_id:
                    del locks[queue]
            if not locks:
                self._groups.pop(group, None)

    def holds_any(self, group: str) -> bool:
        """Whether a client of the group holds a lock that is not over: then the group consumes in order."""
        now_ms = self._clock.now_ms()
        with self._lock:
            return any(not self._is_over(each, now_ms) for each in self._groups.get(group, {}).values())

    def drop_expired(self) -> int:
        """Remove expired locks; returns their number."""
        now_ms = self._clock.now_ms()
        count = 0
        with self._lock:
            for group, locks in list(self._groups.items()):
                over = [queue for queue, each in locks.items() if self._is_over(each, now_ms)]
                for queue in over:
                    del locks[queue]
                count += len(over)
                if not locks:
                    del self._groups[group]
        return count

    def _is_over(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self.live_ms


@dataclass(slots=True)
class Client:
    """One client in one group."""

    client_id: str
    connection: Connection
    language: int
    version: int
    seen_ms: int

    @property
    def address(self) -> str:
        return f"{self.connection.peer[0]}:{self.connection.peer[1]}"


@dataclass(slots=True)
class ProducerGroup:
    name: str
    clients: dict[Connection, Client] = field(default_factory=dict)


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group that has clients now."""

    name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    clients: dict[Connection, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    """By topic. Replaced, never changed."""
    fingerprint: int = 0

    def subscribe(self, subscriptions: Collection[Subscription]) -> bool:
        """Take over a heartbeat's subscriptions; whether a topic came or went. Older versions do not replace newer."""
        known = self.subscriptions
        wanted = {each.topic: each for each in subscriptions}
        for topic, each in wanted.items():
            if topic in known and known[topic].version >= each.version:
                wanted[topic] = known[topic]
        self.subscriptions = wanted
        return wanted.keys() != known.keys()


class ClientTable:
    """See the module."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, topics: TopicTable, groups: GroupTable, server: RemotingServer
    ) -> None:
        self.config = config
        self.topics = topics
        self.groups = groups
        self.locks = QueueLocks(config.max_lock_live_time, clock)
        self.on_subscriptions: list[Callable[[str], None]] = []
        """Called with the name of each group whose subscriptions a heartbeat has touched."""
        self._clock = clock
        self._server = server
        self._producers: dict[str, ProducerGroup] = {}
        self._consumers: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Connection, tuple[set[str], set[str]]] = {}
        self._holders: dict[str, dict[str | None, dict[Connection, None]]] = {}
        """Connections of producers by client id and account, each in the order in which they came."""
        self._holds: dict[Connection, tuple[str, str | None]] = {}
        """The client id and account of a producer's connection; it has one."""
        self._to_notify: set[str] = set()
        server.on_close.append(self.connection_closed)

    # Reading.

    def consumers(self, group: str) -> ConsumerGroup | None:
        return self._consumers.get(group)

    def producers(self, group: str) -> ProducerGroup | None:
        return self._producers.get(group)

    @property
    def consumer_groups(self) -> Collection[str]:
        return tuple(self._consumers)

    @property
    def producer_groups(self) -> Collection[str]:
        return tuple(self._producers)

    def client_ids(self, group: str) -> list[str]:
        """The ids of a consumer group's clients, each once."""
        found = self._consumers.get(group)
        return [] if found is None else sorted({each.client_id for each in tuple(found.clients.values())})

    def subscription(self, group: str, topic: str) -> Subscription | None:
        found = self._consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def find_producer(
        self, client_id: str, accepts: Callable[[Connection], bool] = lambda _connection: True
    ) -> Connection | None:
        """The connection of a producer by its client id, of those that are accepted.

        The newest one of the account that has used the id longest: another account that uses it takes nothing over.
        """
        for connections in self._holders.get(client_id, {}).values():
            if found := [each for each in connections if accepts(each)]:
                return found[-1]
        return None

    def _clients(self) -> Iterator[Client]:
        for consuming in tuple(self._consumers.values()):
            yield from tuple(consuming.clients.values())
        for producing in tuple(self._producers.values()):
            yield from tuple(producing.clients.values())

    def find_consumer(self, group: str, client_id: str) -> Client | None:
        found = self._consumers.get(group)
        clients = () if found is None else tuple(found.clients.values())
        return next((each for each in clients if each.client_id == client_id), None)

    def groups_subscribing(self, topic: str) -> list[str]:
        """The groups with clients now that subscribe to a topic."""
        return sorted(name for name, each in tuple(self._consumers.items()) if topic in each.subscriptions)

    # Coming.

    def producer_came(
        self,
        group: str,
        client_id: str,
        connection: Connection,
        language: int,
        version: int,
        account: str | None = None,
    ) -> None:
        """A heartbeat of one producer, and the account that signed it."""
        if connection.closing:
            return
        self._of(connection, group, 0)
        found = self._producers.setdefault(group, ProducerGroup(group))
        self._enter(found.clients, client_id, connection, language, version)
        if self._holds.get(connection) != (client_id, account):
            self._let_go(connection)
            self._holds[connection] = client_id, account
            self._holders.setdefault(client_id, {}).setdefault(account, {})[connection] = None

    def _let_go(self, connection: Connection) -> None:
        """The connection is no producer of its client id any more."""
        held = self._holds.pop(connection, None)
        if held is None:
            return
        client_id, account = held
        accounts = self._holders[client_id]
        del accounts[account][connection]
        if not accounts[account]:
            del accounts[account]
        if not accounts:
            del self._holders[client_id]

    def consumer_came(
        self, data: ConsumerData, client_id: str, connection: Connection, language: int, version: int
    ) -> bool:
        """A heartbeat of one consumer; returns whether the group's members or topics changed; then all are notified."""
        if connection.closing:
            return False  # It disconnected while its group was created; a closed client is not removed again.
        self._of(connection, data.group, 1)
        group = self._consumers.setdefault(data.group, ConsumerGroup(data.group))
        group.consume_type, group.message_model = data.consume_type, data.message_model
        group.consume_from_where = data.consume_from_where
        joined = self._enter(group.clients, client_id, connection, language, version)
        changed = group.subscribe(data.subscriptions) or joined
        if changed:
            self._notify_later(group)
        for listener in self.on_subscriptions:
            listener(data.group)
        return changed

    def consumer_is_alive(self, group: str, connection: Connection) -> bool:
        """A heartbeat without subscriptions. False: unknown client, it must send a whole heartbeat."""
        found = self._consumers.get(group)
        client = None if found is None else found.clients.get(connection)
        if client is None:
            return False
        client.seen_ms = self._clock.now_ms()
        return True

    def _enter(
        self, clients: dict[Connection, Client], client_id: str, connection: Connection, language: int, version: int
    ) -> bool:
        known = clients.get(connection)
        now_ms = self._clock.now_ms()
        if known is not None and known.client_id == client_id:
            known.seen_ms, known.version, known.language = now_ms, version, language
            return False
        clients[connection] = Client(client_id, connection, language, version, now_ms)
        return True

    def _of(self, connection: Connection, group: str, kind: int) -> None:
        """Note a group of a connection: 0 of producers, 1 of consumers. Raises RequestRefused when it has too many."""
        known = self._groups_of.setdefault(connection, (set(), set()))
        if group not in known[kind]:
            check_count("groups of a client", len(known[0]) + len(known[1]) + 1, HEARTBEAT_GROUPS_MAX)
            known[kind].add(group)

    # Going.

    def connection_closed(self, connection: Connection) -> None:
        producing, consuming = self._groups_of.pop(connection, ((), ()))
        self._let_go(connection)
        for name in tuple(producing):
            self._leave_producers(name, connection)
        for name in tuple(consuming):
            self._leave_consumers(name, connection)

    def unregister(self, connection: Connection, producer_group: str | None, consumer_group: str | None) -> None:
        """A client leaves groups, and stays connected."""
        known = self._groups_of.get(connection)
        if producer_group:
            self._leave_producers(producer_group, connection)
            if known is not None:
                known[0].discard(producer_group)
                if not known[0]:
                    self._let_go(connection)
        if consumer_group:
            self._leave_consumers(consumer_group, connection)
            if known is not None:
                known[1].discard(consumer_group)
        if known is not None and not known[0] and not known[1]:
            del self._groups_of[connection]

    def _leave_producers(self, name: str, connection: Connection) -> None:
        group = self._producers.get(name)
        if group is not None and group.clients.pop(connection, None) is not None and not group.clients:
            del self._producers[name]

    def _leave_consumers(self, name: str, connection: Connection) -> None:
        group = self._consumers.get(name)
        if group is None or group.clients.pop(connection, None) is None:
            return
        if group.clients:
            self._notify_later(group)
        else:
            del self._consumers[name]

    def close_silent(self) -> int:
        """Close the connections of clients that have sent no heartbeat for too long; returns their number."""
        oldest_ms = self._clock.now_ms() - self.config.channel_expired_timeout
        silent = {client.connection for client in self._clients() if client.seen_ms < oldest_ms}
        for connection in silent:
            _log.info("%s: closed, since its clients sent no heartbeat for too long", connection)
            self.connection_closed(connection)
            connection.close()
        return len(silent)

    # Notifications.

    def _notify_later(self, group: ConsumerGroup) -> None:
        if group.message_model is MessageModel.BROADCASTING or not self.config.notify_consumer_ids_changed_enable:
            return
        settings = self.groups.get(group.name)
        if settings is not None and not settings.notify_consumer_ids_changed_enable:
            return
        # Once per loop iteration: a thousand clients that connect at once do not cause a million notifications.
        if not self._to_notify:
            self._server.loop.call_soon(self._notify)
        self._to_notify.add(group.name)

    def _notify(self) -> None:
        names, self._to_notify = self._to_notify, set()
        for name in names:
            group = self._consumers.get(name)
            for connection in () if group is None else tuple(group.clients):
                connection.oneway(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": name}))
