"""The kernel in pure Python: everything that `tiermq.kernel` exports, in the form that always works."""

from __future__ import annotations

from tiermq.kernel.appending import Appender, QueueHandle
from tiermq.kernel.batching import messages_of_batch
from tiermq.kernel.building import Builder, IndexTail, first_zero_page, key_hashes, scan, scan_units
from tiermq.kernel.column_values import (
    COLUMN_SHAPES,
    TIME_MAX_MS,
    TIME_MIN_MS,
    Check,
    ColumnRequest,
    DecodedColumns,
    Shape,
)
from tiermq.kernel.decoding import decode_columns
from tiermq.kernel.fragments import collect_tier_keys, put_collected_keys
from tiermq.kernel.framing import (
    FRAME_BYTES_MAX,
    Frame,
    FrameReader,
    SendRequest,
    message_of_send,
    parse_header,
    pull_answer,
    send_answer,
)
from tiermq.kernel.gathering import GetPage, TransferLimits, read_page
from tiermq.kernel.index_reader import IndexReader, QueryOffsets, query_index
from tiermq.kernel.reasons import Disagreement, Refusal, Stop
from tiermq.kernel.send_lane import SendLane
from tiermq.kernel.tails import QueueTail, Segments, Tail
from tiermq.kernel.tier_pages import TierPage, WindowPages
from tiermq.kernel.tiering import (
    Collected,
    check_index_items,
    check_records,
    check_window,
    collect_for_tier,
    put_tier_keys,
    rearrange_index,
)
from tiermq.kernel.values import Message, PutResult, PutResults
from tiermq.message.crc import crc32

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
