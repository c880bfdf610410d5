"""A peer that pops as RocketMQ's POP consumers do, and makes receipts as they do."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from broker.consuming import Peer, messages_of, part
from tiermq.broker.broker import Broker
from tiermq.broker.pop.pop_processor import PopProcessor
from tiermq.message.properties import POP_CK
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand

MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Got:
    """One popped message and its receipt."""

    message: StoredMessage
    receipt: str

    @property
    def body(self) -> str:
        return self.message.body.decode()


class PopPeer(Peer):
    """One connection of a POP consumer of T in the group G."""

    def pop_later(self, **changes: Any) -> Future[RemotingCommand]:
        return self.ask_later(RequestCode.POP_MESSAGE, **{**pop_fields(), **changes})

    def pop_raw(self, **changes: object) -> RemotingCommand:
        return self.pop_later(**changes).result(60)

    def pop(self, **changes: object) -> list[Got]:
        """What there is now."""
        answer = self.pop_raw(**changes)
        return got_of(answer) if answer.code == 0 else []

    def ack(self, got: Got, **changes: Any) -> RemotingCommand:
        return self.ask(RequestCode.ACK_MESSAGE, **{**receipt_fields(got), **changes})

    def change_time(self, got: Got, invisible_ms: int, **changes: object) -> RemotingCommand:
        fields: dict[str, Any] = {**receipt_fields(got), "invisibleTime": invisible_ms, **changes}
        return self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields)


def pop_fields() -> dict[str, Any]:
    return {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": MINUTE_MS,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
    }


def receipt_fields(got: Got) -> dict[str, Any]:
    return {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": got.message.queue_id,
        "extraInfo": got.receipt,
        "offset": got.message.queue_offset,
    }


def got_of(answer: RemotingCommand, broker_name: str = "b") -> list[Got]:
    """Messages and receipts of an answer; retried messages bring theirs."""
    starts = {}
    for entry in answer.ext["startOffsetInfo"].split(";"):
        mark, queue_id, start = entry.split(" ")
        starts[mark, int(queue_id)] = start
    head = f"{answer.ext['popTime']} {answer.ext['invisibleTime']} {answer.ext['reviveQid']}"
    found = []
    for message in messages_of(answer):
        own = message.get_property(POP_CK)
        if own is None:
            place = f"{message.queue_id} {message.queue_offset}"
            own = f"{starts['0', message.queue_id]} {head} 0 {broker_name} {place}"
        found.append(Got(message, own))
    return found


def pops(broker: Broker) -> PopProcessor:
    found: PopProcessor = part(broker, PopProcessor)
    return found


def revive(broker: Broker) -> None:
    """Until everything that is due was given back, by this thread or the broker's own, and can be popped."""
    pop, clock = pops(broker), broker.parts.clock
    pop.revive.run_once()
    while any(point.due_ms <= clock.now_ms() for point in pop.log.points):
        pop.revive.run_once()
    broker.parts.local.dispatch_now()
