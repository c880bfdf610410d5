# Append a record in place: `kernel/appender.py`.


@cython.final
@cython.cclass
class QueueHandle:
    """A queue of one store, looked up once: the cheapest way to put."""

    topic = cython.declare(str, visibility="readonly")
    topic_bytes: bytes
    queue_id = cython.declare(int32_t, visibility="readonly")
    next_offset = cython.declare(int64_t, visibility="public")
    puts = cython.declare(int64_t, visibility="readonly")
    stored_bytes = cython.declare(int64_t, visibility="readonly")
    appender: Appender

    def __init__(self, appender: Appender, topic: str, queue_id: int32_t, next_offset: int64_t = 0):
        self.appender = appender
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.next_offset = next_offset

    def put(self, body, properties=b""):
        """Put `body` with already encoded properties. Same checks and statuses as a put of a Message."""
        a: Appender = self.appender
        if type(body) is not bytes or type(properties) is not bytes or a.closed or a.is_sync or not (
            plain_properties(
                cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(properties)), PyBytes_GET_SIZE(properties)
            )
        ):
            message = Message(self.topic, body, self.queue_id, encoded_properties=properties)
            return a.put(message) if a.sync_put is None else a.sync_put(message)
        now: int64_t = a.now()
        done: int64_t = a.write(self, body, properties, 0, 0, 0, a.host, 0, 0, now, 1)
        if done < 0:
            return a.slow_path(Message(self.topic, body, self.queue_id, encoded_properties=properties), Refusal(done))
        result: PutResult = stored(a.host, done, self.next_offset - 1, now, a.last_size, 1)
        if a.reput_idle:
            a.reput_idle = False
            a.wake()
        return result


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def prefetch_contents(message: Message) -> cython.void:
    """Prefetch the beginning of a message's body and its properties, which a put will read soon."""
    start: cython.pointer(u8) = cython.cast(cython.pointer(u8), cython.cast(cython.p_void, message.body))
    length: int64_t = PyBytes_GET_SIZE(message.body)
    at: int64_t
    for at in range(0, 32 + (length if length < PREFETCHED_BYTES else PREFETCHED_BYTES), 64):
        prefetch_read(start + at)
    start = cython.cast(cython.pointer(u8), cython.cast(cython.p_void, message.encoded_properties))
    prefetch_read(start)
    prefetch_read(start + 64)


