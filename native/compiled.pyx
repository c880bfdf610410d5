# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, binding=False, embedsignature=True, embedsignature.format=clinic
"""The compiled kernel: the same names and semantics as `tiermq/kernel/pure.py`, one `.pxi` for each of its modules.

Critical sections. Everything between reading a tail's position and publishing the new one runs without calling
Python code and without releasing the interpreter lock, so the interpreter lock *is* the writer lock of an Appender.
Loops that only one thread may run at a time (dispatch, scan) release it.

Sharing. `tail_t` and `queue_t` live inside their Python objects; a Builder keeps references to the objects whose
structs its table points to. A pinned WriteCursor keeps its buffer until it is unpinned, also after `detach`.
"""

from array import array
from hashlib import md5

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
    ACK_CODE,
    ACK_CODE_BINARY,
    ANSWER_BYTES_MAX,
    HEADER_USUAL,
    LATER_AFTER_MS,
    LATER_AFTER_S,
    LATER_AT_MS,
    LATER_DELAY,
    LATER_HALF,
    LATER_NOT,
    answer_number,
    answer_t,
    answer_text,
    batch_element,
    batch_names_brokers,
    build_answer,
    deferred_t,
    field_t,
    find_ack_fields,
    find_send_fields,
    header_t,
    is_true,
    later_t,
    peek_code,
    plain_send_properties,
    print_base64,
    print_number,
    print_place,
    read_binary_header,
    read_deferred_properties,
    read_json_header,
    receipt_length,
    unescape,
    usual_send_key,
    wire_number,
    wire_number32,
)
from cython.cimports.grpc_sends import grpc_read_send, grpc_record_t, grpc_send_t, part_t
from cython.cimports.libc.stdint import int32_t, int64_t, uint32_t, uint64_t
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
    level_of,
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
from tiermq.kernel.message import (
    batch_of, described, offset_message_id, prepare_message, properties_of, results_text,
)
from tiermq.message.java_hash import key_hash
from tiermq.message.record import CrcPropertyCheck, decode_records
from tiermq.message.topic_name import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tiermq.status import GetStatus, PutStatus

__all__ = [
    "COLUMN_SHAPES",
    "FRAME_BYTES_MAX",
    "TIME_MAX_MS",
    "TIME_MIN_MS",
    "AckRequest",
    "Appender",
    "BadBlock",
    "Builder",
    "Check",
    "Collected",
    "ColumnRequest",
    "DecodedColumns",
    "DeferredRecord",
    "Disagreement",
    "Frame",
    "FrameReader",
    "GetPage",
    "GrpcMessageWriter",
    "GrpcSendReader",
    "HeaderCodes",
    "HeaderDecoder",
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
    "FastSendPath",
    "SendRequest",
    "Shape",
    "Stop",
    "WriteCursor",
    "TierPage",
    "TransferLimits",
    "WindowPages",
    "ack_answers",
    "check_index_items",
    "check_records",
    "check_window",
    "collect_for_tier",
    "collect_tier_keys",
    "crc32",
    "decode_columns",
    "first_zero_page",
    "grpc_send_answer",
    "key_hashes",
    "message_of_send",
    "messages_of_batch",
    "parse_header",
    "pull_answer",
    "put_collected_keys",
    "put_tier_keys",
    "query_index",
    "read_deferred",
    "read_page",
    "rearrange_index",
    "rebase_records",
    "scan",
    "scan_units",
    "send_answer",
]

