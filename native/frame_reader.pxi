# Frames and headers of the wire: `kernel/frame_reader.py`.


# Frames of the wire. See tiermq/kernel/frame_reader.py for the contract.


@cython.cfunc
def header_text(field: cython.pointer(cython.const[u8]), length: int64_t, escaped: cython.int, is_json: cython.bint):
    """The text of a field; None for what only the general codec can parse."""
    if is_json:
        if escaped:
            return escaped_text(PyBytes_FromStringAndSize(cython.cast(cython.p_char, field), length))
        if not ascii_only(field, length):
            try:
                return cython.cast(cython.p_char, field)[:length].decode("utf-8")
            except UnicodeDecodeError:
                return None
    return cython.cast(cython.p_char, field)[:length].decode("utf-8", "replace")


@cython.cfunc
def header_bytes(field: cython.pointer(cython.const[u8]), length: int64_t, escaped: cython.int, is_json: cython.bint):
    """The same as UTF-8."""
    if not escaped:
        if ascii_only(field, length):
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, field), length)
    elif is_json:
        space: u8[1024]
        made: int64_t = -1
        if length <= 1024:
            made = unescape(field, length, cython.address(space[0]))
        if made >= 0 and ascii_only(cython.address(space[0]), made):
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.address(space[0])), made)
    text = header_text(field, length, escaped, is_json)
    return None if text is None else cython.cast(str, text).encode("utf-8", "replace")


def parse_header(header_type: cython.int, header: bytes):
    found: header_t
    p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(header))
    is_json: cython.bint = header_type == 0
    if is_json:
        if read_json_header(p, PyBytes_GET_SIZE(header), cython.address(found)) != HEADER_USUAL:
            return None
    elif read_binary_header(p, PyBytes_GET_SIZE(header), cython.address(found)) != HEADER_USUAL:
        return None
    ext: dict = {}
    i: cython.int
    field: cython.pointer(field_t)
    for i in range(found.count):
        field = cython.address(found.fields[i])
        key = header_text(field.key, field.key_length, 0, is_json)
        value = header_text(field.value, field.value_length, field.escaped, is_json)
        if key is None or value is None:
            return None
        ext[key] = value
    remark = None
    if found.remark != cython.NULL:
        remark = header_text(found.remark, found.remark_length, found.remark_escaped, is_json)
        if remark is None:
            return None
    language = found.language if not is_json else None
    if found.language_name != cython.NULL:
        language = header_text(found.language_name, found.language_length, 0, True)
        if language is None:
            return None
    return found.code, language, found.version, found.opaque, found.flag, remark, ext


@cython.freelist(64)
@cython.no_gc
@cython.final
@cython.cclass
class Frame:
    header_type = cython.declare(cython.int, visibility="public")
    header = cython.declare(bytes, visibility="public")
    body = cython.declare(bytes, visibility="public")

    def __init__(self, header_type, header, body):
        self.header_type = header_type
        self.header = header
        self.body = body


