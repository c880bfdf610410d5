# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, binding=False
"""The kernel, compiled: Cython in pure-Python mode, with the same names and meaning as `tiermq/kernel/pure.py`.

Critical sections. Everything between reading a tail's position and publishing the new one runs without calling
Python code and without releasing the interpreter lock, so the interpreter lock *is* the writer lock of an Appender.
Loops that only one thread may run at a time (dispatch, scan) release it.

Sharing. `tail_t` and `queue_t` live inside their Python objects; a Builder keeps references to the objects whose
structs its table points to. A Tail that is pinned keeps its buffer until it is unpinned, whatever `detach` says.
"""

from array import array

import cython
from cython.cimports.columns import (
    C_COUNT,
    C_FIRST_TEXT,
    C_KEYS,
    C_PROPERTIES,
    D_END,
    D_ODD,
    PAIRS_MAX,
    append_corrupt,
    append_row,
    column_prepare,
    column_t,
    decode_free,
    decode_some,
    decode_t,
    find_properties,
    guess_bytes,
    names_add,
    names_prepare,
    names_t,
    out_give,
    out_t,
    pair_t,
    row_t,
)
from cython.cimports.cpython.buffer import (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.framing import (
    ANSWER_BYTES_MAX,
    HEADER_USUAL,
    answer_number,
    answer_t,
    answer_text,
    batch_element,
    build_answer,
    field_t,
    find_send_fields,
    header_t,
    is_true,
    peek_code,
    plain_send_properties,
    print_place,
    read_binary_header,
    read_json_header,
    unescape,
    usual_send_key,
    wire_number,
    wire_number32,
)
from cython.cimports.libc.stdint import int32_t, int64_t, uint32_t
from cython.cimports.libc.stdlib import calloc, free, malloc, realloc
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.native import (
    PyUnicode_AsUTF8AndSize,
    PyUnicode_IS_COMPACT_ASCII,
    abs_hash,
    ascii_only,
    clock_now_ms,
    copy_body,
    copy_short,
    crc_inside,
    crc_of,
    crc_prepare,
    find_tag,
    has_space,
    head_t,
    is_memo,
    is_zero_page,
    load16,
    load32,
    load64,
    named_t,
    observe,
    pending_t,
    plain_properties,
    plain_record,
    prefetch_ahead,
    prefetch_read,
    prefetch_write,
    publish,
    publish32,
    queue_t,
    same_bytes,
    scan_properties,
    settle_vectors,
    spread,
    store16,
    store32,
    store64,
    tag_memo_t,
    tail_t,
    u8,
)

from tiermq.errors import BadFrame, CorruptRecord, IllegalMessage
from tiermq.kernel.message_values import offset_message_id, prepare_message, properties_of
from tiermq.message.java_hash import key_hash
from tiermq.message.record import CrcPropertyCheck, decode_records
from tiermq.status import GetStatus, PutStatus

__all__ = [
    "COLUMN_SHAPES",
    "FRAME_BYTES_MAX",
    "TIME_MAX_MS",
    "TIME_MIN_MS",
    "Appender",
    "Builder",
    "Check",
    "Collected",
    "ColumnRequest",
    "DecodedColumns",
    "Disagreement",
    "Frame",
    "FrameReader",
    "GetPage",
    "IndexReader",
    "IndexTail",
    "Message",
    "PutResult",
    "PutResults",
    "QueryOffsets",
    "QueueHandle",
    "QueueTail",
    "Refusal",
    "Segments",
    "SendLane",
    "SendRequest",
    "Shape",
    "Stop",
    "Tail",
    "TierPage",
    "TransferLimits",
    "WindowPages",
    "check_index_items",
    "check_records",
    "check_window",
    "collect_for_tier",
    "collect_tier_keys",
    "crc32",
    "decode_columns",
    "first_zero_page",
    "key_hashes",
    "message_of_send",
    "messages_of_batch",
    "parse_header",
    "pull_answer",
    "put_collected_keys",
    "put_tier_keys",
    "query_index",
    "read_page",
    "rearrange_index",
    "scan",
    "scan_units",
    "send_answer",
]

from tiermq.kernel.column_values import (  # noqa: E402
    COLUMN_SHAPES,
    TIME_MAX_MS,
    TIME_MIN_MS,
    Check,
    ColumnRequest,
    DecodedColumns,
    Shape,
)
from tiermq.kernel.decoding import take_row  # noqa: E402
from tiermq.kernel.framing import FRAME_BYTES_MAX, escaped_text, refusal  # noqa: E402
from tiermq.kernel.framing import pull_answer as general_pull_answer  # noqa: E402
from tiermq.kernel.framing import send_answer as general_send_answer  # noqa: E402
from tiermq.kernel.reasons import Disagreement, Refusal, Stop  # noqa: E402
from tiermq.kernel.send_lane import UNUSUAL_SYS_FLAGS, plain_lane  # noqa: E402
from tiermq.message.client_batch import decode_client_batch  # noqa: E402
from tiermq.message.properties import join_properties  # noqa: E402

crc_prepare(1)

INDEX_BEGIN_MAX_MS = cython.declare(int64_t, 1 << 62)
MAGIC_V1 = cython.declare(uint32_t, 0xDAA320A7)
MAGIC_V2 = cython.declare(uint32_t, 0xDAA320AB)
MAGIC_BLANK = cython.declare(uint32_t, 0xCBD43194)
INDEX_MAGIC_BEGIN = cython.declare(uint32_t, 0xBCC50289)
INDEX_MAGIC_END = cython.declare(uint32_t, 0xBCC50285)
FIXED_BYTES = cython.declare(cython.int, 91)
CRC_PROPERTY_BYTES = cython.declare(cython.int, 20)
UNIT_BYTES = cython.declare(cython.int, 20)
PENDING_MAX = cython.declare(cython.int, 64)
FETCHED_WHOLE_MAX = cython.declare(int64_t, 1024)  # Records up to this size are fetched whole, ahead of their dispatch.
FETCHED_AHEAD = cython.declare(int64_t, 2048)
TIER_PENDING_MAX = cython.declare(cython.int, 256)
MESSAGES_AHEAD = cython.declare(cython.int, 12)
BODIES_AHEAD = cython.declare(cython.int, 6)
PREFETCHED_BYTES = cython.declare(cython.int, 1024)
COLLECT_AHEAD = cython.declare(cython.int, 6)
COLLECT_AHEAD_BYTES = cython.declare(cython.int, 1024)

PUT_OK = cython.declare(object, PutStatus.PUT_OK)
CLOSED = cython.declare(object, Refusal.CLOSED)
UNBOUND = cython.declare(object, Refusal.UNBOUND)
SPECIAL = cython.declare(object, Refusal.SPECIAL)
FOUND = cython.declare(object, GetStatus.FOUND)
IGNORE_CRC_PROPERTY = cython.declare(object, CrcPropertyCheck.IGNORE)
MESSAGE_WAS_REMOVING = cython.declare(object, GetStatus.MESSAGE_WAS_REMOVING)
OFFSET_FOUND_NULL = cython.declare(object, GetStatus.OFFSET_FOUND_NULL)
OFFSET_OVERFLOW_BADLY = cython.declare(object, GetStatus.OFFSET_OVERFLOW_BADLY)
OFFSET_OVERFLOW_ONE = cython.declare(object, GetStatus.OFFSET_OVERFLOW_ONE)
OFFSET_TOO_SMALL = cython.declare(object, GetStatus.OFFSET_TOO_SMALL)
NO_MESSAGE_IN_QUEUE = cython.declare(object, GetStatus.NO_MESSAGE_IN_QUEUE)

# Values of kernel.reasons as C constants; asserted equal at import.
ROOM = cython.declare(cython.int, -1)
BODY_TOO_LARGE = cython.declare(cython.int, -2)
PROPERTIES_TOO_LARGE = cython.declare(cython.int, -3)
RECORD_TOO_LARGE = cython.declare(cython.int, -4)
OFFSET_MOVED = cython.declare(cython.int, -5)
assert Refusal.ROOM.value == -1 and Refusal.BODY_TOO_LARGE.value == -2
assert Refusal.PROPERTIES_TOO_LARGE.value == -3 and Refusal.RECORD_TOO_LARGE.value == -4
assert Refusal.OFFSET_MOVED.value == -5
STOP_END = cython.declare(cython.int, 0)
STOP_BLANK = cython.declare(cython.int, 1)
STOP_SLOW = cython.declare(cython.int, 2)
STOP_CORRUPT = cython.declare(cython.int, 3)
assert Stop.END == 0 and Stop.BLANK == 1 and Stop.SLOW == 2 and Stop.CORRUPT == 3
CHECK_END = cython.declare(cython.int, 0)
CHECK_PLACE = cython.declare(cython.int, 1)
CHECK_ROOM = cython.declare(cython.int, 2)
CHECK_RECORD = cython.declare(cython.int, 3)
CHECK_UNIT = cython.declare(cython.int, 4)
CHECK_OWNER = cython.declare(cython.int, 5)
CHECK_TAG = cython.declare(cython.int, 6)
assert [value.name for value in Disagreement] == ["END", "PLACE", "ROOM", "RECORD", "UNIT", "OWNER", "TAG"]
assert [int(value) for value in Disagreement] == [0, 1, 2, 3, 4, 5, 6]
DISAGREEMENTS = cython.declare(list, list(Disagreement))
UNUSUAL_FLAGS = cython.declare(int32_t, UNUSUAL_SYS_FLAGS)


def crc32(data) -> int:
    """CRC-32 (IEEE) of a buffer, as zlib's."""
    view: cython.const[cython.uchar][::1] = data
    size: cython.Py_ssize_t = view.shape[0]
    if size == 0:
        return 0
    return crc_of(cython.address(view[0]), size)


@cython.final
@cython.cclass
class Tail:
    t: tail_t
    view: cython.Py_buffer
    attached: cython.bint
    detaching: cython.bint
    pins: cython.int

    def __cinit__(self, buffer, base: int64_t, size: int64_t):
        PyObject_GetBuffer(buffer, cython.address(self.view), PyBUF_WRITABLE)
        self.attached = True
        if self.view.len < size:
            raise ValueError(f"a tail of {size} bytes needs a buffer of at least that, found {self.view.len}")
        self.t.data = cython.cast(cython.pointer(u8), self.view.buf)
        self.t.base = base
        self.t.size = size

    def __dealloc__(self):
        if self.attached:
            PyBuffer_Release(cython.address(self.view))

    @cython.cfunc
    def pin(self) -> cython.void:
        self.pins += 1

    @cython.cfunc
    def unpin(self) -> cython.void:
        self.pins -= 1
        if self.detaching and self.pins == 0:
            self.let_go()

    @cython.cfunc
    def let_go(self) -> cython.void:
        self.t.data = cython.NULL
        self.attached = False
        PyBuffer_Release(cython.address(self.view))

    def detach(self):
        self.t.limit = 0
        if not self.attached:
            return
        self.detaching = True
        if self.pins == 0:
            self.let_go()

    @property
    def base(self):
        return self.t.base

    @property
    def size(self):
        return self.t.size

    @property
    def position(self):
        return observe(cython.address(self.t.position))

    @position.setter
    def position(self, value: int64_t):
        publish(cython.address(self.t.position), value)

    @property
    def limit(self):
        return self.t.limit

    @limit.setter
    def limit(self, value: int64_t):
        self.t.limit = value if self.attached and not self.detaching else 0

    def append(self, data) -> bool:
        view: cython.const[cython.uchar][::1] = data
        length: int64_t = view.shape[0]
        if self.t.data == cython.NULL or self.t.position + length > self.t.limit:
            return False
        if length:
            memcpy(self.t.data + self.t.position, cython.address(view[0]), length)
        publish(cython.address(self.t.position), self.t.position + length)
        return True

    def read(self, position: int64_t, length: int64_t):
        if position < 0 or length < 0 or self.t.data == cython.NULL:
            return None
        if position + length > observe(cython.address(self.t.position)):
            return None
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.t.data + position), length)


@cython.final
@cython.cclass
class Segments:
    views = cython.declare(list, visibility="readonly")
    file_size = cython.declare(int64_t, visibility="readonly")

    def __init__(self, views, file_size: int64_t):
        self.views = list(views)
        self.file_size = file_size

    @cython.cfunc
    def locate(self, offset: int64_t) -> Tail:
        count: cython.Py_ssize_t = len(self.views)
        if count == 0:
            return None
        view: Tail = cython.cast(Tail, self.views[0])
        if offset < view.t.base:
            return None
        at: cython.Py_ssize_t = (offset - view.t.base) // self.file_size
        if at < count:
            view = cython.cast(Tail, self.views[at])
            if view.t.base <= offset and offset < view.t.base + self.file_size:
                return view
        for item in self.views:
            view = cython.cast(Tail, item)
            if view.t.base <= offset and offset < view.t.base + self.file_size:
                return view
        return None

    def find(self, offset: int64_t):
        return self.locate(offset)

    def read(self, offset: int64_t, length: int64_t):
        view: Tail = self.locate(offset)
        return None if view is None else view.read(offset - view.t.base, length)


@cython.final
@cython.cclass
class QueueTail:
    q: queue_t
    topic = cython.declare(str, visibility="readonly")
    topic_bytes: bytes
    tail_object: Tail

    def __init__(self, topic: str, queue_id: int32_t):
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.q.topic = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(self.topic_bytes))
        self.q.topic_length = len(self.topic_bytes)
        self.q.queue_id = queue_id
        self.q.max_physical = -1
        # The hash of "topic#", from which every key's hash goes on. Topics that are not ASCII never reach the fast path.
        self.q.topic_hash = hash_on(
            hash_on(0, self.q.topic, self.q.topic_length), cython.cast(cython.pointer(cython.const[u8]), b"#"), 1
        )

    @property
    def queue_id(self):
        return self.q.queue_id

    @property
    def tail(self):
        return self.tail_object

    @tail.setter
    def tail(self, value: Tail | None):
        self.tail_object = value
        self.q.tail = cython.NULL if value is None else cython.address(value.t)

    @property
    def max_physical_offset(self):
        return self.q.max_physical

    @max_physical_offset.setter
    def max_physical_offset(self, value: int64_t):
        self.q.max_physical = value

    @property
    def last_store_timestamp_ms(self):
        return self.q.last_store_ms

    @last_store_timestamp_ms.setter
    def last_store_timestamp_ms(self, value: int64_t):
        self.q.last_store_ms = value