from tiermq.kernel.columns import (  # noqa: E402
    COLUMN_SHAPES,
    TIME_MAX_MS,
    TIME_MIN_MS,
    Check,
    ColumnRequest,
    DecodedColumns,
    Shape,
)
from tiermq.kernel.columns import take_row  # noqa: E402
from tiermq.kernel.builder import UNKNOWN_LEVEL_DELAY_MS  # noqa: E402
from tiermq.kernel.frame_reader import FRAME_BYTES_MAX, escaped_text, refusal  # noqa: E402
from tiermq.kernel.frame_reader import ack_answers as general_ack_answers  # noqa: E402
from tiermq.kernel.frame_reader import pull_answer as general_pull_answer  # noqa: E402
from tiermq.kernel.frame_reader import send_answer as general_send_answer  # noqa: E402
from tiermq.kernel.grpc_messages import COMPRESSED_FLAGS  # noqa: E402
from tiermq.kernel.grpc_sends import GRPC_SEND_CODE as SEND_CODE_OF_GRPC  # noqa: E402
from tiermq.kernel.grpc_sends import GRPC_STATUS_OK as STATUS_OK_OF_GRPC  # noqa: E402
from tiermq.kernel.header_blocks import ENTRY_BYTES as HEADER_ENTRY_BYTES  # noqa: E402
from tiermq.kernel.header_blocks import NUMBER_MAX as HEADER_NUMBER_MAX  # noqa: E402
from tiermq.kernel.header_blocks import TABLE_BYTES as HEADER_TABLE_BYTES  # noqa: E402
from tiermq.kernel.header_blocks import BadBlock, HeaderCodes  # noqa: E402
from tiermq.kernel.stop_reasons import Disagreement, Refusal, Stop  # noqa: E402
from tiermq.kernel.fast_send_path import (  # noqa: E402
    HANDLE_TEXT_BYTES_MAX,
    TRANSACTION_FLAGS,
    UNUSUAL_SYS_FLAGS,
    Later,
    plain_lane,
)
from tiermq.message.client_batch import BATCH_ELEMENTS_MAX, decode_client_batch  # noqa: E402
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
ACK_ANSWER_BYTES = cython.declare(cython.int, 160)  # More than a frame without fields and a remark has.
PENDING_MAX = cython.declare(cython.int, 64)
FETCHED_WHOLE_MAX = cython.declare(int64_t, 1024)  # Records up to this size are prefetched whole before dispatch.
FETCHED_AHEAD = cython.declare(int64_t, 2048)
TIER_PENDING_MAX = cython.declare(cython.int, 256)
MESSAGES_AHEAD = cython.declare(cython.int, 12)
BODIES_AHEAD = cython.declare(cython.int, 6)
PREFETCHED_BYTES = cython.declare(cython.int, 1024)
COLLECT_AHEAD = cython.declare(cython.int, 6)
COLLECT_AHEAD_BYTES = cython.declare(cython.int, 1024)
UNKNOWN_DELAY_MS = cython.declare(int64_t, UNKNOWN_LEVEL_DELAY_MS)

PUT_OK = cython.declare(object, PutStatus.PUT_OK)
CLOSED = cython.declare(object, Refusal.CLOSED)
UNBOUND = cython.declare(object, Refusal.UNBOUND)
NEEDS_OFFSET = cython.declare(object, Refusal.NEEDS_OFFSET)
FOUND = cython.declare(object, GetStatus.FOUND)
IGNORE_CRC_PROPERTY = cython.declare(object, CrcPropertyCheck.IGNORE)
MESSAGE_WAS_REMOVING = cython.declare(object, GetStatus.MESSAGE_WAS_REMOVING)
OFFSET_FOUND_NULL = cython.declare(object, GetStatus.OFFSET_FOUND_NULL)
OFFSET_OVERFLOW_BADLY = cython.declare(object, GetStatus.OFFSET_OVERFLOW_BADLY)
OFFSET_OVERFLOW_ONE = cython.declare(object, GetStatus.OFFSET_OVERFLOW_ONE)
OFFSET_TOO_SMALL = cython.declare(object, GetStatus.OFFSET_TOO_SMALL)
NO_MESSAGE_IN_QUEUE = cython.declare(object, GetStatus.NO_MESSAGE_IN_QUEUE)

# Values of kernel.stop_reasons as C constants; asserted equal at import.
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
TRANSACTION_BITS = cython.declare(int32_t, TRANSACTION_FLAGS)
LATER_BYTES_MAX = cython.declare(int64_t, 96)  # Of the properties that defer a message, without its topic and key.
HANDLE_BYTES_MAX = cython.declare(int64_t, HANDLE_TEXT_BYTES_MAX)
BATCH_MOST = cython.declare(int64_t, BATCH_ELEMENTS_MAX)
TABLE_BYTES = cython.declare(int64_t, HEADER_TABLE_BYTES)
ENTRY_BYTES = cython.declare(int64_t, HEADER_ENTRY_BYTES)
NUMBER_MAX = cython.declare(int64_t, HEADER_NUMBER_MAX)
HUFFMAN_COMPLETE = cython.declare(cython.int, 1)
HUFFMAN_EMITS = cython.declare(cython.int, 2)
HUFFMAN_FAILS = cython.declare(cython.int, 4)
COMPRESSED_BITS = cython.declare(int64_t, COMPRESSED_FLAGS)
GRPC_SEND_CODE = cython.declare(int32_t, SEND_CODE_OF_GRPC)
GRPC_STATUS_OK = cython.declare(bytes, STATUS_OK_OF_GRPC)

include "write_cursor.pxi"
include "message.pxi"
include "appender.pxi"
include "builder.pxi"
include "index_reader.pxi"
include "get_page.pxi"
include "tier_records.pxi"
include "tier_pages.pxi"
include "columns.pxi"
include "frame_reader.pxi"
include "fast_send_path.pxi"
include "header_blocks.pxi"
include "grpc_sends.pxi"
include "grpc_messages.pxi"
include "deferred_record.pxi"
