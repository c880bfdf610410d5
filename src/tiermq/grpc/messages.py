"""The protocol's messages, made from `service.binpb`, and its codes.

`service.binpb` is what protoc makes of `service.proto`, with the two files that it imports:

    cd src/tiermq/grpc
    python3 -m grpc_tools.protoc -I. --include_imports --descriptor_set_out=service.binpb service.proto

Invariant: the messages have a pool of their own. A client library in the same process has messages of the same names
in protobuf's default pool, and two definitions of one name are an error there.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"/{PACKAGE}.MessagingService/"


class Code(enum.IntEnum):
    """`Status.code`."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    ILLEGAL_LITE_TOPIC = 40020
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    LITE_TOPIC_QUOTA_EXCEEDED = 42901
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 42902
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500
    FAILED_TO_CONSUME_MESSAGE = 60000


class MessageType(enum.IntEnum):
    """What a message is, and what a topic takes."""

    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class QueuePermission(enum.IntEnum):
    """What a client may do with a queue."""

    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class Encoding(enum.IntEnum):
    """How a body is sent."""

    IDENTITY = 1
    GZIP = 2


class LiteAction(enum.IntEnum):
    """What a client wants of the lite topics that it names."""

    PARTIAL_ADD = 0
    PARTIAL_REMOVE = 1
    COMPLETE_ADD = 2
    COMPLETE_REMOVE = 3


class OffsetRule(enum.IntEnum):
    """Where a subscription begins."""

    LAST = 0
    MIN = 1
    MAX = 2


class Resolution(enum.IntEnum):
    """How a transaction ends."""

    COMMIT = 1
    ROLLBACK = 2


class OffsetPolicy(enum.IntEnum):
    """Which offset of a queue is asked for."""

    BEGINNING = 0
    END = 1
    TIMESTAMP = 2


CLIENT_TYPES = range(7)
PUSH_CONSUMER = 2
"""A client type."""
LITE_PUSH_CONSUMER = 5
LITE_CONSUMERS = (LITE_PUSH_CONSUMER, 6)
"""Client types: push and simple consumers of lite topics."""
FILTER_BY_SQL = 2
"""A filter type."""
DIGEST_BY_MD5 = 2
"""A digest type."""
ANSWER_TO_CHECK = 2
"""Why a transaction is ended: the broker has asked for it."""
IPV4, IPV6, DOMAIN_NAME = 1, 2, 3
"""How an address is written."""


def _loaded() -> descriptor_pool.DescriptorPool:
    data = files(__package__).joinpath("service.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    return pool


POOL = _loaded()
METHODS = tuple(POOL.FindServiceByName(f"{PACKAGE}.MessagingService").methods_by_name)


def message_class(name: str) -> Any:
    """The class of one of the protocol's messages."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def request_class(method: str) -> Any:
    """The class of what a client sends."""
    service = POOL.FindServiceByName(f"{PACKAGE}.MessagingService")
    return message_factory.GetMessageClass(service.methods_by_name[method].input_type)


def answer_class(method: str) -> Any:
    """The class of what a client gets."""
    service = POOL.FindServiceByName(f"{PACKAGE}.MessagingService")
    return message_factory.GetMessageClass(service.methods_by_name[method].output_type)


BESIDE_BYTES_MAX = 256 * 1024
"""Of a request, without its long fields. Parsing makes an object of every two bytes, and the loop waits for it."""
FIELDS_MAX = 4_096
"""Of a long request, as far as its long fields are looked for."""
LONG_FIELDS = {"SendMessage": (1, 4), "Telemetry": (3, 2)}
"""Where requests have what may be long: bodies of messages, a dump of threads. The others have none."""


def bytes_beside(data: bytes, outer: int, inner: int) -> int:
    """How many bytes of a request are not in fields `inner` of its fields `outer`, as far as `FIELDS_MAX` fields."""
    beside, left = len(data), FIELDS_MAX
    try:
        for number, begin, end in _fields(data, 0, len(data)):
            for leaf, leaf_begin, leaf_end in _fields(data, begin, end) if number == outer else ():
                beside -= leaf_end - leaf_begin if leaf == inner else 0
                left -= 1
                if not left:
                    return beside
            left -= 1
            if not left:
                return beside
    except IndexError:
        pass  # It ends within a number: no message, as its parser will find, unless it is refused for its length.
    return beside


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, begin and end of each field; number 0 for those that have no length. Raises IndexError."""
    while at < end:
        tag, begin = _varint(data, at)
        kind = tag & 7
        if kind == 2:
            length, begin = _varint(data, begin)
            at = begin + length
        elif kind in (1, 5):
            at = begin + (8 if kind == 1 else 4)
        elif kind == 0:
            _, at = _varint(data, begin)
        else:
            return
        if at > end:
            return
        yield tag >> 3 if kind == 2 else 0, begin, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends. Raises IndexError."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80 or shift > 63:
            return value, at
        shift += 7


def status(code: Code, text: str = "") -> Any:
    """A status with a text, or with the name of its code."""
    return Status(code=code, message=text or code.name)


Status = message_class("Status")
Settings = message_class("Settings")
Message = message_class("Message")
TelemetryCommand = message_class("TelemetryCommand")