@cython.final
@cython.cclass
class Message:
    topic = cython.declare(str, visibility="readonly")
    body = cython.declare(bytes, visibility="readonly")
    encoded_properties = cython.declare(bytes, visibility="readonly")
    born_host = cython.declare(bytes, visibility="readonly")
    queue_id = cython.declare(int32_t, visibility="readonly")
    flag = cython.declare(int32_t, visibility="readonly")
    sys_flag = cython.declare(int32_t, visibility="readonly")
    reconsume_times = cython.declare(int32_t, visibility="readonly")
    born_timestamp_ms = cython.declare(int64_t, visibility="readonly")
    prepared_transaction_offset = cython.declare(int64_t, visibility="readonly")
    waits_for_store = cython.declare(cython.bint, visibility="readonly")
    special = cython.declare(cython.bint, visibility="readonly")

    def __init__(
        self,
        topic,
        body,
        queue_id=0,
        *,
        keys=(),
        tags="",
        properties=None,
        encoded_properties=None,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=0,
        born_host=b"",
        reconsume_times=0,
        prepared_transaction_offset=0,
    ):
        if properties is None and not keys and not tags and self.take_usual(
            topic, body, queue_id, encoded_properties, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times,
            prepared_transaction_offset,
        ):  # fmt: skip
            return
        values = prepare_message(
            topic, body, queue_id, keys, tags, properties, encoded_properties, flag, sys_flag,
            born_timestamp_ms, born_host, reconsume_times, prepared_transaction_offset,
        )  # fmt: skip
        self.topic, self.body, self.encoded_properties, self.born_host, self.waits_for_store, self.special = values
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.reconsume_times = reconsume_times
        self.born_timestamp_ms = born_timestamp_ms
        self.prepared_transaction_offset = prepared_transaction_offset

    @cython.cfunc
    def take_usual(
        self, topic, body, queue_id, encoded, flag, sys_flag, born_ms, born_host, reconsume_times, prepared_offset
    ) -> cython.bint:
        """Take values that need neither conversion nor a closer look, as a message has that is put once more; False for
        all others. A short cut: `prepare_message` would give the same."""
        if type(topic) is not str or type(body) is not bytes or type(encoded) is not bytes or not topic:
            return False
        if type(born_host) is not bytes or type(queue_id) is not int or type(flag) is not int:
            return False
        if type(sys_flag) is not int or type(reconsume_times) is not int:
            return False
        if type(born_ms) is not int or type(prepared_offset) is not int:
            return False
        host_bytes: cython.Py_ssize_t = PyBytes_GET_SIZE(born_host)
        if host_bytes != 0 and host_bytes != 8 and host_bytes != 20:
            return False
        p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(encoded))
        if not plain_send_properties(p, PyBytes_GET_SIZE(encoded)):
            return False
        try:
            self.queue_id = queue_id
            self.flag = flag
            self.sys_flag = sys_flag
            self.reconsume_times = reconsume_times
            self.born_timestamp_ms = born_ms
            self.prepared_transaction_offset = prepared_offset
        except OverflowError:
            return False
        if self.queue_id < 0 or self.sys_flag & 0x80:
            return False
        self.topic, self.body, self.encoded_properties, self.born_host = topic, body, encoded, born_host
        self.waits_for_store, self.special = True, False
        return True

    @property
    def properties(self):
        return properties_of(self.encoded_properties)

    def __repr__(self):
        return f"Message(topic={self.topic!r}, queue_id={self.queue_id}, body=<{len(self.body)} bytes>)"


@cython.freelist(64)
@cython.final
@cython.cclass
class PutResult:
    status = cython.declare(object, visibility="readonly")
    host: bytes
    physical_offset = cython.declare(int64_t, visibility="readonly")
    queue_offset = cython.declare(int64_t, visibility="readonly")
    store_timestamp_ms = cython.declare(int64_t, visibility="readonly")
    size = cython.declare(int64_t, visibility="readonly")
    count = cython.declare(int32_t, visibility="readonly")

    def __init__(self, status, host=b"", physical_offset=-1, queue_offset=-1, store_timestamp_ms=0, size=0, count=1):
        self.status = status
        self.host = host
        self.physical_offset = physical_offset
        self.queue_offset = queue_offset
        self.store_timestamp_ms = store_timestamp_ms
        self.size = size
        self.count = count

    @property
    def ok(self):
        return self.status is PUT_OK

    @property
    def end_offset(self):
        return self.physical_offset + self.size

    @property
    def message_id(self):
        return offset_message_id(self.host, self.physical_offset) if self.physical_offset >= 0 else None

    def with_status(self, status):
        return PutResult(
            status, self.host, self.physical_offset, self.queue_offset, self.store_timestamp_ms, self.size, self.count
        )

    def __repr__(self):
        return (
            f"PutResult(status={self.status.name}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, size={self.size})"
        )


@cython.cfunc
@cython.inline
def stored(host: bytes, physical: int64_t, queue_offset: int64_t, now: int64_t, size: int64_t, count: int32_t) -> PutResult:
    result: PutResult = PutResult.__new__(PutResult)
    result.status = PUT_OK
    result.host = host
    result.physical_offset = physical
    result.queue_offset = queue_offset
    result.store_timestamp_ms = now
    result.size = size
    result.count = count
    return result


@cython.final
@cython.cclass
class PutResults:
    """The results of one put_many, made one by one only when looked at. Row: physical offset, queue offset, size, time."""

    rows: bytes
    others: dict
    host: bytes
    length: cython.Py_ssize_t
    store_timestamp_ms = cython.declare(int64_t, visibility="readonly")
    end_offset = cython.declare(int64_t, visibility="readonly")

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        at: cython.Py_ssize_t = index
        if at < 0:
            at += self.length
        if at < 0 or at >= self.length:
            raise IndexError(f"result {index} of {self.length}")
        if self.others is not None:
            other = self.others.get(at)
            if other is not None:
                return other
        row: cython.pointer(int64_t) = cython.cast(cython.pointer(int64_t), PyBytes_AS_STRING(self.rows)) + 4 * at
        return stored(self.host, row[0], row[1], row[3], row[2], 1)

    def __iter__(self):
        at: cython.Py_ssize_t
        for at in range(self.length):
            yield self[at]

    @property
    def others_by_index(self):
        return {at: result for at, result in (self.others or {}).items() if not result.ok}

    @property
    def all_ok(self):
        return self.others is None or all(result.ok for result in self.others.values())

    @staticmethod
    def refused(status, count: cython.Py_ssize_t):
        """`count` results that all say `status`."""
        made: PutResults = PutResults.__new__(PutResults)
        made.rows = b""
        made.host = b""
        made.length = count
        made.end_offset = -1
        made.others = {at: PutResult(status) for at in range(count)}
        return made

    def with_status(self, status):
        """The same results with every stored one marked as `status` (a flush that timed out)."""
        changed: PutResults = PutResults.__new__(PutResults)
        changed.rows = self.rows
        changed.host = self.host
        changed.length = self.length
        changed.store_timestamp_ms = self.store_timestamp_ms
        changed.end_offset = self.end_offset
        changed.others = {at: (r.with_status(status) if r.ok else r) for at, r in enumerate(self)}
        return changed


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
        if type(body) is not bytes or type(properties) is not bytes or a.gate or a.waits or not (
            plain_properties(
                cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(properties)), PyBytes_GET_SIZE(properties)
            )
        ):
            message = Message(self.topic, body, self.queue_id, encoded_properties=properties)
            return a.put(message) if a.door is None else a.door(message)
        now: int64_t = a.now()
        done: int64_t = a.write(self, body, properties, 0, 0, 0, a.host, 0, 0, now, 1)
        if done < 0:
            return a.slow(Message(self.topic, body, self.queue_id, encoded_properties=properties), Refusal(done))
        result: PutResult = stored(a.host, done, self.next_offset - 1, now, a.last_size, 1)
        if a.idle:
            a.idle = False
            a.wake()
        return result


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def prefetch_contents(message: Message) -> cython.void:
    """Ask for the beginning of a message's body and for its properties, which a put will read soon."""
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
    gate = cython.declare(cython.bint, visibility="public")
    idle = cython.declare(cython.bint, visibility="public")
    waits = cython.declare(cython.bint, visibility="public")
    max_body_bytes = cython.declare(int64_t, visibility="public")
    door = cython.declare(object, visibility="public")
    puts = cython.declare(int64_t, visibility="readonly")
    stored_bytes = cython.declare(int64_t, visibility="readonly")
    last_store_timestamp_ms = cython.declare(int64_t, visibility="readonly")
    last_size: int64_t
    last_sampled: int64_t
    crc_property: cython.bint
    auto_version: cython.bint
    active: Tail
    t: cython.pointer(tail_t)
    queues: dict
    host: bytes
    slow: object
    wake: object
    clock: object
    sample: object

    def __init__(self, host, *, slow, wake, clock=None, sample=None, max_body_bytes=4194304, crc_property=False,
                 auto_version=True, lock=None):  # fmt: skip
        self.host = host
        self.slow = slow
        self.wake = wake
        self.clock = clock
        self.sample = sample
        self.max_body_bytes = max_body_bytes
        self.crc_property = crc_property
        self.auto_version = auto_version
        self.queues = {}
        self.gate = True

    @property
    def tail(self):
        return self.active

    def attach(self, tail: Tail | None):
        """Append to this file from now on."""
        self.active = tail
        self.t = cython.NULL if tail is None else cython.address(tail.t)

    def roll(self, tail: Tail):
        """End the active file with a blank record and go on in `tail`, as one step that no put can see the middle of."""
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
        # Set and cleared: a message that was forwarded may carry the bits of hosts that it no longer has.
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
        """Store one message; anything unusual is `slow`'s: slow(message, refusal) -> PutResult."""
        if self.gate:
            return self.slow(message, CLOSED)
        if self.sample is not None and self.puts - self.last_sampled >= 1024:
            self.last_sampled = self.puts
            return self.sample(message)
        if message.special:
            return self.slow(message, SPECIAL)
        h: QueueHandle = self.find(message.topic, message.queue_id)
        if h is None:
            return self.slow(message, UNBOUND)
        now: int64_t = self.now()
        host: bytes = message.born_host
        done: int64_t = self.write(
            h, message.body, message.encoded_properties, message.flag, message.sys_flag, message.born_timestamp_ms,
            host if PyBytes_GET_SIZE(host) else self.host, message.reconsume_times,
            message.prepared_transaction_offset, now, 1,
        )  # fmt: skip
        if done < 0:
            return self.slow(message, Refusal(done))
        result: PutResult = stored(
            self.host, done, 0 if message.sys_flag & 4 else h.next_offset - 1, now, self.last_size, 1
        )
        if self.idle:
            self.idle = False
            self.wake()
        return result

    def put_expecting(self, message: Message, expected_offset: int64_t, count: int32_t):
        """Store `message` as `count` queue positions, only if its queue still stands at `expected_offset`.

        For records whose properties carry their own queue offset. A PutResult, or the Refusal.
        """
        h: QueueHandle = self.find(message.topic, message.queue_id)
        if self.gate:
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
        if message.sys_flag & 4:  # Prepared and rolled back messages have no place in their queue.
            expected_offset = 0
            count = 1
        result: PutResult = stored(self.host, done, expected_offset, now, self.last_size, count)
        if self.idle:
            self.idle = False
            self.wake()
        return result

    def put_many(self, messages):
        """Store a list in one call: each message has its own result, one clock reading serves all."""
        return self.put_many_at(messages if type(messages) is list else list(messages), self.now())

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
            # The messages of a list lie all over the memory: first they are fetched, then what they point to.
            if at + MESSAGES_AHEAD < length:
                coming = cython.cast(cython.pointer(u8), cython.cast(cython.p_void, batch[at + MESSAGES_AHEAD]))
                prefetch_read(coming)
                prefetch_read(coming + 64)
            if at + BODIES_AHEAD < length and isinstance(batch[at + BODIES_AHEAD], Message):
                prefetch_contents(cython.cast(Message, batch[at + BODIES_AHEAD]))
            if h is None or m.topic is not topic or m.queue_id != h.queue_id:
                topic = m.topic
                h = self.find(topic, m.queue_id)
            if h is not None and not self.gate and not m.special:
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
            now = self.now()  # The slow path took its time, and store times never go back.
            results.store_timestamp_ms = now
            row += 4
            at += 1
        if self.idle and length:
            self.idle = False
            self.wake()
        return results

    @cython.cfunc
    def put_slowly(self, message: Message, h: QueueHandle | None) -> object:
        if self.gate:
            return self.slow(message, CLOSED)
        if message.special:
            return self.slow(message, SPECIAL)
        if h is None:
            return self.slow(message, UNBOUND)
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
        """The bytes of the record that `m` will be."""
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
        """The bytes of the record that a message will be."""
        return self.size_of(message, len(message.topic.encode()))

    def put_together(self, messages: list):
        """Store messages of one queue next to each other in one file, with one store time; PutResults, or the Refusal
        of the first that cannot be stored, with nothing written. No other put comes between them."""
        if self.gate:
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def crc_property_holds(p: cython.pointer(cython.const[u8]), total: int64_t) -> cython.bint:
    expected: u8[20]
    if total < CRC_PROPERTY_BYTES:
        return False
    write_crc_property(cython.address(expected[0]), crc_of(p, total - CRC_PROPERTY_BYTES) & 0x7FFFFFFF)
    return memcmp(cython.address(expected[0]), p + total - CRC_PROPERTY_BYTES, CRC_PROPERTY_BYTES) == 0


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def hash_on(h: uint32_t, p: cython.pointer(cython.const[u8]), length: int64_t) -> uint32_t:
    """Java's String hash continued over ASCII bytes."""
    i: int64_t = 0
    while i + 4 <= length:
        h = h * 923521 + p[i] * 29791 + p[i + 1] * 961 + p[i + 2] * 31 + p[i + 3]
        i += 4
    while i < length:
        h = h * 31 + p[i]
        i += 1
    return h


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def parse_head(p: cython.pointer(cython.const[u8]), available: int64_t, head: cython.pointer(head_t)) -> cython.int:
    """Read a record's head: STOP_END when it is whole, STOP_BLANK, STOP_CORRUPT."""
    if available < 8:
        return STOP_CORRUPT
    total: int64_t = cython.cast(int32_t, load32(p))
    magic: uint32_t = load32(p + 4)
    head.total = total
    if magic == MAGIC_BLANK:
        return STOP_BLANK if total >= 8 else STOP_CORRUPT
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return STOP_CORRUPT
    if total < FIXED_BYTES or total > available:
        return STOP_CORRUPT
    sys_flag: int32_t = cython.cast(int32_t, load32(p + 36))
    at: int64_t = 48 + (20 if sys_flag & 0x10 else 8)
    head.sys_flag = sys_flag
    store_at: int64_t = at
    at += 8 + (20 if sys_flag & 0x20 else 8) + 12
    if at + 4 > total:
        return STOP_CORRUPT
    body_length: int64_t = cython.cast(int32_t, load32(p + at))
    at += 4
    if body_length < 0 or at + body_length + 1 > total:
        return STOP_CORRUPT
    head.body_at = at
    head.body_length = body_length
    at += body_length
    topic_length: int64_t
    if magic == MAGIC_V1:
        topic_length = p[at]
        at += 1
        if topic_length > 127:
            return STOP_CORRUPT
    else:
        if at + 2 > total:
            return STOP_CORRUPT
        topic_length = load16(p + at)
        at += 2
        if topic_length > 32767:
            return STOP_CORRUPT
    if at + topic_length + 2 > total:
        return STOP_CORRUPT
    head.topic_at = at
    head.topic_length = topic_length
    at += topic_length
    properties_length: int64_t = load16(p + at)
    at += 2
    if properties_length > 32767:
        return STOP_CORRUPT
    head.properties_at = at
    head.properties_length = properties_length
    at += properties_length
    if at != total:
        return STOP_CORRUPT
    head.crc = cython.cast(int32_t, load32(p + 8))
    head.queue_id = cython.cast(int32_t, load32(p + 12))
    head.queue_offset = cython.cast(int64_t, load64(p + 20))
    head.physical_offset = cython.cast(int64_t, load64(p + 28))
    head.store_ms = cython.cast(int64_t, load64(p + store_at))
    head.prepared_offset = cython.cast(int64_t, load64(p + head.body_at - 12))
    return STOP_END


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def body_holds(p: cython.pointer(cython.const[u8]), head: cython.pointer(head_t), crc_mode: cython.int) -> cython.bint:
    if crc_mode == 1:
        return head.body_length == 0 or (
            cython.cast(int32_t, crc_inside(p + head.body_at, head.body_length) & 0x7FFFFFFF) == head.crc
        )
    if crc_mode == 2:
        return crc_property_holds(p, head.total)
    return True


