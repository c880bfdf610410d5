"""The fields of a send, by the letters of SEND_MESSAGE_V2 (310), also those of batches (320) and replies (325)."""

from __future__ import annotations

from tiermq.client.cluster_client import QueuePlace
from tiermq.message.topic_name import AUTO_CREATE_TOPIC

DEFAULT_QUEUES = 4
"""Of a topic that the first message makes, as RocketMQ's clients have it."""


def send_fields(
    group: str,
    topic: str,
    place: QueuePlace,
    properties: bytes,
    born_ms: int,
    *,
    sys_flag: int = 0,
    flag: int = 0,
    is_batch: bool = False,
) -> dict[str, str]:
    """As texts, for a command that may be signed. `flag` is the message's."""
    return {
        "a": group,
        "b": topic,
        "c": AUTO_CREATE_TOPIC,
        "d": str(DEFAULT_QUEUES),
        "e": str(place.queue_id),
        "f": str(sys_flag),
        "g": str(born_ms),
        "h": str(flag),
        "i": properties.decode(),
        "j": "0",
        "k": "false",
        "m": "true" if is_batch else "false",
        "n": place.broker_name,
    }
