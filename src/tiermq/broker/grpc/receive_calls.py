"""ReceiveCalls: ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue.

    receive ─► a pop ─► messages, each with a receipt ─► acknowledged, or given more time, or a dead letter
                │             └► not received (the call, or its connection, ended) ─► visible after a second
                └► none in time ─► MESSAGE_NOT_FOUND

A receipt handle is POP's receipt with the message's offset in the log behind it: nine words, which any broker that has
the store understands. The stream is a status, the messages, the time of delivery.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.retry_policy import INVISIBLE_MS_MOST
from tiermq.broker.grpc.grpc_clients import (
    GrpcClients,
    check_consumer,
    code_of,
    require_topic,
    status_of,
)
from tiermq.broker.grpc.grpc_leases import RENEWED_MS, Given, GrpcLeases
from tiermq.broker.grpc.grpc_message import (
    LITE_NAME,
    SHORT_BYTES_MAX,
    Refused,
    are_long,
    given_answer,
    given_page,
    set_timestamp,
    text_in,
    wanted_tags,
)
from tiermq.broker.grpc.lite_calls import LiteCalls, light_queue
from tiermq.broker.grpc.local_request import Caller, Pending
from tiermq.broker.pop.pop_acks import ACKS_MAX, ORDERED_QUEUE, Receipt
from tiermq.broker.pop.pop_checkpoints import PoppedMessage
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.broker.pop.pop_topics import MARK_NORMAL, real_topic
from tiermq.broker.pop.pop_waiting import MESSAGES_MAX
from tiermq.errors import RequestRefused
from tiermq.grpc.call import Call
from tiermq.grpc.messages import FILTER_BY_SQL, Code, message_class, status
from tiermq.kernel import AckRequest
from tiermq.message.properties import POP_CK, TAGS, UNIQ_KEY
from tiermq.message.record import decode_records
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.permissions import Permission
from tiermq.settings import LONG_MAX

if TYPE_CHECKING:
    from tiermq.broker.grpc.grpc_service import Ask

ReceiveMessageResponse = message_class("ReceiveMessageResponse")
OK = status(Code.OK)
AckMessageResponse = message_class("AckMessageResponse")
ChangeInvisibleDurationResponse = message_class("ChangeInvisibleDurationResponse")
ForwardResponse = message_class("ForwardMessageToDeadLetterQueueResponse")
POLL_S_MOST = 20.0
ANSWER_S = 0.5
"""Kept of a call's time for its answer: waiting receives are looked at four times a second."""
LOOK_S = 1.0
"""How often a topic is looked for that is not there yet."""
HANDLE_WORDS = 9
OFFSET_DIGITS_MAX = 18
EMPTY = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)


class Handle(NamedTuple):
    """A receipt handle."""

    receipt: Receipt
    log_offset: int

    def encode(self) -> str:
        return f"{self.receipt.encode()} {self.log_offset}"

    @classmethod
    def decode(cls, text: str) -> Handle:
        """The log offset is the last of nine words, or of ten, as RocketMQ's proxy writes them. Raises Refused."""
        words = text.split(" ")
        try:
            receipt = Receipt.decode(text, -1)
            log_offset = int(words[-1]) if len(words) >= HANDLE_WORDS else -1
        except (RequestRefused, ValueError) as error:
            raise Refused(Code.INVALID_RECEIPT_HANDLE, f"expected a receipt handle, found {text[:80]!r}") from error
        return cls(receipt, log_offset)


Popped = tuple[StoredMessage, Handle, int]
"""A message, and the number of its delivery."""
Shown = tuple[StoredMessage, str, int]
"""The same, its handle in text."""