def first_zero_page(data, start: int64_t, stop: int64_t) -> int:
    """Where the first whole, aligned 512 bytes of zeros in [start, stop) begin; -1 when there are none."""
    view: cython.const[cython.uchar][::1] = data
    at: int64_t = (start + 511) // 512 * 512
    end: int64_t = min(stop, view.shape[0]) - 512
    if at < 0 or at > end:
        return -1
    page: cython.pointer(cython.const[u8]) = cython.address(view[0])
    with cython.nogil:
        while at <= end:
            if load64(page + at) == 0 and is_zero_page(page + at):
                break
            at += 512
    return at if at <= end else -1


def scan_units(data, previous_end: int64_t, physical_end_max: int64_t):
    """Units of a consume queue from the start of `data` while they are valid, do not run backwards and end at or before
    `physical_end_max`: (bytes of them, where the record of the last real one ends, whether any is real).
    """
    view: cython.const[cython.uchar][::1] = data
    count: int64_t = view.shape[0] // UNIT_BYTES
    end: int64_t = previous_end
    physical: int64_t
    size: int64_t
    has_real: cython.bint = False
    done: int64_t = 0
    if count == 0:
        return 0, end, False
    unit: cython.pointer(cython.const[u8]) = cython.address(view[0])
    with cython.nogil:
        while done < count:
            physical = cython.cast(int64_t, load64(unit))
            size = cython.cast(int32_t, load32(unit + 8))
            if not (size == 0x7FFFFFFF and physical == 0):
                if size <= 0 or size == 0x7FFFFFFF or physical < end or physical > physical_end_max - size:
                    break
                end = physical + size
                has_real = True
            unit += UNIT_BYTES
            done += 1
    return done * UNIT_BYTES, end, has_real


def scan(view: Tail, start: int64_t, end: int64_t, crc_mode: cython.int = 1):
    """Walk records from `start` while they are whole and in their place.

    (position, stop, records, last record's position or -1, last store time, blank size): `position` is where the walk
    stopped. crc_mode: 0 none, 1 body CRC, 2 the whole-record CRC property.
    """
    head: head_t
    stop: cython.int = STOP_END
    size: int64_t
    position: int64_t = start
    records: int64_t = 0
    last: int64_t = -1
    last_ms: int64_t = 0
    data: cython.pointer(cython.const[u8]) = view.t.data
    base: int64_t = view.t.base
    if data == cython.NULL:
        return start, Stop.CORRUPT, 0, -1, 0, 0
    if end > view.t.size:
        end = view.t.size
    view.pin()
    with cython.nogil:
        while position < end:
            size = plain_record(data + position, end - position, base + position, crc_mode) if crc_mode < 2 else 0
            if size:
                last = position
                last_ms = cython.cast(int64_t, load64(data + position + 56))
                records += 1
                position += size
                stop = STOP_END
                continue
            stop = parse_head(data + position, end - position, cython.address(head))
            if stop != STOP_END:
                break
            if head.physical_offset != base + position or not body_holds(data + position, cython.address(head), crc_mode):
                stop = STOP_CORRUPT
                break
            last = position
            last_ms = head.store_ms
            records += 1
            position += head.total
    view.unpin()
    return position, Stop(stop), records, last, last_ms, (head.total if stop == STOP_BLANK else 0)


def key_hashes(topic: str, keys: list) -> bytes:
    """The index hashes of `topic#key` for each key, as native 32-bit numbers side by side."""
    count: cython.Py_ssize_t = len(keys)
    out: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * count)
    to: cython.pointer(int32_t) = cython.cast(cython.pointer(int32_t), PyBytes_AS_STRING(out))
    length: cython.Py_ssize_t = 0
    prefix_text: bytes = (topic + "#").encode("utf-8", "surrogatepass")
    plain: cython.bint = topic.isascii()
    prefix: uint32_t = hash_on(
        0, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(prefix_text)), PyBytes_GET_SIZE(prefix_text)
    )
    at: cython.Py_ssize_t
    text: cython.pointer(cython.const[cython.char])
    for at in range(count):
        key = keys[at]
        if plain and isinstance(key, str) and PyUnicode_IS_COMPACT_ASCII(key):
            text = PyUnicode_AsUTF8AndSize(key, cython.address(length))
            to[at] = abs_hash(hash_on(prefix, cython.cast(cython.pointer(cython.const[u8]), text), length))
        else:
            to[at] = key_hash(f"{topic}#{key}")
    return out


@cython.final
@cython.freelist(64)
@cython.cclass
class QueryOffsets:
    """Candidates for a key, newest first, and how far the index reaches."""

    offsets = cython.declare(list, visibility="readonly")
    last_update_timestamp_ms = cython.declare(int64_t, visibility="readonly")
    last_update_physical_offset = cython.declare(int64_t, visibility="readonly")

    def __init__(self, offsets: list, last_update_timestamp_ms: int64_t, last_update_physical_offset: int64_t):
        self.offsets = offsets
        self.last_update_timestamp_ms = last_update_timestamp_ms
        self.last_update_physical_offset = last_update_physical_offset

    def __eq__(self, other):
        if type(other) is not QueryOffsets:
            return NotImplemented
        its: QueryOffsets = other
        return (
            self.offsets == its.offsets
            and self.last_update_timestamp_ms == its.last_update_timestamp_ms
            and self.last_update_physical_offset == its.last_update_physical_offset
        )

    def __repr__(self):
        return (
            f"QueryOffsets(offsets={self.offsets!r}, last_update_timestamp_ms={self.last_update_timestamp_ms}, "
            f"last_update_physical_offset={self.last_update_physical_offset})"
        )


@cython.final
@cython.cclass
class IndexReader:
    """One index file for those who ask. Walks run under the interpreter lock, hence never beside a `detach`."""

    view: cython.Py_buffer
    attached: cython.bint
    data: cython.pointer(u8)
    slots: int64_t
    entries: int64_t

    def __cinit__(self, buffer, slots: int64_t, entries: int64_t, guard=None):
        PyObject_GetBuffer(buffer, cython.address(self.view), PyBUF_SIMPLE)
        self.attached = True
        if self.view.len < 40 + 4 * slots + 20 * entries:
            raise ValueError("the buffer is smaller than the index file that it should hold")
        self.data = cython.cast(cython.pointer(u8), self.view.buf)
        self.slots = slots
        self.entries = entries

    def __dealloc__(self):
        self.detach()

    def detach(self):
        """Let go of the buffer; later walks find nothing."""
        if self.attached:
            self.attached = False
            self.data = cython.NULL
            PyBuffer_Release(cython.address(self.view))

    def select(self, hash_: int64_t, max_count: int64_t, begin_ms: int64_t, end_ms: int64_t) -> list:
        """Physical offsets put for a key's hash in the time range, newest first, at most `max_count`."""
        found: list = []
        if self.attached and hash_ >= 0:
            self.walk(found, hash_, max_count, begin_ms, end_ms)
        return found

    @cython.cfunc
    def walk(self, found: list, hash_: int64_t, max_count: int64_t, begin_ms: int64_t, end_ms: int64_t) -> cython.int:
        data: cython.pointer(u8) = self.data
        file_begin_ms: int64_t = cython.cast(int64_t, load64(data))
        begin_offset: int64_t = cython.cast(int64_t, load64(data + 16))
        end_offset: int64_t = cython.cast(int64_t, load64(data + 24))
        count: int64_t = cython.cast(int32_t, load32(data + 36))
        number: int64_t = cython.cast(int32_t, load32(data + 40 + 4 * (hash_ % self.slots)))
        previous: int64_t
        seconds: int64_t
        entry_ms: int64_t
        offset: int64_t
        entry: cython.pointer(u8)
        left: int64_t = max_count - len(found)
        if file_begin_ms > INDEX_BEGIN_MAX_MS:
            file_begin_ms = INDEX_BEGIN_MAX_MS
        if number > (count if count > 1 else 1):
            return 0
        while 0 < number < self.entries and left > 0:
            entry = data + 40 + 4 * self.slots + 20 * number
            seconds = cython.cast(int32_t, load32(entry + 12))
            entry_ms = file_begin_ms + seconds * 1000
            if seconds < 0 or entry_ms + 999 < begin_ms:
                return 0
            if cython.cast(int32_t, load32(entry)) == hash_ and entry_ms <= end_ms:
                offset = cython.cast(int64_t, load64(entry + 4))
                if begin_offset <= offset <= end_offset:
                    found.append(offset)
                    left -= 1
            previous = cython.cast(int32_t, load32(entry + 16))
            if previous >= number:
                return 0
            number = previous
        return 0


@cython.cfunc
def index_hash(topic: str, key: str) -> int64_t:
    """The index hash of `topic#key`."""
    length: cython.Py_ssize_t = 0
    text: cython.pointer(cython.const[cython.char])
    if not (PyUnicode_IS_COMPACT_ASCII(topic) and PyUnicode_IS_COMPACT_ASCII(key)):
        return key_hash(f"{topic}#{key}")
    text = PyUnicode_AsUTF8AndSize(topic, cython.address(length))
    h: uint32_t = hash_on(0, cython.cast(cython.pointer(cython.const[u8]), text), length) * 31 + 35
    text = PyUnicode_AsUTF8AndSize(key, cython.address(length))
    return abs_hash(hash_on(h, cython.cast(cython.pointer(cython.const[u8]), text), length))


def query_index(
    newest_first: tuple, topic: str, key: str, max_count: int64_t, begin_ms: int64_t, end_ms: int64_t
) -> QueryOffsets:
    """Candidates for `topic#key` in all files of an index."""
    if topic is None or key is None:
        raise TypeError("expected a topic and a key, found None")
    hash_: int64_t = index_hash(topic, key)
    answer: QueryOffsets = QueryOffsets.__new__(QueryOffsets)
    found: list = []
    answer.offsets = found
    is_first: cython.bint = True
    reader: IndexReader
    file_begin_ms: int64_t
    file_end_ms: int64_t
    for item in newest_first:
        reader = item
        if not reader.attached:
            continue
        file_begin_ms = cython.cast(int64_t, load64(reader.data))
        file_end_ms = cython.cast(int64_t, load64(reader.data + 8))
        if is_first:
            is_first = False
            answer.last_update_timestamp_ms = file_end_ms
            answer.last_update_physical_offset = cython.cast(int64_t, load64(reader.data + 24))
        if len(found) >= max_count:
            break
        if (
            cython.cast(int32_t, load32(reader.data + 36)) > 1
            and begin_ms <= (file_end_ms if file_end_ms > file_begin_ms else file_begin_ms)
            and end_ms >= (file_end_ms if file_end_ms < file_begin_ms else file_begin_ms)
        ):
            reader.walk(found, hash_, max_count, begin_ms, end_ms)
        if file_begin_ms < begin_ms:
            break
    return answer


@cython.final
@cython.cclass
class IndexTail:
    """The open index file as the kernel sees it. All state is in the file's own header; one thread writes."""

    view: cython.Py_buffer
    attached: cython.bint
    data: cython.pointer(u8)
    slots = cython.declare(int64_t, visibility="readonly")
    entries = cython.declare(int64_t, visibility="readonly")
    entry_limit = cython.declare(int64_t, visibility="public")

    def __cinit__(self, buffer, slots: int64_t, entries: int64_t):
        PyObject_GetBuffer(buffer, cython.address(self.view), PyBUF_WRITABLE)
        self.attached = True
        if self.view.len < 40 + 4 * slots + 20 * entries:
            raise ValueError("the buffer is smaller than the index file that it should hold")
        self.data = cython.cast(cython.pointer(u8), self.view.buf)
        self.slots = slots
        self.entries = entries

    def __dealloc__(self):
        self.detach()

    def detach(self):
        if self.attached:
            self.attached = False
            self.entry_limit = 0
            self.data = cython.NULL
            PyBuffer_Release(cython.address(self.view))

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def room(self) -> int64_t:
        """How many entries can still be put without asking for blocks or another file."""
        count: int64_t = cython.cast(int32_t, load32(self.data + 36))
        if count < 1:
            count = 1
        top: int64_t = self.entries if self.entries < self.entry_limit else self.entry_limit
        return top - count

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def put_pending(self, pending: cython.pointer(pending_t), length: cython.int) -> cython.void:
        """Put entries whose slots were prefetched. The caller has checked `room`."""
        data: cython.pointer(u8) = self.data
        count: int64_t = cython.cast(int32_t, load32(data + 36))
        if count < 1:
            count = 1
        slot_count: int32_t = cython.cast(int32_t, load32(data + 32))
        begin_ms: int64_t = cython.cast(int64_t, load64(data))
        entry: cython.pointer(u8) = data + 40 + 4 * self.slots + 20 * count
        slot: cython.pointer(u8)
        previous: int32_t
        seconds: int64_t
        i: cython.int
        for i in range(length):
            if count <= 1:
                begin_ms = pending[i].store_ms
                store64(data, begin_ms)
                store64(data + 16, pending[i].physical_offset)
            slot = data + 40 + 4 * cython.cast(int64_t, pending[i].slot)
            previous = cython.cast(int32_t, load32(slot))
            if previous <= 0 or previous >= count:
                previous = 0
                slot_count += 1
            seconds = (pending[i].store_ms - begin_ms) // 1000 if begin_ms > 0 and pending[i].store_ms > begin_ms else 0
            if seconds > 2147483647:
                seconds = 2147483647
            store32(entry, pending[i].hash)
            store64(entry + 4, pending[i].physical_offset)
            store32(entry + 12, seconds)
            store32(entry + 16, previous)
            entry += 20
            count += 1
            store32(data + 36, count)
            store32(slot, count - 1)
        store32(data + 32, slot_count)
        if length:
            store64(data + 8, pending[length - 1].store_ms)
            store64(data + 24, pending[length - 1].physical_offset)

    def put_many(self, hashes, offsets, timestamps_ms) -> int:
        """Put keys given as three equally long arrays (i32, i64, i64). How many fitted."""
        h: cython.const[cython.int][::1] = hashes
        o: cython.const[cython.longlong][::1] = offsets
        m: cython.const[cython.longlong][::1] = timestamps_ms
        length: cython.Py_ssize_t = h.shape[0]
        if o.shape[0] != length or m.shape[0] != length:
            raise ValueError("hashes, offsets and timestamps must be equally long")
        if self.data == cython.NULL:
            return 0
        free_entries: int64_t = self.room()
        if length > free_entries:
            length = free_entries if free_entries > 0 else 0
        ring: pending_t[64]
        at: cython.Py_ssize_t = 0
        fill: cython.int
        with cython.nogil:
            while at < length:
                fill = 0
                while fill < 64 and at < length:
                    ring[fill].hash = h[at]
                    ring[fill].physical_offset = o[at]
                    ring[fill].store_ms = m[at]
                    ring[fill].slot = h[at] % self.slots
                    prefetch_write(self.data + 40 + 4 * cython.cast(int64_t, ring[fill].slot))
                    fill += 1
                    at += 1
                self.put_pending(cython.address(ring[0]), fill)
        return length


