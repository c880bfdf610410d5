"""AssignmentProcessor: QUERY_ASSIGNMENT (400) and SET_MESSAGE_REQUEST_MODE (401), for clients that let brokers balance.

    mode PULL   the queues of the topic are divided among the members of the group by the named strategy
    mode POP    every member may pop from every broker (queue -1); with popShareQueueNum, from its own queues and
                those of as many other members

Modes are kept in RocketMQ's `messageRequestMode.json`. The queues of other brokers are known from a name server, which
is asked when a client asks, in the pool; without one, or without its answer, there are this broker's queues alone.

Invariants: every queue has an owner, in PULL mode exactly one; members that ask at the same membership get
consistent shares, since all are computed from the same sorted lists.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiermq.broker.broker_context import BrokerContext, config_directory
from tiermq.broker.group.client_table import MessageQueue
from tiermq.broker.group.group_table import check_group_name
from tiermq.broker.group.subscription import MessageModel
from tiermq.broker.topic.topic_table import check_topic_name
from tiermq.errors import RemotingError, RequestRefused
from tiermq.files.os_file_access import OsFileAccess
from tiermq.message.topic_name import RETRY_PREFIX, TOPIC_QUEUES_MAX
from tiermq.namesrv.topic_config import PERM_READ
from tiermq.remoting.access import ADMINISTRATOR, reaches, require_group, require_topic, serves
from tiermq.remoting.client import parse_name_servers
from tiermq.remoting.codes import ANY_QUEUE, RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import as_name, decode_object, encode_body, int32_in, object_in, text_in
from tiermq.remoting.permissions import Permission

_log = logging.getLogger(__name__)

FILE = "messageRequestMode.json"


class RequestMode(enum.IntEnum):
    PULL = 0
    POP = 1


@dataclass(frozen=True, slots=True)
class GroupMode:
    """How a group gets the messages of a topic."""

    mode: RequestMode = RequestMode.PULL
    share_queues: int = 0


Shares = list[MessageQueue]


def averagely(queues: Shares, members: list[str], member: str) -> Shares:
    """Blocks of neighbours, as long as each other or by one longer for the first ones."""
    if member not in members:
        return []
    at, count = members.index(member), len(members)
    size, extra = divmod(len(queues), count)
    begin = at * size + min(at, extra)
    return queues[begin : begin + size + (at < extra)]


def by_circle(queues: Shares, members: list[str], member: str) -> Shares:
    """Round robin."""
    return queues[members.index(member) :: len(members)] if member in members else []


STRATEGIES: dict[str, Callable[[Shares, list[str], str], Shares]] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def shares_for_pop(queues: Shares, members: list[str], member: str, mode: GroupMode, share: Any) -> Shares:
    """What a member pops from: every broker, or its own share and those of the next `share_queues` members."""
    if member not in members:
        return []
    if mode.share_queues <= 0 or mode.share_queues >= len(members) - 1:
        return sorted({MessageQueue(each.topic, each.broker, ANY_QUEUE) for each in queues})
    if len(members) > len(queues):
        return [queues[members.index(member) % len(queues)]] if queues else []
    at = members.index(member)
    found: Shares = []
    for step in range(mode.share_queues + 1):
        found += share(queues, members, members[(at + step) % len(members)])
    return sorted(found)


class AssignmentProcessor:
    """See the module. Runs in the pool: it writes a file, and asks name servers."""

    def __init__(self, parts: BrokerContext) -> None:
        """Raises StoreDamaged when the file of modes cannot be read."""
        self._parts = parts
        self._path = os.path.join(config_directory(parts.local.config.root_path), FILE)
        self._access = OsFileAccess()
        self._lock = threading.Lock()
        self._modes: dict[tuple[str, str], GroupMode] = self._access.read_config(self._path, decode_modes) or {}

    # Modes.

    def mode_of(self, topic: str, group: str) -> GroupMode:
        return self._modes.get((topic, group), GroupMode())

    @serves(RequestCode.SET_MESSAGE_REQUEST_MODE, access=ADMINISTRATOR, in_pool=True)
    def set_mode(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        table = decode_object(command.body)
        topic, group = text_in(table.get("topic"), "topic"), text_in(table.get("consumerGroup"), "consumerGroup")
        if topic.startswith(RETRY_PREFIX):
            raise RequestRefused("retry topic is not allowed to set mode", ResponseCode.NO_PERMISSION)
        check_topic_name(topic)
        check_group_name(group)
        with self._lock:
            self._write({**self._modes, (topic, group): _mode_in(table)})
        return command.respond()

    def _write(self, modes: dict[tuple[str, str], GroupMode]) -> None:
        self._access.make_directories(os.path.dirname(self._path))
        self._access.write_config(self._path, encode_modes(modes))
        self._modes = modes

    @serves(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, access=ADMINISTRATOR)
    def all_modes(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return command.respond(body=self.encoded_modes())

    def encoded_modes(self) -> bytes:
        """As in the file."""
        return encode_modes(self._modes)

    def follow(self, modes: dict[tuple[str, str], GroupMode]) -> None:
        """Take the modes of a master. Raises OSError."""
        with self._lock:
            if modes != self._modes:
                self._write(modes)

    # Assignments.

    @serves(RequestCode.QUERY_ASSIGNMENT, access=reaches("SUB of the group, SUB of the topic"), in_pool=True)
    def query(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        table = decode_object(command.body)
        topic, group = text_in(table.get("topic"), "topic"), text_in(table.get("consumerGroup"), "consumerGroup")
        require_group(command, group)
        require_topic(command, topic, Permission.SUB)
        client_id = text_in(table.get("clientId"), "clientId")
        strategy = text_in(table.get("strategyName"), "strategyName") or "AVG"
        share = STRATEGIES.get(strategy)
        if share is None:
            raise RequestRefused(
                f"expected a strategyName of {', '.join(STRATEGIES)}, found {strategy[:40]!r}",
                ResponseCode.INVALID_PARAMETER,
            )
        mode = self.mode_of(topic, group)
        queues = self._queues(topic)
        if as_name(table.get("messageModel"), MessageModel, MessageModel.CLUSTERING) is MessageModel.BROADCASTING:
            found = queues
        elif mode.mode is RequestMode.POP:
            found = shares_for_pop(queues, self._parts.clients.client_ids(group), client_id, mode, share)
        else:
            found = share(queues, self._parts.clients.client_ids(group), client_id)
        rows = [{"messageQueue": each.to_json(), "mode": mode.mode} for each in found]
        return command.respond(body=encode_body({"messageQueueAssignments": rows}))

    def _queues(self, topic: str) -> Shares:
        """The topic's queues that can be read, on all brokers that are known, sorted."""
        own = self._own_queues(topic)
        others = self._queues_elsewhere(topic)
        return sorted({*own, *(each for each in others if each.broker != self._parts.config.broker_name)})

    def _own_queues(self, topic: str) -> Shares:
        found = self._parts.topics.get(topic)
        if found is None or not found.perm & PERM_READ:
            return []
        return [MessageQueue(topic, self._parts.config.broker_name, queue_id) for queue_id in range(found.read_queues)]

    def _queues_elsewhere(self, topic: str) -> Shares:
        for host, port in parse_name_servers(self._parts.config.namesrv_addr):
            try:
                with self._parts.ask_name_server(host, port) as client:
                    answer = client.request(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic}))
                return _queues_in_route(topic, decode_object(answer.body)) if answer.code == 0 else []
            except (OSError, RemotingError) as error:
                _log.warning("%s:%d returned no route of topic %s: %s", host, port, topic, error)
        return []