class ReceiveCalls:
    """See the module."""

    def __init__(
        self, parts: BrokerContext, clients: GrpcClients, pops: PopProcessor, leases: GrpcLeases, lite: LiteCalls
    ) -> None:
        self._parts = parts
        self._clients = clients
        self._pops = pops
        self._leases = leases
        self._lite = lite
        self._forwarding: set[tuple[str, str, int, int]] = set()

    def _check_consumer(self, caller: Caller, group: str, topic: str) -> None:
        """Raises Refused and RequestRefused."""
        check_consumer(caller, group, topic)
        self._clients.require_known_lite(caller, group)

    # Receiving.

    async def receive(self, ask: Ask) -> Any:
        """Pop messages, and wait for some."""
        request, call = ask.request, ask.call
        group, topic = request.group.name, request.message_queue.topic.name
        try:
            self._check_consumer(ask.caller, group, topic)
            if self._lite.is_lite(ask.caller):
                await self._receive_lite(ask, group, topic)
                return None
            command = await self._pop(ask, group, topic)
        except (Refused, RequestRefused) as error:
            code = error.code if isinstance(error, Refused) else code_of(error.code)
            self._end(call, status(code, str(error)))
            return None
        if command is None or command.code in EMPTY:
            self._end(call, status(Code.MESSAGE_NOT_FOUND, "no new message"))
        elif command.code != ResponseCode.SUCCESS:
            self._end(call, status_of(command))
        else:
            given, answers = given_in(group, topic, command.ext), self._plain(request, group, command)
            if answers is None:
                await self._give(ask, group, topic, self._popped(command), given, self._leases.give_back)
            else:
                self._hand_over(ask, answers, given, self._leases.give_back)
        return None

    async def _receive_lite(self, ask: Ask, group: str, topic: str) -> None:
        """The same of what a client has subscribed to below a topic."""
        found = self._parts.groups.get(group)
        if found is None or not found.consume_enable:
            raise Refused(Code.FORBIDDEN, f"group {group} may not consume")
        popped = await self._lite.pop(ask, topic, self._fields_of_pop(ask, group, is_ordered=True), self._poll_s(ask))
        if popped:
            given = self._lite.given(group, popped)
            handles = [
                (each.message, Handle(each.receipt, each.message.physical_offset), each.attempt) for each in popped
            ]
            await self._give(ask, group, topic, handles, given, self._lite.give_back)
        else:
            self._end(ask.call, status(Code.MESSAGE_NOT_FOUND, "no new message"))

    async def _pop(self, ask: Ask, group: str, topic: str) -> RemotingCommand | None:
        request = ask.request
        poll_s = self._poll_s(ask)
        self._invisible_ms(request)
        if self._parts.topics.get(topic) is None:
            poll_s = await self._await_topic(ask, topic, poll_s)
            if self._parts.topics.get(topic) is None:
                return None
        found = self._parts.groups.get(group)
        is_ordered = found is not None and found.consume_message_orderly
        config = self._parts.topics.get(topic)
        queue = request.message_queue.id
        # Push consumers have been assigned queues; simple ones name one of the route by chance, and mean all. A client
        # that had the route of a topic before it was made may know of queues that there are not.
        is_known = config is not None and 0 <= queue < config.read_queues and is_ordered and request.auto_renew
        fields = self._fields_of_pop(ask, group, is_ordered=is_ordered) | {
            "topic": topic,
            "queueId": str(queue if is_known else -1),
            "pollTime": str(int(poll_s * 1000)),
        }
        pending = ask.broker(RequestCode.POP_MESSAGE, fields)
        try:
            return await pending
        except GeneratorExit:  # The client is gone, and a read of the tier goes on.
            pending.resume = partial(self._came_late, pending, group, topic)
            raise

    def _came_late(self, pending: Pending, group: str, topic: str) -> None:
        """What was popped for a client that is gone."""
        command = pending.value
        if command.code == ResponseCode.SUCCESS:
            self._leases.give_back(given_in(group, topic, command.ext))

    def _fields_of_pop(self, ask: Ask, group: str, *, is_ordered: bool) -> dict[str, str]:
        """The fields of the request, without its position. Raises Refused."""
        request = ask.request
        wanted = request.filter_expression
        fields = {
            "consumerGroup": group,
            "maxMsgNums": str(min(max(1, request.batch_size), MESSAGES_MAX)),
            "invisibleTime": str(self._invisible_ms(request)),
            "pollTime": "0",
            "bornTime": str(self._parts.clock.now_ms()),
            "initMode": "1",
            "expType": "SQL92" if wanted.type == FILTER_BY_SQL else "TAG",
            "exp": wanted.expression or ("" if wanted.type == FILTER_BY_SQL else "*"),
            "order": str(is_ordered).lower(),
        }
        if is_ordered and request.attempt_id:
            fields["attemptId"] = request.attempt_id
        return fields

    def _poll_s(self, ask: Ask) -> float:
        """How long to wait for messages. Raises Refused."""
        request, left_s = ask.request, ask.call.left_s
        least_s = self._parts.config.grpc_client_consumer_min_long_polling_timeout_millis / 1000
        if request.HasField("long_polling_timeout"):
            wanted_s = request.long_polling_timeout.seconds + request.long_polling_timeout.nanos / 1e9
        else:
            wanted_s = POLL_S_MOST
        poll_s = min(max(float(wanted_s), least_s), POLL_S_MOST)
        if left_s is None or poll_s <= left_s - ANSWER_S:
            return poll_s
        if left_s < least_s:
            raise Refused(
                Code.ILLEGAL_POLLING_TIME,
                f"expected at least {least_s} s for the call, found {max(0.0, left_s):.1f} s",
            )
        return max(0.0, left_s - ANSWER_S)

    def _invisible_ms(self, request: Any) -> int:
        """Raises Refused."""
        if request.auto_renew:
            return RENEWED_MS
        wanted, least_ms = request.invisible_duration, self._parts.config.min_invisible_time_mills_for_recv
        invisible_ms = int(wanted.seconds * 1000 + wanted.nanos // 1_000_000)
        if not least_ms <= invisible_ms <= INVISIBLE_MS_MOST:
            raise Refused(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"expected an invisible duration of {least_ms} to {INVISIBLE_MS_MOST} ms, found {invisible_ms}",
            )
        return invisible_ms

    async def _await_topic(self, ask: Ask, topic: str, poll_s: float) -> float:
        """Until the topic is there, or the time is over; what is left of it. Raises Refused if none may be made."""
        if not self._parts.config.auto_create_topic_enable:
            raise Refused(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist: create it first")
        while poll_s > 0 and self._parts.topics.get(topic) is None:
            step_s = min(LOOK_S, poll_s)
            pending = Pending()
            ask.caller.loop.call_later(step_s, pending.answer, RemotingCommand(0))
            await pending
            poll_s -= step_s
        return max(0.0, poll_s)

    async def _give(
        self,
        ask: Ask,
        group: str,
        topic: str,
        popped: list[Popped],
        given: Given,
        give_back: Callable[[Given], None],
    ) -> None:
        """Send what was popped, but for what the client must not get."""
        try:
            answers = await self._answers(ask, group, topic, popped)
        except BaseException:  # The client is gone, or a message cannot be given.
            give_back(given)
            raise
        if answers:
            self._hand_over(ask, answers, given, give_back)
        else:
            self._end(ask.call, status(Code.MESSAGE_NOT_FOUND, "no match message"))

    def _hand_over(self, ask: Ask, answers: list[bytes], given: Given, give_back: Callable[[Given], None]) -> None:
        call = ask.call
        call.on_lost = partial(give_back, given)
        if ask.request.auto_renew:
            call.on_taken = partial(self._leases.take, given, ask.caller.key, self._clients.find(ask.caller))
        self._end(call, status(Code.OK), *answers)

    def _plain(self, request: Any, group: str, command: RemotingCommand) -> list[bytes] | None:
        """The answers for a pop of plain messages that all go to the client, without an object for each."""
        body, ext = bytes(command.body), command.ext
        revive, found = ext["reviveQid"], self._parts.groups.get(group)
        if len(body) > SHORT_BYTES_MAX or int(revive) == ORDERED_QUEUE:
            return None
        if found is not None and found.retry_max_times < 0:
            return None
        shared = f"{ext['popTime']} {ext['invisibleTime']} {revive} {MARK_NORMAL} {self._parts.config.broker_name}"
        handles = {
            queue: f"{first} {shared} {queue}".encode() for mark, queue, first in _starts(ext) if mark == MARK_NORMAL
        }
        tags = wanted_tags(request.filter_expression)
        return given_page(body, request.message_queue.topic.name.encode(), handles, tags)

    async def _answers(self, ask: Ask, group: str, topic: str, popped: list[Popped]) -> list[bytes]:
        """Each message that the client gets, with its handle."""
        request = ask.request
        wanted = wanted_tags(request.filter_expression)
        found = self._parts.groups.get(group)
        most = 1 + (16 if found is None else found.retry_max_times)
        is_lite = self._lite.is_lite(ask.caller)
        given: list[Shown] = []
        for message, handle, attempt in popped:
            lite = text_in(message, LITE_NAME) if is_lite else None
            if wanted is not None and text_in(message, TAGS) not in wanted:
                await self._acknowledge(ask, group, topic, handle, lite)
                continue
            if attempt > most:
                await self._bury(ask, group, topic, handle, text_in(message, UNIQ_KEY) or message.message_id, lite)
                continue
            given.append((message, handle.encode(), attempt))
        encode = partial(_encoded, topic, given)
        return await ask.in_pool(encode) if are_long(each for each, _, _ in given) else encode()

    def _end(self, call: Call, found: Any, *answers: bytes) -> None:
        last = ReceiveMessageResponse()
        set_timestamp(last.delivery_timestamp, self._parts.clock.now_ms())
        call.send(ReceiveMessageResponse(status=found).SerializeToString(), *answers, last.SerializeToString())

    def _popped(self, command: RemotingCommand) -> list[Popped]:
        """The messages of a pop's answer, each with its handle and the number of its delivery."""
        ext = command.ext
        starts = {queue: first for mark, queue, first in _starts(ext) if mark == MARK_NORMAL}
        counts = _order_counts(ext.get("orderCountInfo", ""))
        pop_ms, invisible_ms, revive = (int(ext[name]) for name in ("popTime", "invisibleTime", "reviveQid"))
        broker, found = self._parts.config.broker_name, []
        for message in decode_records(bytes(command.body)):
            queue, offset = message.queue_id, message.queue_offset
            receipt = _own_receipt(message, pop_ms)
            if receipt is None:
                start = starts.get(queue, offset)
                receipt = Receipt(start, pop_ms, invisible_ms, revive, MARK_NORMAL, broker, queue, offset)
            handle = Handle(receipt, message.physical_offset)
            attempt = 1 + max(message.reconsume_times, counts.get((queue, offset), 0))
            found.append((message, handle, attempt))
        return found

    # Ends.

    async def acknowledge(self, ask: Ask) -> Any:
        """Acknowledge messages, each with a status."""
        request = ask.request
        group, topic = request.group.name, request.topic.name
        self._check_consumer(ask.caller, group, topic)
        if not request.entries or len(request.entries) > ACKS_MAX:
            raise Refused(
                Code.BAD_REQUEST, f"expected 1 to {ACKS_MAX} entries to acknowledge, found {len(request.entries)}"
            )
        answer = AckMessageResponse()
        together: list[AckRequest] = []
        checked: dict[str, int] = {}
        has_failed = False
        for number, entry in enumerate(request.entries):
            await ask.give_way()
            text = entry.receipt_handle
            made = answer.entries.add(message_id=entry.message_id, receipt_handle=text, status=OK)
            shared, offset = _split(text)
            if (queue := checked.get(shared)) is not None and not entry.lite_topic:
                together.append(
                    AckRequest(number, group=group, topic=topic, queue_id=queue, offset=offset, receipt=shared)
                )
                continue
            try:
                handle = self._own(text)
                is_open = self._require_open(group, topic, handle)
                if lite := self._lite_topic(ask.caller, topic, handle, entry.lite_topic):
                    self._lite.acknowledge(group, light_queue(topic, lite), handle.receipt)
                    continue
            except Refused as error:
                made.status.CopyFrom(status(error.code, str(error)))
                has_failed = True
                continue
            together.append(_ack_of(number, group, topic, handle.receipt))
            if is_open and shared:
                checked[shared] = handle.receipt.queue_id
        for each in ask.acknowledge(together):
            handle = self._own(request.entries[each.opaque].receipt_handle)
            found = status_of(await self._acknowledge(ask, group, topic, handle))
            stored_in = real_topic(group, topic, handle.receipt.mark)
            if found.code == Code.OK and not self._pops.acks.was_given(group, stored_in, handle.receipt):
                found = status(Code.INVALID_RECEIPT_HANDLE, "the receipt handle is outdated, or none of a receive")
            answer.entries[each.opaque].status.CopyFrom(found)
            has_failed = has_failed or found.code != Code.OK
        codes = {each.status.code for each in answer.entries} if has_failed else {Code.OK}
        answer.status.CopyFrom(answer.entries[0].status if len(codes) == 1 else status(Code.MULTIPLE_RESULTS))
        return answer

    def _acknowledge(self, ask: Ask, group: str, topic: str, handle: Handle, lite: str | None = None) -> Pending:
        """`lite`: the lite topic that the message is from. Raises Refused."""
        if lite is not None:
            self._lite.acknowledge(group, light_queue(topic, lite), handle.receipt)
            done = Pending()
            done.answer(RemotingCommand(ResponseCode.SUCCESS))
            return done
        return ask.broker(RequestCode.ACK_MESSAGE, _fields(group, topic, handle))

    async def change_time(self, ask: Ask) -> Any:
        """Another invisible time for a message, and its new handle."""
        request = ask.request
        group, topic = request.group.name, request.topic.name
        self._check_consumer(ask.caller, group, topic)
        handle = self._own(request.receipt_handle)
        wanted = request.invisible_duration
        invisible_ms = wanted.seconds * 1000 + wanted.nanos // 1_000_000
        if not 0 <= invisible_ms <= INVISIBLE_MS_MOST:
            raise Refused(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"expected an invisible duration of 0 to {INVISIBLE_MS_MOST} ms, found {invisible_ms}",
            )
        if lite := self._lite_topic(ask.caller, topic, handle, request.lite_topic):
            return self._change_lite(group, light_queue(topic, lite), handle, request, invisible_ms)
        self._require_open(group, topic, handle)
        fields = {**_fields(group, topic, handle), "invisibleTime": str(invisible_ms)}
        answer = await ask.broker(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        if answer.code != ResponseCode.SUCCESS:
            code = Code.INVALID_RECEIPT_HANDLE if answer.code == ResponseCode.MESSAGE_ILLEGAL else code_of(answer.code)
            return ChangeInvisibleDurationResponse(status=status(code, answer.remark or ""))
        old, ext = handle.receipt, answer.ext
        revive = int(ext["reviveQid"])
        start = old.start_offset if revive == ORDERED_QUEUE else old.offset
        receipt = Receipt(
            start,
            int(ext["popTime"]),
            int(ext["invisibleTime"]),
            revive,
            old.mark,
            old.broker,
            old.queue_id,
            old.offset,
        )
        return ChangeInvisibleDurationResponse(
            status=status(Code.OK), receipt_handle=Handle(receipt, handle.log_offset).encode()
        )

    def _change_lite(self, group: str, queue: str, handle: Handle, request: Any, invisible_ms: int) -> Any:
        receipt = handle.receipt
        if not self._lite.change_time(group, queue, receipt, invisible_ms, suspended=request.suspend):
            raise Refused(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
        changed = Handle(dataclasses.replace(receipt, invisible_ms=invisible_ms), handle.log_offset)
        return ChangeInvisibleDurationResponse(status=status(Code.OK), receipt_handle=changed.encode())

    async def forward(self, ask: Ask) -> Any:
        """Make a message a dead letter."""
        request = ask.request
        group, topic = request.group.name, request.topic.name
        self._check_consumer(ask.caller, group, topic)
        handle = self._own(request.receipt_handle)
        if not 0 <= handle.log_offset <= LONG_MAX:
            raise Refused(
                Code.INVALID_RECEIPT_HANDLE,
                f"expected a receipt handle whose ninth word is an offset, found {request.receipt_handle[:80]!r}",
            )
        lite = self._lite_topic(ask.caller, topic, handle, request.lite_topic) or None
        stored_in = light_queue(topic, lite) if lite else real_topic(group, topic, handle.receipt.mark)
        self._require_own_record(ask.caller, topic if lite else stored_in, handle, lite)
        place = (group, stored_in, handle.receipt.queue_id, handle.receipt.offset)
        if place in self._forwarding:
            raise Refused(Code.INVALID_RECEIPT_HANDLE, "another call forwards this message now")
        try:
            self._pops.acks.require_open(group, stored_in, handle.receipt)
        except RequestRefused as error:
            is_over = error.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_MESSAGE)
            raise Refused(Code.INVALID_RECEIPT_HANDLE if is_over else code_of(error.code), str(error)) from error
        self._forwarding.add(place)
        try:
            return ForwardResponse(status=await self._bury(ask, group, topic, handle, request.message_id, lite))
        finally:
            self._forwarding.discard(place)

    def _require_own_record(self, caller: Caller, stored_in: str, handle: Handle, lite: str | None) -> None:
        """Raises Refused, or RequestRefused, if the log has another message at a handle's offset. With a tier, whose
        messages may be those of another broker's log, the message's id decides.
        """
        found = None if self._parts.tiered is not None else self._parts.local.stored_at(handle.log_offset)
        if found is None:
            return
        place = (found.topic, found.queue_id, found.queue_offset)
        is_own = place == (stored_in, handle.receipt.queue_id, handle.receipt.offset)
        if lite is not None:
            is_own = found.topic == stored_in and text_in(found, LITE_NAME) == lite
        if not is_own:
            require_topic(caller, found.topic, Permission.SUB)
            raise Refused(
                Code.INVALID_RECEIPT_HANDLE, f"expected the offset of the handle's message, found {handle.log_offset}"
            )

    async def _bury(
        self, ask: Ask, group: str, topic: str, handle: Handle, message_id: str, lite: str | None = None
    ) -> Any:
        stored_in = real_topic(group, topic, handle.receipt.mark)
        fields = {
            "offset": str(handle.log_offset),
            "group": group,
            "delayLevel": "-1",
            "originMsgId": message_id,
            "originTopic": stored_in,
            "maxReconsumeTimes": "0",
        }
        answer = await ask.broker(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        if answer.code == ResponseCode.SUCCESS:
            answer = await self._acknowledge(ask, group, topic, handle, lite)
        return status_of(answer)

    def _lite_topic(self, caller: Caller, topic: str, handle: Handle, named: str) -> str:
        """The lite topic that a message was received from; empty for another one. Java's client (5.1.0) does not name
        it when a message failed: then it is that of the record.
        """
        if named or not handle.receipt.is_ordered or not self._lite.is_lite(caller):
            return named
        found = self._parts.local.stored_at(handle.log_offset)
        return "" if found is None or found.topic != topic else text_in(found, LITE_NAME) or ""

    def _own(self, text: str) -> Handle:
        """A handle of this broker. Raises Refused: another broker's queues and offsets mean other messages here."""
        handle = Handle.decode(text)
        own = self._parts.config.broker_name
        if handle.receipt.broker != own:
            raise Refused(
                Code.INVALID_RECEIPT_HANDLE,
                f"expected a receipt handle of this broker, {own}, found one of {handle.receipt.broker[:80]!r}: send "
                "it to that broker's endpoint",
            )
        return handle

    def _require_open(self, group: str, topic: str, handle: Handle) -> bool:
        """Raises Refused for a receipt whose time is over: its message is delivered again. Whether the time is not over
        by the receipt itself: then that holds for all messages of its pop.
        """
        receipt = handle.receipt
        if receipt.pop_ms + receipt.invisible_ms > self._parts.clock.now_ms() or receipt.is_ordered:
            return True  # Of a longer time since its pop, the check point knows.
        point = self._pops.log.points.find(_point_of(group, topic, receipt))
        if point is None or receipt.offset not in point.open:
            raise Refused(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
        return False


def _point_of(group: str, topic: str, receipt: Receipt) -> PoppedMessage:
    stored_in = real_topic(group, topic, receipt.mark)
    return PoppedMessage(group, stored_in, receipt.queue_id, receipt.start_offset, receipt.pop_ms)


def given_in(group: str, topic: str, ext: Mapping[str, str]) -> Given:
    """The pops of an answer. One has several, from different queues."""
    pop_ms = int(ext["popTime"])
    pops = (
        PoppedMessage(group, real_topic(group, topic, mark), queue, first, pop_ms)
        for mark, queue, first in _starts(ext)
    )
    return Given(frozenset(pops), is_ordered=int(ext["reviveQid"]) == ORDERED_QUEUE)


def _own_receipt(message: StoredMessage, pop_ms: int) -> Receipt | None:
    """The receipt that this pop has written into a message of a retry topic. A producer that passes a message on may
    have stored an old one, or any text, under its name.
    """
    text = text_in(message, POP_CK)
    if text is None:
        return None
    try:
        receipt = Receipt.decode(text, message.queue_offset)
    except RequestRefused:
        return None
    return receipt if receipt.pop_ms == pop_ms and receipt.mark != MARK_NORMAL else None


def _starts(ext: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """Of a pop's answer: kind of topic, queue, and the first offset that was popped."""
    for text in filter(None, ext.get("startOffsetInfo", "").split(";")):
        mark, queue, first = text.split(" ")
        yield mark, int(queue), int(first)


def _encoded(topic: str, given: list[Shown]) -> list[bytes]:
    name = topic.encode()
    return [given_answer(message, name, handle, attempt) for message, handle, attempt in given]


def _split(text: str) -> tuple[str, int]:
    """What a handle of nine words shares with the others of its pop and queue, and its offset in the queue; of another
    text nothing.
    """
    words = text.split(" ")
    if len(words) != HANDLE_WORDS or not text.isascii() or not (words[-1].isdigit() and words[-2].isdigit()):
        return "", -1
    shared = text[: -len(words[-1]) - len(words[-2]) - 2]
    return (shared, int(words[-2])) if len(words[-2]) <= OFFSET_DIGITS_MAX else ("", -1)


def _ack_of(number: int, group: str, topic: str, receipt: Receipt) -> AckRequest:
    """Messages of one check point have one text, and are acknowledged together."""
    text = receipt.encode().rpartition(" ")[0]
    return AckRequest(number, group=group, topic=topic, queue_id=receipt.queue_id, offset=receipt.offset, receipt=text)


def _fields(group: str, topic: str, handle: Handle) -> dict[str, str]:
    receipt = handle.receipt
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(receipt.queue_id),
        "offset": str(receipt.offset),
        "extraInfo": receipt.encode(),
    }


def _order_counts(text: str) -> dict[tuple[int, int], int]:
    """How often messages of an ordered pop were delivered before, by queue and offset."""
    found: dict[tuple[int, int], int] = {}
    for each in filter(None, text.split(";")):
        _, key, count = each.split(" ")
        if key.startswith("qo"):
            queue, _, offset = key[2:].partition("%")
            found[int(queue), int(offset)] = int(count)
    return found
