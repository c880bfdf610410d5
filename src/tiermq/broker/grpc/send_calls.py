"""SendCalls: SendMessage, EndTransaction, RecallMessage.

    checked whole ─► each message a send of the broker's ─► an entry for each: id, offset, transaction, recall handle

Several messages are several sends, one after the other, to one queue, or to those of their groups: each has an answer
of its own. (RocketMQ's proxy makes one batch of them and returns one entry, and clients take the call for failed.)

A transaction id holds where the half message is: nothing is kept between a send and its end.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.delivery.end_transaction_processor import NOT_TO_END
from tiermq.broker.grpc.grpc_clients import (
    MESSAGE_TYPES,
    MIXED,
    GrpcClients,
    check_topic,
    code_of,
    require_topic,
    status_of,
    transaction_id_of,
    transaction_place,
)
from tiermq.broker.grpc.grpc_message import (
    RESERVED,
    SENT_BODY_BYTES_MAX,
    USER_BYTES_MAX,
    Refused,
    check_message,
    consistent_queue,
    is_long_gzip,
    properties_of,
    stored_body,
    timestamp_ms,
    type_of,
)
from tiermq.broker.grpc.lite_calls import LiteCalls, light_queue
from tiermq.broker.grpc.local_request import Caller, Pending
from tiermq.broker.grpc.route_calls import SEND_QUEUES
from tiermq.broker.send.send_checks import SYS_FLAG_TRANSACTION
from tiermq.broker.send.send_processor import PLACE_CHARACTERS
from tiermq.broker.topic.attributes import MESSAGE_TYPE
from tiermq.grpc.messages import ANSWER_TO_CHECK, Code, MessageType, Resolution, message_class, status
from tiermq.kernel import GrpcSendReader, SendRequest, grpc_send_answer
from tiermq.message.system_flag import TransactionType
from tiermq.message.topic_name import AUTO_CREATE_TOPIC
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import VERSION, RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.permissions import Permission

if TYPE_CHECKING:
    from tiermq.broker.grpc.grpc_service import Ask

SendMessageResponse = message_class("SendMessageResponse")
EndTransactionResponse = message_class("EndTransactionResponse")
RecallMessageResponse = message_class("RecallMessageResponse")
SENDS_MAX = 1_024
"""Messages of one call."""
TOPICS_MAX = 10_000
"""That are remembered to take plain messages."""
RESERVED_BYTES = frozenset(name.encode() for name in RESERVED)
_OUTCOMES = {Resolution.COMMIT: TransactionType.COMMIT, Resolution.ROLLBACK: TransactionType.ROLLBACK}
_STORED = frozenset((Code.OK, Code.MASTER_PERSISTENCE_TIMEOUT, Code.SLAVE_PERSISTENCE_TIMEOUT, Code.HA_NOT_AVAILABLE))
assert SYS_FLAG_TRANSACTION & TransactionType.PREPARED


class SendCalls:
    """See the module."""

    def __init__(self, parts: BrokerContext, clients: GrpcClients, lite: LiteCalls) -> None:
        self._parts = parts
        self._reader = GrpcSendReader(RESERVED_BYTES, USER_BYTES_MAX, SENT_BODY_BYTES_MAX)
        self._plain_topics: dict[str, TopicConfig] = {}
        self.taken_count = 0
        """Messages that took the fast path."""
        parts.metrics.counter(
            "tiermq_grpc_fast_sends_total", "gRPC sends by the fast path", (), lambda: self.taken_count
        )
        self._clients = clients
        self._lite = lite
        self._turn = itertools.count()

    def take_plain(self, caller: Caller, data: bytes) -> bytes | None:
        """The answer to a call with one plain message for a topic that is sent to; None: the general path.

        Raises RequestRefused for a topic that the caller may not send to.
        """
        server, topics = self._parts.server, self._parts.topics
        fast_path = server.checked_fast_path
        if fast_path is None or server.may_answer is not None:
            return None
        read = self._reader.read(data, caller.address, self._parts.clock.now_ms())
        if read is None:
            return None
        send, key = read
        config = topics.get(send.topic)
        if config is None or not self._takes_plain(config):
            return None
        require_topic(caller, send.topic, Permission.PUB)
        send.queue_id = next(self._turn) % max(1, config.write_queues)
        offset = fast_path.take_offset(send, caller.born_host)
        if offset < 0:
            return None
        self.taken_count += 1
        return grpc_send_answer(key, offset)

    def _takes_plain(self, config: TopicConfig) -> bool:
        """Whether a topic takes plain messages of clients; looked up once until it is changed."""
        if self._plain_topics.get(config.name) is config:
            return True
        wanted = config.attributes.get(MESSAGE_TYPE)
        if wanted is not None and MessageType.NORMAL not in MESSAGE_TYPES.get(wanted, tuple(MessageType)):
            return False
        try:
            check_topic(config.name)
        except Refused:
            return False
        if len(self._plain_topics) >= TOPICS_MAX:
            self._plain_topics.clear()
        self._plain_topics[config.name] = config
        return True

    async def send(self, ask: Ask) -> Any:
        """Store one message, or several of a topic."""
        messages = ask.request.messages
        if not messages:
            raise Refused(Code.MESSAGE_CORRUPTED, "expected at least one message, found none")
        if len(messages) > SENDS_MAX:
            raise Refused(Code.BAD_REQUEST, f"expected at most {SENDS_MAX} messages, found {len(messages)}")
        topic = messages[0].topic.name
        check_topic(topic)
        require_topic(ask.caller, topic, Permission.PUB)
        now_ms = self._parts.clock.now_ms()
        for message in messages:
            if message.topic.name != topic:
                raise Refused(
                    Code.MESSAGE_CORRUPTED, f"expected messages of {topic}, found one of {message.topic.name[:80]!r}"
                )
            check_message(message)
            await ask.give_way()
        kinds = [type_of(message) for message in messages]
        if MessageType.LITE in kinds:
            self._require_lite(topic, messages)
        queue = self._queue(topic, messages)
        peer = "{}:{}".format(*ask.caller.peer)
        sends: list[SendRequest] = []
        for message in messages:
            is_long = is_long_gzip(message)
            stored = await ask.in_pool(partial(stored_body, message)) if is_long else stored_body(message)
            own = self._queue_of(topic, message)
            sends.append(self._send_of(message, topic, queue if own is None else own, peer, now_ms, *stored))
            await ask.give_way()
        if MessageType.TRANSACTION in kinds:
            self._clients.sends_to(ask.caller, topic)
        pending: list[Pending] = []
        for send in sends:
            pending.append(ask.send(send))
            await ask.give_way()
        answer = SendMessageResponse()
        for message, kind, waiting in zip(messages, kinds, pending, strict=True):
            _add_entry(answer.entries.add(), message, kind, await waiting)
            await ask.give_way()
        codes = {each.status.code for each in answer.entries}
        if len(codes) == 1:
            answer.status.CopyFrom(answer.entries[0].status)
        else:
            answer.status.CopyFrom(status(Code.MULTIPLE_RESULTS))
        return answer

    def _require_lite(self, topic: str, messages: Any) -> None:
        """Raises Refused unless each light queue is there, or may begin."""
        self._lite.require_parent(topic)
        for name in {light_queue(topic, each.system_properties.lite_topic) for each in messages}:
            if not self._parts.local.may_begin_queue(name, 0):
                raise Refused(
                    Code.LITE_TOPIC_QUOTA_EXCEEDED,
                    "no memory map is left for one more light queue (vm.max_map_count): use a lite topic that is there",
                )

    def _queue_of(self, topic: str, message: Any) -> int | None:
        """The queue of a message's group, or of its lite topic; None for one that has neither."""
        config, system = self._parts.topics.get(topic), message.system_properties
        name = system.message_group or system.lite_topic
        return consistent_queue(name, max(1, SEND_QUEUES if config is None else config.write_queues)) if name else None

    def _queue(self, topic: str, messages: Any) -> int:
        """The queue for all that have no group. Raises Refused for a message of a kind that the topic does not take."""
        config = self._parts.topics.get(topic)
        queues = SEND_QUEUES if config is None else config.write_queues
        wanted = None if config is None else config.attributes.get(MESSAGE_TYPE)
        if wanted is not None and wanted != MIXED:
            taken = MESSAGE_TYPES.get(wanted, tuple(MessageType))
            for message in messages:
                if (kind := type_of(message)) not in taken:
                    raise Refused(
                        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                        f"TopicMessageType validate failed, the expected type is {wanted}, but actual type is "
                        f"{kind.name}",
                    )
        return next(self._turn) % max(1, queues)

    def _send_of(
        self, message: Any, topic: str, queue: int, peer: str, now_ms: int, body: bytes, sys_flag: int
    ) -> SendRequest:
        system = message.system_properties
        if system.message_type == MessageType.TRANSACTION:
            sys_flag |= TransactionType.PREPARED
        return SendRequest(
            RequestCode.SEND_MESSAGE_V2,
            0,
            producer_group=topic,
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=SEND_QUEUES,
            queue_id=queue,
            sys_flag=sys_flag,
            born_ms=timestamp_ms(system.born_timestamp) if system.HasField("born_timestamp") else now_ms,
            flag=0,
            properties=properties_of(message, topic, peer),
            body=body,
            version=VERSION,
        )

    # The end of a transaction.

    async def end_transaction(self, ask: Ask) -> Any:
        """Commit or roll back."""
        request = ask.request
        topic = request.topic.name
        check_topic(topic)
        require_topic(ask.caller, topic, Permission.PUB)
        if not request.transaction_id.strip():
            raise Refused(Code.INVALID_TRANSACTION_ID, "transaction id cannot be blank")
        log_offset, queue_offset = transaction_place(request.transaction_id)
        outcome = _OUTCOMES.get(request.resolution, 0)
        answer = await ask.broker(
            RequestCode.END_TRANSACTION,
            {
                "producerGroup": topic,
                "commitLogOffset": str(log_offset),
                "tranStateTableOffset": str(queue_offset),
                "commitOrRollback": str(int(outcome)),
                "fromTransactionCheck": str(request.source == ANSWER_TO_CHECK).lower(),
                "msgId": request.message_id,
                "transactionId": request.transaction_id,
            },
        )
        if answer.remark in NOT_TO_END:
            return EndTransactionResponse(status=status(Code.INVALID_TRANSACTION_ID, answer.remark))
        return EndTransactionResponse(status=status_of(answer))

    # Recall.

    async def recall(self, ask: Ask) -> Any:
        """Take back a message that waits for its time."""
        request = ask.request
        check_topic(request.topic.name)
        fields = {"topic": request.topic.name, "recallHandle": request.recall_handle, "producerGroup": ""}
        answer = await ask.broker(RequestCode.RECALL_MESSAGE, fields)
        return RecallMessageResponse(status=status_of(answer), message_id=answer.ext.get("msgId", ""))


def _add_entry(entry: Any, message: Any, kind: MessageType, answer: RemotingCommand) -> None:
    code = code_of(answer.code)
    if kind == MessageType.DELAY and answer.code == ResponseCode.MESSAGE_ILLEGAL:
        code = Code.ILLEGAL_DELIVERY_TIME
    entry.status.CopyFrom(status(code, answer.remark or ""))
    if code not in _STORED:
        return
    key = message.system_properties.message_id
    entry.message_id = entry.transaction_id = key
    entry.offset = offset = int(answer.ext.get("queueOffset", "0"))
    entry.recall_handle = answer.ext.get("recallHandle", "")
    if kind == MessageType.TRANSACTION:
        entry.transaction_id = transaction_id_of(key, int(answer.ext["msgId"][-PLACE_CHARACTERS:], 16), offset)