@cython.freelist(64)
@cython.no_gc
@cython.final
@cython.cclass
class SendRequest:
    code = cython.declare(int32_t, visibility="public")
    opaque = cython.declare(int32_t, visibility="public")
    version = cython.declare(int32_t, visibility="public")
    header_type = cython.declare(int32_t, visibility="public")
    is_oneway = cython.declare(cython.bint, visibility="public")
    producer_group = cython.declare(str, visibility="public")
    topic = cython.declare(str, visibility="public")
    default_topic = cython.declare(str, visibility="public")
    default_topic_queue_nums = cython.declare(int32_t, visibility="public")
    queue_id = cython.declare(int32_t, visibility="public")
    sys_flag = cython.declare(int32_t, visibility="public")
    born_ms = cython.declare(int64_t, visibility="public")
    flag = cython.declare(int32_t, visibility="public")
    properties = cython.declare(bytes, visibility="public")
    reconsume_times = cython.declare(int32_t, visibility="public")
    unit_mode = cython.declare(cython.bint, visibility="public")
    max_reconsume_times = cython.declare(int32_t, visibility="public")
    batch = cython.declare(cython.bint, visibility="public")
    body = cython.declare(bytes, visibility="public")
    data: bytes
    header_at: int64_t
    header_length: int64_t

    def __init__(
        self,
        code,
        opaque,
        *,
        producer_group,
        topic,
        default_topic,
        default_topic_queue_nums,
        queue_id,
        sys_flag,
        born_ms,
        flag,
        properties=b"",
        reconsume_times=0,
        unit_mode=False,
        max_reconsume_times=-1,
        batch=False,
        body=b"",
        is_oneway=False,
        header_type=0,
        version=0,
        header=b"",
    ):
        self.code = code
        self.opaque = opaque
        self.producer_group = producer_group
        self.topic = topic
        self.default_topic = default_topic
        self.default_topic_queue_nums = default_topic_queue_nums
        self.queue_id = queue_id
        self.sys_flag = sys_flag
        self.born_ms = born_ms
        self.flag = flag
        self.properties = properties
        self.reconsume_times = reconsume_times
        self.unit_mode = unit_mode
        self.max_reconsume_times = max_reconsume_times
        self.batch = batch
        self.body = body
        self.is_oneway = is_oneway
        self.header_type = header_type
        self.version = version
        self.data = header
        self.header_at = 0
        self.header_length = len(header)

    @property
    def header(self):
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(self.data) + self.header_at, self.header_length)


@cython.freelist(64)
@cython.no_gc
@cython.final
@cython.cclass
class AckRequest:
    opaque = cython.declare(int32_t, visibility="public")
    group = cython.declare(str, visibility="public")
    topic = cython.declare(str, visibility="public")
    queue_id = cython.declare(int32_t, visibility="public")
    offset = cython.declare(int64_t, visibility="public")
    receipt = cython.declare(str, visibility="public")
    is_oneway = cython.declare(cython.bint, visibility="public")
    header_type = cython.declare(int32_t, visibility="public")
    data: bytes
    header_at: int64_t
    header_length: int64_t

    def __init__(
        self, opaque, *, group, topic, queue_id, offset, receipt, is_oneway=False, header_type=0, header=b""
    ):  # fmt: skip
        self.opaque = opaque
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.receipt = receipt
        self.is_oneway = is_oneway
        self.header_type = header_type
        self.data = header
        self.header_at = 0
        self.header_length = len(header)

    @property
    def header(self):
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(self.data) + self.header_at, self.header_length)


@cython.final
@cython.cclass
class TextMemo:
    """The last text of a field: most sends of a connection name the same topic and group."""

    raw: bytes
    text: str

    def __cinit__(self):
        self.raw = b""
        self.text = ""

    @cython.cfunc
    def find(self, field: cython.pointer(field_t), is_json: cython.bint):
        p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(self.raw))
        if not field.escaped and field.value_length == PyBytes_GET_SIZE(self.raw):
            if memcmp(p, field.value, field.value_length) == 0:
                return self.text
        text = header_text(field.value, field.value_length, field.escaped, is_json)
        if text is not None and not field.escaped and ascii_only(field.value, field.value_length):
            self.raw = PyBytes_FromStringAndSize(cython.cast(cython.p_char, field.value), field.value_length)
            self.text = text
        return text


@cython.cfunc
@cython.inline
def send_number(h: cython.pointer(header_t), place: int32_t, absent: int32_t, out: cython.pointer(int32_t)) -> cython.bint:
    if place < 0:
        out[0] = absent
        return True
    if h.fields[place].escaped:
        return False
    return wire_number32(h.fields[place].value, h.fields[place].value_length, out)


