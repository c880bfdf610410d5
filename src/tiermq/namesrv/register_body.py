"""The body of a registration: a broker's topics and their version, written and read.

Plain (every 5.x broker, 4.9 unless told otherwise):

    {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{…},"topicConfigTable":{"orders":{…}},…}}

Compressed (`compressed=true`): a zlib stream over

    n i32, DataVersion as JSON
    topics i32, then for each   n i32, "name readQueues writeQueues perm FILTER [attributes as JSON]"
    n i32, filter servers as JSON
    (senders from 5.0 on) mappings of static topics, which nobody here needs

Brokers before 3.0.11 send what is inside of `topicConfigSerializeWrapper` alone.

Invariants: whatever the bytes are, reading gives a body or raises RequestRefused; a stream that would inflate beyond
`INFLATED_BYTES_MAX` is refused before it has.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tiermq.errors import RequestRefused
from tiermq.namesrv.topic_config import (
    FILTER_SINGLE_TAG,
    NO_VERSION,
    DataVersion,
    TopicConfig,
    int32_in,
    object_in,
    text_in,
    text_map_in,
)
from tiermq.remoting.json_dialect import decode_body, decode_object, encode_body, quoted

VERSION_WITH_WRAPPER = 37
"""V3_0_11: from here on a body has a wrapper and filter servers."""
INFLATED_BYTES_MAX = 64 * 1024 * 1024
_LENGTH = struct.Struct(
    ">i"  # bytes or entries that follow
)
_FIELDS_MIN = 5


@dataclass(frozen=True, slots=True)
class RegisterBody:
    """What was sent beside the names and addresses."""

    topics: tuple[TopicConfig, ...] = ()
    data_version: DataVersion = NO_VERSION
    filter_servers: tuple[str, ...] = ()


def body_checksum(body: bytes | memoryview) -> int:
    """`bodyCrc32` of a registration: CRC-32 without its sign bit."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_register_body(topics: Iterable[TopicConfig], data_version: DataVersion) -> bytes:
    """The plain form, as a 5.x broker writes it."""
    table = ",".join(f"{quoted(topic.name)}:{topic.encode()}" for topic in sorted(topics, key=lambda each: each.name))
    version = encode_body(data_version.to_json()).decode()
    mapping = encode_body(DataVersion(timestamp=data_version.timestamp).to_json()).decode()
    return (
        f'{{"filterServerList":[],"topicConfigSerializeWrapper":{{"dataVersion":{version},"mappingDataVersion":{mapping},'
        f'"topicConfigTable":{{{table}}},"topicQueueMappingDetailMap":{{}},"topicQueueMappingInfoMap":{{}}}}}}'
    ).encode()


def decode_register_body(body: bytes | memoryview, *, compressed: bool, version: int) -> RegisterBody:
    """Either form. No body at all is a broker without topics. Raises RequestRefused."""
    if not len(body):
        return RegisterBody()
    if compressed:
        return _decode_compressed(body)
    table = decode_object(body)
    if version < VERSION_WITH_WRAPPER:
        return _decode_wrapper(table, ())
    filters = table.get("filterServerList")
    wrapper = table.get("topicConfigSerializeWrapper")
    return _decode_wrapper({} if wrapper is None else wrapper, _filters_in(filters))


def _decode_wrapper(value: object, filter_servers: tuple[str, ...]) -> RegisterBody:
    wrapper = object_in(value, "topicConfigSerializeWrapper")
    table = wrapper.get("topicConfigTable")
    version = wrapper.get("dataVersion")
    found = {} if table is None else object_in(table, "topicConfigTable")
    return RegisterBody(
        tuple(TopicConfig.from_json(each, name) for name, each in found.items()),
        NO_VERSION if version is None else DataVersion.from_json(version),
        filter_servers,
    )


def _filters_in(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RequestRefused(f"expected filterServerList to be a list, found a {type(value).__name__}")
    return tuple(text_in(each, "filterServerList") for each in value)


# The compressed form --------------------------------------------------------------------------------------------------


class _Pieces:
    """A walk over length-prefixed pieces."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        if self._at + _LENGTH.size > len(self._data):
            raise RequestRefused(f"expected a length at byte {self._at} of the registration, found its end")
        value: int = _LENGTH.unpack_from(self._data, self._at)[0]
        self._at += _LENGTH.size
        if value < 0 or value > len(self._data):
            raise RequestRefused(f"expected a length within {len(self._data)} bytes, found {value}")
        return value

    def piece(self) -> bytes:
        size = self.number()
        if self._at + size > len(self._data):
            raise RequestRefused(f"expected {size} bytes at {self._at} of the registration, found its end")
        self._at += size
        return self._data[self._at - size : self._at]


def _decode_compressed(body: bytes | memoryview) -> RegisterBody:
    pieces = _Pieces(_inflated(body))
    version = DataVersion.from_json(decode_object(pieces.piece()))
    topics = tuple(_topic_of(pieces.piece()) for _ in range(pieces.number()))
    return RegisterBody(topics, version, _filters_in(decode_body(pieces.piece())))


def _inflated(body: bytes | memoryview) -> bytes:
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RequestRefused(f"expected a zlib stream as the registration, found none: {error}") from error
    if not stream.eof:
        raise RequestRefused(
            f"expected a whole zlib stream of at most {INFLATED_BYTES_MAX} bytes, found a longer or torn one"
        )
    return data


def _topic_of(piece: bytes) -> TopicConfig:
    try:
        name, *rest = piece.decode("utf-8").split(" ", _FIELDS_MIN)
    except UnicodeDecodeError as error:
        raise RequestRefused(f"expected a topic's line in UTF-8, found none: {error}") from error
    if not name or len(rest) < _FIELDS_MIN - 1:
        raise RequestRefused(f"expected 'name read write perm filter', found {piece[:80]!r}")
    numbers = dict(zip(("readQueueNums", "writeQueueNums", "perm"), rest, strict=False))
    attributes = text_map_in(decode_object(rest[4].encode()), "attributes") if len(rest) > 4 and rest[4] else {}
    return TopicConfig(
        name,
        int32_in(numbers, "readQueueNums"),
        int32_in(numbers, "writeQueueNums"),
        int32_in(numbers, "perm"),
        attributes=attributes,
        filter_type=rest[3] or FILTER_SINGLE_TAG,
    )
