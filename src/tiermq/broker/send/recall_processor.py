"""RecallProcessor: RECALL_MESSAGE (370): a producer takes back a message that waits for its time.

    handle ─► the topic is here and this broker gave it, its time is not over ─► a cancellation in the timer topic

The answer means that the cancellation is stored, not that a timer was found, as in RocketMQ. Served only
if `recall_message_enable` is set; a cancellation that is sent as a message (TIMER_DEL_UNIQKEY) always is.

The recall handle of a timer message: the broker returns it in the answer to the send.

    url-safe base64 of "v1 <topic> <broker name> <time, ms> <unique key>"

The time is one millisecond into the timer's slot, so that a cancellation for it falls in the same slot, whatever the
precision. A retry has none: its consumer does not wait for an answer.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from tiermq.broker.broker_context import BrokerContext
from tiermq.broker.send.put_answers import STORED
from tiermq.broker.send.send_checks import Destination
from tiermq.errors import IllegalMessage, RequestRefused
from tiermq.kernel.fast_send_path import recall_handle_text
from tiermq.message.properties import REAL_TOPIC, TIMER_OUT_MS, get_text_property
from tiermq.message.topic_name import is_retry_topic
from tiermq.namesrv.topic_config import PERM_WRITE
from tiermq.remoting.access import serves, writes
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import RemotingCommand, text_field
from tiermq.remoting.connection import Connection

VERSION = "v1"


class RecallHandle(NamedTuple):
    """The fields of a handle."""

    topic: str
    broker_name: str
    time_ms: int
    unique_key: str

    def encode(self) -> str:
        return recall_handle_text(self.topic, self.broker_name, self.time_ms, self.unique_key)


def decode_recall_handle(text: str) -> RecallHandle:
    """Raises RequestRefused for what no broker gave."""
    try:
        pieces = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True).decode().split(" ", 4)
        version, topic, broker_name, time_ms, unique_key = pieces
    except (ValueError, binascii.Error) as error:
        raise _no_handle(text) from error
    if version != VERSION or not (time_ms.isascii() and time_ms.isdigit()) or len(time_ms) > 18:
        raise _no_handle(text)
    return RecallHandle(topic, broker_name, int(time_ms), unique_key)


def _no_handle(text: str) -> RequestRefused:
    return RequestRefused(
        f"recall handle is invalid: expected what a send was answered as recallHandle, found {text[:80]!r}",
        ResponseCode.ILLEGAL_OPERATION,
    )


def recall_handle_of(destination: Destination, broker_name: str, unique_key: str) -> str:
    """The handle of a timer that waits at a destination; empty when it has none."""
    topic = get_text_property(destination.properties, REAL_TOPIC)
    out_ms = get_text_property(destination.properties, TIMER_OUT_MS)
    if topic is None or out_ms is None or not out_ms.isdigit() or not unique_key or is_retry_topic(topic):
        return ""
    return RecallHandle(topic, broker_name, int(out_ms) + 1, unique_key).encode()


class RecallProcessor:
    """See the module."""

    def __init__(self, parts: BrokerContext) -> None:
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