@cython.final
@cython.cclass
class FrameReader:
    frame_bytes_max: int64_t
    header_bytes_max: int64_t
    wanted_bytes: int64_t
    kept: list
    groups: TextMemo
    topics: TextMemo
    defaults: TextMemo
    broken = cython.declare(object, visibility="readonly")
    parse_sends = cython.declare(cython.bint, visibility="public")
    pending_bytes = cython.declare(int64_t, visibility="readonly")

    def __init__(self, frame_bytes_max=FRAME_BYTES_MAX, parse_sends=True, header_bytes_max=FRAME_BYTES_MAX):
        self.frame_bytes_max = frame_bytes_max
        self.header_bytes_max = header_bytes_max
        self.wanted_bytes = 8
        self.kept = []
        self.groups = TextMemo()
        self.topics = TextMemo()
        self.defaults = TextMemo()
        self.broken = None
        self.parse_sends = parse_sends
        self.pending_bytes = 0

    def feed(self, data: bytes) -> list:
        if self.broken is not None:
            raise BadFrame(self.broken)
        if self.pending_bytes:
            self.kept.append(data)
            self.pending_bytes += len(data)
            if self.pending_bytes < self.wanted_bytes:
                return []
            data = b"".join(self.kept)
            self.kept = []
            self.pending_bytes = 0
        frames: list = []
        p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(data))
        end: int64_t = PyBytes_GET_SIZE(data)
        at: int64_t = 0
        length: int64_t
        header_length: int64_t
        mixed: uint32_t
        while True:
            if end - at < 8:
                self.wanted_bytes = 8
                break
            length = cython.cast(int32_t, load32(p + at))
            mixed = load32(p + at + 4)
            header_length = mixed & 0xFFFFFF
            if (
                length < 4 + header_length
                or header_length > self.header_bytes_max
                or length > self.frame_bytes_max - 4
                or mixed >> 24 > 1
            ):
                self.broken = refusal(length, mixed >> 24, header_length, self.frame_bytes_max, self.header_bytes_max)
                if not frames:
                    raise BadFrame(self.broken)
                return frames
            if end - at < 4 + length:
                self.wanted_bytes = 4 + length
                break
            frames.append(self.frame_at(data, at + 8, header_length, at + 4 + length, mixed >> 24))
            at += 4 + length
        if at < end:
            self.kept.append(data if at == 0 else data[at:])
            self.pending_bytes = end - at
        return frames

    @cython.cfunc
    def frame_at(self, data: bytes, header_at: int64_t, header_length: int64_t, end: int64_t, header_type: cython.int):
        """The frame whose header and body are in `data`; a plain send or acknowledgement is already parsed."""
        start: cython.p_char = PyBytes_AS_STRING(data)
        p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), start) + header_at
        code: int32_t
        if self.parse_sends:
            code = peek_code(header_type, p, header_length)
            if code == 310 or code == 10 or code == 320 or code < 0:
                send = self.send_at(p, header_length, header_type)
                if send is not None:
                    made: SendRequest = send
                    made.data = data
                    made.header_at = header_at
                    made.body = PyBytes_FromStringAndSize(start + header_at + header_length, end - header_at - header_length)
                    return made
            elif end == header_at + header_length and code == (ACK_CODE if header_type == 0 else ACK_CODE_BINARY):
                ack = self.ack_at(p, header_length, header_type)
                if ack is not None:
                    acknowledged: AckRequest = ack
                    acknowledged.data = data
                    acknowledged.header_at = header_at
                    return acknowledged
        frame: Frame = Frame.__new__(Frame)
        frame.header_type = header_type
        frame.header = PyBytes_FromStringAndSize(start + header_at, header_length)
        frame.body = PyBytes_FromStringAndSize(start + header_at + header_length, end - header_at - header_length)
        return frame

    @cython.cfunc
    def send_at(self, p: cython.pointer(cython.const[u8]), n: int64_t, header_type: cython.int):
        """The send in a header, without its body; None for anything that is not a plain send."""
        h: header_t
        places: int32_t[13]
        is_json: cython.bint = header_type == 0
        if is_json:
            if read_json_header(p, n, cython.address(h)) != HEADER_USUAL:
                return None
        elif read_binary_header(p, n, cython.address(h)) != HEADER_USUAL:
            return None
        if (h.code != 310 and h.code != 10 and h.code != 320) or h.flag & 1:
            return None
        if not find_send_fields(cython.address(h), h.code == 10, cython.address(places[0])):
            return None
        made: SendRequest = SendRequest.__new__(SendRequest)
        group = self.groups.find(cython.address(h.fields[places[0]]), is_json)
        topic = self.topics.find(cython.address(h.fields[places[1]]), is_json)
        default = self.defaults.find(cython.address(h.fields[places[2]]), is_json)
        if group is None or topic is None or default is None:
            return None
        made.producer_group = group
        made.topic = topic
        made.default_topic = default
        ok: cython.bint = send_number(cython.address(h), places[3], 0, cython.address(made.default_topic_queue_nums))
        ok &= send_number(cython.address(h), places[4], 0, cython.address(made.queue_id))
        ok &= send_number(cython.address(h), places[5], 0, cython.address(made.sys_flag))
        ok &= send_number(cython.address(h), places[7], 0, cython.address(made.flag))
        ok &= send_number(cython.address(h), places[9], 0, cython.address(made.reconsume_times))
        ok &= send_number(cython.address(h), places[11], -1, cython.address(made.max_reconsume_times))
        field: cython.pointer(field_t) = cython.address(h.fields[places[6]])
        ok &= not field.escaped and wire_number(field.value, field.value_length, cython.address(made.born_ms))
        if not ok:
            return None
        made.properties = b""
        if places[8] >= 0:
            field = cython.address(h.fields[places[8]])
            properties = header_bytes(field.value, field.value_length, field.escaped, is_json)
            if properties is None:
                return None
            made.properties = properties
        made.unit_mode = False
        if places[10] >= 0:
            field = cython.address(h.fields[places[10]])
            if field.escaped:
                return None
            made.unit_mode = is_true(field.value, field.value_length)
        made.batch = h.code == 320
        if places[12] >= 0:
            field = cython.address(h.fields[places[12]])
            if field.escaped:
                return None
            if is_true(field.value, field.value_length):
                made.batch = True
        if is_json and not others_hold(cython.address(h), places[8]):
            return None
        made.code = h.code
        made.opaque = h.opaque
        made.version = h.version
        made.header_type = header_type
        made.is_oneway = (h.flag & 2) != 0
        made.header_length = n
        return made


    @cython.cfunc
    def ack_at(self, p: cython.pointer(cython.const[u8]), n: int64_t, header_type: cython.int):
        """The acknowledgement in a header; None for what only the general path can read."""
        h: header_t
        places: int32_t[5]
        is_json: cython.bint = header_type == 0
        if is_json:
            if read_json_header(p, n, cython.address(h)) != HEADER_USUAL:
                return None
        elif read_binary_header(p, n, cython.address(h)) != HEADER_USUAL:
            return None
        if h.flag & 1 or not find_ack_fields(cython.address(h), cython.address(places[0])):
            return None
        queue: cython.pointer(field_t) = cython.address(h.fields[places[2]])
        offset: cython.pointer(field_t) = cython.address(h.fields[places[3]])
        receipt: cython.pointer(field_t) = cython.address(h.fields[places[4]])
        made: AckRequest = AckRequest.__new__(AckRequest)
        ok: cython.bint = not queue.escaped and not offset.escaped and not receipt.escaped
        ok = ok and wire_number32(queue.value, queue.value_length, cython.address(made.queue_id))
        ok = ok and wire_number(offset.value, offset.value_length, cython.address(made.offset))
        if not ok or made.queue_id < 0 or made.offset < 0:
            return None
        length: int64_t = receipt_length(receipt.value, receipt.value_length, made.queue_id, made.offset)
        if length < 0:
            return None
        group = self.groups.find(cython.address(h.fields[places[0]]), is_json)
        topic = self.topics.find(cython.address(h.fields[places[1]]), is_json)
        if group is None or topic is None or (is_json and not others_hold(cython.address(h), -1)):
            return None
        made.group = group
        made.topic = topic
        made.receipt = cython.cast(cython.p_char, receipt.value)[:length].decode("ascii")
        made.opaque = h.opaque
        made.header_type = header_type
        made.is_oneway = (h.flag & 2) != 0
        made.header_length = n
        return made


