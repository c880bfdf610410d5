# Read plain SendMessage requests of gRPC, and write their answers: `kernel/grpc_sends.py`.


@cython.final
@cython.cclass
class GrpcSendReader:
    """See `tiermq/kernel/grpc_sends.py`."""

    reserved: frozenset
    user_bytes_max: int64_t
    body_bytes_max: int64_t
    topic_bytes: bytes
    topic: str

    def __init__(self, reserved: frozenset, user_bytes_max: int64_t, body_bytes_max: int64_t):
        self.reserved = reserved
        self.user_bytes_max = user_bytes_max
        self.body_bytes_max = body_bytes_max
        self.topic_bytes = b""
        self.topic = ""

    def read(self, data: bytes, peer: bytes, now_ms: int64_t):
        found: grpc_send_t
        if not grpc_read_send(
            cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(data)), PyBytes_GET_SIZE(data),
            cython.address(found),
        ):  # fmt: skip
            return None
        if found.text_bytes > self.user_bytes_max or found.body.n > self.body_bytes_max:
            return None
        at: cython.Py_ssize_t
        size: int64_t = found.id.n + found.tag.n + found.trace.n + found.text_bytes + 128 + 2 * found.key_count
        size += 2 * found.user_count + (found.born_host.n if found.born_host.p != cython.NULL else PyBytes_GET_SIZE(peer))
        for at in range(found.user_count):
            if part_bytes(found.names[at]) in self.reserved:
                return None
        properties: bytes = PyBytes_FromStringAndSize(cython.NULL, size)
        start: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(properties))
        p: cython.pointer(u8) = start
        for at in range(found.user_count):
            p = put_text(p, found.names[at].p, found.names[at].n, 1)
            p = put_text(p, found.values[at].p, found.values[at].n, 2)
        p = put_text(p, cython.cast(cython.pointer(cython.const[u8]), b"UNIQ_KEY"), 8, 1)
        p = put_text(p, found.id.p, found.id.n, 2)
        if found.tag.p != cython.NULL:
            p = put_text(p, cython.cast(cython.pointer(cython.const[u8]), b"TAGS"), 4, 1)
            p = put_text(p, found.tag.p, found.tag.n, 2)
        if found.key_count:
            p = put_text(p, cython.cast(cython.pointer(cython.const[u8]), b"KEYS"), 4, 1)
            for at in range(found.key_count):
                p = put_text(p, found.keys[at].p, found.keys[at].n, 2 if at == found.key_count - 1 else 32)
        if found.trace.p != cython.NULL:
            p = put_text(p, cython.cast(cython.pointer(cython.const[u8]), b"TRACE_CONTEXT"), 13, 1)
            p = put_text(p, found.trace.p, found.trace.n, 2)
        if found.born_ms >= 0:
            p = put_text(p, cython.cast(cython.pointer(cython.const[u8]), b"BORN_TIMESTAMP"), 14, 1)
            p += print_number(p, found.born_ms)
            p[0] = 2
            p += 1
        p = put_text(p, cython.cast(cython.pointer(cython.const[u8]), b"__BORNHOST"), 10, 1)
        if found.born_host.p != cython.NULL:
            p = put_text(p, found.born_host.p, found.born_host.n, 2)
        else:
            p = put_text(
                p, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(peer)), PyBytes_GET_SIZE(peer), 2
            )
        if PyBytes_GET_SIZE(self.topic_bytes) != found.topic.n or memcmp(
            PyBytes_AS_STRING(self.topic_bytes), found.topic.p, found.topic.n
        ):
            self.topic_bytes = part_bytes(found.topic)
            self.topic = self.topic_bytes.decode("ascii")
        made: SendRequest = SendRequest.__new__(SendRequest)
        made.code = GRPC_SEND_CODE
        made.opaque = 0
        made.is_oneway = False
        made.header_type = 0
        made.version = 0
        made.producer_group = made.topic = self.topic
        made.default_topic = ""
        made.default_topic_queue_nums = 0
        made.queue_id = -1
        made.sys_flag = 0
        made.born_ms = found.born_ms if found.born_ms >= 0 else now_ms
        made.flag = 0
        made.properties = properties[: p - start]
        made.reconsume_times = 0
        made.unit_mode = False
        made.max_reconsume_times = -1
        made.batch = False
        made.body = part_bytes(found.body)
        made.data = b""
        made.header_at = 0
        made.header_length = 0
        return made, part_bytes(found.id)


@cython.cfunc
@cython.inline
def part_bytes(part: part_t) -> bytes:
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, part.p), part.n)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_text(p: cython.pointer(u8), text: cython.pointer(cython.const[u8]), length: int64_t, end: u8) -> cython.pointer(u8):
    """A text and what ends it; where the next one goes."""
    memcpy(p, text, length)
    p[length] = end
    return p + length + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_varint(p: cython.pointer(u8), value: int64_t) -> cython.pointer(u8):
    while value >= 128:
        p[0] = value & 127 | 128
        p += 1
        value >>= 7
    p[0] = value
    return p + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_field(p: cython.pointer(u8), tag: u8, text: cython.pointer(cython.const[u8]), length: int64_t) -> cython.pointer(u8):
    p[0] = tag
    p = put_varint(p + 1, length)
    memcpy(p, text, length)
    return p + length


def grpc_send_answer(key: bytes, offset: int64_t) -> bytes:
    length: int64_t = PyBytes_GET_SIZE(key)
    text: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(key))
    status: cython.pointer(cython.const[u8]) = cython.cast(
        cython.pointer(cython.const[u8]), PyBytes_AS_STRING(GRPC_STATUS_OK)
    )
    status_length: int64_t = PyBytes_GET_SIZE(GRPC_STATUS_OK)
    entry: bytes = PyBytes_FromStringAndSize(cython.NULL, 2 * length + status_length + 40)
    start: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(entry))
    p: cython.pointer(u8) = put_field(start, 0x0A, status, status_length)
    p = put_field(p, 0x12, text, length)
    p = put_field(p, 0x1A, text, length)
    if offset:
        p[0] = 0x20
        p = put_varint(p + 1, offset)
    made: bytes = PyBytes_FromStringAndSize(cython.NULL, (p - start) + status_length + 40)
    begin: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(made))
    q: cython.pointer(u8) = put_field(begin, 0x0A, status, status_length)
    q = put_field(q, 0x12, start, p - start)
    return made[: q - begin]
