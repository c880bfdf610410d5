"""Replies of request-reply: what a consumer sends back, and what a broker pushes to the producer that asked.

A reply goes to the topic `<cluster>_REPLY_TOPIC` of the broker that the request came from: the producer that asked has
a connection there, since it has sent the request there. The broker stores nothing: it hands the reply over, or refuses.
"""

from __future__ import annotations

import time

from tiermq.client.cluster_client import QueuePlace
from tiermq.client.member.message_queue import MessageQueue
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.client.send_fields import send_fields
from tiermq.errors import IllegalMessage, RequestRefused
from tiermq.message.layout import RecordVersion
from tiermq.message.properties import (
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    encode_properties,
)
from tiermq.message.stored_message import StoredMessage
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand, int_field, text_field

REPLY = "reply"


def reply_in(command: RemotingCommand) -> ReceivedMessage | None:
    """The reply that a broker pushes; None for another request. Raises RequestRefused for one that cannot be read."""
    if command.code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
        return None
    topic, properties = text_field(command, "topic"), text_field(command, "properties", "")
    try:
        encoded_properties = properties.encode()
    except UnicodeEncodeError as error:
        raise RequestRefused(f"expected a reply's properties in UTF-8, found {ascii(properties)[:80]}") from error
    stored = StoredMessage(
        topic=topic,
        body=bytes(command.body),
        encoded_properties=encoded_properties,
        version=RecordVersion.V1,
        size=0,
        body_crc=0,
        queue_id=int_field(command, "queueId", 0),
        flag=int_field(command, "flag", 0),
        queue_offset=0,
        physical_offset=-1,
        sys_flag=int_field(command, "sysFlag", 0),
        born_timestamp_ms=int_field(command, "bornTimestamp", 0),
        born_address=bytes(4),
        born_port=0,
        store_timestamp_ms=int_field(command, "storeTimestamp", 0),
        store_address=bytes(4),
        store_port=0,
        reconsume_times=0,
        prepared_transaction_offset=0,
    )
    return ReceivedMessage(stored, MessageQueue(topic, "", stored.queue_id))


def reply_command(group: str, asked: ReceivedMessage, body: bytes) -> RemotingCommand:
    """The reply to a message. Raises IllegalMessage when no request waits for one."""
    properties = asked.properties
    missing = [name for name in (CORRELATION_ID, REPLY_TO_CLIENT, CLUSTER) if not properties.get(name)]
    if missing:
        raise IllegalMessage(
            f"expected a message that was sent by request(), found one without {', '.join(missing)}: it takes no reply"
        )
    named = {
        CORRELATION_ID: properties[CORRELATION_ID],
        REPLY_TO_CLIENT: properties[REPLY_TO_CLIENT],
        MSG_TYPE: REPLY,
        TTL: properties.get(TTL),
    }
    topic, now_ms = f"{properties[CLUSTER]}_REPLY_TOPIC", time.time_ns() // 1_000_000
    fields = send_fields(group, topic, QueuePlace(asked.queue.broker_name, "", 0), encode_properties(named), now_ms)
    return RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, ext=fields, body=body)
