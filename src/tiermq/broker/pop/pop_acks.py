"""PopAcks: ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

    acknowledged     recorded in the log, and removed from the check point
    more time        a new check point for the message, then acknowledged in the old one
    popped in order  no check point: the group's offset follows (`OrderInfos`)

An acknowledgement with an expired receipt (its message was revived already) succeeds, as in RocketMQ: the message is
delivered again. A change of its invisible time is refused. An invalid queue or offset is an error for the client.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.group.offset_processor import require_client_group
from tiermq.broker.pop.order_infos import OrderInfos
from tiermq.broker.pop.pop_checkpoints import CheckPoint, PoppedMessage
from tiermq.broker.pop.pop_log import PopLog
from tiermq.broker.pop.pop_topics import MARK_NORMAL, MARK_RETRY, MARK_RETRY_V2, OwnRetries, is_of_pair, real_topic
from tiermq.broker.pop.pop_waiting import INVISIBLE_MS_MAX
from tiermq.errors import CorruptRecord, RequestRefused
from tiermq.kernel import AckRequest
from tiermq.message.layout import PROPERTIES_BYTES_MAX
from tiermq.message.properties import FIRST_POP_TIME, GIVEN_BACK, POP_CK, delete_property, with_property
from tiermq.remoting.access import of_group, reaches, reads, require_group, require_topic, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, int32_field, int_field, text_field
from tiermq.remoting.connection import Connection
from tiermq.remoting.json_dialect import decode_object, int32_in, int64_in, object_in, text_in
from tiermq.remoting.limits import check_count
from tiermq.remoting.permissions import Permission

ACKS_MAX = 4_096
"""Entries of one batch of acknowledgements."""

ORDERED_QUEUE = 999
"""Instead of a revive queue id: popped in order."""
WORDS_MIN = 7
_MARKS = (MARK_NORMAL, MARK_RETRY, MARK_RETRY_V2)
_NUMBER_MAX = 1 << 63
BITS_MAX = 1024
"""Offsets of one entry of a batch."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt of a popped message, to acknowledge it or to extend its invisible time.

        startOffset popTime invisibleTime reviveQueue mark brokerName queueId offset …      in text, separated by spaces

    Further words are ignored, as RocketMQ's `ExtraInfoUtil` does: its proxy appends the commit log offset. The mark
    is 0 for the topic, 1 or 2 for its retry topic. RocketMQ's clients build receipts from a pop's
    answer, and show them as the field `extraInfo`.
    """

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    mark: str
    broker: str
    queue_id: int
    offset: int

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue == ORDERED_QUEUE

    def encode(self) -> str:
        parts = (self.start_offset, self.pop_ms, self.invisible_ms, self.revive_queue, self.mark)
        return " ".join(map(str, (*parts, self.broker, self.queue_id, self.offset)))

    def added_to(self, properties: bytes) -> bytes | None:
        """The properties of a message that is delivered with its receipt; None when an answer cannot hold them.

        If space is short, fields that only brokers read are left out.
        """
        found = with_property(properties, POP_CK, self.encode())
        if len(found) > PROPERTIES_BYTES_MAX:
            for name in (GIVEN_BACK, FIRST_POP_TIME):
                found = delete_property(found, name.encode())
        return found if len(found) <= PROPERTIES_BYTES_MAX else None

    @classmethod
    def decode(cls, text: str, offset: int) -> Receipt:
        """`offset` is used where the text ends before it. Raises RequestRefused."""
        parts = text.split(" ")
        if len(parts) == WORDS_MIN:
            parts.append(str(offset))
        if len(parts) <= WORDS_MIN or parts[4] not in _MARKS:
            raise RequestRefused(f"expected a receipt of at least {WORDS_MIN} words in extraInfo, found {text[:80]!r}")
        start, pop_ms, invisible_ms, revive_queue, queue_id, place = (_number(parts[at]) for at in (0, 1, 2, 3, 6, 7))
        return cls(start, pop_ms, invisible_ms, revive_queue, parts[4], parts[5], queue_id, place)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < _NUMBER_MAX):
        raise RequestRefused(f"expected a number in a receipt, found {text[:40]!r}")
    return int(text)


def _acks_in(command: RemotingCommand) -> list[Any]:
    """Raises RequestRefused."""
    entries = decode_object(command.body).get("acks")
    if not isinstance(entries, list):
        raise RequestRefused("expected a list in acks, found none")
    check_count("entries of acks", len(entries), ACKS_MAX)
    return entries


class PopAcks:
    """See the module. Runs on the loop: the store's append is memory work."""

    def __init__(
        self, parts: BrokerContext, log: PopLog, orders: OrderInfos, queue_freed: Callable[[str, int], None]
    ) -> None:
        """`queue_freed` is called with topic and queue when a group that pops in order may have more of it."""
        self._parts = parts
        self._log = log
        self._orders = orders
        self._queue_freed = queue_freed

    # Acknowledging.

    @serves(RequestCode.ACK_MESSAGE, access=of_group("consumerGroup") & reads("topic"))
    def acknowledge(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, receipt, topic = self._shown(command)
        due_ms = receipt.pop_ms + receipt.invisible_ms
        self.finish(_popped(group, topic, receipt), [receipt.offset], receipt.revive_queue, due_ms)
        return command.respond()

    def acknowledge_run(self, acks: list[AckRequest]) -> list[AckRequest]:
        """The same of requests that came together: one record of the log for each check point.

        Returns those that must be acknowledged one by one, each with its error: also where one is not open any more.
        """
        points: dict[tuple[str, str, str], list[AckRequest]] = {}
        for ack in acks:
            points.setdefault((ack.group, ack.topic, ack.receipt), []).append(ack)
        left: list[AckRequest] = []
        for (group, name, text), own in points.items():
            offsets = sorted({each.offset for each in own})
            try:
                receipt = Receipt.decode(text, offsets[0])
                topic = self._stored_in(group, name, receipt.mark, receipt.queue_id)
                self._require_stored(topic, receipt.queue_id, offsets[0], offsets[-1])
                due_ms = receipt.pop_ms + receipt.invisible_ms
                if not self.finish(_popped(group, topic, receipt), offsets, receipt.revive_queue, due_ms):
                    left += own
            except RequestRefused:
                left += own
        return left

    @serves(RequestCode.BATCH_ACK_MESSAGE, access=reaches("SUB of each group, SUB of each topic"), decode=_acks_in)
    def acknowledge_many(
        self, connection: Connection, command: RemotingCommand, entries: list[Any]
    ) -> RemotingCommand | None:
        return self._parts.server.in_steps(connection, command, self._acknowledging(command, entries))

    def _acknowledging(self, command: RemotingCommand, entries: list[Any]) -> Generator[None, None, RemotingCommand]:
        """One entry at a time: other requests are served in between. One that names no queue refuses the request once
        the others are acknowledged.
        """
        refused: RequestRefused | None = None
        for entry in entries:
            yield
            table = object_in(entry, "an element of acks")
            group, mark = text_in(table.get("c"), "c"), text_in(table.get("r"), "r") or "0"
            name = text_in(table.get("t"), "t")
            require_group(command, group)
            require_topic(command, name, Permission.SUB)
            require_client_group(group)
            queue_id, start = int32_in(table, "q"), int64_in(table, "so")
            pop_ms, invisible_ms, revive_queue = int64_in(table, "pt"), int64_in(table, "it"), int32_in(table, "rq")
            offsets = [start + bit for bit in _bits(table)]
            if not offsets:
                continue
            try:
                topic = self._stored_in(group, name, mark, queue_id)
            except RequestRefused as error:
                refused = refused or error
                continue
            popped = PoppedMessage(group, topic, queue_id, start, pop_ms)
            self.finish(popped, offsets, revive_queue, pop_ms + invisible_ms)
        if refused is not None:
            raise refused
        return command.respond()

    def finish(self, popped: PoppedMessage, offsets: list[int], revive_queue: int, due_ms: int) -> bool:
        """Messages of a pop are acknowledged. False unless all of them were its own, and open."""
        if revive_queue != ORDERED_QUEUE:
            if self._is_awaited(popped, revive_queue, due_ms):
                self._log.acknowledge_early(revive_queue, popped, offsets, due_ms)
                return True
            return self._log.acknowledge(popped, offsets)
        queue, are_own = (popped.topic, popped.group, popped.queue_id), True
        for offset in offsets:
            after = self._orders.acknowledge(queue, offset, popped.pop_ms)
            are_own = are_own and after is not None
            if after is not None and after > self._parts.offsets.query(popped.group, popped.topic, popped.queue_id):
                self._parts.offsets.commit(popped.group, popped.topic, popped.queue_id, after)
        if self._orders.blocked_until_ms(queue) is None:
            self._queue_freed(popped.topic, popped.queue_id)
        return are_own

    def was_given(self, group: str, topic: str, receipt: Receipt) -> bool:
        """False for a receipt that is known to be none of a pop, or outdated. A message that was acknowledged counts:
        its acknowledgement may come again.
        """
        popped = _popped(group, topic, receipt)
        if receipt.is_ordered:
            return self._orders.was_given((topic, group, receipt.queue_id), receipt.offset, receipt.pop_ms)
        if (point := self._log.points.find(popped)) is not None:
            return receipt.offset in point.offsets
        return self._may_be_of(popped, receipt.offset)

    def _may_be_of(self, popped: PoppedMessage, offset: int) -> bool:
        """Whether a pop that is not known here may have given a message: the group has gone past it."""
        passed = self._parts.offsets.query(popped.group, popped.topic, popped.queue_id)
        return popped.start_offset <= offset < passed and popped.pop_ms <= self._parts.clock.now_ms()

    def require_open(self, group: str, topic: str, receipt: Receipt) -> None:
        """Raises RequestRefused for a receipt whose message was acknowledged, was delivered again, or is none of its
        pop.
        """
        popped = _popped(group, topic, receipt)
        if not receipt.is_ordered:
            point, _ = self._open_point(popped, receipt)
            if point is None and not self._may_be_of(popped, receipt.offset):
                raise _over(receipt)
        elif not self._orders.was_given((topic, group, receipt.queue_id), receipt.offset, receipt.pop_ms, is_open=True):
            raise _over(receipt)

    def _open_point(self, popped: PoppedMessage, receipt: Receipt) -> tuple[CheckPoint | None, int]:
        """The check point of a message that is open, and its revive queue; None if a timer will deliver it. Raises
        RequestRefused.
        """
        due_ms = receipt.pop_ms + receipt.invisible_ms
        is_awaited = self._is_awaited(popped, receipt.revive_queue, due_ms)
        if is_awaited:
            self._log.check_early(receipt.revive_queue, popped, [receipt.offset], due_ms)
            if self._log.was_early(receipt.revive_queue, popped, receipt.offset):
                raise _over(receipt)
        point = self._log.points.find(popped)
        if not is_awaited and (point is None or receipt.offset not in point.open):
            raise _over(receipt)
        if point is None and not self._is_own(popped, receipt.offset):
            raise _over(receipt)
        return point, receipt.revive_queue if point is None else point.revive_queue

    def _is_awaited(self, popped: PoppedMessage, revive_queue: int, due_ms: int) -> bool:
        """Whether RocketMQ made the check point, and a timer will deliver it before it is due."""
        if self._log.points.find(popped) is not None or not self._log.is_awaited(revive_queue, popped, due_ms):
            return False
        timers = self._parts.timers
        return timers is not None and not timers.is_idle

    # Extend the invisible time.

    @serves(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, access=of_group("consumerGroup") & reads("topic"))
    def change_time(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, receipt, topic = self._shown(command)
        invisible_ms = int_field(command, "invisibleTime")
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise RequestRefused(
                f"invisibleTime: expected 0 to {INVISIBLE_MS_MAX} ms, found {invisible_ms}",
                ResponseCode.INVALID_PARAMETER,
            )
        now_ms = self._parts.clock.now_ms()
        popped = _popped(group, topic, receipt)
        if receipt.is_ordered:
            queue = (topic, group, receipt.queue_id)
            if not self._orders.change_time(queue, receipt.offset, receipt.pop_ms, now_ms + invisible_ms):
                raise _over(receipt)
            if self._orders.blocked_until_ms(queue) is None:
                self._queue_freed(topic, receipt.queue_id)
            return command.respond(ext=_receipt_fields(receipt.pop_ms, invisible_ms, ORDERED_QUEUE))
        _, revive_queue = self._open_point(popped, receipt)
        own = PoppedMessage(group, topic, receipt.queue_id, receipt.offset, now_ms)
        while self._log.points.find(own) is not None:
            own = own._replace(pop_ms=own.pop_ms + 1)  # Several within one millisecond: each needs a unique pop time.
        self._log.begin(revive_queue, own, invisible_ms, (receipt.offset,), instead_of=popped)
        self.finish(popped, [receipt.offset], revive_queue, receipt.pop_ms + receipt.invisible_ms)
        return command.respond(ext=_receipt_fields(own.pop_ms, invisible_ms, revive_queue))

    def _is_own(self, popped: PoppedMessage, offset: int) -> bool:
        """Whether a message without a check point here may be the group's."""
        if not is_of_pair(popped.group, popped.topic):
            return True
        own = OwnRetries(self._parts, popped.group, popped.topic)
        try:
            found = self._parts.local.get(popped.topic, popped.queue_id, offset, 1).messages
        except CorruptRecord:
            return False
        return any(each.queue_offset == offset and own.are_own(each.encoded_properties) for each in found)

    # Receipts.

    def _shown(self, command: RemotingCommand) -> tuple[str, Receipt, str]:
        """Group, receipt and the message's topic. Raises RequestRefused."""
        group, name = text_field(command, "consumerGroup"), text_field(command, "topic")
        queue_id, offset = int32_field(command, "queueId"), int_field(command, "offset")
        receipt = Receipt.decode(text_field(command, "extraInfo"), offset)
        stored_in = self._stored_in(group, name, receipt.mark, queue_id)
        if receipt.queue_id != queue_id:
            raise self._illegal_queue(stored_in, queue_id)
        self._require_stored(stored_in, queue_id, offset, offset)
        if receipt.offset != offset:
            raise self._illegal_offset(stored_in, queue_id, offset)
        return group, receipt, stored_in

    def _stored_in(self, group: str, name: str, mark: str, queue_id: int) -> str:
        """The topic of a receipt's queue. Raises RequestRefused unless it has that queue."""
        require_client_group(group)
        topic = self._parts.topics.get(name)
        if topic is None:
            raise RequestRefused(f"topic[{name}] not exist, apply first please!", ResponseCode.TOPIC_NOT_EXIST)
        stored_in = real_topic(group, name, mark)
        found = self._parts.topics.get(stored_in)
        if found is None or not 0 <= queue_id < found.read_queues:
            raise self._illegal_queue(stored_in, queue_id)
        return stored_in

    def _require_stored(self, topic: str, queue_id: int, first: int, last: int) -> None:
        """Raises RequestRefused unless a queue may have these offsets."""
        store = self._parts.store
        if not store.min_offset(topic, queue_id) <= first <= last <= store.max_offset(topic, queue_id):
            raise self._illegal_offset(topic, queue_id, first)

    def _illegal_queue(self, topic: str, queue_id: int) -> RequestRefused:
        return RequestRefused(f"queueId[{queue_id}] is illegal, topic:[{topic}]", ResponseCode.MESSAGE_ILLEGAL)

    def _illegal_offset(self, topic: str, queue_id: int, offset: int) -> RequestRefused:
        low, end = self._parts.store.min_offset(topic, queue_id), self._parts.store.max_offset(topic, queue_id)
        return RequestRefused(
            f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{end}", ResponseCode.NO_MESSAGE
        )


def _popped(group: str, topic: str, receipt: Receipt) -> PoppedMessage:
    return PoppedMessage(group, topic, receipt.queue_id, receipt.start_offset, receipt.pop_ms)


def _receipt_fields(pop_ms: int, invisible_ms: int, revive_queue: int) -> dict[str, str]:
    return {"popTime": str(pop_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(revive_queue)}


def _over(receipt: Receipt) -> RequestRefused:
    return RequestRefused(
        f"the receipt has expired: offset {receipt.offset} was acknowledged or delivered again",
        ResponseCode.MESSAGE_ILLEGAL,
    )


def _bits(table: dict[str, Any]) -> list[int]:
    """Which bits are set in `b`: base64 of bytes, the lowest bit of the first byte first. Raises RequestRefused."""
    text = text_in(table.get("b"), "b")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestRefused(f"expected base64 in b, found {text[:40]!r}") from error
    if len(data) * 8 > BITS_MAX:
        raise RequestRefused(f"expected at most {BITS_MAX} bits in b, found {len(data) * 8}")
    return [at for at in range(len(data) * 8) if data[at // 8] >> at % 8 & 1]
