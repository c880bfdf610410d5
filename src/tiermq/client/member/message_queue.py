"""MessageQueue: one queue of a topic at one broker, and how a group's members share queues (pure).

Every member computes the shares by itself, from the same two lists in the same order. So the order of queues (topic,
broker, number) and of members (client id) and the rule are RocketMQ's (`AllocateMessageQueueAveragely`): members in
other languages compute the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue of a topic at one broker. Sorted as RocketMQ sorts them."""

    topic: str
    broker_name: str
    queue_id: int

    def described(self) -> dict[str, str | int]:
        """As bodies name it."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


def allocate_averagely(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """The share of one member: neighbours, and one more for the first members where the queues do not divide evenly.

    Both lists are sorted. A member that is not in the list has no share.
    """
    if member not in members:
        return []
    index, (share, rest) = members.index(member), divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])
