# Store plain sends of one read at once: `kernel/fast_send_path.py`.


@cython.cfunc
@cython.exceptval(check=True)
def count_sent(counts: list, messages: int64_t, size: int64_t) -> cython.void:
    """The bounds are `SIZE_BOUNDS`."""
    counts[0] += messages
    counts[1] += size
    if messages > 1:
        size //= messages
    at: cython.Py_ssize_t = (
        2 + (size > 1024) + (size > 4096) + (size > 524288) + (size > 1048576) + (size > 2097152) + (size > 4194304)
    )
    counts[at] += messages


@cython.final
@cython.cclass
class FastSendPath:
    """See `tiermq/kernel/fast_send_path.py`. `out` holds the responses of one call, until they are one bytes object."""

    is_open = cython.declare(cython.bint, visibility="public")
    appender: Appender
    added: bytes
    head: bytes
    region: bytes
    trace_on: bytes
    version: int32_t
    topics: dict
    plain: cython.bint
    properties_bytes_max: int64_t
    out: cython.pointer(u8)
    room: int64_t
    delay_levels: int64_t
    takes_halves: object
    precision_ms: int64_t
    timer_delay_max_ms: int64_t
    broker_name: bytes
    offset: int64_t

    def __cinit__(self):
        self.out = cython.NULL
        self.room = 0

    def __init__(
        self, appender: Appender, added: bytes, version: int32_t, region: str, trace_on: str,
        properties_bytes_max: int64_t = 32767, later=None,
    ):  # fmt: skip
        rules = Later() if later is None else later
        self.delay_levels = rules.delay_levels
        self.takes_halves = rules.takes_halves
        self.precision_ms = rules.precision_ms
        self.timer_delay_max_ms = rules.timer_delay_max_ms
        self.broker_name = rules.broker_name.encode()
        self.appender = appender
        self.added = added
        self.properties_bytes_max = properties_bytes_max
        self.head = appender.host.hex().upper().encode()
        self.region = region.encode()
        self.trace_on = trace_on.encode()
        self.version = version
        self.topics = {}
        self.is_open = True
        self.plain = plain_lane(added, region, trace_on)

    def __dealloc__(self):
        free(self.out)

    def open_topic(self, topic: str, write_queues: int32_t, counts: list):
        self.topics[topic] = (write_queues, counts)

    def close_topic(self, topic: str):
        self.topics.pop(topic, None)

    def admits(self, request: SendRequest) -> bool:
        key: cython.pointer(cython.const[u8]) = cython.NULL
        later: later_t
        return self.key_of(request, cython.address(key), cython.address(later)) > 0

    @cython.cfunc
    def key_of(self, request: SendRequest, key: cython.pointer(cython.pointer(cython.const[u8])),
               later: cython.pointer(later_t)) -> int64_t:  # fmt: skip
        """The length and position of the unique key of a fast-path send, and what defers it; 0 for any other send."""
        length: int64_t
        if not self.is_open or not self.plain or request.batch:
            return 0
        if PyBytes_GET_SIZE(request.body) == 0 or request.queue_id < 0:
            return 0
        if PyBytes_GET_SIZE(request.properties) + PyBytes_GET_SIZE(self.added) > self.properties_bytes_max:
            return 0
        length = usual_send_key(
            cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(request.properties)),
            PyBytes_GET_SIZE(request.properties), key, later,
        )  # fmt: skip
        if request.sys_flag & (UNUSUAL_FLAGS & ~TRANSACTION_BITS if later.kind == LATER_HALF else UNUSUAL_FLAGS):
            return 0
        if later.kind == LATER_NOT:
            return length
        if later.kind == LATER_DELAY:
            return length if self.delay_levels else 0
        if later.kind == LATER_HALF:
            return length if self.takes_halves() else 0
        return length if self.precision_ms else 0

    @cython.cfunc
    def answer_to(self, request: SendRequest, born_host: bytes, place: cython.pointer(u8)) -> int64_t:
        """Store a send and write its response to `place`, which has ANSWER_BYTES_MAX bytes: its length, or 0 with
        nothing stored for a send that needs the general path. Without a place only what nothing defers is stored, and
        its offset is in `offset`."""
        a: Appender = self.appender
        key: cython.pointer(cython.const[u8]) = cython.NULL
        key_length: int64_t
        found = self.topics.get(request.topic)
        if found is None or a.closed:
            return 0
        entry: tuple = found
        write_queues: int32_t = entry[0]
        if request.queue_id >= write_queues or (a.sample is not None and a.puts - a.last_sampled >= 1024):
            return 0
        later: later_t
        key_length = self.key_of(request, cython.address(key), cython.address(later))
        h: QueueHandle = self.appender.find(request.topic, request.queue_id)
        host_length: int64_t = PyBytes_GET_SIZE(born_host)
        if key_length == 0 or h is None or (host_length != 8 and host_length != 20):
            return 0
        if later.kind != LATER_NOT:
            if place == cython.NULL:
                return 0
            return self.answer_later(request, born_host, place, entry, h, key, key_length, cython.address(later))
        done: int64_t = a.write_joined(
            h, request.body, request.properties, self.added, request.flag, request.sys_flag, request.born_ms, born_host,
            request.reconsume_times, 0, a.now(), 1,
        )  # fmt: skip
        if done < 0:
            return 0
        counts: list = entry[1]
        count_sent(counts, 1, a.last_size)
        if a.reput_idle:
            a.reput_idle = False
            a.wake()
        if place == cython.NULL:
            self.offset = h.next_offset - 1
            return 1
        return self.write_answer(request, done, h.next_offset - 1, key, key_length, place, cython.NULL, 0)

    @cython.cfunc
    def answer_later(self, request: SendRequest, born_host: bytes, place: cython.pointer(u8), entry: tuple,
                     target: QueueHandle, key: cython.pointer(cython.const[u8]), key_length: int64_t,
                     later: cython.pointer(later_t)) -> int64_t:  # fmt: skip
        """`answer_to` for a message that is stored in another topic first: in the queue of its delay level, with the
        timers, or with the halves of transactions. `target` is the queue that it is for."""
        a: Appender = self.appender
        now: int64_t = a.now()
        time_ms: int64_t = 0
        level: int64_t = 0
        sys_flag: int32_t = request.sys_flag
        h: QueueHandle
        if later.kind == LATER_DELAY:
            level = later.number if later.number < self.delay_levels else self.delay_levels
            h = a.find(SCHEDULE_TOPIC, level - 1)
        elif later.kind == LATER_HALF:
            h = a.find(HALF_TOPIC, 0)
            sys_flag &= ~TRANSACTION_BITS
        else:
            time_ms = (
                now + 1000 * later.number if later.kind == LATER_AFTER_S
                else now + later.number if later.kind == LATER_AFTER_MS else later.number
            )  # fmt: skip
            if time_ms <= now or time_ms - now > self.timer_delay_max_ms:
                return 0
            time_ms = (time_ms - 1) // self.precision_ms * self.precision_ms  # Its slot, which ends at the time or later.
            h = a.find(TIMER_TOPIC, 0)
            if PyBytes_GET_SIZE(target.topic_bytes) + PyBytes_GET_SIZE(self.broker_name) + key_length > HANDLE_BYTES_MAX:
                return 0
        if h is None:
            return 0
        topic_length: int64_t = PyBytes_GET_SIZE(target.topic_bytes)
        own: cython.pointer(cython.const[u8]) = cython.cast(
            cython.pointer(cython.const[u8]), PyBytes_AS_STRING(request.properties)
        )
        own_length: int64_t = PyBytes_GET_SIZE(request.properties)
        added_length: int64_t = PyBytes_GET_SIZE(self.added)
        properties: bytes = PyBytes_FromStringAndSize(
            cython.NULL, own_length + added_length + key_length + topic_length + LATER_BYTES_MAX
        )
        start: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(properties))
        p: cython.pointer(u8) = start
        part: int64_t = later.entry - own if later.kind == LATER_DELAY else own_length
        memcpy(p, own, part)
        p += part
        if later.kind == LATER_DELAY:
            part = own + own_length - later.entry_end
            memcpy(p, later.entry_end, part)
            p += part
        memcpy(p, PyBytes_AS_STRING(self.added), added_length)
        p += added_length
        if later.kind == LATER_DELAY:
            memcpy(p, b"DELAY\x01", 6)
            p += 6
            p += print_number(p, level)
        elif later.kind == LATER_HALF:
            memcpy(p, b"__transactionId__\x01", 18)
            p += 18
            memcpy(p, key, key_length)
            p += key_length
        else:
            memcpy(p, b"TIMER_OUT_MS\x01", 13)
            p += 13
            p += print_number(p, time_ms)
        memcpy(p, b"\x02REAL_TOPIC\x01", 12)
        p += 12
        memcpy(p, PyBytes_AS_STRING(target.topic_bytes), topic_length)
        p += topic_length
        memcpy(p, b"\x02REAL_QID\x01", 10)
        p += 10
        p += print_number(p, request.queue_id)
        p[0] = 2
        p += 1
        if p - start > self.properties_bytes_max:
            return 0
        done: int64_t = a.write_joined(
            h, request.body, properties[: p - start], b"", request.flag, sys_flag, request.born_ms, born_host,
            request.reconsume_times, 0, now, 1,
        )  # fmt: skip
        if done < 0:
            return 0
        counts: list = entry[1]
        count_sent(counts, 1, a.last_size)
        if a.reput_idle:
            a.reput_idle = False
            a.wake()
        if time_ms == 0:
            return self.write_answer(request, done, h.next_offset - 1, key, key_length, place, cython.NULL, 0)
        text: u8[1024]
        handle: u8[1400]
        p = cython.address(text[0])
        memcpy(p, b"v1 ", 3)
        p += 3
        memcpy(p, PyBytes_AS_STRING(target.topic_bytes), topic_length)
        p += topic_length
        p[0] = 32
        memcpy(p + 1, PyBytes_AS_STRING(self.broker_name), PyBytes_GET_SIZE(self.broker_name))
        p += 1 + PyBytes_GET_SIZE(self.broker_name)
        p[0] = 32
        p += 1
        p += print_number(p, time_ms + 1)
        p[0] = 32
        memcpy(p + 1, key, key_length)
        p += 1 + key_length
        part = print_base64(cython.address(handle[0]), cython.address(text[0]), p - cython.address(text[0]))
        return self.write_answer(
            request, done, h.next_offset - 1, key, key_length, place, cython.address(handle[0]), part
        )

    @cython.cfunc
    @cython.exceptval(check=False)
    def write_answer(self, request: SendRequest, physical: int64_t, queue_offset: int64_t,
                     key: cython.pointer(cython.const[u8]), key_length: int64_t, place: cython.pointer(u8),
                     handle: cython.pointer(cython.const[u8]), handle_length: int64_t) -> int64_t:  # fmt: skip
        answer: answer_t
        message_id: u8[64]
        length: int64_t = PyBytes_GET_SIZE(self.head)
        memcpy(cython.address(message_id[0]), PyBytes_AS_STRING(self.head), length)
        print_place(cython.address(message_id[0]) + length, physical)
        answer.count = 0
        answer.header_type = request.header_type
        answer.opaque = request.opaque
        answer.code = 0
        answer.version = self.version
        answer.remark = cython.NULL
        answer.remark_length = 0
        answer.body_bytes = 0
        answer_text(cython.address(answer), "msgId", cython.address(message_id[0]), length + 16)
        answer_number(cython.address(answer), "queueId", request.queue_id)
        answer_number(cython.address(answer), "queueOffset", queue_offset)
        answer_text(cython.address(answer), "transactionId", key, key_length)
        answer_text(
            cython.address(answer), "MSG_REGION",
            cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(self.region)), PyBytes_GET_SIZE(self.region),
        )  # fmt: skip
        answer_text(
            cython.address(answer), "TRACE_ON",
            cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(self.trace_on)),
            PyBytes_GET_SIZE(self.trace_on),
        )  # fmt: skip
        if handle_length:
            answer_text(cython.address(answer), "recallHandle", handle, handle_length)
        return build_answer(place, cython.address(answer))

    @cython.cfunc
    def make_room(self, used: int64_t) -> cython.bint:
        """Whether one more response fits behind `used` bytes."""
        if self.room - used >= ANSWER_BYTES_MAX:
            return True
        room: int64_t = self.room * 2 if self.room else 65536
        while room - used < ANSWER_BYTES_MAX:
            room *= 2
        grown: cython.pointer(u8) = cython.cast(cython.pointer(u8), realloc(self.out, room))
        if grown == cython.NULL:
            return False
        self.out = grown
        self.room = room
        return True

    @cython.cfunc
    def answer_to_batch(self, request: SendRequest, born_host: bytes):
        """The same for a batch: its response, or None with nothing stored."""
        a: Appender = self.appender
        key: cython.pointer(cython.const[u8]) = cython.NULL
        key_length: int64_t
        later: later_t
        found = self.topics.get(request.topic)
        if found is None or not self.is_open or not self.plain or request.sys_flag & UNUSUAL_FLAGS:
            return None
        entry: tuple = found
        write_queues: int32_t = entry[0]
        host_length: int64_t = PyBytes_GET_SIZE(born_host)
        body_length: int64_t = PyBytes_GET_SIZE(request.body)
        if request.queue_id < 0 or request.queue_id >= write_queues or (host_length != 8 and host_length != 20):
            return None
        if body_length == 0 or body_length > a.max_body_bytes:
            return None
        key_length = usual_send_key(
            cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(request.properties)),
            PyBytes_GET_SIZE(request.properties), cython.address(key), cython.address(later),
        )  # fmt: skip
        if key_length == 0 or later.kind != LATER_NOT:
            return None
        if batch_names_brokers(
            cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(request.body)), body_length, BATCH_MOST
        ):
            return None
        try:
            messages: list = messages_of_batch(
                message_of_send(request, request.queue_id, request.properties + self.added, born_host)
            )
        except (CorruptRecord, IllegalMessage):
            return None  # The general path reports the error.
        for item in messages:
            m: Message = item
            if m.needs_offset or PyBytes_GET_SIZE(m.encoded_properties) > self.properties_bytes_max:
                return None
        outcome = a.put_together(messages)
        if type(outcome) is not PutResults:
            return None
        results: PutResults = outcome
        row: cython.pointer(int64_t) = cython.cast(cython.pointer(int64_t), PyBytes_AS_STRING(results.rows))
        counts: list = entry[1]
        count_sent(counts, results.length, results.end_offset - row[0])
        return send_answer(
            request.header_type, request.opaque, 0, self.version, self.ids_of(row, results.length), request.queue_id,
            row[1], PyBytes_FromStringAndSize(cython.cast(cython.p_char, key), key_length).decode("ascii"),
            self.region.decode("ascii"), self.trace_on.decode("ascii"),
        )  # fmt: skip

    @cython.cfunc
    def ids_of(self, row: cython.pointer(int64_t), count: cython.Py_ssize_t) -> str:
        """The ids of stored messages, with a comma between them."""
        length: int64_t = PyBytes_GET_SIZE(self.head)
        ids: bytes = PyBytes_FromStringAndSize(cython.NULL, count * (length + 17))
        to: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(ids))
        at: cython.Py_ssize_t
        for at in range(count):
            memcpy(to, PyBytes_AS_STRING(self.head), length)
            print_place(to + length, row[4 * at])
            to[length + 16] = 44
            to += length + 17
        return ids[: count * (length + 17) - 1].decode("ascii")

    def take(self, request: SendRequest, born_host: bytes):
        if request.batch:
            return self.answer_to_batch(request, born_host)
        if not self.make_room(0):
            return None
        length: int64_t = self.answer_to(request, born_host, self.out)
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.out), length) if length > 0 else None

    def take_offset(self, request: SendRequest, born_host: bytes) -> int64_t:
        if request.batch or self.answer_to(request, born_host, cython.NULL) <= 0:
            return -1
        return self.offset

    def take_all(self, frames: list, born_host: bytes) -> tuple:
        used: int64_t = 0
        length: int64_t
        taken: cython.Py_ssize_t = 0
        for frame in frames:
            if type(frame) is not SendRequest or not self.make_room(used):
                break
            request: SendRequest = frame
            if request.batch:
                answer: bytes = self.answer_to_batch(request, born_host)
                if answer is None:
                    break
                length = PyBytes_GET_SIZE(answer)
                if not request.is_oneway:
                    if not self.make_room(used + length):
                        raise MemoryError
                    memcpy(self.out + used, PyBytes_AS_STRING(answer), length)
            else:
                length = self.answer_to(request, born_host, self.out + used)
                if length <= 0:
                    break
            taken += 1
            if not request.is_oneway:
                used += length
        return taken, PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.out), used) if used else b""
