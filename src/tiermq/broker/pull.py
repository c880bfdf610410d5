"""Pull: one PULL_MESSAGE (11) or LITE_PULL_MESSAGE (361), read from its command.

    sysFlag bits:  0 commitOffset counts   1 may wait   2 brings its subscription   3 class filter   4 lite

Invariants: the numbers fit their fields; `message_filter` is set once the pull was admitted, None lets all pass;
`slot`, `weight` and `waits_for_tier` are those of a pull that is held.
"""

from __future__ import annotations

from tiermq.message.message_filter import MessageFilter
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.fields import int32_field, int_field, text_field

FLAG_COMMIT = 1
FLAG_SUSPEND = 2
FLAG_SUBSCRIPTION = 4
FLAG_CLASS_FILTER = 8
FLAG_LITE = 16


class Pull:
    """See the module. Belongs to the loop's thread, or to the thread that reads for it."""

    __slots__ = (
        "command",
        "connection",
        "flags",
        "group",
        "max_messages",
        "message_filter",
        "offset",
        "queue_id",
        "slot",
        "suspend_ms",
        "topic",
        "waits_for_tier",
        "weight",
    )

    def __init__(self, connection: Connection, command: RemotingCommand) -> None:
        """Raises RequestRefused for a request that lacks a field."""
        self.connection = connection
        self.command = command
        self.group = text_field(command, "consumerGroup")
        self.topic = text_field(command, "topic")
        self.queue_id = int32_field(command, "queueId")
        self.offset = int_field(command, "queueOffset")
        self.max_messages = int32_field(command, "maxMsgNums")
        self.flags = int32_field(command, "sysFlag")
        self.message_filter: MessageFilter | None = None
        self.suspend_ms = int_field(command, "suspendTimeoutMillis") if self.flags & FLAG_SUSPEND else 0
        self.slot = 0
        self.waits_for_tier = False
        self.weight = 0

    @property
    def commit_offset(self) -> int:
        """What the group has consumed, where `FLAG_COMMIT` says that it counts."""
        return int_field(self.command, "commitOffset")

    @property
    def subscription_version(self) -> int:
        return int_field(self.command, "subVersion", 0)