@cython.final
@cython.cclass
class Builder:
    """Walks the commit log and builds queue units and index entries until a record needs the slow path."""

    table: cython.pointer(cython.pointer(queue_t))
    table_size: int64_t
    objects: dict
    touched: cython.pointer(queue_t)
    index = cython.declare(IndexTail, visibility="public")
    last_store_timestamp_ms = cython.declare(int64_t, visibility="public")
    records = cython.declare(int64_t, visibility="public")

    def __cinit__(self):
        self.objects = {}
        self.table_size = 0
        self.table = cython.NULL
        self.touched = cython.NULL

    def __dealloc__(self):
        free(self.table)

    def add(self, queue: QueueTail):
        """Let the fast path append to this queue. Only ordinary queues with an ASCII topic may be added."""
        key = (queue.topic, queue.q.queue_id)
        before = self.objects.get(key)
        if before is queue:
            return
        self.objects[key] = queue
        if before is not None or self.table_size < 16 * len(self.objects):
            self.rebuild()
        else:
            self.enter(self.table, self.table_size, queue)

    def remove(self, topic: str, queue_id: int32_t):
        self.take_touched()
        if self.objects.pop((topic, queue_id), None) is not None:
            self.rebuild()

    def clear(self):
        self.take_touched()
        self.objects.clear()
        self.rebuild()

    @cython.cfunc
    def rebuild(self):
        size: int64_t = 64
        while size < 16 * len(self.objects):
            size *= 2
        table: cython.pointer(cython.pointer(queue_t)) = cython.cast(
            cython.pointer(cython.pointer(queue_t)), calloc(size, cython.sizeof(cython.pointer(queue_t)))
        )
        if table == cython.NULL:
            raise MemoryError
        for item in self.objects.values():
            self.enter(table, size, item)
        free(self.table)
        self.table = table
        self.table_size = size

    @cython.cfunc
    def enter(self, table: cython.pointer(cython.pointer(queue_t)), size: int64_t, queue: QueueTail):
        at: int64_t = spread(queue.q.topic, queue.q.topic_length, queue.q.queue_id) & (size - 1)
        while table[at] != cython.NULL:
            at = (at + 1) & (size - 1)
        table[at] = cython.address(queue.q)

    def take_touched(self) -> list:
        """The queues that got units since the last call, as (QueueTail, next queue offset)."""
        found = []
        q: cython.pointer(queue_t) = self.touched
        self.touched = cython.NULL
        following: cython.pointer(queue_t)
        while q != cython.NULL:
            following = q.touched_next
            q.touched = 0
            q.touched_next = cython.NULL
            key = (q.topic[: q.topic_length].decode(), q.queue_id)
            found.append((self.objects[key], q.next_arrival))
            q = following
        return found

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def lookup(self, topic: cython.pointer(cython.const[u8]), length: int32_t, queue_id: int32_t) -> cython.pointer(queue_t):
        if self.table_size == 0:
            return cython.NULL
        mask: int64_t = self.table_size - 1
        at: int64_t = spread(topic, length, queue_id) & mask
        q: cython.pointer(queue_t) = self.table[at]
        while q != cython.NULL:
            if q.queue_id == queue_id and q.topic_length == length and same_bytes(q.topic, topic, length):
                return q
            at = (at + 1) & mask
            q = self.table[at]
        return cython.NULL

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def build(self, p: cython.pointer(cython.const[u8]), available: int64_t, head: cython.pointer(head_t),
              pending: cython.pointer(pending_t), waiting: cython.pointer(cython.int),
              index_room: cython.pointer(int64_t), use_index: cython.bint) -> cython.bint:  # fmt: skip
        """Append the record's unit and queue its keys. False, with nothing done, when the slow path must do it."""
        transaction: int32_t = head.sys_flag & 0x0C
        q: cython.pointer(queue_t) = self.lookup(p + head.topic_at, head.topic_length, head.queue_id)
        if q == cython.NULL:
            return False
        named: named_t
        scan_properties(
            p + head.properties_at, head.properties_length, available - head.properties_at, cython.address(named)
        )
        if named.special:
            return False
        counted: cython.bint = transaction == 0 or transaction == 8
        t: cython.pointer(tail_t) = q.tail
        if counted:
            if t == cython.NULL or t.data == cython.NULL:
                return False
            if head.physical_offset + head.total <= q.max_physical:
                counted = False  # It has its unit already: a record that is dispatched again.
            elif head.queue_offset * UNIT_BYTES != t.base + t.position or t.position + UNIT_BYTES > t.limit:
                return False
        if not ascii_only(named.tags, named.tags_length):
            return False
        if use_index and transaction != 12:
            if not self.queue_keys(q, head, cython.address(named), pending, waiting, index_room):
                return False
        if counted:
            unit: cython.pointer(u8) = t.data + t.position
            store64(unit, head.physical_offset)
            store32(unit + 8, head.total)
            store64(unit + 12, cython.cast(int64_t, cython.cast(int32_t, hash_on(0, named.tags, named.tags_length))))
            q.max_physical = head.physical_offset + head.total
            q.last_store_ms = head.store_ms
            q.next_arrival = head.queue_offset + 1
            publish(cython.address(t.position), t.position + UNIT_BYTES)
            if not q.touched:
                q.touched = 1
                q.touched_next = self.touched
                self.touched = q
        return True

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def queue_keys(self, q: cython.pointer(queue_t), head: cython.pointer(head_t), named: cython.pointer(named_t),
                   pending: cython.pointer(pending_t), waiting: cython.pointer(cython.int),
                   index_room: cython.pointer(int64_t)) -> cython.bint:  # fmt: skip
        """Hash the record's keys into `pending`; all of them, or none and False."""
        keys: cython.pointer(cython.const[u8]) = named.keys
        keys_length: int64_t = named.keys_length
        if not ascii_only(keys, keys_length) or not ascii_only(named.unique, named.unique_length):
            return False
        count: int64_t = 1 if named.unique_length else 0
        i: int64_t
        single: cython.bint = keys_length > 0 and not has_space(keys, keys_length)
        if single:
            count += 1
        else:
            for i in range(keys_length):
                if keys[i] != 32 and (i == 0 or keys[i - 1] == 32):
                    count += 1
        if count == 0:
            return True
        if count > index_room[0] or count > PENDING_MAX:
            return False
        if waiting[0] + count > PENDING_MAX:
            self.index.put_pending(pending, waiting[0])
            waiting[0] = 0
        if named.unique_length:
            self.pend(hash_on(q.topic_hash, named.unique, named.unique_length), head, pending + waiting[0])
            waiting[0] += 1
        i = 0
        start: int64_t
        if single:
            self.pend(hash_on(q.topic_hash, keys, keys_length), head, pending + waiting[0])
            waiting[0] += 1
            i = keys_length
        while i < keys_length:
            if keys[i] == 32:
                i += 1
                continue
            start = i
            while i < keys_length and keys[i] != 32:
                i += 1
            self.pend(hash_on(q.topic_hash, keys + start, i - start), head, pending + waiting[0])
            waiting[0] += 1
        index_room[0] -= count
        return True

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def pend(self, h: uint32_t, head: cython.pointer(head_t), place: cython.pointer(pending_t)) -> cython.void:
        value: int32_t = abs_hash(h)
        place.hash = value
        place.slot = value % self.index.slots
        place.physical_offset = head.physical_offset
        place.store_ms = head.store_ms
        prefetch_write(self.index.data + 40 + 4 * cython.cast(int64_t, place.slot))

    def dispatch(self, view: Tail, start: int64_t, end: int64_t, crc_mode: cython.int = 0, budget: int64_t = 1 << 62):
        """Build units and entries for the records of [start, end) of one file: (position, stop).

        Stop.SLOW: the record at `position` needs the slow path. Stop.BLANK: the file ends there. Stop.END: everything
        up to `end` is done, or at least `budget` bytes.
        """
        head: head_t
        ring: pending_t[64]
        waiting: cython.int = 0
        stop: cython.int = STOP_END
        position: int64_t = start
        use_index: cython.bint = self.index is not None and self.index.data != cython.NULL
        index_room: int64_t = self.index.room() if use_index else 0
        index_end: int64_t = -1
        if use_index:
            # A file without entries carries the end of the file before it, so that nothing is indexed twice.
            index_end = cython.cast(int64_t, load64(self.index.data + 24))
            if index_end == 0 and cython.cast(int32_t, load32(self.index.data + 36)) <= 1:
                index_end = -1
        data: cython.pointer(cython.const[u8]) = view.t.data
        base: int64_t = view.t.base
        if data == cython.NULL:
            return start, Stop.CORRUPT
        if end > view.t.size:
            end = view.t.size
        halt: int64_t = end if end - start < budget else start + budget
        ahead: cython.pointer(cython.const[u8])
        fetched: int64_t = start
        view.pin()
        with cython.nogil:
            while position < halt:
                stop = parse_head(data + position, end - position, cython.address(head))
                if stop != STOP_END:
                    break
                # Bodies are skipped, which the hardware's prefetcher cannot guess. Short records are fetched whole, of
                # long ones the ends, as if the next were equally long.
                if head.total <= FETCHED_WHOLE_MAX:
                    if fetched < position:
                        fetched = position
                    while fetched < position + FETCHED_AHEAD:
                        prefetch_read(data + fetched)
                        fetched += 64
                else:
                    ahead = data + position + 3 * cython.cast(int64_t, head.total)
                    prefetch_read(ahead)
                    prefetch_read(ahead + head.topic_at)
                    prefetch_read(ahead + head.topic_at + 64)
                if head.physical_offset != base + position or (
                    crc_mode != 0 and not body_holds(data + position, cython.address(head), crc_mode)
                ):
                    stop = STOP_CORRUPT
                    break
                # A record at the index's end may be half indexed: the index service decides.
                if use_index and head.physical_offset == index_end:
                    stop = STOP_SLOW
                    break
                if not self.build(
                    data + position, end - position, cython.address(head), cython.address(ring[0]), cython.address(waiting),
                    cython.address(index_room), use_index and head.physical_offset > index_end,
                ):  # fmt: skip
                    stop = STOP_SLOW
                    break
                self.last_store_timestamp_ms = head.store_ms
                self.records += 1
                position += head.total
            if waiting:
                self.index.put_pending(cython.address(ring[0]), waiting)
        view.unpin()
        return position, Stop(stop)


@cython.final
@cython.cclass
class TransferLimits:
    """How much one get may return, by whether the records are expected in memory.

    Records below the physical offset `checked_below` were not written by this process: their checksums are looked at.
    """

    checked_below = cython.declare(int64_t, visibility="public")
    memory_bytes = cython.declare(int64_t, visibility="public")
    memory_count = cython.declare(int64_t, visibility="public")
    disk_bytes = cython.declare(int64_t, visibility="public")
    disk_count = cython.declare(int64_t, visibility="public")
    memory_window_bytes = cython.declare(int64_t, visibility="public")
    filter_bytes = cython.declare(int64_t, visibility="public")

    def __init__(self, memory_bytes, memory_count, disk_bytes, disk_count, memory_window_bytes, filter_bytes):
        self.memory_bytes = memory_bytes
        self.memory_count = memory_count
        self.disk_bytes = disk_bytes
        self.disk_count = disk_count
        self.memory_window_bytes = memory_window_bytes
        self.filter_bytes = filter_bytes
        self.checked_below = 0


@cython.final
@cython.cclass
class GetPage:
    """What one get found. `data` is the records as stored, end to end; `messages` decodes them when first asked."""

    status = cython.declare(object, visibility="readonly")
    data = cython.declare(bytes, visibility="readonly")
    next_offset = cython.declare(int64_t, visibility="readonly")
    min_offset = cython.declare(int64_t, visibility="readonly")
    max_offset = cython.declare(int64_t, visibility="readonly")
    count = cython.declare(int64_t, visibility="readonly")
    suggest_slave = cython.declare(cython.bint, visibility="readonly")
    decoded: object

    def __init__(self, status, next_offset, min_offset=0, max_offset=0, data=b"", count=0, suggest_slave=False):
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.data = data
        self.count = count
        self.suggest_slave = suggest_slave

    @property
    def messages(self):
        if self.decoded is None:
            self.decoded = list(decode_records(self.data))
        return self.decoded

    def __repr__(self):
        return f"GetPage(status={self.status.name}, count={self.count}, next_offset={self.next_offset})"


@cython.cfunc
@cython.inline
def page_of(status: object, next_offset: int64_t, low: int64_t, high: int64_t) -> GetPage:
    page: GetPage = GetPage.__new__(GetPage)
    page.status = status
    page.next_offset = next_offset
    page.min_offset = low
    page.max_offset = high
    page.data = b""
    return page


