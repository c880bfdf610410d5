"""RecallProcessor: RECALL_MESSAGE (370): a producer takes back a message that waits for its time.

    handle ─► the topic is here and this broker gave it, its time is not over ─► a cancellation in the timer topic

The answer says that the cancellation is stored, not that there was something to cancel, as in RocketMQ. Served only
where `recall_message_enable` says so; a cancellation that is sent as a message (TIMER_DEL_UNIQKEY) always is.
"""

from __future__ import annotations

from tiermq.broker.parts import BrokerParts
from tiermq.broker.put_answers import STORED
from tiermq.broker.recall_handle import decode_recall_handle
from tiermq.errors import IllegalMessage, RequestRefused
from tiermq.namesrv.topic_config import PERM_WRITE
from tiermq.remoting.access import serves, writes
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection
from tiermq.remoting.fields import text_field


class RecallProcessor:
    """See the module."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts

    @serves(RequestCode.RECALL_MESSAGE, access=writes("topic"), in_pool=True)
    def recall(self, _connection: Connection, command: RemotingCommand) -> RemotingCommand:
        parts, config = self._parts, self._parts.config
        topic, text = text_field(command, "topic"), text_field(command, "recallHandle")
        if not config.recall_message_enable:
            raise RequestRefused(
                "recall failed, operation is forbidden: recallMessageEnable is off here", ResponseCode.NO_PERMISSION
            )
        if not config.broker_permission & PERM_WRITE or parts.timers is None:
            raise RequestRefused(
                "recall failed, broker service not available: it keeps no timers, or may not be written to",
                ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        if parts.topics.get(topic) is None:
            raise RequestRefused(f"recall failed, the topic[{topic}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        handle = decode_recall_handle(text)
        if handle.topic != topic:
            raise _illegal(f"recall failed, topic not match: the handle is for {handle.topic[:80]!r}")
        if handle.broker_name != config.broker_name:
            raise _illegal(f"recall failed, the handle is another broker's: {handle.broker_name[:80]!r}")
        try:
            result = parts.timers.cancel(topic, handle.unique_key, handle.time_ms)
        except IllegalMessage as error:
            raise _illegal(f"recall failed, timestamp invalid: {error}") from error
        if result.status not in STORED:
            raise RequestRefused(f"recall failed, execute error: {result.status.name}", ResponseCode.SYSTEM_ERROR)
        return command.respond(ext={"msgId": handle.unique_key, "MSG_REGION": config.region_id})


def _illegal(remark: str) -> RequestRefused:
    return RequestRefused(remark, ResponseCode.ILLEGAL_OPERATION)
