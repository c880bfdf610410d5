"""TopicConfig, DataVersion and RegisterBody: a broker's topics, as values and as registration bodies.

    {"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",
     "topicName":"orders","topicSysFlag":0,"writeQueueNums":4}
    {"counter":3,"stateVersion":0,"timestamp":1700000000000}

Invariants: values never change; two versions are equal when all three numbers are; numbers of a topic fit 32 bits.

The body of a registration, plain (every 5.x broker, 4.9 by default):

    {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{…},"topicConfigTable":{"orders":{…}},…}}

Compressed (`compressed=true`): a zlib stream over

    n i32, DataVersion as JSON
    topics i32, then for each   n i32, "name readQueues writeQueues perm FILTER [attributes as JSON]"
    n i32, filter servers as JSON
    (senders from 5.0 on) mappings of static topics, not used here

Brokers before 3.0.11 send the content of `topicConfigSerializeWrapper` alone. Reading returns a body or raises
RequestRefused, whatever the bytes are; a stream that would inflate beyond `INFLATED_BYTES_MAX` is refused before.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiermq.errors import RequestRefused
from tiermq.remoting.frame import LENGTH
from tiermq.remoting.json_dialect import (
    as_bool,
    as_int,
    decode_body,
    decode_object,
    encode_body,
    int32_in,
    int64_in,
    object_in,
    quoted,
    text_in,
    text_map_in,
)
from tiermq.remoting.limits import check_count
from tiermq.settings import LONG_MAX

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
SYS_FLAG_UNIT = 1
SYS_FLAG_UNIT_SUBSCRIBED = 2
FILTER_SINGLE_TAG = "SINGLE_TAG"
FILTER_MULTI_TAG = "MULTI_TAG"
RESERVE_TIME = "reserve.time"
"""RocketMQ's: how many hours the tier keeps a topic's messages; 0 and -1: the broker's setting."""
RESERVE_BYTES = "reserve.bytes"
"""Ours: how many bytes of a topic the tier keeps, by the same rule."""
RETENTION = (RESERVE_TIME, RESERVE_BYTES)


def retention_of(attributes: Mapping[str, Any]) -> tuple[int, int]:
    """Hours and bytes to keep of a topic with these attributes; -1: the broker's setting. Raises RequestRefused."""
    hours, size = (as_int(attributes.get(name), -1) for name in RETENTION)
    if max(hours, size) > LONG_MAX:
        raise RequestRefused(f"expected {' and '.join(RETENTION)} up to {LONG_MAX}, found more")
    return hours if hours > 0 else -1, size if size > 0 else -1


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic of one broker."""

    name: str
    read_queues: int = 16
    write_queues: int = 16
    perm: int = PERM_READ | PERM_WRITE
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    filter_type: str = FILTER_SINGLE_TAG

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    def encode(self) -> str:
        """`to_json` as text: tables have tens of thousands of these."""
        attributes = "{}" if not self.attributes else encode_body(dict(self.attributes)).decode()
        return (
            f'{{"attributes":{attributes},"order":{"true" if self.order else "false"},"perm":{self.perm},'
            f'"readQueueNums":{self.read_queues},"topicFilterType":{quoted(self.filter_type)},'
            f'"topicName":{quoted(self.name)},"topicSysFlag":{self.sys_flag},"writeQueueNums":{self.write_queues}}}'
        )

    @classmethod
    def from_json(cls, value: object, name: str = "") -> TopicConfig:
        """`name` is the key it stood under, for writers that leave it out inside. Raises RequestRefused."""
        table = object_in(value, f"the configuration of topic {name[:40]!r}")
        topic = text_in(table.get("topicName"), "topicName") or name
        if not topic:
            raise RequestRefused("expected a topic with a name, found one without")
        attributes = table.get("attributes")
        return cls(
            topic,
            int32_in(table, "readQueueNums", 16),
            int32_in(table, "writeQueueNums", 16),
            int32_in(table, "perm", PERM_READ | PERM_WRITE),
            int32_in(table, "topicSysFlag", 0),
            as_bool(table.get("order")),
            {} if attributes is None else text_map_in(attributes, "attributes"),
            text_in(table.get("topicFilterType"), "topicFilterType") or FILTER_SINGLE_TAG,
        )


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a broker's topic table: it grows with each change, and with each change of mastership."""

    timestamp: int = 0
    counter: int = 0
    state_version: int = 0

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        """The version after one more change."""
        state = self.state_version if state_version is None else state_version
        return DataVersion(now_ms, self.counter + 1, state)

    def to_json(self) -> dict[str, Any]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: object) -> DataVersion:
        """Absent numbers are 0. Raises RequestRefused."""
        table = object_in(value, "a data version")
        return cls(int64_in(table, "timestamp"), int64_in(table, "counter"), int64_in(table, "stateVersion"))


NO_VERSION = DataVersion()
"""The version of a broker without registered topics."""


VERSION_WITH_WRAPPER = 37
"""V3_0_11: from here on a body has a wrapper and filter servers."""
FILTER_SERVERS_MAX = 1_000
INFLATED_BYTES_MAX = 64 * 1024 * 1024
_FIELDS_MIN = 5


@dataclass(frozen=True, slots=True)
class RegisterBody:
    """What was sent beside the names and addresses.

    `topics` is read once, and raises RequestRefused at a topic that is invalid. A body may have a hundred thousand: as
    one value each they would be kept alive together, and each collection of garbage would walk over all of them while
    every thread waits.
    """

    topics: Iterator[TopicConfig] = field(default_factory=lambda: iter(()))
    topic_count: int = 0
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
    """Either form. No body at all is a broker without topics. Any thread. Raises RequestRefused."""
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
        _topics_taken_from(found),
        len(found),
        NO_VERSION if version is None else DataVersion.from_json(version),
        filter_servers,
    )


def _topics_taken_from(table: dict[str, Any]) -> Iterator[TopicConfig]:
    """Each entry is freed as soon as it is read: to free a large table at once holds the interpreter's lock."""
    for name in tuple(table):
        yield TopicConfig.from_json(table.pop(name), name)


def _filters_in(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise RequestRefused(f"expected filterServerList to be a list, found a {type(value).__name__}")
    check_count("filter servers of a broker", len(value), FILTER_SERVERS_MAX)
    return tuple(text_in(each, "filterServerList") for each in value)


# The compressed form --------------------------------------------------------------------------------------------------


class _Pieces:
    """A reader of length-prefixed fields."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        if self._at + LENGTH.size > len(self._data):
            raise RequestRefused(f"expected a length at byte {self._at} of the registration, found its end")
        value: int = LENGTH.unpack_from(self._data, self._at)[0]
        self._at += LENGTH.size
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
    lines = [pieces.piece() for _ in range(pieces.number())]
    return RegisterBody(map(_topic_of, lines), len(lines), version, _filters_in(decode_body(pieces.piece())))


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