def read_page(queue: Segments, min_logic_offset: int64_t, offset: int64_t, log: Segments, max_messages: int64_t,
              max_bytes: int64_t, limits: TransferLimits, queue_id: int64_t = -1) -> GetPage:  # fmt: skip
    """A get of an ordinary queue: the table of statuses, then the records as far as the limits allow.

    `queue_id`: records must say that they are of this queue and at the offset of their unit; -1 where units lead to
    records of other queues. Raises CorruptRecord when the first record is damaged, or not the one of its unit.
    """
    low: int64_t = min_logic_offset // UNIT_BYTES
    last: Tail
    files: cython.Py_ssize_t = len(queue.views)
    if files == 0:
        return page_of(NO_MESSAGE_IN_QUEUE, 0, low, 0)
    last = cython.cast(Tail, queue.views[files - 1])
    high: int64_t = (last.t.base + observe(cython.address(last.t.position))) // UNIT_BYTES
    if high == 0:
        return page_of(NO_MESSAGE_IN_QUEUE, 0, low, 0)
    if offset < low:
        return page_of(OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return page_of(OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return page_of(OFFSET_OVERFLOW_BADLY, high, low, high)
    per_file: int64_t = queue.file_size // UNIT_BYTES
    view: Tail = queue.locate(offset * UNIT_BYTES)
    page: GetPage = page_of(OFFSET_FOUND_NULL, offset - offset % per_file + per_file, low, high)
    if view is None or view.t.data == cython.NULL:
        return page
    files = len(log.views)
    max_physical: int64_t = 0
    if files:
        last = cython.cast(Tail, log.views[files - 1])
        max_physical = last.t.base + observe(cython.address(last.t.position))
    gather_into(
        page, view, offset - view.t.base // UNIT_BYTES, offset, log, max_physical, max_messages, max_bytes, limits, queue_id
    )
    return page


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_sound(p: cython.pointer(cython.const[u8]), size: int64_t) -> cython.bint:
    """Whether the checksums of a record of `size` bytes agree with its bytes."""
    flags: uint32_t = load32(p + 36)
    body_at: int64_t = 88 + (12 if flags & 0x10 else 0) + (12 if flags & 0x20 else 0)
    if body_at + 3 > size:
        return False
    body_length: int64_t = cython.cast(int32_t, load32(p + body_at - 4))
    if body_length < 0 or body_at + body_length + 3 > size:
        return False
    if load32(p + 8) != (crc_of(p + body_at, body_length) & 0x7FFFFFFF if body_length else 0):
        return False
    if size < body_at + body_length + CRC_PROPERTY_BYTES or memcmp(p + size - CRC_PROPERTY_BYTES, b"__CRC32#\x01", 9) != 0:
        return True
    return crc_property_holds(p, size)


@cython.cfunc
def gather_into(page: GetPage, queue: Tail, first_unit: int64_t, offset: int64_t, log: Segments, max_physical: int64_t,
                max_messages: int64_t, max_bytes: int64_t, limits: TransferLimits, queue_id: int64_t):  # fmt: skip
    """Copy the records that the units from `first_unit` of one queue file point to, as far as the limits allow.

    Where a unit does not lead to its own record, or to a damaged one, a page ends; one that would begin there raises.
    """
    units: int64_t = observe(cython.address(queue.t.position)) // UNIT_BYTES
    scan_bytes: int64_t = max_messages * UNIT_BYTES
    if scan_bytes < limits.filter_bytes:
        scan_bytes = limits.filter_bytes
    if scan_bytes < 1:
        scan_bytes = 1  # At least one unit, or the reader would be sent on past it.
    if first_unit >= units:
        return
    unit: cython.pointer(cython.const[u8]) = queue.t.data + first_unit * UNIT_BYTES
    most: int64_t = units - first_unit
    if most > max_messages:
        most = max_messages
    if most < 1:
        most = 1
    few: cython.pointer(cython.const[u8])[64]
    places: int64_t[64]  # The unit of each record.
    unit_of: cython.pointer(int64_t) = places
    records: cython.pointer(cython.pointer(cython.const[u8])) = few
    if most > 64:
        records = cython.cast(
            cython.pointer(cython.pointer(cython.const[u8])), malloc(most * cython.sizeof(cython.pointer(u8)))
        )
        unit_of = cython.cast(cython.pointer(int64_t), malloc(most * cython.sizeof(int64_t)))
        if records == cython.NULL or unit_of == cython.NULL:
            free(records)
            free(unit_of)
            raise MemoryError
    count: int64_t = 0
    examined: int64_t = 0
    total: int64_t = 0
    last_physical: int64_t = -1
    removed_before: int64_t = -1
    physical: int64_t
    size: int64_t
    at: int64_t
    line: int64_t
    source: cython.pointer(cython.const[u8])
    bad: int64_t = -1
    stopped: cython.bint = False
    view: Tail = None
    low: int64_t = 0x7FFFFFFFFFFFFFFF
    if len(log.views):
        low = cython.cast(Tail, log.views[0]).t.base
    before: int64_t = -1  # Where the unit before leads to.
    if first_unit and cython.cast(int32_t, load32(unit - 12)) != 2147483647:
        before = cython.cast(int64_t, load64(unit - UNIT_BYTES))
    goes_back: cython.bint
    while first_unit + examined < units and examined * UNIT_BYTES < scan_bytes:
        physical = cython.cast(int64_t, load64(unit))
        size = cython.cast(int32_t, load32(unit + 8))
        if size == 2147483647:  # A place without a message.
            examined += 1
            unit += UNIT_BYTES
            continue
        if count:
            if count >= max_messages or total + size > max_bytes:
                break
            if max_physical - physical <= limits.memory_window_bytes:
                if total + size > limits.memory_bytes or count >= limits.memory_count:
                    break
            elif total + size > limits.disk_bytes or count >= limits.disk_count:
                break
        if total >= max_bytes or count >= most:
            break
        last_physical = physical
        examined += 1
        unit += UNIT_BYTES
        goes_back = physical < before
        before = physical
        if physical < removed_before and not goes_back:
            continue
        if view is None or physical < view.t.base or physical >= view.t.base + view.t.size:
            view = log.locate(physical)
        if not goes_back and ((0 <= physical and physical < low) or (view is not None and view.t.data == cython.NULL)):
            removed_before = physical - physical % log.file_size + log.file_size
            continue
        at = 0 if view is None else physical - view.t.base
        if goes_back or view is None or size < FIXED_BYTES or at + size > observe(cython.address(view.t.position)):
            stopped = True
            examined -= 1
            break
        source = view.t.data + at
        for line in range(0, size, 64):
            prefetch_read(source + line)
        records[count] = source
        unit_of[count] = examined - 1
        count += 1
        total += size
    data: bytes = b""
    to: cython.pointer(u8) = cython.NULL
    left: int64_t = total
    i: int64_t
    if count:
        data = PyBytes_FromStringAndSize(cython.NULL, total)
        to = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(data))
    for i in range(count):
        source = records[i]
        size = cython.cast(int32_t, load32(source))
        at = offset + unit_of[i]
        if (
            size != cython.cast(int32_t, load32(queue.t.data + (first_unit + unit_of[i]) * UNIT_BYTES + 8))
            or size > left
            or (load32(source + 4) != MAGIC_V1 and load32(source + 4) != MAGIC_V2)
            or (queue_id >= 0 and (load32(source + 12) != queue_id or cython.cast(int64_t, load64(source + 20)) != at))
        ):
            bad = i
            break
        memcpy(to, source, size)
        if cython.cast(int64_t, load64(queue.t.data + (first_unit + unit_of[i]) * UNIT_BYTES)) < limits.checked_below:
            if not is_sound(to, size):
                bad = i
                break
        to += size
        left -= size
    if bad >= 0:
        # What came before it is given out, the next page begins with it.
        data = data[: total - left]
        count = bad
        examined = unit_of[bad]
        last_physical = cython.cast(int64_t, load64(queue.t.data + (first_unit + examined) * UNIT_BYTES))
        stopped = True
    if records != few:
        free(records)
        free(unit_of)
    if stopped and count == 0:
        physical = cython.cast(int64_t, load64(queue.t.data + (first_unit + examined) * UNIT_BYTES))
        raise CorruptRecord(
            f"queue offset {offset + examined} points to commit-log bytes that are not the record it describes, or a "
            f"damaged one (physical offset {physical}); run `tiermq store check`"
        )
    page.status = FOUND if count else MESSAGE_WAS_REMOVING
    page.next_offset = offset + examined
    page.data = data
    page.count = count
    page.suggest_slave = max_physical - last_physical > limits.memory_window_bytes


@cython.final
@cython.cclass
class Collected:
    """A run of one queue's records, ready for its tier: rebased records, their units, and what they span."""

    data = cython.declare(bytes, visibility="readonly")
    units = cython.declare(bytes, visibility="readonly")
    count = cython.declare(int64_t, visibility="readonly")
    next_offset = cython.declare(int64_t, visibility="readonly")
    begin_ms = cython.declare(int64_t, visibility="readonly")
    end_ms = cython.declare(int64_t, visibility="readonly")
    has_ext_address = cython.declare(cython.bint, visibility="readonly")


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def store_time(record: cython.pointer(cython.const[u8])) -> int64_t:
    """A record's store time; where it stands depends on the shape of the born host."""
    return cython.cast(int64_t, load64(record + (68 if load32(record + 36) & 0x10 else 56)))


def collect_for_tier(queue: Segments, log: Segments, offset: int64_t, max_count: int64_t, max_bytes: int64_t,
                     tier_offset: int64_t) -> Collected:  # fmt: skip
    """Copy records of one queue from `offset` on, their physical offsets rewritten to where they will lie in the tier.

    At most `max_count` records and `max_bytes` bytes, but at least one record if there is one; stops before a unit
    whose record is not there (or is another).
    """
    made: Collected = Collected.__new__(Collected)
    records: cython.pointer(cython.pointer(cython.const[u8])) = cython.NULL
    units: cython.pointer(cython.pointer(cython.const[u8])) = cython.NULL
    pinned: list = []
    view: Tail = None
    unit_view: Tail = None
    ut: cython.pointer(tail_t) = cython.NULL
    lt: cython.pointer(tail_t) = cython.NULL
    unit_end: int64_t
    log_end: int64_t
    at_end: cython.bint = False
    has_ext: cython.bint = False
    count: int64_t = 0
    total: int64_t = 0
    at: int64_t
    size: int64_t
    physical: int64_t
    i: int64_t
    ms: int64_t
    unit: cython.pointer(cython.const[u8])
    source: cython.pointer(cython.const[u8])
    if max_count < 0:
        max_count = 0
    records = cython.cast(
        cython.pointer(cython.pointer(cython.const[u8])), malloc(2 * (max_count + 1) * cython.sizeof(cython.pointer(u8)))
    )
    if records == cython.NULL:
        raise MemoryError
    units = records + max_count + 1
    try:
        while count < max_count and not at_end:
            at = (offset + count) * UNIT_BYTES
            if unit_view is None or at >= unit_view.t.base + unit_view.t.size:
                unit_view = queue.locate(at)
                if unit_view is None or unit_view.t.data == cython.NULL:
                    break
                unit_view.pin()
                pinned.append(unit_view)
                ut = cython.address(unit_view.t)
            if at - ut.base + UNIT_BYTES > observe(cython.address(ut.position)):
                break
            physical = cython.cast(int64_t, load64(ut.data + (at - ut.base)))
            if view is None or physical < view.t.base or physical >= view.t.base + view.t.size:
                view = log.locate(physical)
                if view is None or view.t.data == cython.NULL:
                    break
                view.pin()
                pinned.append(view)
                lt = cython.address(view.t)
            with cython.nogil:
                unit_end = observe(cython.address(ut.position))
                log_end = observe(cython.address(lt.position))
                while count < max_count:
                    at = (offset + count) * UNIT_BYTES - ut.base
                    if at >= ut.size:
                        break  # Go on in the next file of the queue.
                    if at + UNIT_BYTES > unit_end:
                        at_end = True
                        break
                    unit = ut.data + at
                    # Records of one queue lie far apart: without this, each one costs the whole way to the memory.
                    if at + 13 * UNIT_BYTES <= unit_end:
                        physical = cython.cast(int64_t, load64(unit + 12 * UNIT_BYTES)) - lt.base
                        if physical >= 0 and physical + 64 <= log_end:
                            prefetch_read(lt.data + physical)
                            prefetch_read(lt.data + physical + 35)
                    physical = cython.cast(int64_t, load64(unit))
                    size = cython.cast(int32_t, load32(unit + 8))
                    if physical < lt.base or physical >= lt.base + lt.size:
                        break  # Go on in another file of the log.
                    at = physical - lt.base
                    source = lt.data + at
                    if (
                        size < FIXED_BYTES
                        or at + size > log_end
                        or cython.cast(int32_t, load32(source)) != size
                        or cython.cast(int64_t, load64(source + 28)) != physical
                        or (count != 0 and total + size > max_bytes)
                    ):
                        at_end = True
                        break
                    if cython.cast(int64_t, load64(unit + 12)) < -2147483648:
                        has_ext = True
                    records[count] = source
                    units[count] = unit
                    count += 1
                    total += size
        made.has_ext_address = has_ext
        made.count = count
        made.next_offset = offset + count
        made.data = PyBytes_FromStringAndSize(cython.NULL, total)
        made.units = PyBytes_FromStringAndSize(cython.NULL, count * UNIT_BYTES)
        made.begin_ms = 0
        made.end_ms = 0
        to: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(made.data))
        to_unit: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(made.units))
        first_ms: int64_t = 0
        last_ms: int64_t = 0
        with cython.nogil:
            for i in range(count):
                # Each record lies on a page of its own, where the processor does not look ahead by itself.
                if i + COLLECT_AHEAD < count:
                    size = cython.cast(int32_t, load32(units[i + COLLECT_AHEAD] + 8))
                    if size > COLLECT_AHEAD_BYTES:
                        size = COLLECT_AHEAD_BYTES
                    for at in range(0, size, 64):
                        prefetch_read(records[i + COLLECT_AHEAD] + at)
                size = cython.cast(int32_t, load32(records[i]))
                memcpy(to, records[i], size)
                store64(to + 28, tier_offset)
                store64(to_unit, tier_offset)
                memcpy(to_unit + 8, units[i] + 8, 12)
                ms = store_time(to)
                if i == 0 or ms < first_ms:
                    first_ms = ms
                if i == 0 or ms > last_ms:
                    last_ms = ms
                to += size
                to_unit += UNIT_BYTES
                tier_offset += size
        made.begin_ms = first_ms
        made.end_ms = last_ms
    finally:
        free(records)
        for item in pinned:
            view = cython.cast(Tail, item)
            view.unpin()
    return made


@cython.final
@cython.cclass
class TierPage:
    """What one get from a tier found: the shape of a GetPage, but a CRC property of records is not looked at.

    Whoever knows an older message, in another store, may lower `min_offset`.
    """

    status = cython.declare(object, visibility="readonly")
    data = cython.declare(bytes, visibility="readonly")
    next_offset = cython.declare(int64_t, visibility="readonly")
    min_offset = cython.declare(int64_t, visibility="public")
    max_offset = cython.declare(int64_t, visibility="readonly")
    count = cython.declare(int64_t, visibility="readonly")
    suggest_slave = cython.declare(cython.bint, visibility="readonly")
    decoded: object

    def __init__(self, status, next_offset, min_offset=0, max_offset=0, data=b"", count=0):
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.data = data
        self.count = count

    @property
    def messages(self):
        if self.decoded is None:
            self.decoded = list(decode_records(self.data, crc_property=IGNORE_CRC_PROPERTY))
        return self.decoded

    def __repr__(self):
        return f"TierPage(status={self.status.name}, count={self.count}, next_offset={self.next_offset})"


