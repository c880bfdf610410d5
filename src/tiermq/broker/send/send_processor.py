"""SendProcessor: sends (10, 310), batches (320), of producers and of consumers that give messages back by sending.

    reads of usual sends ─► kernel.SendLane ─► answers                          never seen here, see `lane`
                                 └─► a store that flushes first: answers of the read once all of it is durable
    send ─► usual: SendLane ─► answer
        └─► otherwise: checks ─► place ─► append ─► answer
                          └─► the topic or the group must be made first: in the pool, sends wait in their topic's line

Invariants: the loop never waits for the disk; sends of one connection to one topic are stored in the order of their
arrival, also when the topic must be made first; under SYNC_FLUSH a send is answered SUCCESS once it is durable, unless
its producer said WAIT=false. Sends that wait are bounded: beyond `send_thread_pool_queue_capacity` they are answered
SYSTEM_BUSY, with nothing stored. All state belongs to the loop's thread.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tiermq.broker.delay_rewrite import Place
from tiermq.broker.durable_answers import LOOK_S, DurableAnswers
from tiermq.broker.listening import store_host
from tiermq.broker.parts import BrokerParts
from tiermq.broker.put_answers import STORED, answers_with, code_of, refusal_of, with_batch_id
from tiermq.broker.recall_handle import recall_handle_of, with_recall_handle
from tiermq.broker.send_checks import (
    SYS_FLAG_TRANSACTION,
    broker_properties,
    check_batch,
    check_properties,
    check_topic,
    checked_batch,
    completed,
    dead_letter_topic,
    group_of_retry,
    half_place,
    is_prepared,
    is_used_up,
    no_such_group,
    no_such_topic,
    queue_of,
    stored_place,
    sys_flag_of,
    without_delay,
)
from tiermq.broker.send_counts import SendCounts
from tiermq.config import BrokerRole, FlushDiskType
from tiermq.errors import CorruptRecord, IllegalMessage, RequestRefused
from tiermq.kernel import Frame, Message, PutResult, SendLane, SendRequest, send_answer
from tiermq.message.client_batch import ELEMENT_OVERHEAD_BYTES, decode_client_batch, has_more_elements
from tiermq.message.hosts import encode_host
from tiermq.message.ids import UniqueKeyGenerator
from tiermq.message.inner_batch import with_inner_num
from tiermq.message.topic_name import RETRY_PREFIX, TIMER_TOPIC, is_broker_topic
from tiermq.namesrv.topic_config import FILTER_SINGLE_TAG, TopicConfig
from tiermq.remoting.access import Access, writes
from tiermq.remoting.codes import VERSION, RequestCode, ResponseCode
from tiermq.remoting.connection import Connection
from tiermq.remoting.limits import BATCH_ELEMENTS_MAX
from tiermq.remoting.server import remark_of
from tiermq.status import PutStatus
from tiermq.store.topic_attributes import ATTRIBUTE as QUEUE_TYPE

_log = logging.getLogger(__name__)

ACCESS: dict[int, Access] = {
    RequestCode.SEND_MESSAGE: writes("topic"),
    RequestCode.SEND_MESSAGE_V2: writes("b"),
    RequestCode.SEND_BATCH_MESSAGE: writes("b"),
}
INNER_BATCH_FLAGS = 0xC0
BATCH_QUEUE = "BatchCQ"
DLQ_QUEUES = 1
PLACE_CHARACTERS = 16
"""A message id is where the store is, then the physical offset in so many hexadecimal digits."""
_PUT_OK = PutStatus.PUT_OK
_LATE = PutStatus.FLUSH_DISK_TIMEOUT


class _Stored(NamedTuple):
    """What was stored of one send, one message or many."""

    ids: str
    queue_offset: int
    end_offset: int
    size: int
    messages: int


class SendProcessor:
    """See the module."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._config = config = parts.config
        self._topics = parts.topics
        self._local = parts.local
        self._append = parts.local.append
        self._find = parts.topics.get
        self._sync = parts.local.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._is_slave = parts.local.config.broker_role is BrokerRole.SLAVE
        self._levels = len(parts.local.config.delay_levels_ms)
        self._added = broker_properties(config)
        self._region = config.region_id
        self._trace_on = "true" if config.trace_on else "false"
        self._chance = random.Random()  # noqa: S311 - it spreads messages over queues
        self._new_key = UniqueKeyGenerator(
            store_host(config.broker_ip1, 0).rpartition(":")[0], clock=parts.clock
        ).next_key
        self.lane = SendLane(parts.local.appender, self._added, VERSION, self._region, self._trace_on)
        """Where usual sends to topics that were sent to before are stored."""
        self._lines: dict[str, list[tuple[Connection, SendRequest]]] = {}
        self._in_lines = 0
        self.counts = SendCounts(parts.metrics, config, parts.topics)
        self.durable = DurableAnswers(parts.local, parts.server, parts.clock)
        parts.is_busy.append(lambda: self.waiting > 0)
        parts.periodic.append((LOOK_S, self._look_for_late))
        parts.topics.listeners.append(self._forget)
        if self._sync:
            parts.server.register_send(self.send, ACCESS, take_sends=self.take_sends)
        else:
            parts.server.register_send(self.send, ACCESS, self.lane)

    @property
    def waiting(self) -> int:
        """Sends that are not answered yet."""
        return self.durable.waiting + self._in_lines

    @property
    def _has_no_room(self) -> bool:
        return self.waiting >= self._config.send_thread_pool_queue_capacity

    def _look_for_late(self) -> None:
        self.durable.answer_late()

    # The usual way.

    def send(self, connection: Connection, request: SendRequest) -> bytes | None:
        """The answer, or None when it comes later. Raises RequestRefused."""
        born_host = connection.born_host or born_host_of(connection)
        answer = None if self._sync and self._has_no_room else self.lane.take(request, born_host)
        if answer is None:
            return self._send_otherwise(connection, request)
        if not self._sync:
            return answer
        self._hold(connection, 1, b"" if request.is_oneway else answer)
        return None

    def take_sends(self, connection: Connection, frames: list[Frame | SendRequest]) -> int:
        """Take usual sends at the head of a read, which are answered once they are durable; how many."""
        room = self._config.send_thread_pool_queue_capacity - self.waiting
        if room <= 0:
            return 0
        taken, answers = self.lane.take_all(frames if len(frames) <= room else frames[:room], connection.born_host)
        if taken:
            self._hold(connection, taken, answers)
        return taken

    def _hold(self, connection: Connection, sends: int, answers: bytes) -> None:
        """Answer sends that the lane has just taken once they are durable; without answers all of them are one-way."""
        tail = self._local.appender.tail
        assert tail is not None  # The lane has put something.
        end_offset = tail.base + tail.position  # Of the last of them, or of what others have put behind it since.
        if answers:
            self.durable.add(end_offset, connection, answers, lambda: answers_with(answers, _LATE), sends)
        else:
            self.durable.flush_soon(end_offset)

    def _remember(self, topic: str, config: TopicConfig) -> None:
        """Let sends to a topic go the usual way from now on."""
        self.lane.open_topic(topic, config.write_queues, self.counts.entry(topic))
        if self._find(topic) is not config:  # It was changed in another thread, which may have told so before.
            self._forget((topic,))

    def _forget(self, topics: Iterable[str]) -> None:
        """Topics were changed or deleted; any thread tells it."""
        for topic in topics:
            self.lane.close_topic(topic)

    # Otherwise.

    def _send_otherwise(self, connection: Connection, request: SendRequest) -> bytes | None:
        topic = request.topic
        if topic in self._lines:
            self._wait_in_line(connection, request)
            return None
        config = self._find(topic)
        check_topic(topic, self._config, config)
        if self._is_slave:
            raise RequestRefused("expected a master, found a slave: send to the master", ResponseCode.SYSTEM_BUSY)
        if config is None:
            self._make_first(connection, request, lambda: self._make_topic(request), no_such_topic(request))
            return None
        if not request.body:
            raise RequestRefused("the message is illegal: it has no body", ResponseCode.MESSAGE_ILLEGAL)
        if _is_usual(config):
            self._remember(topic, config)
        if request.batch:
            return self._send_batch(connection, request, config)
        if topic.startswith(RETRY_PREFIX):
            return self._send_retry(connection, request, config)
        return self._store(connection, request, config)

    def _store(
        self, connection: Connection, request: SendRequest, config: TopicConfig, *, delay: bool = True
    ) -> bytes | None:
        """Store one message in a topic that may be another than the request's."""
        queue_id = queue_of(request, config, self._chance) if config.name == request.topic else 0
        properties, key = completed(request.properties, self._added, self._new_key)
        check_properties(config, properties)
        place = Place(config.name, queue_id, properties if delay else without_delay(properties))
        sys_flag = sys_flag_of(request, config)
        if is_prepared(request, place.properties):
            place = half_place(place, self._config, self._levels, self._parts.timers)
            sys_flag &= ~SYS_FLAG_TRANSACTION
        else:
            place = stored_place(place, sys_flag, self._levels, self._parts.timers)
        message = message_to_store(connection, request, place, sys_flag)
        self._require_room()
        result = self._append(message)
        handle = recall_handle_of(place, self._config.broker_name, key) if place.topic == TIMER_TOPIC else ""
        return self._answered(connection, request, result, message.waits_for_store, queue_id, key, handle)

    def _send_retry(self, connection: Connection, request: SendRequest, config: TopicConfig) -> bytes | None:
        name = group_of_retry(request.topic)
        group = self._parts.groups.get(name)
        if group is None:
            groups = self._parts.groups
            self._make_first(connection, request, lambda: groups.find_or_make(name), no_such_group(request.topic))
            return None
        if not is_used_up(request, group, self._parts.holds_locks(name)):
            return self._store(connection, request, config)
        dead = self._find(dead_letter_topic(request.topic))
        if dead is None:
            self._make_first(
                connection,
                request,
                lambda: self._topics.make(dead_letter_topic(request.topic), DLQ_QUEUES, DLQ_QUEUES),
                no_such_topic(request),
            )
            return None
        return self._store(connection, request, dead, delay=False)

    def _send_batch(self, connection: Connection, request: SendRequest, config: TopicConfig) -> bytes | None:
        if request.topic.startswith(RETRY_PREFIX):
            raise RequestRefused("a retry topic takes no batches", ResponseCode.MESSAGE_ILLEGAL)
        most = BATCH_ELEMENTS_MAX
        if len(request.body) > most * ELEMENT_OVERHEAD_BYTES and has_more_elements(request.body, most):
            raise RequestRefused(
                f"expected at most {BATCH_ELEMENTS_MAX} messages in a batch, found more: split the batch",
                ResponseCode.MESSAGE_ILLEGAL,
            )
        queue_id = queue_of(request, config, self._chance)
        properties, key = completed(request.properties, self._added, None)
        sys_flag = sys_flag_of(request, config)
        check_batch(properties, sys_flag)
        body = checked_batch(request.body, config)
        self._require_room()
        place = Place(config.name, queue_id, properties)
        if config.attributes.get(QUEUE_TYPE) == BATCH_QUEUE:
            return self._send_inner_batch(connection, request, place, body, sys_flag, key)
        envelope = message_to_store(connection, request, place, sys_flag, body)
        try:
            results = self._local.append_batch(envelope)
        except (CorruptRecord, IllegalMessage) as error:
            raise RequestRefused(str(error), ResponseCode.MESSAGE_ILLEGAL) from error
        if not len(results):
            raise RequestRefused("expected messages in a batch, found none", ResponseCode.MESSAGE_ILLEGAL)
        if results.end_offset < 0:
            return self._answered(connection, request, results[0], False, queue_id, key)
        head = (results[0].message_id or "")[:-PLACE_CHARACTERS]
        ids = ",".join([f"{head}{result.physical_offset:016X}" for result in results])
        first, last = results[0], results[len(results) - 1]
        whole = _Stored(ids, first.queue_offset, last.end_offset, last.end_offset - first.physical_offset, len(results))
        return self._answered_stored(connection, request, whole, envelope.waits_for_store, queue_id, key)

    def _send_inner_batch(
        self, connection: Connection, request: SendRequest, place: Place, body: bytes, sys_flag: int, key: str
    ) -> bytes | None:
        """A batch for a topic whose queues hold batches: one record with all of it."""
        try:
            count = len(decode_client_batch(body))
        except CorruptRecord as error:
            raise RequestRefused(str(error), ResponseCode.MESSAGE_ILLEGAL) from error
        place = place._replace(properties=with_inner_num(place.properties, count))
        message = message_to_store(connection, request, place, sys_flag | INNER_BATCH_FLAGS, body)
        result = self._append(message)
        return self._answered(connection, request, result, message.waits_for_store, place.queue_id, "", batch_id=key)

    # Answers.

    def _answered(
        self, connection: Connection, request: SendRequest, result: PutResult, waits: bool, queue_id: int, key: str,
        handle: str = "", batch_id: str = "",
    ) -> bytes | None:  # fmt: skip
        if result.status not in STORED:
            code, remark = code_of(result.status)
            self.counts.refused += 1
            raise RequestRefused(remark or result.status.name, code)
        stored = _Stored(result.message_id or "", result.queue_offset, result.end_offset, result.size, result.count)
        return self._answered_stored(connection, request, stored, waits, queue_id, key, handle, batch_id)

    def _answered_stored(
        self, connection: Connection, request: SendRequest, stored: _Stored, waits: bool, queue_id: int, key: str,
        handle: str = "", batch_id: str = "",
    ) -> bytes | None:  # fmt: skip
        self.counts.add(request.topic, stored.size, stored.messages)

        def answer(status: PutStatus) -> bytes:
            code, remark = code_of(status)
            told = send_answer(
                request.header_type, request.opaque, code, VERSION, stored.ids, queue_id, stored.queue_offset, key,
                self._region, self._trace_on, remark,
            )  # fmt: skip
            if batch_id:
                return with_batch_id(told, batch_id)
            return with_recall_handle(told, handle) if handle else told

        if not self._sync:
            return answer(_PUT_OK)
        if request.is_oneway or not waits:
            self.durable.flush_soon(stored.end_offset)
            return answer(_PUT_OK)
        self.durable.add(stored.end_offset, connection, answer(_PUT_OK), lambda: answer(_LATE))
        return None

    def _require_room(self) -> None:
        """Raises RequestRefused when too many sends wait already."""
        if self._has_no_room:
            self.counts.refused += 1
            raise RequestRefused(
                f"{self.waiting} sends wait for the disk already: try again, or another broker",
                ResponseCode.SYSTEM_BUSY,
            )

    # Topics and groups that must be made first.

    def _make_topic(self, request: SendRequest) -> TopicConfig | None:
        return self._topics.for_send(
            request.topic, request.default_topic, request.default_topic_queue_nums, request.unit_mode
        )

    def _make_first(
        self, connection: Connection, request: SendRequest, work: Callable[[], object], missing: RequestRefused
    ) -> None:
        """Do `work` in the pool, then go on with every send that came for the topic meanwhile; `missing` if it gives
        None."""
        topic = request.topic
        self._require_room()
        self._parts.server.run_in_pool(work, lambda made, error: self._made(topic, made, error, missing))
        self._wait_in_line(connection, request)

    def _wait_in_line(self, connection: Connection, request: SendRequest) -> None:
        self._require_room()
        self._lines.setdefault(request.topic, []).append((connection, request))
        self._in_lines += 1
        self.lane.is_open = False  # Or a send could overtake one that waits.

    def _made(self, topic: str, made: object, error: Exception | None, missing: RequestRefused) -> None:
        line = self._lines.pop(topic)
        self._in_lines -= len(line)
        self.lane.is_open = not self._lines
        refused = missing if made is None else None
        if error is not None:
            _log.error("topic %s: what a send needs could not be made", topic, exc_info=error)
            refused = RequestRefused(remark_of(error), ResponseCode.SYSTEM_ERROR)
        for connection, request in line:
            self._go_on(connection, request, refused)

    def _go_on(self, connection: Connection, request: SendRequest, refused: RequestRefused | None) -> None:
        try:
            if refused is not None:
                raise refused
            answer = self.send(connection, request)
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: those behind it in line go on
            if not isinstance(error, RequestRefused):
                _log.error("a send to %s that had waited failed", request.topic, exc_info=error)
                error = RequestRefused(remark_of(error))
            if not request.is_oneway:
                connection.send(refusal_of(request, error))
            return
        if answer is not None and not request.is_oneway:
            connection.send_bytes(answer)


