"""Pop: one POP_MESSAGE (200050) or NOTIFICATION (200054), read from its command.

Invariants: the numbers are within their bounds; `message_filter` is set once it was admitted, None lets all pass.
"""

from __future__ import annotations

from tiermq.broker.pop_topics import pop_retry_topics
from tiermq.broker.pop_waiting import ANY_QUEUE, WatchKey
from tiermq.errors import RequestRefused
from tiermq.message.message_filter import MessageFilter
from tiermq.message.topic_name import RETRY_PREFIX
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.fields import bool_field, int32_field, int_field, text_field

MESSAGES_MAX = 32
FROM_MIN = 0
HOLD_MS_MAX = 120_000
INVISIBLE_MS_MAX = 7 * 24 * 3_600_000


class Pop:
    """See the module. Belongs to the loop's thread, or to the thread that reads for it."""

    __slots__ = (
        "attempt_id",
        "command",
        "connection",
        "deadline_ms",
        "group",
        "invisible_ms",
        "is_notification",
        "is_ordered",
        "max_messages",
        "message_filter",
        "owner",
        "queue_id",
        "starts_at_min",
        "topic",
        "watched",
        "weight",
    )

    def __init__(self, connection: Connection, command: RemotingCommand, now_ms: int) -> None:
        """Raises RequestRefused for a request that lacks a field, or has one that is out of bounds."""
        self.connection = connection
        self.command = command
        self.group = text_field(command, "consumerGroup")
        self.topic = text_field(command, "topic")
        self.queue_id = int32_field(command, "queueId")
        self.is_notification = command.code == RequestCode.NOTIFICATION
        self.is_ordered = bool_field(command, "order", default=False)
        self.attempt_id = command.ext.get("attemptId") or ""
        self.max_messages = 1
        self.invisible_ms = 0
        self.starts_at_min = True
        if not self.is_notification:
            self.max_messages = _within(command, "maxMsgNums", 1, MESSAGES_MAX)
            self.invisible_ms = _within(command, "invisibleTime", 1, INVISIBLE_MS_MAX)
            self.starts_at_min = int32_field(command, "initMode") == FROM_MIN
        poll_ms = min(max(0, int_field(command, "pollTime")), HOLD_MS_MAX)
        self.deadline_ms = now_ms + poll_ms
        self.message_filter: MessageFilter | None = None
        self.owner = (self.group, self.topic)
        places: list[WatchKey] = [(self.topic, self.queue_id if self.queue_id >= 0 else ANY_QUEUE)]
        if not self.topic.startswith(RETRY_PREFIX) and not self.is_ordered:
            places += [(name, ANY_QUEUE) for name in pop_retry_topics(self.group, self.topic)]
        self.watched = tuple(places)
        self.weight = 0


def _within(command: RemotingCommand, name: str, low: int, high: int) -> int:
    value = int_field(command, name)
    if not low <= value <= high:
        raise RequestRefused(
            f"{name}: expected a number within {low} and {high}, found {value}", ResponseCode.INVALID_PARAMETER
        )
    return value
