"""The kernel in pure Python: everything that `tiermq.kernel` exports, in portable form."""

from __future__ import annotations

from tiermq.kernel.appender import Appender, QueueHandle
from tiermq.kernel.builder import Builder, IndexTail, first_zero_page, key_hashes, scan, scan_units
from tiermq.kernel.columns import (
    COLUMN_SHAPES,
    TIME_MAX_MS,
    TIME_MIN_MS,
    Check,
    ColumnRequest,
    DecodedColumns,
    Shape,
    decode_columns,
)
from tiermq.kernel.deferred_record import DeferredRecord, read_deferred
from tiermq.kernel.fast_send_path import FastSendPath
from tiermq.kernel.frame_reader import (
    FRAME_BYTES_MAX,
    AckRequest,
    Frame,
    FrameReader,
    SendRequest,
    ack_answers,
    message_of_send,
    messages_of_batch,
    parse_header,
    pull_answer,
    send_answer,
)
from tiermq.kernel.get_page import GetPage, TransferLimits, read_page
from tiermq.kernel.grpc_messages import GrpcMessageWriter
from tiermq.kernel.grpc_sends import GrpcSendReader, grpc_send_answer
from tiermq.kernel.header_blocks import BadBlock, HeaderCodes, HeaderDecoder
from tiermq.kernel.index_reader import IndexReader, QueryOffsets, query_index
from tiermq.kernel.message import Message, PutResult, PutResults
from tiermq.kernel.stop_reasons import Disagreement, Refusal, Stop
from tiermq.kernel.tier_pages import TierPage, WindowPages
from tiermq.kernel.tier_records import (
    Collected,
    check_index_items,
    check_records,
    check_window,
    collect_for_tier,
    collect_tier_keys,
    put_collected_keys,
    put_tier_keys,
    rearrange_index,
    rebase_records,
)
from tiermq.kernel.write_cursor import QueueTail, Segments, WriteCursor
from tiermq.message.crc import crc32

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
    "FastSendPath",
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
    "SendRequest",
    "Shape",
    "Stop",
    "TierPage",
    "TransferLimits",
    "WindowPages",
    "WriteCursor",
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