@cython.final
@cython.cclass
class WindowPages:
    """Cuts pages out of a window whose every unit is followed by exactly its record, as `check_window` found it.

    Both buffers are held as long as it lives.
    """

    units: cython.Py_buffer
    data: cython.Py_buffer
    held: cython.int
    log_offset: int64_t
    first_offset: int64_t
    total: int64_t

    def __cinit__(self, units, data, log_offset: int64_t, first_offset: int64_t):
        PyObject_GetBuffer(units, cython.address(self.units), PyBUF_SIMPLE)
        self.held = 1
        PyObject_GetBuffer(data, cython.address(self.data), PyBUF_SIMPLE)
        self.held = 2
        self.log_offset = log_offset
        self.first_offset = first_offset
        self.total = self.units.len // UNIT_BYTES

    def __dealloc__(self):
        if self.held > 1:
            PyBuffer_Release(cython.address(self.data))
        if self.held > 0:
            PyBuffer_Release(cython.address(self.units))

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def end_of(self, index: int64_t) -> int64_t:
        """Where the records of the first `index` units end in the data."""
        if index >= self.total:
            return self.data.len
        unit: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), self.units.buf)
        return cython.cast(int64_t, load64(unit + UNIT_BYTES * index)) - self.log_offset

    @cython.cfunc
    def cut(self, index: int64_t, count: int64_t, max_bytes: int64_t, taken: cython.pointer(int64_t)) -> bytes:
        taken[0] = 0
        if index < 0 or index >= self.total or count < 1:
            return b""
        if count > self.total - index:
            count = self.total - index
        start: int64_t = self.end_of(index)
        end: int64_t = self.end_of(index + count)
        while end - start > max_bytes and count > 1:
            count -= 1
            end = self.end_of(index + count)
        if start < 0 or end < start or end > self.data.len:
            raise CorruptRecord("the units of a window do not fit its records")
        taken[0] = count
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.data.buf) + start, end - start)

    def take(self, offset: int64_t, count: int64_t, max_bytes: int64_t) -> tuple:
        """Whole records from queue offset `offset` on: at most `count`, at most `max_bytes`, but one.

        (bytes, how many, where to go on).
        """
        taken: int64_t = 0
        data: bytes = self.cut(offset - self.first_offset, count, max_bytes, cython.address(taken))
        return data, taken, offset + taken

    def page(self, offset: int64_t, count: int64_t, max_bytes: int64_t, low: int64_t, high: int64_t) -> TierPage:
        """The same as a page of a queue that has messages [low, high); None when `count` would pass the window."""
        if offset < self.first_offset or offset - self.first_offset > self.total - count:
            return None
        taken: int64_t = 0
        page: TierPage = TierPage.__new__(TierPage)
        page.data = self.cut(offset - self.first_offset, count, max_bytes, cython.address(taken))
        page.status = FOUND
        page.next_offset = offset + taken
        page.min_offset = low
        page.max_offset = high
        page.count = taken
        return page


def check_window(
    units,
    data,
    tier_offset: int64_t,
    queue_offset: int64_t,
    check_crc: cython.bint = True,
    topic: bytes = b"",
    queue_id: int32_t = 0,
) -> int:
    """How many leading units are followed by exactly their records in `data`, which begins at `tier_offset`.

    Each record must lie right behind the one before, with the size of its unit, its own tier offset and queue offset,
    and an intact body; and be of this topic and queue, where a topic is named. Anything less ends the count: what is
    behind it must be looked at one by one.
    """
    u: cython.const[cython.uchar][::1] = units
    d: cython.const[cython.uchar][::1] = data
    count: int64_t = u.shape[0] // UNIT_BYTES
    available: int64_t = d.shape[0]
    if count == 0 or available == 0:
        return 0
    unit: cython.pointer(cython.const[u8]) = cython.address(u[0])
    record: cython.pointer(cython.const[u8]) = cython.address(d[0])
    name: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(topic))
    length: int64_t = PyBytes_GET_SIZE(topic)
    head: head_t
    size: int64_t
    at: int64_t
    done: int64_t = 0
    with cython.nogil:
        settle_vectors()
        while done < count:
            if cython.cast(int64_t, load64(unit)) != tier_offset:
                break
            size = plain_record(record, available, tier_offset, check_crc)
            if size:
                if size != cython.cast(int32_t, load32(unit + 8)):
                    break
                if cython.cast(int64_t, load64(record + 20)) != queue_offset + done:
                    break
                if length:
                    at = 89 + cython.cast(int32_t, load32(record + 84))
                    if cython.cast(int32_t, load32(record + 12)) != queue_id or record[at - 1] != length:
                        break
                    if not same_bytes(record + at, name, cython.cast(int32_t, length)):
                        break
                record += size
                available -= size
                tier_offset += size
                unit += UNIT_BYTES
                done += 1
                continue
            if parse_head(record, available, cython.address(head)) != STOP_END:
                break
            if head.total != cython.cast(int32_t, load32(unit + 8)) or head.physical_offset != tier_offset:
                break
            if head.queue_offset != queue_offset + done:
                break
            if length:
                if cython.cast(int32_t, load32(record + 12)) != queue_id or head.topic_length != length:
                    break
                if not same_bytes(record + head.topic_at, name, cython.cast(int32_t, length)):
                    break
            if check_crc and not body_holds(record, cython.address(head), 1):
                break
            record += head.total
            available -= head.total
            tier_offset += head.total
            unit += UNIT_BYTES
            done += 1
    return done


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def check_record(unit: cython.pointer(cython.const[u8]), record: cython.pointer(cython.const[u8]), available: int64_t,
                 tier_offset: int64_t, queue_offset: int64_t, topic: cython.pointer(cython.const[u8]),
                 topic_length: int64_t, queue_id: int32_t, head: cython.pointer(head_t),
                 memo: cython.pointer(tag_memo_t)) -> cython.int:  # fmt: skip
    """CHECK_END when the record is all that its unit and its queue promise; `head` then has its size and store time."""
    size: int64_t = cython.cast(int32_t, load32(unit + 8))
    code: int64_t = cython.cast(int64_t, load64(unit + 12))
    tag: cython.pointer(cython.const[u8]) = cython.NULL
    if cython.cast(int64_t, load64(unit)) != tier_offset:
        return CHECK_PLACE
    if size < FIXED_BYTES:
        return CHECK_UNIT
    if size > available:
        return CHECK_ROOM
    head.total = cython.cast(int32_t, plain_record(record, available, tier_offset, 1))
    if head.total:
        head.topic_at = 89 + cython.cast(int32_t, load32(record + 84))
        head.topic_length = record[head.topic_at - 1]
        head.properties_at = head.topic_at + head.topic_length + 2
        head.properties_length = head.total - head.properties_at
        head.store_ms = cython.cast(int64_t, load64(record + 56))
    else:
        if parse_head(record, available, head) != STOP_END or head.physical_offset != tier_offset:
            return CHECK_RECORD
        if not body_holds(record, head, 1):
            return CHECK_RECORD
    if head.total != size or cython.cast(int64_t, load64(record + 20)) != queue_offset:
        return CHECK_UNIT
    if cython.cast(int32_t, load32(record + 12)) != queue_id or head.topic_length != topic_length:
        return CHECK_OWNER
    if not same_bytes(record + head.topic_at, topic, cython.cast(int32_t, topic_length)):
        return CHECK_OWNER
    length: int64_t = find_tag(
        record + head.properties_at, head.properties_length, available - head.properties_at, cython.address(tag)
    )
    # Sixteen bytes can be read of a tag where the window goes on behind it.
    if tag + 16 > record + available or not is_memo(tag, length, memo):
        if not ascii_only(tag, length):
            return CHECK_TAG
        memo.length = -1
        if length <= 16:
            memcpy(cython.address(memo.text[0]), tag, length)
            memo.length = length
        memo.hash = cython.cast(int32_t, hash_on(0, tag, length))
    # Below every 32-bit hash lie the addresses of ext units, which say nothing about the tag.
    if code >= -2147483648 and code != memo.hash:
        return CHECK_TAG
    return CHECK_END


def check_records(units, data, tier_offset: int64_t, queue_offset: int64_t, topic: bytes, queue_id: int32_t) -> tuple:
    """Compare records that lie end to end in `data`, which begins at `tier_offset`, with their units: all of it.

    What `check_window` asks of them, and: each is of this topic and queue, and its unit has the code of its tag (or an
    address in an ext queue). Gives (records, bytes, least and largest store time, why it ended); the place that has to
    be looked at by others is behind those bytes.
    """
    u: cython.const[cython.uchar][::1] = units
    d: cython.const[cython.uchar][::1] = data
    count: int64_t = u.shape[0] // UNIT_BYTES
    available: int64_t = d.shape[0]
    unit: cython.pointer(cython.const[u8]) = cython.NULL
    record: cython.pointer(cython.const[u8]) = cython.NULL
    if count:
        unit = cython.address(u[0])
    if available:
        record = cython.address(d[0])
    name: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(topic))
    length: int64_t = PyBytes_GET_SIZE(topic)
    head: head_t
    memo: tag_memo_t
    memo.length = 0
    memo.hash = 0
    ended: cython.int = CHECK_END
    done: int64_t = 0
    position: int64_t = 0
    oldest_ms: int64_t = 0
    newest_ms: int64_t = 0
    with cython.nogil:
        settle_vectors()
        while done < count:
            ended = check_record(unit, record + position, available - position, tier_offset + position,
                                 queue_offset + done, name, length, queue_id, cython.address(head), cython.address(memo))  # fmt: skip
            if ended != CHECK_END:
                break
            if done == 0 or head.store_ms < oldest_ms:
                oldest_ms = head.store_ms
            if done == 0 or head.store_ms > newest_ms:
                newest_ms = head.store_ms
            unit += UNIT_BYTES
            position += head.total
            done += 1
    return done, position, oldest_ms, newest_ms, DISAGREEMENTS[ended]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def distinct_keys(named: cython.pointer(named_t), prefix: uint32_t, hashes: cython.pointer(int32_t)) -> cython.int:
    """Hash the keys of a record, each once, in their order. How many; -1 when the slow path must look at them."""
    starts: cython.pointer(cython.const[u8])[64]
    lengths: int64_t[64]
    count: cython.int = 0
    at: int64_t = 0
    start: int64_t
    key: cython.pointer(cython.const[u8])
    length: int64_t
    value: int32_t
    i: cython.int
    turn_of_unique: cython.bint = named.unique_length > 0
    if not ascii_only(named.keys, named.keys_length) or not ascii_only(named.unique, named.unique_length):
        return -1
    while True:
        if turn_of_unique:
            turn_of_unique = False
            key = named.unique
            length = named.unique_length
        else:
            while at < named.keys_length and named.keys[at] == 32:
                at += 1
            if at >= named.keys_length:
                return count
            start = at
            while at < named.keys_length and named.keys[at] != 32:
                at += 1
            key = named.keys + start
            length = at - start
        value = abs_hash(hash_on(prefix, key, length))
        for i in range(count):
            if hashes[i] == value and lengths[i] == length and memcmp(starts[i], key, length) == 0:
                break
        else:
            if count == PENDING_MAX:
                return -1
            starts[count] = key
            lengths[count] = length
            hashes[count] = value
            count += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def check_item(item: cython.pointer(cython.const[u8]), record: cython.pointer(cython.const[u8]), readable: int64_t,
               topic: cython.pointer(cython.const[u8]), topic_length: int64_t, prefix: uint32_t, queue_id: int32_t,
               begin_ms: int64_t, head: cython.pointer(head_t)) -> cython.bint:  # fmt: skip
    """Whether an item leads to this record: place, size, queue, a key of that hash, and a time that fits."""
    named: named_t
    hashes: int32_t[64]
    size: int64_t = cython.cast(int32_t, load32(item + 20))
    seconds: int64_t = cython.cast(int32_t, load32(item + 24))
    middle_ms: int64_t = begin_ms + 1000 * seconds
    if parse_head(record, size, head) != STOP_END or head.total != size or head.store_ms < 0:
        return False
    if head.physical_offset != cython.cast(int64_t, load64(item + 12)) or head.queue_id != queue_id:
        return False
    if head.topic_length != topic_length:
        return False
    if not same_bytes(record + head.topic_at, topic, cython.cast(int32_t, topic_length)):
        return False
    scan_properties(
        record + head.properties_at, head.properties_length, readable - head.properties_at, cython.address(named)
    )
    count: cython.int = distinct_keys(cython.address(named), prefix, cython.address(hashes[0]))
    found: cython.bint = False
    i: cython.int
    for i in range(count):
        if hashes[i] == cython.cast(int32_t, load32(item)):
            found = True
    if not found or head.store_ms < middle_ms - (999 if seconds <= 0 else 0):
        return False
    return head.store_ms <= middle_ms + (999 if seconds >= 0 else 0)


