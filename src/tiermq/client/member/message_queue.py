"""MessageQueue: one queue of a topic at one broker, and how a group's members share queues (pure).

Every member computes the shares by itself, from the same two lists in the same order. So the order of queues (topic,
broker, number) and of members (client id) and the rule are RocketMQ's (`AllocateMessageQueueAveragely`): members in
other languages compute the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tiermq.errors import RemotingError, RequestRefused
from tiermq.remoting.json_dialect import as_int, text_in

MAX_OFFSET = (1 << 63) - 1 - (1 << 32)
"""Beyond it no queue can be read on."""


class MessageQueue(NamedTuple):
    """One queue of a topic at one broker. Sorted as RocketMQ sorts them."""

    topic: str
    broker_name: str
    queue_id: int

    def described(self) -> dict[str, str | int]:
        """As bodies name it."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def queue_in(row: Mapping[str, Any]) -> MessageQueue:
    """The queue of a body. Raises RequestRefused for what is none."""
    topic, broker_name = text_in(row.get("topic"), "topic"), text_in(row.get("brokerName"), "brokerName")
    if not topic or not broker_name or row.get("queueId") is None:
        raise RequestRefused(f"expected a queue with topic, brokerName and queueId, found {str(dict(row))[:200]}")
    return MessageQueue(topic, broker_name, as_int(row["queueId"]))


def checked_offset(offset: int, what: str) -> int:
    """Raises RemotingError for an offset that no queue has, named as of `what`."""
    if not 0 <= offset <= MAX_OFFSET:
        raise RemotingError(f"expected an offset {what} from 0 to {MAX_OFFSET}, found {offset}")
    return offset


def allocate_averagely(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """The share of one member: neighbours, and one more for the first members where the queues do not divide evenly.

    Both lists are sorted. A member that is not in the list has no share.
    """
    if member not in members:
        return []
    index, (share, rest) = members.index(member), divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])