@cython.cfunc
def others_hold(h: cython.pointer(header_t), checked: int32_t) -> cython.bint:
    """Whether the general codec would accept all fields except the `checked` one, too."""
    i: cython.int
    field: cython.pointer(field_t)
    for i in range(h.count):
        field = cython.address(h.fields[i])
        if not ascii_only(field.key, field.key_length):
            return False
        if i != checked and (field.escaped or not ascii_only(field.value, field.value_length)):
            if header_text(field.value, field.value_length, field.escaped, True) is None:
                return False
    return h.remark == cython.NULL and (
        h.language_name == cython.NULL or ascii_only(h.language_name, h.language_length)
    )


@cython.cfunc
@cython.inline
def plain_text(text: object, out: cython.pointer(cython.pointer(cython.const[u8])), length: cython.pointer(cython.Py_ssize_t)) -> cython.bint:
    if type(text) is not str or not PyUnicode_IS_COMPACT_ASCII(text):
        return False
    out[0] = cython.cast(cython.pointer(cython.const[u8]), PyUnicode_AsUTF8AndSize(text, length))
    return True


@cython.cfunc
def begin_answer(a: cython.pointer(answer_t), header_type: int32_t, opaque: int32_t, code: int32_t, version: int32_t, remark: object) -> cython.bint:
    size: cython.Py_ssize_t = 0
    a.count = 0
    a.header_type = header_type
    a.opaque = opaque
    a.code = code
    a.version = version
    a.remark = cython.NULL
    a.remark_length = 0
    a.body_bytes = 0
    if (header_type != 0 and header_type != 1) or code < 0 or code > 32767 or version < 0 or version > 32767:
        return False
    if remark is not None:
        if not plain_text(remark, cython.address(a.remark), cython.address(size)):
            return False
        a.remark_length = size
    return True


