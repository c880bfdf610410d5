"""PopAcks: ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

    acknowledged     the log says so, and the check point no longer has the message
    more time        a check point of its own for the message, then acknowledged in the old one
    popped in order  no check point: the group's offset follows (`pop_order`)

A receipt that is over (its message was given back already) is answered with success, as in RocketMQ: the message comes
once more. Of a queue or an offset that cannot be, the client is told.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Generator
from typing import Any

from tiermq.broker.parts import BrokerParts
from tiermq.broker.pop import INVISIBLE_MS_MAX
from tiermq.broker.pop_checkpoints import Popped
from tiermq.broker.pop_log import PopLog
from tiermq.broker.pop_order import OrderInfos
from tiermq.broker.pop_receipts import ORDERED_QUEUE, Receipt
from tiermq.broker.pop_topics import OwnRetries, is_of_pair, real_topic
from tiermq.errors import CorruptRecord, RequestRefused
from tiermq.namesrv.topic_config import int32_in, int64_in, object_in, text_in
from tiermq.remoting.access import of_group, reaches, reads, require_group, require_topic, serves
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.fields import int32_field, int_field, text_field
from tiermq.remoting.json_dialect import decode_object
from tiermq.remoting.limits import ACKS_MAX, check_count
from tiermq.remoting.permissions import Permission

BITS_MAX = 1024
"""Offsets of one entry of a batch."""


class PopAcks:
    """See the module. Runs on the loop: the store's append is memory work."""

    def __init__(
        self, parts: BrokerParts, log: PopLog, orders: OrderInfos, queue_freed: Callable[[str, int], None]
    ) -> None:
        """`queue_freed` is told the topic and queue of which a group that pops in order may have more now."""
        self._parts = parts
        self._log = log
        self._orders = orders
        self._queue_freed = queue_freed

    # Acknowledging.

    @serves(RequestCode.ACK_MESSAGE, access=of_group("consumerGroup") & reads("topic"))
    def acknowledge(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        group, receipt, topic = self._shown(command)
        due_ms = receipt.pop_ms + receipt.invisible_ms
        self._close(_popped(group, topic, receipt), [receipt.offset], receipt.revive_queue, due_ms)
        return command.respond()

    @serves(RequestCode.BATCH_ACK_MESSAGE, access=reaches("SUB of each group, SUB of each topic"))
    def acknowledge_many(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        return self._parts.server.decode_first(connection, command, _acks_in, self._acknowledge_all)

    def _acknowledge_all(
        self, connection: Connection, command: RemotingCommand, entries: list[Any]
    ) -> RemotingCommand | None:
        return self._parts.server.in_turns(connection, command, self._acknowledging(command, entries))

    def _acknowledging(self, command: RemotingCommand, entries: list[Any]) -> Generator[None, None, RemotingCommand]:
        """One entry at a time: others are served in between."""
        for entry in entries:
            yield
            table = object_in(entry, "an element of acks")
            group, mark = text_in(table.get("c"), "c"), text_in(table.get("r"), "r") or "0"
            name = text_in(table.get("t"), "t")
            require_group(command, group)
            require_topic(command, name, Permission.SUB)
            topic = real_topic(group, name, mark)
            queue_id, start = int32_in(table, "q"), int64_in(table, "so")
            popped = Popped(group, topic, queue_id, start, int64_in(table, "pt"))
            offsets = [start + bit for bit in _bits(table)]
            if self._parts.topics.get(topic) is None or not offsets:
                continue  # Deleted meanwhile: nobody waits for it.
            self._close(popped, offsets, int32_in(table, "rq"), popped.pop_ms + int64_in(table, "it"))
        return command.respond()

    def _close(self, popped: Popped, offsets: list[int], revive_queue: int, due_ms: int) -> None:
        if revive_queue != ORDERED_QUEUE:
            if self._is_awaited(popped, revive_queue, due_ms):
                self._log.acknowledge_early(revive_queue, popped, offsets, due_ms)
            else:
                self._log.acknowledge(popped, offsets)
            return
        queue = (popped.topic, popped.group, popped.queue_id)
        for offset in offsets:
            after = self._orders.acknowledge(queue, offset, popped.pop_ms)
            if after is not None and after > self._parts.offsets.query(popped.group, popped.topic, popped.queue_id):
                self._parts.offsets.commit(popped.group, popped.topic, popped.queue_id, after)
        if self._orders.blocked_until_ms(queue) is None:
            self._queue_freed(popped.topic, popped.queue_id)

    def _is_awaited(self, popped: Popped, revive_queue: int, due_ms: int) -> bool:
        """Whether RocketMQ made the check point, and a timer brings it before it is due."""
        if self._log.points.find(popped) is not None or not self._log.is_awaited(revive_queue, popped, due_ms):
            return False
        timers = self._parts.timers
        return timers is not None and not timers.is_idle

    # More time.

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
            return command.respond(ext=_told(receipt.pop_ms, invisible_ms, ORDERED_QUEUE))
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
        own = Popped(group, topic, receipt.queue_id, receipt.offset, now_ms)
        while self._log.points.find(own) is not None:
            own = own._replace(pop_ms=own.pop_ms + 1)  # Within one millisecond: each needs a name of its own.
        revive_queue = receipt.revive_queue if point is None else point.revive_queue
        self._log.begin(revive_queue, own, invisible_ms, (receipt.offset,), instead_of=popped)
        self._close(popped, [receipt.offset], revive_queue, due_ms)
        return command.respond(ext=_told(own.pop_ms, invisible_ms, revive_queue))

    def _is_own(self, popped: Popped, offset: int) -> bool:
        """Whether a message may be the group's of which only the receipt says that it was popped."""
        if not is_of_pair(popped.group, popped.topic):
            return True
        own = OwnRetries(self._parts, popped.group, popped.topic)
        try:
            found = self._parts.local.get(popped.topic, popped.queue_id, offset, 1).messages
        except CorruptRecord:
            return False
        return any(each.queue_offset == offset and own.are_own(each.encoded_properties) for each in found)

    # What is shown.

    def _shown(self, command: RemotingCommand) -> tuple[str, Receipt, str]:
        """Group, receipt and the topic that the message lies in. Raises RequestRefused."""
        group, name = text_field(command, "consumerGroup"), text_field(command, "topic")
        queue_id, offset = int32_field(command, "queueId"), int_field(command, "offset")
        receipt = Receipt.decode(text_field(command, "extraInfo"), offset)
        topic = self._parts.topics.get(name)
        if topic is None:
            raise RequestRefused(f"topic[{name}] not exist, apply first please!", ResponseCode.TOPIC_NOT_EXIST)
        stored_in = real_topic(group, name, receipt.mark)
        found = self._parts.topics.get(stored_in)
        if found is None or not 0 <= queue_id < found.read_queues or receipt.queue_id != queue_id:
            raise RequestRefused(f"queueId[{queue_id}] is illegal, topic:[{stored_in}]", ResponseCode.MESSAGE_ILLEGAL)
        store = self._parts.store
        low, end = store.min_offset(stored_in, queue_id), store.max_offset(stored_in, queue_id)
        if not low <= offset <= end or receipt.offset != offset:
            raise RequestRefused(
                f"offset is illegal, key:{stored_in}@{queue_id}, commit:{offset}, store:{low}~{end}",
                ResponseCode.NO_MESSAGE,
            )
        return group, receipt, stored_in


def _acks_in(command: RemotingCommand) -> list[Any]:
    """Raises RequestRefused."""
    entries = decode_object(command.body).get("acks")
    if not isinstance(entries, list):
        raise RequestRefused("expected a list in acks, found none")
    check_count("entries of acks", len(entries), ACKS_MAX)
    return entries


def _popped(group: str, topic: str, receipt: Receipt) -> Popped:
    return Popped(group, topic, receipt.queue_id, receipt.start_offset, receipt.pop_ms)


def _told(pop_ms: int, invisible_ms: int, revive_queue: int) -> dict[str, str]:
    return {"popTime": str(pop_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(revive_queue)}


def _over(receipt: Receipt) -> RequestRefused:
    return RequestRefused(
        f"the receipt is over: offset {receipt.offset} was acknowledged, or is given out anew",
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
