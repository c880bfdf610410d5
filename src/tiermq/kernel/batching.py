"""The messages of a client's batch, made from the one request that brought them.

The body's layout is `tiermq.message.client_batch`'s. Contract of both twins: each message has the envelope's topic,
queue, flags of the system, times and hosts, its own body, flag and properties, and behind those the envelope's.
"""

from __future__ import annotations

from tiermq.kernel.values import Message
from tiermq.message.client_batch import decode_client_batch
from tiermq.message.properties import join_properties


def messages_of_batch(envelope: Message) -> list[Message]:
    """None of an empty body. Raises CorruptRecord for a body that is no batch, IllegalMessage for an element that no
    record can hold.
    """
    return [
        Message(
            envelope.topic,
            element.body,
            envelope.queue_id,
            encoded_properties=join_properties(element.encoded_properties, envelope.encoded_properties),
            flag=element.flag,
            sys_flag=envelope.sys_flag,
            born_timestamp_ms=envelope.born_timestamp_ms,
            born_host=envelope.born_host,
            reconsume_times=envelope.reconsume_times,
        )
        for element in decode_client_batch(envelope.body)
    ]