def send_answer(
    header_type: int32_t, opaque: int32_t, code: int32_t, version: int32_t, message_id, queue_id: int32_t,
    queue_offset: int64_t, transaction_id, region, trace_on, remark=None, recall_handle="",
) -> bytes:  # fmt: skip
    a: answer_t
    out: u8[4096]
    text: cython.pointer(cython.const[u8]) = cython.NULL
    size: cython.Py_ssize_t = 0
    made: int64_t = -1
    plain: cython.bint = begin_answer(cython.address(a), header_type, opaque, code, version, remark)
    if plain and plain_text(message_id, cython.address(text), cython.address(size)):
        answer_text(cython.address(a), "msgId", text, size)
        answer_number(cython.address(a), "queueId", queue_id)
        answer_number(cython.address(a), "queueOffset", queue_offset)
        plain = plain_text(transaction_id, cython.address(text), cython.address(size))
        if plain and size:
            answer_text(cython.address(a), "transactionId", text, size)
        if plain and plain_text(region, cython.address(text), cython.address(size)):
            answer_text(cython.address(a), "MSG_REGION", text, size)
            if plain_text(trace_on, cython.address(text), cython.address(size)):
                answer_text(cython.address(a), "TRACE_ON", text, size)
                plain = plain_text(recall_handle, cython.address(text), cython.address(size))
                if plain and size:
                    answer_text(cython.address(a), "recallHandle", text, size)
                if plain:
                    made = build_answer(cython.address(out[0]), cython.address(a))
    if made < 0:
        return general_send_answer(
            header_type, opaque, code, version, message_id, queue_id, queue_offset, transaction_id, region, trace_on,
            remark, recall_handle,
        )  # fmt: skip
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.address(out[0])), made)