@cython.final
@cython.cclass
class Appender:
    closed = cython.declare(cython.bint, visibility="public")
    reput_idle = cython.declare(cython.bint, visibility="public")
    is_sync = cython.declare(cython.bint, visibility="public")
    max_body_bytes = cython.declare(int64_t, visibility="public")
    sync_put = cython.declare(object, visibility="public")
    raise_refusal = cython.declare(object, visibility="public")
    puts = cython.declare(int64_t, visibility="readonly")
    stored_bytes = cython.declare(int64_t, visibility="readonly")
    last_store_timestamp_ms = cython.declare(int64_t, visibility="readonly")
    last_size: int64_t
    last_sampled: int64_t
    crc_property: cython.bint
    auto_version: cython.bint
    active: WriteCursor
    t: cython.pointer(tail_t)
    queues: dict
    host: bytes
    slow_path: object
    wake: object
    clock: object
    sample: object

    def __init__(self, host, *, slow_path, wake, clock=None, sample=None, max_body_bytes, crc_property=False,
                 auto_version=True, lock=None):  # fmt: skip
        self.host = host
        self.slow_path = slow_path
        self.wake = wake
        self.clock = clock
        self.sample = sample
        self.max_body_bytes = max_body_bytes
        self.crc_property = crc_property
        self.auto_version = auto_version
        self.queues = {}
        self.closed = True

    @property
    def tail(self):
        return self.active

    def attach(self, tail: WriteCursor | None):
        """Append to this file from now on."""
        self.active = tail
        self.t = cython.NULL if tail is None else cython.address(tail.t)

    def roll(self, tail: WriteCursor):
        """End the active file with a blank record and continue in `tail`, atomically for puts."""
        t: cython.pointer(tail_t) = self.t
        if t != cython.NULL and t.data != cython.NULL and t.position < t.size:
            store32(t.data + t.position, t.size - t.position)
            store32(t.data + t.position + 4, MAGIC_BLANK)
            publish(cython.address(t.position), t.size)
        self.attach(tail)

    def bind(self, handle: QueueHandle):
        self.queues.setdefault(handle.topic, {})[handle.queue_id] = handle

    def unbind(self, topic: str):
        self.queues.pop(topic, None)

    def handles(self) -> list:
        return [handle for by_id in list(self.queues.values()) for handle in list(by_id.values())]

    @cython.cfunc
    @cython.inline
    def find(self, topic: str, queue_id: int32_t) -> QueueHandle:
        by_id = self.queues.get(topic)
        if by_id is None:
            return None
        return cython.cast(dict, by_id).get(queue_id)

    def handle(self, topic: str, queue_id: int32_t):
        return self.find(topic, queue_id)

    @cython.cfunc
    @cython.inline
    def now(self) -> int64_t:
        return clock_now_ms() if self.clock is None else self.clock()

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def write(self, h: QueueHandle, body: bytes, properties: bytes, flag: int32_t, sys_flag: int32_t, born: int64_t,
              born_host: bytes, reconsume: int32_t, prepared: int64_t, now: int64_t, count: int32_t) -> int64_t:  # fmt: skip
        return self.write_joined(
            h, body, properties, b"", flag, sys_flag, born, born_host, reconsume, prepared, now, count
        )

    @cython.cfunc
    @cython.exceptval(check=False)
    def write_joined(self, h: QueueHandle, body: bytes, properties: bytes, added: bytes, flag: int32_t,
                     sys_flag: int32_t, born: int64_t, born_host: bytes, reconsume: int32_t, prepared: int64_t,
                     now: int64_t, count: int32_t) -> int64_t:  # fmt: skip
        """Encode one record in place, with `added` behind its properties, and publish it. Its physical offset, or a
        negative Refusal with nothing written."""
        t: cython.pointer(tail_t) = self.t
        body_length: int64_t = PyBytes_GET_SIZE(body)
        own_length: int64_t = PyBytes_GET_SIZE(properties)
        added_length: int64_t = PyBytes_GET_SIZE(added)
        properties_length: int64_t = own_length + added_length
        topic_length: int64_t = PyBytes_GET_SIZE(h.topic_bytes)
        born_length: int64_t = PyBytes_GET_SIZE(born_host)
        host_length: int64_t = PyBytes_GET_SIZE(self.host)
        source: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(properties))
        more: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(added))
        last: u8
        separator: int64_t = 0
        extra: int64_t = 0
        if self.crc_property:
            last = more[added_length - 1] if added_length else source[own_length - 1] if own_length else 2
            separator = 1 if last != 2 else 0
            extra = CRC_PROPERTY_BYTES + separator
        if properties_length + extra > 32767:
            return PROPERTIES_TOO_LARGE
        if body_length > self.max_body_bytes:
            return BODY_TOO_LARGE
        version2: int64_t = 1 if topic_length > 127 and self.auto_version else 0
        total: int64_t = (
            FIXED_BYTES - 16 + born_length + host_length + version2 + body_length + topic_length + properties_length + extra
        )
        if total > self.max_body_bytes + 65536:
            return RECORD_TOO_LARGE
        if t == cython.NULL or t.position + total + 8 > t.limit:
            return ROOM
        # Set and cleared: a forwarded message may have the bits of its former hosts.
        sys_flag = (sys_flag & ~0x30) | (0x10 if born_length == 20 else 0) | (0x20 if host_length == 20 else 0)
        p: cython.pointer(u8) = t.data + t.position
        physical: int64_t = t.base + t.position
        transaction: int32_t = sys_flag & 0x0C
        counted: cython.bint = transaction == 0 or transaction == 8
        body_at: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(body))
        prefetch_ahead(p + total, total if total < 1024 else 1024)
        store32(p, total)
        store32(p + 4, MAGIC_V2 if version2 else MAGIC_V1)
        store32(p + 8, crc_of(body_at, body_length) & 0x7FFFFFFF)
        store32(p + 12, h.queue_id)
        store32(p + 16, flag)
        store64(p + 20, h.next_offset if counted else 0)
        store64(p + 28, physical)
        store32(p + 36, sys_flag)
        store64(p + 40, born if born else now)
        p += 48
        copy_short(p, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(born_host)), born_length)
        p += born_length
        store64(p, now)
        p += 8
        copy_short(p, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(self.host)), host_length)
        p += host_length
        store32(p, reconsume)
        store64(p + 4, prepared)
        store32(p + 12, body_length)
        p += 16
        copy_body(p, body_at, body_length)
        p += body_length
        if version2:
            store16(p, topic_length)
            p += 2
        else:
            p[0] = topic_length
            p += 1
        copy_short(p, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(h.topic_bytes)), topic_length)
        p += topic_length
        store16(p, properties_length + extra)
        p += 2
        copy_short(p, source, own_length)
        copy_short(p + own_length, more, added_length)
        if extra:
            p += properties_length
            if separator:
                p[0] = 2
                p += 1
            write_crc_property(p, crc_of(t.data + t.position, total - CRC_PROPERTY_BYTES) & 0x7FFFFFFF)
        publish(cython.address(t.position), t.position + total)
        if counted:
            h.next_offset += count
        h.puts += 1
        h.stored_bytes += total
        self.puts += 1
        self.stored_bytes += total
        self.last_size = total
        self.last_store_timestamp_ms = now
        return physical

    def put(self, message: Message):
        """Store one message; special cases go to the slow path: slow_path(message, refusal) -> PutResult."""
        return self.put_one(message)

    def put_or_raise(self, message: Message):
        """`put` for callers that want refusals raised: `raise_refusal(message, result)` does that."""
        result: PutResult = self.put_one(message)
        if result.status is not PUT_OK:
            self.raise_refusal(message, result)
        return result

    @cython.cfunc
    @cython.inline
    def put_one(self, message: Message):
        if self.closed:
            return self.slow_path(message, CLOSED)
        if self.sample is not None and self.puts - self.last_sampled >= 1024:
            self.last_sampled = self.puts
            return self.sample(message)
        if message.needs_offset:
            return self.slow_path(message, NEEDS_OFFSET)
        h: QueueHandle = self.find(message.topic, message.queue_id)
        if h is None:
            return self.slow_path(message, UNBOUND)
        now: int64_t = self.now()
        host: bytes = message.born_host
        done: int64_t = self.write(
            h, message.body, message.encoded_properties, message.flag, message.sys_flag, message.born_timestamp_ms,
            host if PyBytes_GET_SIZE(host) else self.host, message.reconsume_times,
            message.prepared_transaction_offset, now, 1,
        )  # fmt: skip
        if done < 0:
            return self.slow_path(message, Refusal(done))
        result: PutResult = stored(
            self.host, done, 0 if message.sys_flag & 4 else h.next_offset - 1, now, self.last_size, 1
        )
        if self.reput_idle:
            self.reput_idle = False
            self.wake()
        return result

    def put_expecting(self, message: Message, expected_offset: int64_t, count: int32_t):
        """Store `message` as `count` queue positions, only if its queue is still at `expected_offset`.

        For records whose properties contain their queue offset. Returns a PutResult, or the Refusal.
        """
        h: QueueHandle = self.find(message.topic, message.queue_id)
        if self.closed:
            return CLOSED
        if h is None:
            return UNBOUND
        now: int64_t = self.now()
        if h.next_offset != expected_offset:
            return Refusal.OFFSET_MOVED
        host: bytes = message.born_host
        done: int64_t = self.write(
            h, message.body, message.encoded_properties, message.flag, message.sys_flag, message.born_timestamp_ms,
            host if PyBytes_GET_SIZE(host) else self.host, message.reconsume_times,
            message.prepared_transaction_offset, now, count,
        )  # fmt: skip
        if done < 0:
            return Refusal(done)
        if message.sys_flag & 4:  # Prepared and rolled back messages have no queue offset.
            expected_offset = 0
            count = 1
        result: PutResult = stored(self.host, done, expected_offset, now, self.last_size, count)
        if self.reput_idle:
            self.reput_idle = False
            self.wake()
        return result

    def put_many(self, messages):
        """Store a list in one call: each message has its own result, one clock reading serves all."""
        if type(messages) is not list:
            messages = batch_of(messages)
        return self.put_many_at(messages, self.now())

    @cython.cfunc
    def put_many_at(self, batch: list, now: int64_t) -> PutResults:
        length: cython.Py_ssize_t = len(batch)
        results: PutResults = PutResults.__new__(PutResults)
        results.rows = PyBytes_FromStringAndSize(cython.NULL, length * 32)
        results.length = length
        results.host = self.host
        results.store_timestamp_ms = now
        results.end_offset = -1
        row: cython.pointer(int64_t) = cython.cast(cython.pointer(int64_t), PyBytes_AS_STRING(results.rows))
        at: cython.Py_ssize_t = 0
        m: Message
        h: QueueHandle = None
        topic: str = None
        host: bytes
        done: int64_t
        coming: cython.pointer(u8)
        while at < length:
            if not isinstance(batch[at], Message):
                raise TypeError(f"put_many takes Messages, found {type(batch[at]).__name__} at {at}")
            m = cython.cast(Message, batch[at])
            # The messages of a list are scattered in memory: prefetch them first, then what they point to.
            if at + MESSAGES_AHEAD < length:
                coming = cython.cast(cython.pointer(u8), cython.cast(cython.p_void, batch[at + MESSAGES_AHEAD]))
                prefetch_read(coming)
                prefetch_read(coming + 64)
            if at + BODIES_AHEAD < length and isinstance(batch[at + BODIES_AHEAD], Message):
                prefetch_contents(cython.cast(Message, batch[at + BODIES_AHEAD]))
            if h is None or m.topic is not topic or m.queue_id != h.queue_id:
                topic = m.topic
                h = self.find(topic, m.queue_id)
            if h is not None and not self.closed and not m.needs_offset:
                host = m.born_host
                done = self.write(
                    h, m.body, m.encoded_properties, m.flag, m.sys_flag, m.born_timestamp_ms,
                    host if PyBytes_GET_SIZE(host) else self.host, m.reconsume_times,
                    m.prepared_transaction_offset, now, 1,
                )  # fmt: skip
                if done >= 0:
                    row[0] = done
                    row[1] = 0 if m.sys_flag & 4 else h.next_offset - 1
                    row[2] = self.last_size
                    row[3] = now
                    results.end_offset = done + self.last_size
                    row += 4
                    at += 1
                    continue
            result = self.put_slowly(m, h)
            if results.others is None:
                results.others = {}
            results.others[at] = result
            if result.physical_offset >= 0:
                results.end_offset = result.end_offset
            h = None
            now = self.now()  # The slow path took time, and store times never decrease.
            results.store_timestamp_ms = now
            row += 4
            at += 1
        if self.reput_idle and length:
            self.reput_idle = False
            self.wake()
        return results

    @cython.cfunc
    def put_slowly(self, message: Message, h: QueueHandle | None) -> object:
        if self.closed:
            return self.slow_path(message, CLOSED)
        if message.needs_offset:
            return self.slow_path(message, NEEDS_OFFSET)
        if h is None:
            return self.slow_path(message, UNBOUND)
        return self.put(message)

    @cython.cfunc
    @cython.exceptval(check=False)
    def crc_bytes(self, properties: bytes) -> int64_t:
        """What the whole-record CRC property adds to encoded properties, the separator before it included."""
        length: int64_t = PyBytes_GET_SIZE(properties)
        if not self.crc_property:
            return 0
        if length and cython.cast(cython.pointer(u8), PyBytes_AS_STRING(properties))[length - 1] != 2:
            return CRC_PROPERTY_BYTES + 1
        return CRC_PROPERTY_BYTES

    @cython.cfunc
    @cython.exceptval(check=False)
    def size_of(self, m: Message, topic_length: int64_t) -> int64_t:
        """The record size of `m`."""
        born_length: int64_t = PyBytes_GET_SIZE(m.born_host)
        properties_length: int64_t = PyBytes_GET_SIZE(m.encoded_properties)
        host_length: int64_t = PyBytes_GET_SIZE(self.host)
        extra: int64_t = self.crc_bytes(m.encoded_properties)
        return (
            FIXED_BYTES - 16 + (born_length if born_length else host_length) + host_length
            + (1 if topic_length > 127 and self.auto_version else 0)
            + PyBytes_GET_SIZE(m.body) + topic_length + properties_length + extra
        )  # fmt: skip

    def record_bytes(self, message: Message) -> int:
        """The record size of a message."""
        return self.size_of(message, len(message.topic.encode()))

    def put_together(self, messages: list):
        """Store messages of one queue side by side in one file, with one store time; PutResults, or the Refusal
        of the first that cannot be stored, with nothing written. No other put comes between them."""
        if self.closed:
            return CLOSED
        if not messages:
            return Refusal.EMPTY
        m: Message = messages[0]
        h: QueueHandle = self.find(m.topic, m.queue_id)
        if h is None:
            return UNBOUND
        now: int64_t = self.now()
        total: int64_t = 0
        size: int64_t
        topic_length: int64_t = PyBytes_GET_SIZE(h.topic_bytes)
        for item in messages:
            m = item
            if PyBytes_GET_SIZE(m.encoded_properties) + self.crc_bytes(m.encoded_properties) > 32767:
                return Refusal.PROPERTIES_TOO_LARGE
            if PyBytes_GET_SIZE(m.body) > self.max_body_bytes:
                return Refusal.BODY_TOO_LARGE
            size = self.size_of(m, topic_length)
            if size > self.max_body_bytes + 65536:
                return Refusal.RECORD_TOO_LARGE
            total += size
        if self.t == cython.NULL or self.t.position + total + 8 > self.t.limit:
            return Refusal.ROOM
        return self.put_many_at(messages, now)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def write_crc_property(p: cython.pointer(u8), value: uint32_t) -> cython.void:
    """`__CRC32#` 0x01, ten digits least significant first, 0x02."""
    memcpy(p, b"__CRC32#\x01", 9)
    i: cython.int
    for i in range(9, 19):
        p[i] = 48 + value % 10
        value = value // 10
    p[19] = 2
