"""TopicTable: the topics of this broker, kept in RocketMQ's `topics.json` and a journal beside it.

    {"dataVersion":{"counter":3,"stateVersion":0,"timestamp":…},
     "topicConfigTable":{"orders":{"attributes":{},"order":false,"perm":6,…}}}

How a change reaches the disk is in `table_file`: its cost does not grow with the number of topics.

Invariants: a topic that a change returned from is on disk; readers need no lock; each change makes a new data version
and notifies every listener of the names that changed, in the thread of the change.
System topics always exist and are never deleted; those named after the cluster and the broker belong to them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.topic.broker_registration import TopicSnapshot
from tiermq.broker.topic.table_file import StoredTable, TableChange
from tiermq.clock import Clock
from tiermq.errors import RequestRefused, TierMQError
from tiermq.message.topic_name import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OPERATION_HALF_TOPIC,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYNC_MEMBER_PREFIX,
    TIMER_TOPIC,
    TRACE_TOPIC,
    is_system_topic,
    topic_problem,
)
from tiermq.namesrv.topic_config import (
    NO_VERSION,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    SYS_FLAG_UNIT,
    SYS_FLAG_UNIT_SUBSCRIBED,
    DataVersion,
    TopicConfig,
)
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.json_dialect import decode_object, encode_body, in_order, object_in, quoted

_log = logging.getLogger(__name__)

FILE = "topics.json"
DLQ_QUEUES = 1
"""Of the topic of a group's dead letters."""
READ_WRITE = PERM_READ | PERM_WRITE
TopicListener = Callable[[Collection[str]], None]


@dataclass(slots=True)
class _Asked:
    """Topics that a thread wants to create, and the result."""

    topics: list[TopicConfig]
    made: list[str] = field(default_factory=list)
    is_done: bool = False
    failure: OSError | TierMQError | None = None


