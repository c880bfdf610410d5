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
        record: grpc_record_t
        record.born_ms = message.born_timestamp_ms
        record.store_ms = message.store_timestamp_ms
        record.queue_id = message.queue_id
        record.queue_offset = message.queue_offset
        properties: bytes = message.encoded_properties
        body: bytes = message.body
        born_host: bytes = message.born_host.encode()
        store_host: bytes = message.store_host.encode()
        record.properties = part_of(properties)
        record.body = part_of(body)
        record.born_host = part_of(born_host)
        record.store_host = part_of(store_host)
        if message.sys_flag & COMPRESSED_BITS or PyBytes_GET_SIZE(digest) != 32:
            return None
        memcpy(record.digest, PyBytes_AS_STRING(digest), 32)
        return self.written(topic, cython.address(record), part_of(handle), attempt, None)

    def write_page(self, topic: bytes, data: bytes, handles: dict, tags=None):
        p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(data))
        end: cython.pointer(cython.const[u8]) = p + PyBytes_GET_SIZE(data)
        record: grpc_record_t
        born: u8[24]
        store: u8[24]
        place: u8[48]
        found: list = []
        while p < end:
            size: int64_t = 0 if end - p < 91 else plain_record(p, end - p, load64(p + 28), 1)
            if size == 0 or load32(p + 72) != 0 or load32(p + 36) & COMPRESSED_BITS:
                return None
            record.queue_id = cython.cast(int32_t, load32(p + 12))
            record.queue_offset = cython.cast(int64_t, load64(p + 20))
            record.born_ms = cython.cast(int64_t, load64(p + 40))
            record.store_ms = cython.cast(int64_t, load64(p + 56))
            physical: int64_t = cython.cast(int64_t, load64(p + 28))
            words = handles.get(record.queue_id)
            if words is None or record.queue_offset < 0 or physical < 0 or load32(p + 52) > 65535 or load32(p + 68) > 65535:
                return None
            record.body.p = p + 88
            record.body.n = load32(p + 84)
            record.properties.p = record.body.p + record.body.n + 1 + record.body.p[record.body.n] + 2
            record.properties.n = p + size - record.properties.p
            record.born_host.p = cython.address(born[0])
            record.born_host.n = put_host(cython.address(born[0]), p + 48)
            record.store_host.p = cython.address(store[0])
            record.store_host.n = put_host(cython.address(store[0]), p + 64)
            body: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, record.body.p), record.body.n)
            digest: bytes = md5(body, usedforsecurity=False).digest()
            put_hex(record.digest, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(digest)), 16)
            place[0] = 0x20
            length: int64_t = 1 + print_number(cython.address(place[1]), record.queue_offset)
            place[length] = 0x20
            length += 1
            length += print_number(cython.address(place[length]), physical)
            handle: bytes = cython.cast(bytes, words) + PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.address(place[0])), length)
            made = self.written(topic, cython.address(record), part_of(handle), 1, tags)
            if made is None:
                return None
            found.append(made)
            p += size
        return found

    @cython.cfunc
    def written(self, topic: bytes, record: cython.pointer(grpc_record_t), handle: part_t, attempt: int64_t, tags):
        size: int64_t = record.properties.n
        system: bytes = PyBytes_FromStringAndSize(cython.NULL, size + handle.n + record.born_host.n + record.store_host.n + 400)
        user: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * size + 16)
        s: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(system))
        u: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(user))
        system_at: cython.pointer(u8) = s
        user_at: cython.pointer(u8) = u
        p: cython.pointer(cython.const[u8]) = record.properties.p
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
        if tags is not None:
            if tag.p == cython.NULL or PyBytes_FromStringAndSize(cython.cast(cython.p_char, tag.p), tag.n) not in tags:
                return None
        if host.p == cython.NULL:
            host = record.born_host
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
        s = put_varint(s + 1, 36)
        memcpy(s, b"\x08\x02", 2)
        s = put_field(s + 2, 0x12, record.digest, 32)
        memcpy(s, b"\x28\x01\x30\x01", 4)
        s = put_time(s + 4, 0x3A, record.born_ms)
        s = put_field(s, 0x42, host.p, host.n)
        s = put_time(s, 0x4A, record.store_ms)
        s = put_field(s, 0x52, record.store_host.p, record.store_host.n)
        if handle.n:
            s = put_field(s, 0x62, handle.p, handle.n)
        s[0] = 0x68
        s = put_unsigned(s + 1, record.queue_id)
        s[0] = 0x70
        s = put_unsigned(s + 1, record.queue_offset)
        if attempt:
            memcpy(s, b"\x80\x01", 2)
            s = put_unsigned(s + 2, attempt)
        topic_length: int64_t = PyBytes_GET_SIZE(topic)
        body_length: int64_t = record.body.n
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
            q = put_field(q, 0x22, record.body.p, body_length)
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


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def part_of(data: bytes) -> part_t:
    made: part_t
    made.p = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(data))
    made.n = PyBytes_GET_SIZE(data)
    return made


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_host(out: cython.pointer(u8), host: cython.pointer(cython.const[u8])) -> int64_t:
    """The text of an IPv4 host of a record; how long it is."""
    at: int64_t = 0
    index: cython.int
    for index in range(4):
        at += print_number(out + at, host[index])
        out[at] = 0x3A if index == 3 else 0x2E
        at += 1
    return at + print_number(out + at, load32(host + 4))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_hex(out: cython.pointer(u8), data: cython.pointer(cython.const[u8]), length: int64_t) -> cython.void:
    index: int64_t
    half: cython.int
    for index in range(2 * length):
        half = data[index >> 1] & 15 if index & 1 else data[index >> 1] >> 4
        out[index] = half + 48 if half < 10 else half + 55