def check_index_items(items, data, log_offset: int64_t, topic: str, queue_id: int32_t, begin_ms: int64_t) -> tuple:
    """How many leading compacted index items lead to a record in `data` that has such a key, and its newest store time.

    The items are of one queue, in the order of their tier offsets; `data` holds its log from `log_offset` on. Ends
    before an item that others must look at: a record outside of `data`, another one, another key, another time, or keys
    or a topic beyond ASCII.
    """
    if not topic.isascii():
        return 0, 0
    view: cython.const[cython.uchar][::1] = items
    data_view: cython.const[cython.uchar][::1] = data
    count: int64_t = view.shape[0] // 28
    available: int64_t = data_view.shape[0]
    if count == 0 or available == 0:
        return 0, 0
    name: bytes = topic.encode()
    prefix_text: bytes = (topic + "#").encode()
    prefix: uint32_t = hash_on(
        0, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(prefix_text)), PyBytes_GET_SIZE(prefix_text)
    )
    name_at: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(name))
    length: int64_t = PyBytes_GET_SIZE(name)
    item: cython.pointer(cython.const[u8]) = cython.address(view[0])
    head: head_t
    place: int64_t
    size: int64_t
    done: int64_t = 0
    newest_ms: int64_t = 0
    with cython.nogil:
        settle_vectors()
        while done < count:
            place = cython.cast(int64_t, load64(item + 12))
            size = cython.cast(int32_t, load32(item + 20))
            if place < log_offset or size < FIXED_BYTES or place - log_offset > available - size:
                break
            if not check_item(item, cython.address(data_view[0]) + (place - log_offset),
                              available - (place - log_offset), name_at, length, prefix, queue_id, begin_ms,
                              cython.address(head)):  # fmt: skip
                break
            if head.store_ms > newest_ms:
                newest_ms = head.store_ms
            item += 28
            done += 1
    return done, newest_ms


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_tier_items(file: cython.pointer(u8), slots: int64_t, capacity: int64_t, pending: cython.pointer(pending_t),
                   sizes: cython.pointer(int32_t), length: cython.int, topic_id: int32_t, queue_id: int32_t) -> cython.void:  # fmt: skip
    """Add items whose slots were prefetched: each item before its slot, the header last. There is room for them."""
    begin_ms: int64_t = cython.cast(int64_t, load64(file + 4))
    end_ms: int64_t = cython.cast(int64_t, load64(file + 12))
    slot_count: int32_t = cython.cast(int32_t, load32(file + 20))
    count: int64_t = cython.cast(int32_t, load32(file + 24))
    item: cython.pointer(u8) = file + 28 + 8 * slots + 32 * (count + 1)
    slot: cython.pointer(u8)
    previous: uint32_t
    seconds: int64_t
    i: cython.int
    for i in range(length):
        slot = file + 28 + 8 * cython.cast(int64_t, pending[i].slot)
        previous = load32(slot)
        if previous == 0:
            slot_count += 1
        seconds = (pending[i].store_ms - begin_ms) // 1000  # Cut toward zero, as C and Java divide.
        if seconds > 2147483647:
            seconds = 2147483647
        if seconds < -2147483648:
            seconds = -2147483648
        store32(item, pending[i].hash)
        store32(item + 4, topic_id)
        store32(item + 8, queue_id)
        store64(item + 12, pending[i].physical_offset)
        store32(item + 20, sizes[i])
        store32(item + 24, cython.cast(uint32_t, cython.cast(int32_t, seconds)))
        store32(item + 28, previous)
        item += 32
        count += 1
        publish32(slot, cython.cast(uint32_t, count))
        if pending[i].store_ms > end_ms:
            end_ms = pending[i].store_ms
    store32(file, INDEX_MAGIC_END if count + 1 >= capacity else INDEX_MAGIC_BEGIN)
    store64(file + 12, end_ms)
    store32(file + 20, slot_count)
    publish32(file + 24, cython.cast(uint32_t, count))


def put_tier_keys(buffer, slots: int64_t, capacity: int64_t, item_limit: int64_t, units, data, first: int64_t,
                  log_offset: int64_t, topic: str, topic_id: int32_t, queue_id: int32_t) -> tuple:  # fmt: skip
    """Put the keys of the records of `units`, from unit `first` on, into an open tier index file.

    `data` holds the records from tier offset `log_offset` on. Item numbers stay below `capacity` and `item_limit`.
    Gives (records done, items put, least store time of the records that have items). Ends early, before a record that
    needs the slow path: no room for all of its keys, too many of them, keys or a topic beyond ASCII, not a record.
    """
    if not topic.isascii() or slots < 1:
        return 0, 0, 0
    file_view: cython.uchar[::1] = buffer
    unit_view: cython.const[cython.uchar][::1] = units
    data_view: cython.const[cython.uchar][::1] = data
    available: int64_t = data_view.shape[0]
    unit_count: int64_t = unit_view.shape[0] // UNIT_BYTES
    top: int64_t = capacity if capacity < item_limit else item_limit
    if first < 0 or first >= unit_count or available == 0 or file_view.shape[0] < 28:
        return 0, 0, 0
    if top > 0 and file_view.shape[0] < 28 + 8 * slots + 32 * top:
        raise ValueError("the buffer is smaller than the tier index file that it should hold")
    file: cython.pointer(u8) = cython.address(file_view[0])
    unit: cython.pointer(cython.const[u8]) = cython.address(unit_view[0]) + UNIT_BYTES * first
    record: cython.pointer(cython.const[u8])
    ahead: cython.pointer(cython.const[u8])
    prefix_text: bytes = (topic + "#").encode()
    prefix: uint32_t = hash_on(
        0, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(prefix_text)), PyBytes_GET_SIZE(prefix_text)
    )
    ring: pending_t[256]
    sizes: int32_t[256]
    hashes: int32_t[64]
    head: head_t
    named: named_t
    done: int64_t = 0
    put: int64_t = 0
    oldest_ms: int64_t = 0
    place: int64_t
    size: int64_t
    count: int64_t = cython.cast(int32_t, load32(file + 24))
    waiting: cython.int = 0
    found: cython.int
    i: cython.int
    with cython.nogil:
        while first + done < unit_count:
            place = cython.cast(int64_t, load64(unit))
            size = cython.cast(int32_t, load32(unit + 8))
            if place < log_offset or size < FIXED_BYTES or place - log_offset > available - size:
                break
            record = cython.address(data_view[0]) + (place - log_offset)
            # Of a record only its head and its properties are looked at: fetch those of one that comes soon.
            ahead = record + 4 * size
            if ahead - cython.address(data_view[0]) + 2 * size < available:
                prefetch_read(ahead)
                prefetch_read(ahead + 64)
                prefetch_read(ahead + size - 128)
                prefetch_read(ahead + size - 64)
            if parse_head(record, size, cython.address(head)) != STOP_END or head.total != size or head.store_ms < 0:
                break
            scan_properties(record + head.properties_at, head.properties_length,
                            available - (place - log_offset) - head.properties_at, cython.address(named))  # fmt: skip
            found = distinct_keys(cython.address(named), prefix, cython.address(hashes[0]))
            if found < 0 or (found > 0 and (count < 0 or count + found >= top)):
                break
            if waiting + found > TIER_PENDING_MAX:
                put_tier_items(
                    file, slots, capacity, cython.address(ring[0]), cython.address(sizes[0]), waiting, topic_id, queue_id
                )
                waiting = 0
            for i in range(found):
                ring[waiting].hash = hashes[i]
                ring[waiting].slot = hashes[i] % slots
                ring[waiting].physical_offset = place
                ring[waiting].store_ms = head.store_ms
                sizes[waiting] = cython.cast(int32_t, size)
                prefetch_write(file + 28 + 8 * cython.cast(int64_t, ring[waiting].slot))
                waiting += 1
            if found:
                if put == 0 or head.store_ms < oldest_ms:
                    oldest_ms = head.store_ms
                put += found
                count += found
            unit += UNIT_BYTES
            done += 1
        if waiting:
            put_tier_items(
                file, slots, capacity, cython.address(ring[0]), cython.address(sizes[0]), waiting, topic_id, queue_id
            )
    return done, put, oldest_ms


def collect_tier_keys(units, data, first: int64_t, log_offset: int64_t, topic: str) -> tuple:
    """The keys of the records of `units`, from unit `first` on, as `put_tier_keys` would put them.

    `data` holds the records from tier offset `log_offset` on. Gives (records done, collected keys of 24 bytes). Ends
    early, before a record that needs the slow path: too many keys, keys or a topic beyond ASCII, not a record.
    """
    if not topic.isascii():
        return 0, b""
    unit_view: cython.const[cython.uchar][::1] = units
    data_view: cython.const[cython.uchar][::1] = data
    available: int64_t = data_view.shape[0]
    unit_count: int64_t = unit_view.shape[0] // UNIT_BYTES
    if first < 0 or first >= unit_count or available == 0:
        return 0, b""
    unit: cython.pointer(cython.const[u8]) = cython.address(unit_view[0]) + UNIT_BYTES * first
    record: cython.pointer(cython.const[u8])
    prefix_text: bytes = (topic + "#").encode()
    prefix: uint32_t = hash_on(
        0, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(prefix_text)), PyBytes_GET_SIZE(prefix_text)
    )
    hashes: int32_t[64]
    head: head_t
    named: named_t
    room: int64_t = 2 * (unit_count - first) + 64
    made: cython.pointer(u8) = cython.cast(cython.pointer(u8), malloc(room * 24))
    grown: cython.pointer(u8)
    item: cython.pointer(u8)
    done: int64_t = 0
    count: int64_t = 0
    place: int64_t
    size: int64_t
    found: cython.int
    i: cython.int
    if made == cython.NULL:
        raise MemoryError
    with cython.nogil:
        while first + done < unit_count:
            place = cython.cast(int64_t, load64(unit))
            size = cython.cast(int32_t, load32(unit + 8))
            if place < log_offset or size < FIXED_BYTES or place - log_offset > available - size:
                break
            record = cython.address(data_view[0]) + (place - log_offset)
            if parse_head(record, size, cython.address(head)) != STOP_END or head.total != size or head.store_ms < 0:
                break
            scan_properties(record + head.properties_at, head.properties_length,
                            available - (place - log_offset) - head.properties_at, cython.address(named))  # fmt: skip
            found = distinct_keys(cython.address(named), prefix, cython.address(hashes[0]))
            if found < 0:
                break
            if count + found > room:
                room = 2 * room
                grown = cython.cast(cython.pointer(u8), realloc(made, room * 24))
                if grown == cython.NULL:
                    break
                made = grown
            item = made + 24 * count
            for i in range(found):
                store32(item, hashes[i])
                store64(item + 4, place)
                store32(item + 12, cython.cast(uint32_t, size))
                store64(item + 16, head.store_ms)
                item += 24
            count += found
            unit += UNIT_BYTES
            done += 1
    try:
        return done, PyBytes_FromStringAndSize(cython.cast(cython.p_char, made), 24 * count)
    finally:
        free(made)


def put_collected_keys(buffer, slots: int64_t, capacity: int64_t, item_limit: int64_t, keys, first: int64_t,
                       topic_id: int32_t, queue_id: int32_t) -> tuple:  # fmt: skip
    """Put collected keys, from key number `first` on, into an open tier index file.

    Gives (keys put, least store time of them). Ends early, before a record whose keys do not all fit below `capacity`
    and `item_limit`, or one that no record can be (a negative hash, offset, size or time).
    """
    top: int64_t = capacity if capacity < item_limit else item_limit
    file_view: cython.uchar[::1] = buffer
    key_view: cython.const[cython.uchar][::1] = keys
    count: int64_t = key_view.shape[0] // 24
    if slots < 1 or first < 0 or file_view.shape[0] < 28 or top < 1:
        return 0, 0
    if file_view.shape[0] < 28 + 8 * slots + 32 * top:
        raise ValueError("the buffer is smaller than the tier index file that it should hold")
    if first >= count:
        return 0, 0
    file: cython.pointer(u8) = cython.address(file_view[0])
    start: cython.pointer(cython.const[u8]) = cython.address(key_view[0])
    key: cython.pointer(cython.const[u8])
    ring: pending_t[256]
    sizes: int32_t[256]
    at: int64_t = first
    end: int64_t
    items: int64_t = cython.cast(int32_t, load32(file + 24))
    oldest_ms: int64_t = 0
    place: int64_t
    store_ms: int64_t
    size: int32_t
    lowest: int64_t
    waiting: cython.int = 0
    i: int64_t
    with cython.nogil:
        while at < count:
            key = start + 24 * at
            place = cython.cast(int64_t, load64(key + 4))
            size = cython.cast(int32_t, load32(key + 12))
            store_ms = cython.cast(int64_t, load64(key + 16))
            lowest = place if place < store_ms else store_ms
            lowest = lowest if lowest < size else size
            end = at
            while end < count and cython.cast(int64_t, load64(start + 24 * end + 4)) == place:
                if cython.cast(int32_t, load32(start + 24 * end)) < 0:
                    lowest = -1
                end += 1
            if items < 0 or items + (end - at) >= top or lowest < 0:
                break
            for i in range(at, end):
                if waiting == TIER_PENDING_MAX:
                    put_tier_items(
                        file, slots, capacity, cython.address(ring[0]), cython.address(sizes[0]), waiting, topic_id, queue_id
                    )
                    waiting = 0
                ring[waiting].hash = cython.cast(int32_t, load32(start + 24 * i))
                ring[waiting].slot = ring[waiting].hash % slots
                ring[waiting].physical_offset = place
                ring[waiting].store_ms = store_ms
                sizes[waiting] = size
                prefetch_write(file + 28 + 8 * cython.cast(int64_t, ring[waiting].slot))
                waiting += 1
            if at == first or store_ms < oldest_ms:
                oldest_ms = store_ms
            items += end - at
            at = end
        if waiting:
            put_tier_items(
                file, slots, capacity, cython.address(ring[0]), cython.address(sizes[0]), waiting, topic_id, queue_id
            )
    return at - first, oldest_ms


def rearrange_index(buffer, slots: int64_t, items: int64_t) -> bytes:
    """The compacted form of a whole open tier index file: slots of (position, length), items grouped by slot.

    A counting sort: items of a slot stand newest first, as a walk along its chain would give them. b"" without items.
    """
    source_view: cython.const[cython.uchar][::1] = buffer
    if source_view.shape[0] < 28 + 8 * slots + 32 * (items if items > 0 else 0):
        raise CorruptRecord("the index file is shorter than its slot and item counts say")
    source: cython.pointer(cython.const[u8]) = cython.address(source_view[0])
    count: int64_t = cython.cast(int32_t, load32(source + 24))
    if count <= 0:
        return b""
    if count >= items:
        raise CorruptRecord(f"the index file counts {count} items, more than the {items} it has room for")
    out: bytes = PyBytes_FromStringAndSize(cython.NULL, 28 + 8 * slots + 28 * count)
    to: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(out))
    cursor: cython.pointer(uint32_t) = cython.cast(cython.pointer(uint32_t), calloc(slots, 4))
    if cursor == cython.NULL:
        raise MemoryError
    first_item: cython.pointer(cython.const[u8]) = source + 28 + 8 * slots
    item: cython.pointer(cython.const[u8])
    i: int64_t
    ahead: int64_t
    position: int64_t = 28 + 8 * slots
    length: int64_t
    bad: cython.bint = False
    with cython.nogil:
        for i in range(1, count + 1):
            if cython.cast(int32_t, load32(first_item + 32 * i)) < 0:
                bad = True
                break
            cursor[load32(first_item + 32 * i) % slots] += 1
        if not bad:
            memcpy(to, source, 28)
            store32(to, INDEX_MAGIC_END)
            for i in range(slots):
                length = 28 * cython.cast(int64_t, cursor[i])
                store32(to + 28 + 8 * i, position)
                store32(to + 32 + 8 * i, length)
                cursor[i] = position
                position += length
            i = count
            while i > 0:
                ahead = i - 16
                if ahead > 0:
                    prefetch_write(cursor + load32(first_item + 32 * ahead) % slots)
                item = first_item + 32 * i
                length = load32(item) % slots
                memcpy(to + cursor[length], item, 28)
                cursor[length] += 28
                i -= 1
    free(cursor)
    if bad:
        raise CorruptRecord("an index item has a negative key hash")
    return out


@cython.final
@cython.cclass
class ColumnBytes:
    """The memory of one buffer of a column: read-only, freed with the last array that lies in it."""

    data: cython.pointer(u8)
    size: cython.Py_ssize_t
    capacity: int64_t

    def __dealloc__(self):
        if self.data != cython.NULL:
            out_give(self.data, self.capacity)

    def __len__(self):
        return self.size

    def __getbuffer__(self, view: cython.pointer(cython.Py_buffer), flags: cython.int):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


