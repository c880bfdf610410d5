# The messages of a client batch: `kernel/batching.py`.


def messages_of_batch(envelope: Message) -> list:
    body: bytes = envelope.body
    shared: bytes = envelope.encoded_properties
    p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(body))
    length: int64_t = PyBytes_GET_SIZE(body)
    shared_plain: cython.bint = not envelope.special and plain_send_properties(
        cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(shared)), PyBytes_GET_SIZE(shared)
    )
    at: int64_t = 0
    size: int64_t
    body_length: int64_t = 0
    flag: int32_t = 0
    made: list = []
    if length > 0 and not shared_plain:
        return general_messages(envelope)
    while at < length:
        size = batch_element(p, at, length, cython.address(flag), cython.address(body_length))
        if size < 0 or not plain_send_properties(p + at + 22 + body_length, size - 22 - body_length):
            return general_messages(envelope)  # Which also tells what is wrong.
        made.append(batch_message(envelope, p + at, size, flag, body_length))
        at += size
    return made


@cython.cfunc
def batch_message(
    envelope: Message, p: cython.pointer(cython.const[u8]), size: int64_t, flag: int32_t, body_length: int64_t
) -> Message:
    """The message of an element at `p` that adds up, whose properties and the envelope's are plain."""
    shared: bytes = envelope.encoded_properties
    shared_length: int64_t = PyBytes_GET_SIZE(shared)
    own_length: int64_t = size - 22 - body_length
    own: cython.pointer(cython.const[u8]) = p + 22 + body_length
    apart: int64_t = 1 if own_length and shared_length and own[own_length - 1] != 2 else 0
    properties: bytes = PyBytes_FromStringAndSize(cython.NULL, own_length + apart + shared_length)
    to: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(properties))
    memcpy(to, own, own_length)
    if apart:
        to[own_length] = 2
    memcpy(to + own_length + apart, PyBytes_AS_STRING(shared), shared_length)
    made: Message = Message.__new__(Message)
    made.topic = envelope.topic
    made.body = PyBytes_FromStringAndSize(cython.cast(cython.p_char, p + 20), body_length)
    made.encoded_properties = properties
    made.born_host = envelope.born_host
    made.queue_id = envelope.queue_id
    made.flag = flag
    made.sys_flag = envelope.sys_flag
    made.reconsume_times = envelope.reconsume_times
    made.born_timestamp_ms = envelope.born_timestamp_ms
    made.prepared_transaction_offset = 0
    made.waits_for_store = True
    made.special = False
    return made


@cython.cfunc
def general_messages(envelope: Message) -> list:
    return [
        Message(
            envelope.topic, element.body, envelope.queue_id,
            encoded_properties=join_properties(element.encoded_properties, envelope.encoded_properties),
            flag=element.flag, sys_flag=envelope.sys_flag, born_timestamp_ms=envelope.born_timestamp_ms,
            born_host=envelope.born_host, reconsume_times=envelope.reconsume_times,
        )
        for element in decode_client_batch(envelope.body)
    ]