class TopicTable(StoredTable[TopicConfig]):
    """See the module. Any thread may call; changes go one at a time."""

    def __init__(
        self, directory: str, config: BrokerConfig, clock: Clock, held: Mapping[str, Collection[int]] | None = None
    ) -> None:
        """Reads the file in `directory` if there is one. Raises StoreDamaged when it cannot be read.

        Without a file the topics are those that the store has queues of, `held`: so it is with a store that was
        restored from its tier, or filled without a broker. With a file, a topic that it lacks was deleted.
        """
        super().__init__(os.path.join(directory, FILE), clock)
        self.config = config
        self.listeners: list[TopicListener] = []
        self.closed_for = ""
        """Why clients may send to none of them now, as text; empty when they may."""
        self._asked_lock = threading.Lock()
        self._asked: list[_Asked] = []
        self._own_names = frozenset(each.name for each in system_topics(config))
        held = held or {}
        if (found := self._file.read(decode_topics)) is not None:
            self._table, self.data_version = found
            self._replay()
            held = {}
        missing = [each for each in system_topics(config) if each.name not in self._table]
        missing += [
            TopicConfig(name, max(ids) + 1, max(ids) + 1)
            for name, ids in held.items()
            if ids and not self.is_system(name)
        ]
        if missing or self.data_version == NO_VERSION:
            self.put_all(missing)

    # Reading.

    def queue_count(self, name: str) -> int:
        """How many queues a topic has for readers or writers; 0 for one that is unknown."""
        found = self._table.get(name)
        return 0 if found is None else max(found.read_queues, found.write_queues)

    def is_system(self, name: str) -> bool:
        """Whether a topic is one of those that every broker has, or the system's by its name."""
        return name in self._own_names or is_system_topic(name)

    def registration_snapshot(self) -> TopicSnapshot:
        """A view that costs nothing. It may show changes that are newer than its version, never older ones."""
        version = self.data_version
        if self.closed_for or not self.config.takes_messages:
            readable = {name: replace(topic, perm=topic.perm & PERM_READ) for name, topic in self._table.items()}
            return TopicSnapshot(readable, version)
        return TopicSnapshot(MappingProxyType(self._table), version)

    # Changing.

    def close(self, reason: str) -> None:
        """Let name servers show all topics as readable only, and sends be refused, with this reason; open them without
        one. Until the process ends.
        """
        with self._lock:
            if reason == self.closed_for:
                return
            self.closed_for = reason
            self._change({})  # Name servers take known topics from a new version only.
        self._tell(self._table.keys())

    def put(self, topic: TopicConfig) -> None:
        """Add or replace one; durable when it returns. Raises OSError."""
        self.put_all([topic])

    def put_all(self, topics: Iterable[TopicConfig]) -> None:
        with self._lock:
            changed = {each.name: each for each in topics}
            self._change(changed)
        self._tell(changed)

    def delete(self, names: Collection[str]) -> list[str]:
        """Delete topics that are not system topics; returns those that existed."""
        with self._lock:
            gone = [name for name in names if name in self._table and not self.is_system(name)]
            if gone:
                self._change({}, gone)
        if gone:
            self._tell(gone)
        return gone

    def begin_epoch(self, epoch: int) -> None:
        """Of an elected master: name servers prefer what it registers to what masters of earlier epochs do."""
        with self._lock:
            if self.data_version.state_version != epoch:
                self._take_over(self._table, self.data_version.next(self._clock.now_ms(), epoch))

    def is_newer(self, store_ms: int) -> bool:
        """Whether a message was stored after the last change in this table, by the master's clock: a topic that has it
        and is not in the table was created later, and not deleted. A table that no elected master wrote is older than
        every message.
        """
        return self.data_version.state_version == 0 or store_ms > self.data_version.timestamp

    def follow(self, table: Mapping[str, TopicConfig], version: DataVersion, *, is_logged: bool = False) -> None:
        """Take the table of a master, with its version; this broker's own system topics stay. `is_logged`: it is of the
        master's log. Raises OSError.
        """
        with self._lock:
            if is_logged:
                self._logged = version
            elif self._is_stale(version):
                return
            own = {name: each for name, each in self._table.items() if self.is_system(name) and name not in table}
            before = self._table
            self._take_over({**table, **own}, version)
            changed = {name for name in before.keys() | self._table.keys() if before.get(name) != self._table.get(name)}
        if changed:
            self._tell(changed)

    def follow_log(self, change: TableChange) -> bool | None:
        """One change of a master, of its log: see `StoredTable._take_change`. Raises RequestRefused and OSError."""
        with self._lock:
            taken = self._take_change(change)
        if taken is not None:
            self._tell([*change.put, *change.gone])
        return taken

    def for_send(self, name: str, default_topic: str, queues: int, unit_mode: bool = False) -> TopicConfig | None:
        """The topic, created from `default_topic` if allowed; None if it does not exist and may not be created."""
        found = self._table.get(name)
        if found is not None:
            return found
        if name.startswith(RETRY_PREFIX):
            return self.make(name, 1, 1, sys_flag=SYS_FLAG_UNIT_SUBSCRIBED if unit_mode else 0)
        pattern = self._table.get(default_topic)
        if pattern is None or not pattern.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self.config.auto_create_topic_enable:
            return None
        count = max(1, min(queues, pattern.write_queues))  # RocketMQ creates topics without queues, too.
        return self.make(name, count, count, pattern.perm & ~PERM_INHERIT, SYS_FLAG_UNIT if unit_mode else 0)

    def make(
        self, name: str, read_queues: int, write_queues: int, perm: int = READ_WRITE, sys_flag: int = 0
    ) -> TopicConfig:
        """The topic, made with these values if there was none."""
        wanted = TopicConfig(name, read_queues, write_queues, perm, sys_flag)
        self.make_all([wanted])
        return self._table.get(name, wanted)

    def make_all(self, topics: Iterable[TopicConfig]) -> None:
        """Create missing topics. All of them, with those of other threads, cost one write."""
        asked = _Asked(list(topics))
        if all(each.name in self._table for each in asked.topics):
            return
        with self._asked_lock:
            self._asked.append(asked)
        with self._lock:
            if not asked.is_done:
                self._make_asked()
        if asked.failure is not None:
            raise asked.failure
        self._tell(asked.made)

    def _make_asked(self) -> None:
        """Requests of threads that wait for the lock, together: a sync for each would be slow."""
        with self._asked_lock:
            waiting, self._asked = self._asked, []
        made: dict[str, TopicConfig] = {}
        for asked in waiting:
            new = {each.name: each for each in asked.topics if each.name not in self._table and each.name not in made}
            asked.made = list(new)
            made.update(new)
        try:
            if made:
                self._change(made)
        except (OSError, TierMQError) as error:
            for asked in waiting:
                asked.failure = error
        for asked in waiting:
            asked.is_done = True
        for each in made.values():
            _log.info("topic %s: created with %d queues", each.name, each.write_queues)

    def set_order(self, orderly: Mapping[str, str]) -> None:
        """Set the ordered topics, as sent by a name server."""
        changed = [
            replace(each, order=each.name in orderly)
            for each in list(self._table.values())
            if each.order != (each.name in orderly)
        ]
        if changed:
            self.put_all(changed)

    def _encoded(self, table: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
        return encode_topics(table, version)

    def _decoded_entry(self, name: str, value: object) -> TopicConfig:
        found = TopicConfig.from_json(value, name)
        # RocketMQ's newer retry topics have a `+`, which is illegal elsewhere.
        if found.name != name or (name not in self._own_names and topic_problem(name.replace("+", "_")) is not None):
            raise RequestRefused(f"a topic named {found.name[:80]!r} under {name[:80]!r}")
        return found

    def _tell(self, names: Collection[str]) -> None:
        for listener in self.listeners:
            listener(names)


def encode_topics(table: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
    topics = ",".join(f"{quoted(name)}:{table[name].encode()}" for name in in_order(table))
    return b'{"dataVersion":%b,"topicConfigTable":{%b}}' % (encode_body(version.to_json()), topics.encode())


def decode_topics(data: bytes) -> tuple[dict[str, TopicConfig], DataVersion]:
    """Raises RequestRefused for what is no topic table."""
    document = decode_object(data)
    topics = object_in(document.get("topicConfigTable"), "topicConfigTable")
    version = document.get("dataVersion")
    return (
        {name: TopicConfig.from_json(each, name) for name, each in topics.items()},
        NO_VERSION if version is None else DataVersion.from_json(version),
    )


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Those that every broker has."""
    made = [
        TopicConfig(SELF_TEST_TOPIC, 1, 1),
        TopicConfig(BENCHMARK_TOPIC, 1024, 1024),
        TopicConfig(OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(SCHEDULE_TOPIC, 18, 18),
        TopicConfig(HALF_TOPIC, 1, 1),
        TopicConfig(OPERATION_HALF_TOPIC, 1, 1),
        TopicConfig(TIMER_TOPIC, 1, 1),
        TopicConfig(f"{config.broker_cluster_name}_REPLY_TOPIC", 1, 1),
        TopicConfig(f"{REVIVE_PREFIX}{config.broker_cluster_name}", config.revive_queue_num, config.revive_queue_num),
        TopicConfig(f"{SYNC_MEMBER_PREFIX}{config.broker_name}", 1, 1, PERM_INHERIT),
    ]
    if config.trace_topic_enable:
        made.append(TopicConfig(TRACE_TOPIC, 1, 1))
    if config.auto_create_topic_enable:
        queues = config.default_topic_queue_nums
        made.append(TopicConfig(AUTO_CREATE_TOPIC, queues, queues, READ_WRITE | PERM_INHERIT))
    if config.broker_topic_enable:
        made.append(TopicConfig(config.broker_name, 1, 1, READ_WRITE | PERM_INHERIT))
    if config.cluster_topic_enable:
        made.append(TopicConfig(config.broker_cluster_name, 16, 16, READ_WRITE | PERM_INHERIT))
    return made


def check_topic_name(name: str) -> None:
    """Raises RequestRefused (INVALID_PARAMETER) for a name that no topic can have."""
    if (problem := topic_problem(name)) is not None:
        raise RequestRefused(f"expected a topic with a legal name: {problem[:300]}", ResponseCode.INVALID_PARAMETER)
