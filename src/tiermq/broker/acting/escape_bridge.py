"""EscapeBridge: puts messages to another master of the cluster, for a slave that acts for its own.

    delivered later    ─► its topic at another master, without what would delay it again
    rolled timer       ─► a timer of that master, for the same time
    open half message  ─► a half message of that master, which asks its producer

A slave's log is its master's: it stores nothing itself. Without another master that has the topic, or while that one
refuses, a message waits: for another try, or for its master. What a queue of a topic gets
goes to one queue elsewhere, as long as the route stays.

What the master had delivered just before it went is in the log that this slave has, but tables are copied later than
the log: so a message that the log has in its topic already is not sent. Any thread may call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from pathlib import Path

from tiermq.broker.broker_context import BrokerContext, config_directory
from tiermq.client.cluster_client import ClusterClient, QueuePlace
from tiermq.errors import BadConfig, RemotingError
from tiermq.files.os_file_access import OsFileAccess
from tiermq.kernel import Message
from tiermq.message.crc import body_crc
from tiermq.message.properties import (
    DELAY,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TRAN_MSG,
    UNIQ_KEY,
    delete_property,
    get_text_property,
    with_property,
)
from tiermq.message.system_flag import COMPRESSED, COMPRESSION_TYPE_MASK, MULTI_TAGS
from tiermq.message.topic_name import (
    AUTO_CREATE_TOPIC,
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    TIMER_TOPIC,
)
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.loop_thread import LoopThread
from tiermq.remoting.permissions import Credentials
from tiermq.settings import INT_MAX
from tiermq.status import PutStatus

_log = logging.getLogger(__name__)

GROUP = "CLIENT_INNER_PRODUCER"
SEND_S = 3.0
ROUTE_S = 5.0
"""How long a route is used before it is asked for again."""
LINE_S = 10.0
KEPT_FILE = "actedTimers.json"
"""When the first record was due that waits for the master, in ms."""
STORED_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)
DELAYS = (
    DELAY, REAL_TOPIC, REAL_QID, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_OUT_MS, TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES,
)  # fmt: skip
"""Properties by which the receiver would delay a message that has waited already."""
SENT_FLAGS = COMPRESSED | MULTI_TAGS | COMPRESSION_TYPE_MASK


class EscapeBridge:
    """See the module."""

    def __init__(
        self, parts: BrokerContext, name_servers: str, credentials: Credentials | None, tls: ssl.SSLContext | None
    ) -> None:
        self.sent_count = 0
        self.passed_count = 0
        """Messages that the log has in their topic already."""
        self._parts = parts
        self._root = parts.local.config.root_path
        self._own = parts.config.broker_name
        self._cluster = parts.config.broker_cluster_name
        self._routes: dict[str, tuple[float, list[QueuePlace]]] = {}
        self._client = ClusterClient(name_servers, credentials=credentials, tls=tls)
        self._thread = LoopThread("escape")
        self._line_s = 0.0

    def close(self) -> None:
        self._thread.run(self._client.__aexit__(None, None, None))
        self._thread.stop()

    def put(self, messages: list[Message]) -> list[PutStatus]:
        """The status of each: PUT_OK, or SERVICE_NOT_AVAILABLE for one that must wait."""
        return self._thread.run(self._put(messages))

    async def _put(self, messages: list[Message]) -> list[PutStatus]:
        return list(await asyncio.gather(*map(self._put_one, messages)))

    async def _put_one(self, message: Message) -> PutStatus:
        if message.topic.startswith(REVIVE_PREFIX):
            return self._keep(message)
        if self._is_in_log(message):
            self.passed_count += 1
            return PutStatus.PUT_OK
        topic, queue_id, properties = as_sent(message)
        try:
            place = await self._place(topic, queue_id)
            if place is None:
                return self._wait(topic, "no other master of the cluster has this topic")
            await self._send(message, topic, place, properties)
        except (BadConfig, RemotingError, UnicodeDecodeError) as error:
            self._routes.pop(topic, None)
            return self._wait(topic, str(error))
        self.sent_count += 1
        return PutStatus.PUT_OK

    def _keep(self, message: Message) -> PutStatus:
        """A check point or an acknowledgement of a RocketMQ broker's POP: its own revive topic is the only one that it
        fits into, so its time counts as not reached.
        """
        out_ms = get_text_property(message.encoded_properties, TIMER_OUT_MS) or ""
        due_ms = int(out_ms) if out_ms.isdigit() else 0
        known_ms = kept_before(self._root)
        if known_ms is None or due_ms < known_ms:
            OsFileAccess().write_config(_kept_path(self._root), b"%d" % due_ms)
        return PutStatus.PUT_OK

    def _is_in_log(self, message: Message) -> bool:
        properties = message.encoded_properties
        key, local = get_text_property(properties, UNIQ_KEY), self._parts.local
        is_delivery = get_text_property(properties, REAL_TOPIC) == message.topic
        if not key or not is_delivery or not local.config.message_index_enable:
            return False
        identity = (message.born_timestamp_ms, message.reconsume_times, body_crc(message.body))
        return any(
            (each.born_timestamp_ms, each.reconsume_times, each.body_crc) == identity
            and each.get_property(REAL_TOPIC) == message.topic
            for each in local.query(message.topic, key).messages
        )

    async def _place(self, topic: str, queue_id: int) -> QueuePlace | None:
        asked_s, places = self._routes.get(topic, (0.0, []))
        if not places or time.monotonic() - asked_s > ROUTE_S:
            places = await self._places(topic)
            self._routes[topic] = time.monotonic(), places
        return places[queue_id % len(places)] if places else None

    async def _places(self, topic: str) -> list[QueuePlace]:
        route = await self._client.find_route(topic)
        others = [each for each in (() if route is None else route.writable) if each.broker_name != self._own]
        if not others and topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            masters = (await self._client.master_table()).addresses  # They make such topics themselves.
            others = [
                QueuePlace(name, address, 0)
                for (cluster, name), address in masters.items()
                if cluster == self._cluster and name != self._own
            ]
        return sorted(others, key=lambda each: (each.broker_name, each.queue_id))

    async def _send(self, message: Message, topic: str, place: QueuePlace, properties: bytes) -> None:
        await self._client.ask(
            place.address,
            RequestCode.SEND_MESSAGE_V2,
            bytes(message.body),
            expected=STORED_CODES,
            timeout_s=SEND_S,
            a=get_text_property(properties, PGROUP) or GROUP,
            b=topic,
            c=AUTO_CREATE_TOPIC,
            d=1,
            e=place.queue_id,
            f=message.sys_flag & SENT_FLAGS,
            g=message.born_timestamp_ms,
            h=message.flag,
            i=properties.decode(),
            j=message.reconsume_times,
            k=False,
            l=INT_MAX,
            m=False,
            n=place.broker_name,
        )

    def _wait(self, topic: str, reason: str) -> PutStatus:
        now_s = time.monotonic()
        if now_s - self._line_s > LINE_S:
            self._line_s = now_s
            _log.warning("messages for %s wait, another master of the cluster cannot take them: %s", topic, reason)
        return PutStatus.SERVICE_NOT_AVAILABLE


def _kept_path(root: Path) -> str:
    return os.path.join(config_directory(root), KEPT_FILE)


def kept_before(root: Path) -> int | None:
    """When the first record of a RocketMQ master's POP was due that an acting slave kept for it; None: none was."""
    return OsFileAccess().read_config(_kept_path(root), int)


def forget_kept(root: Path) -> None:
    """The master has taken over."""
    if kept_before(root) is not None:
        for path in (_kept_path(root), _kept_path(root) + ".bak"):
            OsFileAccess().remove(path)


def as_sent(message: Message) -> tuple[str, int, bytes]:
    """Topic, queue and properties of a message that is sent to another master instead of being put here."""
    properties, topic, queue_id = message.encoded_properties, message.topic, message.queue_id
    deliver_ms: str | None = None
    if topic == TIMER_TOPIC:  # A roll.
        topic = get_text_property(properties, REAL_TOPIC) or topic
        queue = get_text_property(properties, REAL_QID) or "0"
        queue_id = int(queue) if queue.isdigit() else 0
        deliver_ms = get_text_property(properties, TIMER_OUT_MS)
    if get_text_property(properties, TRAN_MSG) != "true" or get_text_property(properties, REAL_TOPIC) is not None:
        properties = delete_property(properties, TRAN_MSG.encode())  # A commit of long ago.
        for name in DELAYS:
            properties = delete_property(properties, name.encode())
    if deliver_ms is not None:
        properties = with_property(properties, TIMER_DELIVER_MS, deliver_ms)
    return topic, queue_id, properties
