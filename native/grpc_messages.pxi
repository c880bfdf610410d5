# Write plain records as answers of gRPC's receives: `kernel/grpc_messages.py`.


@cython.final
@cython.cclass
class GrpcMessageWriter:
    """See `tiermq/kernel/grpc_messages.py`."""

    hidden: frozenset
    special: frozenset

    def __init__(self, hidden: frozenset, special: frozenset):
        self.hidden = hidden
        self.special = special

    def write(self, topic: bytes, message, digest: bytes, handle: bytes, attempt: int64_t):
        sys_flag: int64_t = message.sys_flag
        born_ms: int64_t = message.born_timestamp_ms
        store_ms: int64_t = message.store_timestamp_ms
        queue_id: int64_t = message.queue_id
        queue_offset: int64_t = message.queue_offset
        if sys_flag & COMPRESSED_BITS:
            return None
        properties: bytes = message.encoded_properties
        body: bytes = message.body
        size: int64_t = PyBytes_GET_SIZE(properties)
        system: bytes = PyBytes_FromStringAndSize(cython.NULL, size + PyBytes_GET_SIZE(handle) + PyBytes_GET_SIZE(digest) + 400)
        user: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * size + 16)
        s: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(system))
        u: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(user))
        system_at: cython.pointer(u8) = s
        user_at: cython.pointer(u8) = u
        p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(properties))
        end: cython.pointer(cython.const[u8]) = p + size
        value: cython.pointer(cython.const[u8])
        stop: cython.pointer(cython.const[u8])
        key: part_t
        tag: part_t
        keys: part_t
        host: part_t
        key.p = tag.p = keys.p = host.p = cython.NULL
        name_length: int64_t
        value_length: int64_t
        while p < end:
            value = p
            while value < end and 0x20 <= value[0] <= 0x7E:
                value += 1
            name_length = value - p
            if value == end or value[0] != 1 or name_length == 0:
                return None
            value += 1
            stop = value
            while stop < end and 0x20 <= stop[0] <= 0x7E:
                stop += 1
            value_length = stop - value
            if value_length == 0 or (stop < end and stop[0] != 2):
                return None
            if name_length == 8 and not memcmp(p, b"UNIQ_KEY", 8):
                key.p = value
                key.n = value_length
            elif name_length == 4 and not memcmp(p, b"TAGS", 4):
                tag.p = value
                tag.n = value_length
            elif name_length == 4 and not memcmp(p, b"KEYS", 4):
                keys.p = value
                keys.n = value_length
            elif name_length == 10 and not memcmp(p, b"__BORNHOST", 10):
                host.p = value
                host.n = value_length
            else:
                name: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, p), name_length)
                if name in self.special:
                    return None
                if name not in self.hidden:
                    u[0] = 0x12
                    u = put_varint(u + 1, 2 + varint_bytes(name_length) + name_length + varint_bytes(value_length) + value_length)
                    u = put_field(u, 0x0A, p, name_length)
                    u = put_field(u, 0x12, value, value_length)
            p = stop + 1
        if key.p == cython.NULL:
            return None
        text: bytes
        if host.p == cython.NULL:
            text = message.born_host.encode()
            host.p = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(text))
            host.n = PyBytes_GET_SIZE(text)
        if tag.p != cython.NULL:
            s = put_field(s, 0x0A, tag.p, tag.n)
        if keys.p != cython.NULL:
            p = keys.p
            end = p + keys.n
            while p < end:
                stop = p
                while stop < end and stop[0] != 0x20:
                    stop += 1
                if stop > p:
                    s = put_field(s, 0x12, p, stop - p)
                p = stop + 1
        s = put_field(s, 0x1A, key.p, key.n)
        s[0] = 0x22
        s = put_varint(s + 1, 3 + varint_bytes(PyBytes_GET_SIZE(digest)) + PyBytes_GET_SIZE(digest))
        memcpy(s, b"\x08\x02", 2)
        s = put_field(s + 2, 0x12, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(digest)), PyBytes_GET_SIZE(digest))
        memcpy(s, b"\x28\x01\x30\x01", 4)
        s = put_time(s + 4, 0x3A, born_ms)
        s = put_field(s, 0x42, host.p, host.n)
        s = put_time(s, 0x4A, store_ms)
        store_host: bytes = message.store_host.encode()
        s = put_field(
            s, 0x52, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(store_host)), PyBytes_GET_SIZE(store_host)
        )
        if PyBytes_GET_SIZE(handle):
            s = put_field(
                s, 0x62, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(handle)), PyBytes_GET_SIZE(handle)
            )
        s[0] = 0x68
        s = put_unsigned(s + 1, queue_id)
        s[0] = 0x70
        s = put_unsigned(s + 1, queue_offset)
        if attempt:
            memcpy(s, b"\x80\x01", 2)
            s = put_unsigned(s + 2, attempt)
        topic_length: int64_t = PyBytes_GET_SIZE(topic)
        body_length: int64_t = PyBytes_GET_SIZE(body)
        whole: int64_t = 1 + varint_bytes(1 + varint_bytes(topic_length) + topic_length) + 1 + varint_bytes(topic_length) + topic_length
        whole += (u - user_at) + 1 + varint_bytes(s - system_at) + (s - system_at)
        if body_length:
            whole += 1 + varint_bytes(body_length) + body_length
        made: bytes = PyBytes_FromStringAndSize(cython.NULL, 1 + varint_bytes(whole) + whole)
        q: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(made))
        q[0] = 0x12
        q = put_varint(q + 1, whole)
        q[0] = 0x0A
        q = put_varint(q + 1, 1 + varint_bytes(topic_length) + topic_length)
        q = put_field(q, 0x12, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(topic)), topic_length)
        memcpy(q, user_at, u - user_at)
        q = put_field(q + (u - user_at), 0x1A, system_at, s - system_at)
        if body_length:
            q = put_field(q, 0x22, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(body)), body_length)
        return made


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def varint_bytes(value: int64_t) -> int64_t:
    length: int64_t = 1
    while value >= 128:
        value >>= 7
        length += 1
    return length


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_unsigned(p: cython.pointer(u8), number: int64_t) -> cython.pointer(u8):
    """As protobuf writes numbers that may be negative: of 64 bits."""
    value: uint64_t = cython.cast(uint64_t, number)
    while value >= 128:
        p[0] = value & 127 | 128
        p += 1
        value >>= 7
    p[0] = value
    return p + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_time(p: cython.pointer(u8), tag: u8, ms: int64_t) -> cython.pointer(u8):
    seconds: int64_t = ms // 1000 if ms >= 0 else -((999 - ms) // 1000)
    inner: u8[32]
    q: cython.pointer(u8) = cython.address(inner[0])
    q[0] = 0x08
    q = put_unsigned(q + 1, seconds)
    q[0] = 0x10
    q = put_unsigned(q + 1, (ms - 1000 * seconds) * 1000000)
    return put_field(p, tag, cython.address(inner[0]), q - cython.address(inner[0]))