def pull_answer(
    header_type: int32_t, opaque: int32_t, code: int32_t, version: int32_t, remark, suggest_which_broker_id: int64_t,
    next_begin_offset: int64_t, min_offset: int64_t, max_offset: int64_t, body_bytes: int64_t,
) -> bytes:  # fmt: skip
    a: answer_t
    out: u8[4096]
    made: int64_t = -1
    if begin_answer(cython.address(a), header_type, opaque, code, version, remark):
        a.body_bytes = body_bytes
        answer_number(cython.address(a), "suggestWhichBrokerId", suggest_which_broker_id)
        answer_number(cython.address(a), "nextBeginOffset", next_begin_offset)
        answer_number(cython.address(a), "minOffset", min_offset)
        answer_number(cython.address(a), "maxOffset", max_offset)
        made = build_answer(cython.address(out[0]), cython.address(a))
    if made < 0:
        return general_pull_answer(
            header_type, opaque, code, version, remark, suggest_which_broker_id, next_begin_offset, min_offset,
            max_offset, body_bytes,
        )  # fmt: skip
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, cython.address(out[0])), made)


def ack_answers(acks: list, version: int32_t) -> bytes:
    a: answer_t
    ack: AckRequest
    at: int64_t = 0
    size: int64_t
    if version < 0 or version > 32767:
        return general_ack_answers(acks, version)
    made: bytes = PyBytes_FromStringAndSize(cython.NULL, ACK_ANSWER_BYTES * len(acks))
    out: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(made))
    for ack in acks:
        if ack.is_oneway:
            continue
        begin_answer(cython.address(a), ack.header_type, ack.opaque, 0, version, None)
        size = build_answer(out + at, cython.address(a))
        at += size
    return made[:at]


def message_of_send(send: SendRequest, queue_id: int32_t, properties: bytes, born_host: bytes) -> Message:
    host_bytes: cython.Py_ssize_t = PyBytes_GET_SIZE(born_host)
    p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(properties))
    if queue_id < 0 or not send.topic or (host_bytes != 8 and host_bytes != 20) or send.sys_flag & 0x80:
        return general_message(send, queue_id, properties, born_host)
    if not plain_send_properties(p, PyBytes_GET_SIZE(properties)):
        return general_message(send, queue_id, properties, born_host)
    made: Message = Message.__new__(Message)
    made.topic = send.topic
    made.body = send.body
    made.encoded_properties = properties
    made.born_host = born_host
    made.queue_id = queue_id
    made.flag = send.flag
    made.sys_flag = send.sys_flag
    made.reconsume_times = send.reconsume_times
    made.born_timestamp_ms = send.born_ms
    made.prepared_transaction_offset = 0
    made.waits_for_store = True
    made.needs_offset = False
    return made


@cython.cfunc
def general_message(send: SendRequest, queue_id: int32_t, properties: bytes, born_host: bytes) -> Message:
    return Message(
        send.topic, send.body, queue_id, encoded_properties=properties, flag=send.flag, sys_flag=send.sys_flag,
        born_timestamp_ms=send.born_ms, born_host=born_host, reconsume_times=send.reconsume_times,
    )  # fmt: skip


def messages_of_batch(envelope: Message) -> list:
    body: bytes = envelope.body
    shared: bytes = envelope.encoded_properties
    p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(body))
    length: int64_t = PyBytes_GET_SIZE(body)
    shared_plain: cython.bint = not envelope.needs_offset and plain_send_properties(
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
            return general_messages(envelope)  # Which also reports the error.
        made.append(batch_message(envelope, p + at, size, flag, body_length))
        at += size
    return made


@cython.cfunc
def batch_message(
    envelope: Message, p: cython.pointer(cython.const[u8]), size: int64_t, flag: int32_t, body_length: int64_t
) -> Message:
    """The message of a valid element at `p`, whose properties and the envelope's are plain."""
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
    made.needs_offset = False
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