def _is_usual(config: TopicConfig) -> bool:
    """Whether sends to a topic need no look at anything but themselves."""
    return (
        not config.attributes
        and not config.order
        and config.filter_type == FILTER_SINGLE_TAG
        and not config.name.startswith(RETRY_PREFIX)
        and not is_broker_topic(config.name)
    )


def message_to_store(
    connection: Connection, request: SendRequest, place: Place, sys_flag: int, body: bytes | None = None
) -> Message:
    """The message to store, with the request's body unless another is given. Raises RequestRefused for what no record
    can hold.
    """
    try:
        return Message(
            place.topic,
            request.body if body is None else body,
            place.queue_id,
            encoded_properties=place.properties,
            flag=request.flag,
            sys_flag=sys_flag,
            born_timestamp_ms=request.born_ms,
            born_host=born_host_of(connection),
            reconsume_times=request.reconsume_times,
        )
    except IllegalMessage as error:
        raise RequestRefused(str(error), ResponseCode.MESSAGE_ILLEGAL) from error


def born_host_of(connection: Connection) -> bytes:
    """The peer's address as a record keeps it."""
    if not connection.born_host:
        host, port = connection.peer
        # A socket for both families tells an IPv4 peer as ::ffff:1.2.3.4; a link-local one has a scope behind %.
        host = host.removeprefix("::ffff:").partition("%")[0]
        connection.born_host = encode_host(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return connection.born_host
