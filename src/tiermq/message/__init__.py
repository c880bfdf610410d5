"""Messages as bytes and as values: records, properties, hosts, ids, hashes, compression, batches, filters.

May import the top-level modules (`errors`, `status`, `clock`) and nothing else of TierMQ.
Must not depend on files, threads, the network or configuration.
"""

from tiermq.message.client_batch import (
    BatchElement,
    decode_client_batch,
    encode_client_batch,
    inner_base,
    inner_num,
    inner_span,
    unwrap_inner_batch,
)
from tiermq.message.compression import compress, decompress
from tiermq.message.crc import (
    body_crc,
    crc32,
    decode_crc_property,
    encode_crc_property,
    has_crc_property,
    seal_crc_property,
    verify_crc_property,
)
from tiermq.message.hosts import encode_address, encode_host, format_host
from tiermq.message.ids import (
    MessageId,
    UniqueKeyGenerator,
    decode_message_id,
    encode_message_id,
    format_message_id,
)
from tiermq.message.java_hash import java_hash, key_hash, tags_code
from tiermq.message.layout import ReadableBuffer, RecordVersion, encode_blank, record_size
from tiermq.message.message_filter import MessageFilter, TagFilter
from tiermq.message.properties import (
    decode_properties,
    delete_property,
    encode_properties,
    get_property,
    get_text_property,
    waits_for_store,
    with_property,
)
from tiermq.message.record import (
    CrcPropertyCheck,
    choose_version,
    decode_record,
    decode_records,
    encode_record,
    reencode,
)
from tiermq.message.record_head import HeadKind, RecordHead, read_head
from tiermq.message.stored_message import StoredMessage
from tiermq.message.system_flag import CompressionType, TransactionType, transaction_type
from tiermq.message.topic_name import check_group, check_topic, group_problem, is_system_topic, topic_problem

__all__ = [
    "BatchElement",
    "CompressionType",
    "CrcPropertyCheck",
    "HeadKind",
    "MessageFilter",
    "MessageId",
    "ReadableBuffer",
    "RecordHead",
    "RecordVersion",
    "StoredMessage",
    "TagFilter",
    "TransactionType",
    "UniqueKeyGenerator",
    "body_crc",
    "check_group",
    "check_topic",
    "choose_version",
    "compress",
    "crc32",
    "decode_client_batch",
    "decode_crc_property",
    "decode_message_id",
    "decode_properties",
    "decode_record",
    "decode_records",
    "decompress",
    "delete_property",
    "encode_address",
    "encode_blank",
    "encode_client_batch",
    "encode_crc_property",
    "encode_host",
    "encode_message_id",
    "encode_properties",
    "encode_record",
    "format_host",
    "format_message_id",
    "get_property",
    "get_text_property",
    "group_problem",
    "has_crc_property",
    "inner_base",
    "inner_num",
    "inner_span",
    "is_system_topic",
    "java_hash",
    "key_hash",
    "read_head",
    "record_size",
    "reencode",
    "seal_crc_property",
    "tags_code",
    "topic_problem",
    "transaction_type",
    "unwrap_inner_batch",
    "verify_crc_property",
    "waits_for_store",
    "with_property",
]
