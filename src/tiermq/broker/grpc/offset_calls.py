"""OffsetCalls: PullMessage, UpdateOffset, GetOffset, QueryOffset, which RocketMQ's proxy has in its protocol alone.

A pull reads one queue from an offset on, without receipts: a puller keeps its offsets here (UpdateOffset), or
itself.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.grpc.grpc_clients import (
    check_consumer,
    check_group,
    check_topic,
    code_of,
    require_topic,
    status_of,
)
from tiermq.broker.grpc.grpc_message import Refused, are_long, fill_message, text_in, timestamp_ms, wanted_tags
from tiermq.broker.pull.pull_processor import USUAL_MESSAGES_MAX
from tiermq.errors import RequestRefused
from tiermq.grpc.messages import FILTER_BY_SQL, Code, OffsetPolicy, message_class, status
from tiermq.message.properties import TAGS
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.permissions import EITHER
from tiermq.settings import LONG_MAX

if TYPE_CHECKING:
    from tiermq.broker.grpc.grpc_service import Ask

PullMessageResponse = message_class("PullMessageResponse")
UpdateOffsetResponse = message_class("UpdateOffsetResponse")
GetOffsetResponse = message_class("GetOffsetResponse")
QueryOffsetResponse = message_class("QueryOffsetResponse")
MAY_WAIT, HAS_SUBSCRIPTION = 2, 4
"""Bits of a pull's system flag."""
POLL_MS_MAX = 20_000
EMPTY = (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


class OffsetCalls:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
        self._parts = parts

    async def pull(self, ask: Ask) -> Any:
        """Messages from an offset on, and where to go on."""
        request, call = ask.request, ask.call
        try:
            answer = await self._pull(ask)
        except (Refused, RequestRefused) as error:
            code = error.code if isinstance(error, Refused) else code_of(error.code)
            call.send(PullMessageResponse(status=status(code, str(error))).SerializeToString())
            return None
        messages: list[StoredMessage] = []
        if answer.code == ResponseCode.SUCCESS:  # The broker has compared hashes of tags only.
            tags = wanted_tags(request.filter_expression)
            records = decode_records(bytes(answer.body))
            messages = [each for each in records if tags is None or text_in(each, TAGS) in tags]
        following = int(answer.ext.get("nextBeginOffset", request.offset))
        if messages:
            encode = partial(_encoded, messages)
            made = await ask.in_pool(encode) if are_long(messages) else encode()
            call.send(PullMessageResponse(status=status(Code.OK)).SerializeToString())
            for each in made:
                call.send(each)
        elif answer.code in EMPTY:
            call.send(PullMessageResponse(status=status(Code.MESSAGE_NOT_FOUND, "no new message")).SerializeToString())
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            words = f"expected an offset of the queue, found {request.offset}: go on at {following}"
            call.send(PullMessageResponse(status=status(Code.ILLEGAL_OFFSET, words)).SerializeToString())
        else:
            call.send(PullMessageResponse(status=status_of(answer)).SerializeToString())
            return None
        call.send(PullMessageResponse(next_offset=following).SerializeToString())
        return None

    async def _pull(self, ask: Ask) -> RemotingCommand:
        request = ask.request
        group, topic = request.group.name, request.message_queue.topic.name
        check_group(group)
        check_topic(topic)
        _require_offset(request.offset)
        wanted, timeout = request.filter_expression, request.long_polling_timeout
        poll_ms = min(POLL_MS_MAX, timeout.seconds * 1000 + timeout.nanos // 1_000_000)
        if (left_s := ask.call.left_s) is not None:
            poll_ms = min(poll_ms, int(left_s * 900))
        return await ask.broker(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": group,
                "topic": topic,
                "queueId": str(request.message_queue.id),
                "queueOffset": str(request.offset),
                "maxMsgNums": str(min(max(1, request.batch_size), USUAL_MESSAGES_MAX)),
                "sysFlag": str(HAS_SUBSCRIPTION | (MAY_WAIT if poll_ms > 0 else 0)),
                "commitOffset": "0",
                "suspendTimeoutMillis": str(max(0, poll_ms)),
                "subscription": wanted.expression or ("" if wanted.type == FILTER_BY_SQL else "*"),
                "expressionType": "SQL92" if wanted.type == FILTER_BY_SQL else "TAG",
                "subVersion": "0",
            },
        )

    async def update(self, ask: Ask) -> Any:
        """Keep a group's offset of a queue."""
        request = ask.request
        fields = self._place(ask, request.group.name, request.message_queue)
        _require_offset(request.offset)
        fields["commitOffset"] = str(request.offset)
        answer = await ask.broker(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        return UpdateOffsetResponse(status=status_of(answer))

    async def get(self, ask: Ask) -> Any:
        """The offset that was kept."""
        request = ask.request
        answer = await ask.broker(
            RequestCode.QUERY_CONSUMER_OFFSET, self._place(ask, request.group.name, request.message_queue)
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return GetOffsetResponse(status=status(Code.OFFSET_NOT_FOUND, answer.remark or ""))
        return GetOffsetResponse(status=status_of(answer), offset=int(answer.ext.get("offset", "0")))

    def _place(self, ask: Ask, group: str, queue: Any) -> dict[str, str]:
        check_consumer(ask.caller, group, queue.topic.name)
        return {"consumerGroup": group, "topic": queue.topic.name, "queueId": str(queue.id)}

    async def query(self, ask: Ask) -> Any:
        """Where a queue begins, ends, or is at a time."""
        request = ask.request
        queue, policy = request.message_queue, request.query_offset_policy
        check_topic(queue.topic.name)
        require_topic(ask.caller, queue.topic.name, EITHER)
        fields = {"topic": queue.topic.name, "queueId": str(queue.id)}
        if self._parts.topics.get(queue.topic.name) is None:
            raise Refused(Code.TOPIC_NOT_FOUND, f"topic {queue.topic.name} does not exist")
        code = RequestCode.GET_MIN_OFFSET if policy == OffsetPolicy.BEGINNING else RequestCode.GET_MAX_OFFSET
        if policy == OffsetPolicy.TIMESTAMP:
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            time_ms = timestamp_ms(request.timestamp)
            if not 0 <= time_ms <= LONG_MAX:
                raise Refused(
                    Code.BAD_REQUEST, f"timestamp: expected milliseconds of 64 bits, found {request.timestamp}"
                )
            fields["timestamp"] = str(time_ms)
        answer = await ask.broker(code, fields)
        return QueryOffsetResponse(status=status_of(answer), offset=int(answer.ext.get("offset", "0")))


def _require_offset(offset: int) -> None:
    """Raises Refused."""
    if offset < 0:
        raise Refused(Code.ILLEGAL_OFFSET, f"expected an offset of 0 or more, found {offset}")


def _encoded(messages: list[StoredMessage]) -> list[bytes]:
    found: list[bytes] = []
    for message in messages:
        made = PullMessageResponse()
        fill_message(made.message, message, message.topic)
        found.append(made.SerializeToString())
    return found