@cython.cfunc
def column_bytes(out: cython.pointer(out_t)) -> ColumnBytes:
    """Hand the memory of an output over, without what it did not need."""
    made: ColumnBytes = ColumnBytes.__new__(ColumnBytes)
    if out.capacity > 4 * out.size + 262144:
        shrunk: cython.pointer(u8) = cython.cast(cython.pointer(u8), realloc(out.data, out.size + 64))
        if shrunk != cython.NULL:
            out.data = shrunk
            out.capacity = out.size + 64
    made.data = out.data
    made.size = out.size
    made.capacity = out.capacity
    out.data = cython.NULL
    return made


@cython.cfunc
def column_buffers(column: cython.pointer(column_t), number: cython.int, rows: int64_t) -> tuple:
    validity: object = None
    if column.nulls:
        column.validity.size = (rows + 7) // 8
        validity = column_bytes(cython.address(column.validity))
    values: ColumnBytes = column_bytes(cython.address(column.values))
    if number < C_FIRST_TEXT:
        return validity, values
    data: ColumnBytes = column_bytes(cython.address(column.data_a))
    if number < C_KEYS:
        return validity, values, data
    offsets: ColumnBytes = column_bytes(cython.address(column.offsets_a))
    if number == C_KEYS:
        return validity, values, offsets, data
    offsets_b: ColumnBytes = column_bytes(cython.address(column.offsets_b))
    return validity, values, offsets, data, offsets_b, column_bytes(cython.address(column.data_b))


COLUMN_NUMBERS = cython.declare(dict, {name: number for number, name in enumerate(COLUMN_SHAPES)})
# Columns that no look at the properties is needed for.
HEAD_COLUMNS = cython.declare(frozenset, frozenset(
    name for name, shape in COLUMN_SHAPES.items() if shape in (Shape.I64, Shape.I32)
) - {"tagsCode", "deliverTime"} | {"bornHost", "storeHost", "offsetMsgId", "transactionState", "body"})  # fmt: skip
assert len(COLUMN_SHAPES) == C_COUNT and COLUMN_NUMBERS["tags"] == C_FIRST_TEXT
assert COLUMN_NUMBERS["keys"] == C_KEYS and COLUMN_NUMBERS["properties"] == C_PROPERTIES
assert [int(value) for value in Check] == [0, 1, 2]


@cython.cfunc
def fill_names(set_: cython.pointer(names_t), values: tuple) -> cython.bint:
    """Names point into `values`, which must outlive them."""
    value: bytes
    if not names_prepare(set_, len(values)):
        return False
    for value in values:
        names_add(set_, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(value)), PyBytes_GET_SIZE(value))
    return True


@cython.cfunc
def prepare_columns(d: cython.pointer(decode_t), request: object) -> cython.bint:
    """Ask for the columns of a request, with room for what the next records may need of it."""
    rows: int64_t = d.end - d.index
    total: int64_t = 0
    bodies: int64_t = 0
    properties: int64_t = 0
    guess: int64_t
    number: cython.int
    i: int64_t
    if rows > d.max_rows:
        rows = d.max_rows
    if rows < 0:
        rows = 0
    for i in range(d.index, d.index + rows):
        if d.sizes[i] > 0 and total < d.max_bytes:
            total += d.sizes[i]
    if total > d.max_bytes or d.tags.count or d.keys.count:
        total = 65536  # Few of these records may be wanted, or they are large: let it grow.
    guess_bytes(d, rows, total, cython.address(bodies), cython.address(properties))
    for name in request.columns:
        number = COLUMN_NUMBERS[name]
        guess = bodies if name == "body" else properties if number == C_PROPERTIES else 34 * rows
        if not d.columns[number].wanted and not column_prepare(cython.address(d.columns[number]), number, rows, guess):
            return False
        if name not in HEAD_COLUMNS:
            d.scans_properties = 1
    if d.tags.count or d.keys.count:
        d.scans_properties = 1
    return True


@cython.cfunc
def append_odd(d: cython.pointer(decode_t), made: object, record: cython.pointer(cython.const[u8]), corrupt: list) -> cython.bint:
    """Append what the pure twin made of a record. False when there is no memory."""
    row: row_t
    memset(cython.address(row), 0, cython.sizeof(row_t))
    row.log_offset = made.log_offset
    if made.queue_offset is not None:
        row.queue_offset = made.queue_offset
        row.has_queue_offset = 1
    if made.reason is not None:
        corrupt.append((d.rows, made.index, made.reason))
        append_corrupt(d, cython.address(row))
        return True
    body: bytes = made.body
    properties: bytes = made.properties
    length: int64_t = PyBytes_GET_SIZE(properties)
    at: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(properties))
    find_properties(d, at, length, at + length)
    row.record = record
    row.body = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(body))
    row.body_length = PyBytes_GET_SIZE(body)
    row.body_limit = row.body + row.body_length
    row.properties_length = length
    if not append_row(d, cython.address(row), at + length):
        return False
    d.bytes += len(made.message.encoded_properties) - length
    return True


def decode_columns(buffer, starts, sizes, request, first: int64_t = 0, max_rows: int64_t = 8192,
                   max_bytes: int64_t = 67108864):  # fmt: skip
    """The rows of the records from number `first` on, until `max_rows` are found or bodies and properties of
    `max_bytes` are reached (but one row). Damage is never an error here: `corrupt` of the answer tells it.
    """
    start_view: cython.const[int64_t][::1] = starts
    size_view: cython.const[int64_t][::1] = sizes
    delays: object = array("q", request.delays_ms)
    delay_view: cython.const[int64_t][::1] = delays
    topic: bytes = request.topic
    tags: tuple = request.tags
    keys: tuple = request.keys
    view: cython.Py_buffer
    d: cython.pointer(decode_t)
    ended: cython.int
    corrupt: list = []
    buffers: dict = {}
    if start_view.shape[0] != size_view.shape[0]:
        raise ValueError(f"a run has a start and a size for each record, found {len(starts)} and {len(sizes)}")
    if first < 0:
        raise ValueError(f"the first record of a run is number 0, found {first}")
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    d = cython.cast(cython.pointer(decode_t), calloc(1, cython.sizeof(decode_t)))
    if d == cython.NULL:
        PyBuffer_Release(cython.address(view))
        raise MemoryError
    try:
        d.data = cython.cast(cython.pointer(cython.const[u8]), view.buf)
        d.data_bytes = view.len
        d.end = start_view.shape[0]
        if d.end:
            d.starts = cython.address(start_view[0])
            d.sizes = cython.address(size_view[0])
        d.delay_count = delay_view.shape[0]
        if d.delay_count:
            d.delays_ms = cython.address(delay_view[0])
        d.topic = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(topic))
        d.topic_length = PyBytes_GET_SIZE(topic)
        d.queue_id = request.queue_id
        d.log_base = request.log_base
        d.first_offset = request.first_offset
        d.begin_ms = request.begin_ms
        d.end_ms = request.end_ms
        d.check = request.check
        d.decompress = request.decompress
        d.max_rows = max_rows
        d.max_bytes = max_bytes
        d.index = first
        d.pairs = cython.cast(cython.pointer(pair_t), malloc(PAIRS_MAX * cython.sizeof(pair_t)))
        if d.pairs == cython.NULL or not fill_names(cython.address(d.tags), tags):
            raise MemoryError
        if not fill_names(cython.address(d.keys), keys) or not prepare_columns(d, request):
            raise MemoryError
        while True:
            with cython.nogil:
                ended = decode_some(d)
            if ended == D_END:
                break
            if ended != D_ODD:
                raise MemoryError
            at: int64_t = d.index
            made: object = take_row(memoryview(buffer).cast("B"), d.starts[at], d.sizes[at], at, request)
            d.index += 1
            if made is not None and not append_odd(d, made, d.data + d.starts[at], corrupt):
                raise MemoryError
        for name in request.columns:
            if name not in buffers:
                buffers[name] = column_buffers(
                    cython.address(d.columns[COLUMN_NUMBERS[name]]), COLUMN_NUMBERS[name], d.rows
                )
        return DecodedColumns(d.rows, d.index, corrupt, buffers)
    finally:
        PyBuffer_Release(cython.address(view))
        decode_free(d)
        free(d)


# Frames of the wire. See tiermq/kernel/framing.py for the contract.


@cython.cfunc
def header_text(field: cython.pointer(cython.const[u8]), length: int64_t, escaped: cython.int, is_json: cython.bint):
    """The text of a field; None for what only the general codec can judge."""
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
    wanted_bytes: int64_t
    kept: list
    groups: TextMemo
    topics: TextMemo
    defaults: TextMemo
    broken = cython.declare(object, visibility="readonly")
    parse_sends = cython.declare(cython.bint, visibility="public")
    pending_bytes = cython.declare(int64_t, visibility="readonly")

    def __init__(self, frame_bytes_max=FRAME_BYTES_MAX, parse_sends=True):
        self.frame_bytes_max = frame_bytes_max
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
            if length < 4 + header_length or length > self.frame_bytes_max - 4 or mixed >> 24 > 1:
                self.broken = refusal(length, mixed >> 24, header_length, self.frame_bytes_max)
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
        """The frame whose header and body lie in `data`, a send ready parsed if it is a usual one."""
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
        frame: Frame = Frame.__new__(Frame)
        frame.header_type = header_type
        frame.header = PyBytes_FromStringAndSize(start + header_at, header_length)
        frame.body = PyBytes_FromStringAndSize(start + header_at + header_length, end - header_at - header_length)
        return frame

    @cython.cfunc
    def send_at(self, p: cython.pointer(cython.const[u8]), n: int64_t, header_type: cython.int):
        """The send in a header, without its body; None for anything that is not a usual one."""
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
def others_hold(h: cython.pointer(header_t), checked: int32_t) -> cython.bint:
    """Whether all fields but the one that was `checked` are such that the general codec would take the header too."""
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
    queue_offset: int64_t, transaction_id, region, trace_on, remark=None,
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
                made = build_answer(cython.address(out[0]), cython.address(a))
    if made < 0:
        return general_send_answer(
            header_type, opaque, code, version, message_id, queue_id, queue_offset, transaction_id, region, trace_on,
            remark,
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
    made.special = False
    return made


@cython.cfunc
def general_message(send: SendRequest, queue_id: int32_t, properties: bytes, born_host: bytes) -> Message:
    return Message(
        send.topic, send.body, queue_id, encoded_properties=properties, flag=send.flag, sys_flag=send.sys_flag,
        born_timestamp_ms=send.born_ms, born_host=born_host, reconsume_times=send.reconsume_times,
    )  # fmt: skip


@cython.final
@cython.cclass
class SendLane:
    """See `tiermq/kernel/send_lane.py`. `out` holds the answers of one call, until they are one bytes object."""

    is_open = cython.declare(cython.bint, visibility="public")
    appender: Appender
    added: bytes
    head: bytes
    region: bytes
    trace_on: bytes
    version: int32_t
    topics: dict
    plain: cython.bint
    out: cython.pointer(u8)
    room: int64_t

    def __cinit__(self):
        self.out = cython.NULL
        self.room = 0

    def __init__(self, appender: Appender, added: bytes, version: int32_t, region: str, trace_on: str):
        self.appender = appender
        self.added = added
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
        return self.key_of(request, cython.address(key)) > 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def key_of(self, request: SendRequest, key: cython.pointer(cython.pointer(cython.const[u8]))) -> int64_t:
        """The length of the unique key of a usual send, and where it lies; 0 for any other send."""
        if not self.is_open or not self.plain or request.batch or request.sys_flag & UNUSUAL_FLAGS:
            return 0
        if PyBytes_GET_SIZE(request.body) == 0 or request.queue_id < 0:
            return 0
        return usual_send_key(
            cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(request.properties)),
            PyBytes_GET_SIZE(request.properties), key,
        )  # fmt: skip

    @cython.cfunc
    def answer_to(self, request: SendRequest, born_host: bytes, place: cython.pointer(u8)) -> int64_t:
        """Store a usual send and write its answer to `place`, which has ANSWER_BYTES_MAX bytes: the length of it, or 0
        with nothing stored for a send that must go the general way."""
        a: Appender = self.appender
        key: cython.pointer(cython.const[u8]) = cython.NULL
        key_length: int64_t
        found = self.topics.get(request.topic)
        if found is None or a.gate:
            return 0
        entry: tuple = found
        write_queues: int32_t = entry[0]
        if request.queue_id >= write_queues or (a.sample is not None and a.puts - a.last_sampled >= 1024):
            return 0
        key_length = self.key_of(request, cython.address(key))
        h: QueueHandle = self.appender.find(request.topic, request.queue_id)
        host_length: int64_t = PyBytes_GET_SIZE(born_host)
        if key_length == 0 or h is None or (host_length != 8 and host_length != 20):
            return 0
        done: int64_t = a.write_joined(
            h, request.body, request.properties, self.added, request.flag, request.sys_flag, request.born_ms, born_host,
            request.reconsume_times, 0, a.now(), 1,
        )  # fmt: skip
        if done < 0:
            return 0
        counts: list = entry[1]
        counts[0] += 1
        counts[1] += a.last_size
        if a.idle:
            a.idle = False
            a.wake()
        return self.write_answer(request, done, h.next_offset - 1, key, key_length, place)

    @cython.cfunc
    @cython.exceptval(check=False)
    def write_answer(self, request: SendRequest, physical: int64_t, queue_offset: int64_t,
                     key: cython.pointer(cython.const[u8]), key_length: int64_t, place: cython.pointer(u8)) -> int64_t:  # fmt: skip
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
        return build_answer(place, cython.address(answer))

    @cython.cfunc
    def make_room(self, used: int64_t) -> cython.bint:
        """Whether there is room for one more answer behind `used` bytes of them."""
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
        """The same for a batch: its answer, or None with nothing stored."""
        a: Appender = self.appender
        key: cython.pointer(cython.const[u8]) = cython.NULL
        key_length: int64_t
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
            PyBytes_GET_SIZE(request.properties), cython.address(key),
        )  # fmt: skip
        if key_length == 0:
            return None
        try:
            messages: list = messages_of_batch(
                message_of_send(request, request.queue_id, request.properties + self.added, born_host)
            )
        except (CorruptRecord, IllegalMessage):
            return None  # The general way says what is wrong.
        for item in messages:
            if cython.cast(Message, item).special:
                return None
        outcome = a.put_together(messages)
        if type(outcome) is not PutResults:
            return None
        results: PutResults = outcome
        row: cython.pointer(int64_t) = cython.cast(cython.pointer(int64_t), PyBytes_AS_STRING(results.rows))
        counts: list = entry[1]
        counts[0] += results.length
        counts[1] += results.end_offset - row[0]
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
