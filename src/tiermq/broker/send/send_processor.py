"""SendProcessor: sends (10, 310), batches (320), of producers and of consumers that give messages back by sending.

    reads of plain sends ─► kernel.FastSendPath ─► answers                      never seen here, see `fast_path`
                                 └─► a store that flushes or replicates first: answers once all of the read is committed
    send ─► plain: FastSendPath ─► answer
        └─► otherwise: checks ─► destination ─► append ─► answer
                          └─► the topic or the group must be made first: in the pool, sends wait in their topic's line

Invariants: the loop never waits for the disk or for a slave; sends of one connection to one topic are stored in the
order of their arrival, also when the topic must be made first; under SYNC_FLUSH a send is answered SUCCESS once it is
durable, by a SYNC_MASTER once enough replicas have it, unless its producer set WAIT=false. Sends that wait are bounded:
beyond `send_thread_pool_queue_capacity` they are answered SYSTEM_BUSY, with nothing stored.
All state belongs to the loop's thread.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from tiermq.broker.broker_config import BrokerConfig
from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.client_processor import ACCOUNT
from tiermq.broker.listen_address import store_host
from tiermq.broker.send.put_answers import (
    LOOK_S,
    STORED,
    DurableAnswers,
    answers_with,
    code_of,
    refusal_of,
    require_queue,
    with_batch_id,
)
from tiermq.broker.send.recall_processor import recall_handle_of
from tiermq.broker.send.send_checks import (
    SENT_PROPERTIES_BYTES_MAX,
    SYS_FLAG_TRANSACTION,
    Destination,
    broker_properties,
    check_batch,
    check_properties,
    check_room,
    check_topic,
    checked_batch,
    completed,
    group_of_retry,
    half_destination,
    is_prepared,
    is_used_up,
    no_such_group,
    no_such_topic,
    queue_of,
    stored_destination,
    sys_flag_of,
    without_delay,
    writes_with_light_queues,
)
from tiermq.broker.topic.topic_table import DLQ_QUEUES, TopicTable
from tiermq.delivery.timer.timer_state import CONGEST_NUM
from tiermq.errors import CorruptRecord, IllegalMessage, RequestRefused
from tiermq.kernel import AckRequest, FastSendPath, Frame, Message, PutResult, SendRequest, send_answer
from tiermq.kernel.fast_send_path import SIZE_BOUNDS, Later, count_sent, new_counts
from tiermq.message.client_batch import (
    BATCH_ELEMENTS_MAX,
    ELEMENT_OVERHEAD_BYTES,
    decode_client_batch,
    has_more_elements,
    with_inner_num,
)
from tiermq.message.hosts import encode_host
from tiermq.message.ids import UniqueKeyGenerator
from tiermq.message.properties import TIERMQ_SENDER, TRAN_MSG, with_property, without_light_queues
from tiermq.message.topic_name import RETRY_PREFIX, TIMER_TOPIC, dead_letter_topic, is_broker_topic
from tiermq.metrics import Registry
from tiermq.namesrv.topic_config import FILTER_SINGLE_TAG, TopicConfig
from tiermq.remoting.access import serves
from tiermq.remoting.codes import VERSION, RequestCode, ResponseCode
from tiermq.remoting.connection import Connection
from tiermq.remoting.server import remark_of
from tiermq.status import PutStatus
from tiermq.store.topic_attributes import ATTRIBUTE as QUEUE_TYPE

_log = logging.getLogger(__name__)

INNER_BATCH_FLAGS = 0xC0
BATCH_QUEUE = "BatchCQ"
PLACE_CHARACTERS = 16
"""A message id is the store's address, then the physical offset in this number of hexadecimal digits."""
TRAN_MSG_NAME = TRAN_MSG.encode()
_PUT_OK = PutStatus.PUT_OK
LABELS = ("cluster", "node_type", "node_id", "topic", "message_type", "is_system")


