"""What a client may commit: of a group that is not the broker's own, for a queue that there is, at most to its end.

    beyond the end   committed at the end, and said so: a broker that lost its tail in a crash has consumers that are
                     ahead of it, and what comes to those offsets next must not be skipped
    below -1         refused; -1 changes nothing, since some clients commit it before they have consumed anything

Every request that changes offsets for a client goes through here (15, and what a pull commits), or asks
`require_client_group` (pops, resets, clones, deletes).
"""

from __future__ import annotations

from tiermq.broker.parts import BrokerParts
from tiermq.errors import RequestRefused
from tiermq.message.topic_name import is_broker_group
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import ResponseCode

NOTHING_CONSUMED = -1


def require_client_group(group: str) -> None:
    """Raises RequestRefused (NO_PERMISSION) for a group whose offsets are a broker's own progress."""
    if is_broker_group(group):
        raise RequestRefused(
            f"group {group[:120]}: its offsets are the broker's own, clients may not change them",
            ResponseCode.NO_PERMISSION,
        )


def require_queue(parts: BrokerParts, topic: TopicConfig, queue_id: int) -> None:
    """Raises RequestRefused for a queue that the topic neither has nor had before it got fewer."""
    count = max(topic.read_queues, topic.write_queues)
    if 0 <= queue_id < count or (queue_id >= 0 and parts.store.max_offset(topic.name, queue_id) > 0):
        return
    raise RequestRefused(
        f"queueId[{queue_id}] is illegal: topic {topic.name} has {count} queues", ResponseCode.INVALID_PARAMETER
    )


def commit_for_client(parts: BrokerParts, group: str, topic: str, queue_id: int, offset: int) -> str | None:
    """Commit, and give what there is to say about it. The queue is known to exist. Raises RequestRefused."""
    require_client_group(group)
    if offset < NOTHING_CONSUMED:
        raise RequestRefused(
            f"commitOffset: expected no negative offset, found {offset}", ResponseCode.INVALID_PARAMETER
        )
    if offset == NOTHING_CONSUMED:
        return None
    remark = None
    if offset > parts.local.max_offset(topic, queue_id):  # The usual needs no look at the tier.
        end = parts.store.max_offset(topic, queue_id, committed=False)
        if offset > end:
            offset, remark = end, f"committed {end}, the end of the queue, and not {offset}"
    if not parts.offsets.commit(group, topic, queue_id, offset):
        return "Offset has been previously reset"
    return remark
