# Read records that wait in another topic: `kernel/deferred_record.py`.


@cython.freelist(16)
@cython.final
@cython.cclass
class DeferredRecord:
    """See `tiermq/kernel/deferred_record.py`. `data` is a copy of the record."""

    data: bytes
    head: head_t
    named: deferred_t

    @property
    def physical_offset(self):
        return self.head.physical_offset

    @property
    def size(self):
        return self.head.total

    @property
    def queue_id(self):
        return self.head.queue_id

    @property
    def queue_offset(self):
        return self.head.queue_offset

    @property
    def store_timestamp_ms(self):
        return self.head.store_ms

    @property
    def born_timestamp_ms(self):
        return cython.cast(int64_t, load64(self.start() + 40))

    @property
    def body_crc(self):
        return self.head.crc

    @property
    def sys_flag(self):
        return self.head.sys_flag

    @property
    def properties_bytes(self):
        return self.head.properties_length

    @property
    def real_topic(self):
        return ascii_text(self.named.topic, self.named.topic_length)

    @property
    def real_queue(self):
        return self.named.queue

    @property
    def unique_key(self):
        return ascii_text(self.named.unique, self.named.unique_length)

    @property
    def group(self):
        return ascii_text(self.named.group, self.named.group_length)

    @property
    def out_ms(self):
        return self.named.out_ms

    @property
    def has(self):
        return self.named.has

    @cython.cfunc
    @cython.inline
    def start(self) -> cython.pointer(cython.const[u8]):
        return cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(self.data))

    def message(self, topic: str, queue_id: int32_t, added: bytes = b"", sys_flag: int32_t = 0, prepared_offset: int64_t = 0):
        p: cython.pointer(cython.const[u8]) = self.start()
        head: cython.pointer(head_t) = cython.address(self.head)
        length: int64_t = head.properties_length
        properties: bytes = PyBytes_FromStringAndSize(cython.NULL, length + PyBytes_GET_SIZE(added))
        memcpy(PyBytes_AS_STRING(properties), p + head.properties_at, length)
        memcpy(PyBytes_AS_STRING(properties) + length, PyBytes_AS_STRING(added), PyBytes_GET_SIZE(added))
        if not topic or queue_id < 0:
            raise IllegalMessage(f"expected a topic and a queue, found {topic!r} and {queue_id}")
        made: Message = Message.__new__(Message)
        made.topic = topic
        made.body = PyBytes_FromStringAndSize(cython.cast(cython.p_char, p + head.body_at), head.body_length)
        made.encoded_properties = properties
        made.born_host = PyBytes_FromStringAndSize(cython.cast(cython.p_char, p + 48), 20 if head.sys_flag & 0x10 else 8)
        made.queue_id = queue_id
        made.flag = cython.cast(int32_t, load32(p + 16))
        made.sys_flag = sys_flag
        made.reconsume_times = cython.cast(int32_t, load32(p + head.body_at - 16))
        made.born_timestamp_ms = cython.cast(int64_t, load64(p + 40))
        made.prepared_transaction_offset = prepared_offset
        made.waits_for_store = True
        made.needs_offset = False
        return made


@cython.cfunc
def ascii_text(p: cython.pointer(cython.const[u8]), length: int64_t) -> str:
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, p), length).decode("ascii") if length else ""


def read_deferred(log: Segments, physical_offset: int64_t, size: int64_t, topic: str):
    """The record of a topic at a physical offset; None when the general decoder must look at it. A `size` of 0 is not
    known."""
    view: WriteCursor = log.locate(physical_offset)
    if view is None or view.t.data == cython.NULL:
        return None
    at: int64_t = physical_offset - view.t.base
    end: int64_t = observe(cython.address(view.t.position))
    if at + FIXED_BYTES > end:
        return None
    source: cython.pointer(cython.const[u8]) = view.t.data + at
    if size <= 0:
        size = cython.cast(int32_t, load32(source))
    if size < FIXED_BYTES or size > end - at:
        return None
    made: DeferredRecord = DeferredRecord.__new__(DeferredRecord)
    made.data = PyBytes_FromStringAndSize(cython.cast(cython.p_char, source), size)
    p: cython.pointer(cython.const[u8]) = made.start()
    head: cython.pointer(head_t) = cython.address(made.head)
    if parse_head(p, size, head) != STOP_END or head.total != size or head.physical_offset != physical_offset:
        return None
    if head.sys_flag & 0xC0 or not body_holds(p, head, 1):
        return None
    if load32(p + 48 + (16 if head.sys_flag & 0x10 else 4)) > 65535 or load32(p + head.body_at - 20) > 65535:
        return None
    name: bytes = topic.encode()
    if head.topic_length != PyBytes_GET_SIZE(name) or memcmp(p + head.topic_at, PyBytes_AS_STRING(name), head.topic_length):
        return None
    if not ascii_only(p + head.properties_at, head.properties_length):
        return None
    if not plain_send_properties(p + head.properties_at, head.properties_length):
        return None
    if not read_deferred_properties(p + head.properties_at, head.properties_length, cython.address(made.named)):
        return None
    return made