class _Stored(NamedTuple):
    """What was stored of one send, one message or many."""

    ids: str
    queue_offset: int
    end_offset: int
    size: int
    messages: int


class SendProcessor:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts
        self._config = config = parts.config
        self._topics = parts.topics
        self._local = parts.local
        self._append = parts.local.append
        self._find = parts.topics.get
        self._is_slave = parts.replication.is_slave
        self._levels = len(parts.local.config.delay_levels_ms)
        self._added = broker_properties(config)
        self._region = config.region_id
        self._trace_on = "true" if config.trace_on else "false"
        self._chance = random.Random()  # noqa: S311 - it spreads messages over queues
        self._new_key = UniqueKeyGenerator(
            store_host(config.broker_ip1, 0).rpartition(":")[0], clock=parts.clock
        ).next_key
        self.fast_path = FastSendPath(
            parts.local.appender, self._added, VERSION, self._region, self._trace_on, SENT_PROPERTIES_BYTES_MAX,
            self._later(),
        )  # fmt: skip
        """Stores plain sends to topics that were sent to before, also delayed ones and halves of transactions."""
        self._lines: dict[str, list[tuple[Connection, SendRequest]]] = {}
        self._in_lines = 0
        self.counts = SendCounts(parts.metrics, config, parts.topics)
        self.durable = DurableAnswers(parts.local, parts.server, parts.clock, parts.replication.waiting_master)
        parts.metrics.counter(
            "tiermq_sends_answered_late_total",
            "sends that were stored, but not flushed or replicated in time",
            (),
            lambda: self.durable.timed_out,
        )
        self._sync = self.durable.waits
        parts.hooks.busy_while(lambda: self.waiting > 0)
        parts.hooks.every(LOOK_S, self._look_for_late)
        parts.topics.listeners.append(self._forget)
        parts.server.take_sends_by(self.take_sends if self._sync else self.fast_path)
        parts.local.dispatch_by(self._dispatch_soon)

    def _later(self) -> Later:
        """Which messages the fast path stores in another topic first."""
        config, timers = self._config, self._parts.timers
        # Whether a slot is congested is for the general path to look up.
        takes_timers = timers is not None and timers.settings.congest_num_each_slot >= CONGEST_NUM
        return Later(
            delay_levels=self._levels,
            takes_halves=lambda: not config.reject_transaction_message,
            precision_ms=timers.settings.precision_ms if timers is not None and takes_timers else 0,
            timer_delay_max_ms=timers.delay_max_ms if timers is not None else 0,
            broker_name=config.broker_name,
        )

    @property
    def waiting(self) -> int:
        """Sends that are not answered yet."""
        return self.durable.waiting + self._in_lines

    @property
    def _has_no_room(self) -> bool:
        return self.waiting >= self._config.send_thread_pool_queue_capacity

    def _look_for_late(self) -> None:
        self.durable.answer_late()

    def _dispatch_soon(self, dispatch: Callable[[], None]) -> bool:
        """Called by a put. What the loop has put in one iteration it dispatches in the next, and wakes no thread."""
        server = self._parts.server
        if not server.is_on_loop or server.loop.is_closed():
            return False
        server.call_threadsafe(dispatch)  # With the pulls that it wakes, and their answers.
        return True

    # Fast path.

    @serves(RequestCode.SEND_MESSAGE, access=writes_with_light_queues("topic", "properties"))
    @serves(RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, access=writes_with_light_queues("b", "i"))
    def send(self, connection: Connection, request: SendRequest) -> bytes | None:
        """The answer, or None when it comes later. Raises RequestRefused."""
        born_host = connection.born_host or born_host_of(connection)
        # The half of a transaction is stored with the account that sent it: only the general path knows accounts.
        needs_account = connection.attributes.get(ACCOUNT) is not None and TRAN_MSG_NAME in request.properties
        waits = needs_account or (self._sync and self._has_no_room)
        answer = None if waits else self.fast_path.take(request, born_host)
        if answer is None:
            return self._send_otherwise(connection, request)
        if not self._sync:
            return answer
        self._hold(connection, 1, b"" if request.is_oneway else answer)
        return None

    def take_sends(self, connection: Connection, frames: list[Frame | SendRequest | AckRequest]) -> int:
        """Take plain sends at the head of a read, which are answered once they are durable; how many."""
        room = self._config.send_thread_pool_queue_capacity - self.waiting
        may_answer = self._parts.server.may_answer
        if room <= 0 or (may_answer is not None and not may_answer()):
            return 0
        taken, answers = self.fast_path.take_all(frames if len(frames) <= room else frames[:room], connection.born_host)
        if taken:
            self._hold(connection, taken, answers)
        return taken

    def _hold(self, connection: Connection, sends: int, answers: bytes) -> None:
        """Answer sends that the fast path has just taken once they are durable; without answers all are one-way."""
        tail = self._local.appender.tail
        assert tail is not None  # The fast path has put something.
        end_offset = tail.base + tail.position  # Of the last of them, or of later puts.
        if answers:
            self.durable.add(end_offset, connection, answers, partial(answers_with, answers), sends)
        else:
            self.durable.flush_soon(end_offset)

    def _remember(self, topic: str, config: TopicConfig) -> None:
        """Let sends to a topic take the fast path from now on."""
        self.fast_path.open_topic(topic, config.write_queues, self.counts.entry(topic))
        # Another thread may have changed it, or closed all, and have called `_forget` before.
        if self._find(topic) is not config or self._topics.closed_for:
            self._forget((topic,))

    def _forget(self, topics: Iterable[str]) -> None:
        """Topics were changed or deleted. Any thread may call."""
        for topic in topics:
            self.fast_path.close_topic(topic)

    # Otherwise.

    def _send_otherwise(self, connection: Connection, request: SendRequest) -> bytes | None:
        topic = request.topic
        if topic in self._lines:
            self._wait_in_line(connection, request)
            return None
        config = self._find(topic)
        check_topic(topic, self._config, config)
        if self._topics.closed_for and not topic.startswith(RETRY_PREFIX):
            raise RequestRefused(
                f"expected a broker that takes messages, found that {self._topics.closed_for}: send to another one",
                ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        if self._is_slave:
            raise RequestRefused(self._parts.replication.why_read_only, ResponseCode.SYSTEM_BUSY)
        if config is None:
            self._make_first(connection, request, lambda: self._make_topic(request), no_such_topic(request))
            return None
        if not request.body:
            raise RequestRefused("the message is illegal: it has no body", ResponseCode.MESSAGE_ILLEGAL)
        if _takes_fast_path(config):
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
        if not delay:
            properties = without_light_queues(without_delay(properties))
        destination = Destination(config.name, queue_id, properties)
        sys_flag = sys_flag_of(request, config)
        if is_prepared(request, destination.properties):
            destination = half_destination(destination, self._config, self._levels, self._parts.timers)
            if (account := connection.attributes.get(ACCOUNT)) is not None:
                named = with_property(destination.properties, TIERMQ_SENDER, account.access_key)
                destination = destination._replace(properties=named)
            sys_flag &= ~SYS_FLAG_TRANSACTION
        else:
            destination = stored_destination(destination, sys_flag, self._levels, self._parts.timers)
        check_room(request.topic, len(destination.properties))
        message = message_to_store(connection, request, destination, sys_flag)
        self._require_room()
        require_queue(self._local, config.name, queue_id)
        result = self._append(message)
        handle = (
            recall_handle_of(destination, self._config.broker_name, key) if destination.topic == TIMER_TOPIC else ""
        )
        return self._answered(connection, request, result, message.waits_for_store, queue_id, key, handle)

    def _send_retry(self, connection: Connection, request: SendRequest, config: TopicConfig) -> bytes | None:
        name = group_of_retry(request.topic)
        group = self._parts.groups.get(name)
        if group is None:
            groups = self._parts.groups
            self._make_first(connection, request, lambda: groups.find_or_make(name), no_such_group(request.topic))
            return None
        if not is_used_up(request, group, self._parts.clients.locks.holds_any(name)):
            return self._store(connection, request, config)
        dead = self._find(dead_letter_topic(name))
        if dead is None:
            self._make_first(
                connection,
                request,
                lambda: self._topics.make(dead_letter_topic(name), DLQ_QUEUES, DLQ_QUEUES),
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
        body = checked_batch(request.body, config, properties)
        self._require_room()
        require_queue(self._local, config.name, queue_id)
        destination = Destination(config.name, queue_id, properties)
        if config.attributes.get(QUEUE_TYPE) == BATCH_QUEUE:
            return self._send_inner_batch(connection, request, destination, body, sys_flag, key)
        envelope = message_to_store(connection, request, destination, sys_flag, body)
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
        self,
        connection: Connection,
        request: SendRequest,
        destination: Destination,
        body: bytes,
        sys_flag: int,
        key: str,
    ) -> bytes | None:
        """A batch for a topic whose queues hold batches: one record with all of it."""
        try:
            count = len(decode_client_batch(body))
        except CorruptRecord as error:
            raise RequestRefused(str(error), ResponseCode.MESSAGE_ILLEGAL) from error
        destination = destination._replace(properties=with_inner_num(destination.properties, count))
        message = message_to_store(connection, request, destination, sys_flag | INNER_BATCH_FLAGS, body)
        result = self._append(message)
        return self._answered(
            connection, request, result, message.waits_for_store, destination.queue_id, "", batch_id=key
        )

    # Answers.

    def _answered(
        self, connection: Connection, request: SendRequest, result: PutResult, waits: bool, queue_id: int, key: str,
        handle: str = "", batch_id: str = "",
    ) -> bytes | None:  # fmt: skip
        if result.status not in STORED:
            code, remark = code_of(result.status, self._local.why_not_writeable)
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
            response = send_answer(
                request.header_type, request.opaque, code, VERSION, stored.ids, queue_id, stored.queue_offset, key,
                self._region, self._trace_on, remark, handle,
            )  # fmt: skip
            return with_batch_id(response, batch_id) if batch_id else response

        if not self._sync:
            return answer(_PUT_OK)
        if request.is_oneway or not waits:
            self.durable.flush_soon(stored.end_offset)
            return answer(_PUT_OK)
        self.durable.add(stored.end_offset, connection, answer(_PUT_OK), answer)
        return None

    def _require_room(self) -> None:
        """Raises RequestRefused when too many sends wait already."""
        if self._has_no_room:
            self.counts.refused += 1
            raise RequestRefused(
                f"{self.waiting} sends wait for the disk or for slaves already: try again, or another broker",
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
        """Do `work` in the pool, then continue with the topic's sends that arrived meanwhile; `missing` if it gives
        None."""
        topic = request.topic
        self._require_room()
        self._parts.server.run_in_pool(work, lambda made, error: self._made(topic, made, error, missing))
        self._wait_in_line(connection, request)

    def _wait_in_line(self, connection: Connection, request: SendRequest) -> None:
        self._require_room()
        self._lines.setdefault(request.topic, []).append((connection, request))
        self._in_lines += 1
        self.fast_path.is_open = False  # Or a send could overtake one that waits.

    def _made(self, topic: str, made: object, error: Exception | None, missing: RequestRefused) -> None:
        line = self._lines.pop(topic)
        self._in_lines -= len(line)
        self.fast_path.is_open = not self._lines
        refused = missing if made is None else None
        if error is not None:
            _log.error("topic %s: the topic or group of a send could not be created", topic, exc_info=error)
            refused = RequestRefused(remark_of(error), ResponseCode.SYSTEM_ERROR)
        for connection, request in line:
            self._go_on(connection, request, refused)

    def _go_on(self, connection: Connection, request: SendRequest, refused: RequestRefused | None) -> None:
        try:
            if refused is not None:
                raise refused
            answer = self.send(connection, request)
        except Exception as error:  # noqa: BLE001 - a request's outermost edge: later requests continue
            if not isinstance(error, RequestRefused):
                _log.error("a queued send to %s failed", request.topic, exc_info=error)
                error = RequestRefused(remark_of(error))
            if not request.is_oneway:
                connection.send(refusal_of(request, error))
            return
        if answer is not None and not request.is_oneway:
            connection.send_bytes(answer)


def _takes_fast_path(config: TopicConfig) -> bool:
    """Whether sends to a topic can take the fast path."""
    return (
        not config.attributes
        and not config.order
        and config.filter_type == FILTER_SINGLE_TAG
        and not config.name.startswith(RETRY_PREFIX)
        and not is_broker_topic(config.name)
    )


def message_to_store(
    connection: Connection, request: SendRequest, destination: Destination, sys_flag: int, body: bytes | None = None
) -> Message:
    """The message to store, with the request's body unless another is given. Raises RequestRefused for what no record
    can hold.
    """
    try:
        return Message(
            destination.topic,
            request.body if body is None else body,
            destination.queue_id,
            encoded_properties=destination.properties,
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
        # A dual-stack socket shows an IPv4 peer as ::ffff:1.2.3.4; a link-local address has a scope after %.
        host = host.removeprefix("::ffff:").partition("%")[0]
        connection.born_host = encode_host(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return connection.born_host


class SendCounts:
    """How much producers sent to which topic, under RocketMQ's metric names.

    Counting costs a send one dictionary look-up; metrics are updated when they are read. Belongs to
    the loop's thread; a rendering in another thread sees figures that are a moment old.
    """

    def __init__(self, registry: Registry, config: BrokerConfig, topics: TopicTable) -> None:
        self.refused = 0
        self._config = config
        self._topics = topics
        self._by_topic: dict[str, list[int]] = {}
        self._reported: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._messages = registry.counter("rocketmq_messages_in_total", "messages received from producers", LABELS)
        self._bytes = registry.counter(
            "rocketmq_throughput_in_total", "bytes of records received from producers", LABELS
        )
        self._sizes = registry.histogram("rocketmq_message_size", "bytes of records received", LABELS, SIZE_BOUNDS)
        registry.counter("tiermq_sends_refused_total", "sends refused by the store", (), lambda: self.refused)
        registry.add_collector(self.collect)

    def entry(self, topic: str) -> list[int]:
        """What was sent to a topic, for frequent counting by `count_sent`."""
        return self._by_topic.setdefault(topic, new_counts())

    def add(self, topic: str, size_bytes: int, count: int = 1) -> None:
        count_sent(self.entry(topic), count, size_bytes)

    def of(self, topic: str) -> tuple[int, int]:
        """Messages and bytes that were sent to a topic since the start."""
        messages, size_bytes, *_ = self._by_topic.get(topic, (0, 0))
        return messages, size_bytes

    def collect(self) -> None:
        with self._lock:  # A scrape and an export may come at once.
            self._collect()

    def _collect(self) -> None:
        for topic, counts in tuple(self._by_topic.items()):
            now, before = counts.copy(), self._reported.get(topic, new_counts())
            messages, size_bytes, *sizes = (here - there for here, there in zip(now, before, strict=True))
            is_system = str(self._topics.is_system(topic)).lower()
            labels = (
                self._config.broker_cluster_name,
                "broker",
                self._config.broker_name,
                topic,
                "normal",
                is_system,
            )
            self._messages.labels(*labels).add(messages)
            self._bytes.labels(*labels).add(size_bytes)
            self._sizes.labels(*labels).add(sizes, size_bytes)
            self._reported[topic] = now