def _queues_in_route(topic: str, route: dict[str, Any]) -> Shares:
    found: Shares = []
    for each in route.get("queueDatas") or []:
        table = object_in(each, "an element of queueDatas")
        if int32_in(table, "perm") & PERM_READ:
            broker, count = text_in(table.get("brokerName"), "brokerName"), int32_in(table, "readQueueNums")
            if count > TOPIC_QUEUES_MAX:
                raise RequestRefused(
                    f"topic {topic}: expected at most {TOPIC_QUEUES_MAX} queues at {broker[:300]}, found {count}"
                )
            found += [MessageQueue(topic, broker, queue_id) for queue_id in range(count)]
    return found


def _mode_in(table: dict[str, Any]) -> GroupMode:
    return GroupMode(as_name(table.get("mode"), RequestMode, RequestMode.PULL), int32_in(table, "popShareQueueNum"))


def encode_modes(modes: dict[tuple[str, str], GroupMode]) -> bytes:
    rows: dict[str, dict[str, Any]] = {}
    for (topic, group), each in modes.items():
        rows.setdefault(topic, {})[group] = {
            "consumerGroup": group,
            "mode": each.mode,
            "popShareQueueNum": each.share_queues,
            "topic": topic,
        }
    return encode_body({"messageRequestModeMap": rows})


def decode_modes(data: bytes) -> dict[tuple[str, str], GroupMode]:
    """Raises RequestRefused for what is no such file."""
    topics = object_in(decode_object(data).get("messageRequestModeMap"), "messageRequestModeMap")
    return {
        (topic, group): _mode_in(object_in(value, "a mode"))
        for topic, groups in topics.items()
        for group, value in object_in(groups, topic).items()
    }
