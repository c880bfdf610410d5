"""The messages of every benchmark: 91 fixed bytes + 200 body + 14 topic + 68 properties = 373, 16 topics x 4 queues.

`java/Samples.java` holds the same shapes. `write_log` writes a commit log file of such records without any help from
TierMQ, so that the Java loops can be run and checked alone.
"""

from __future__ import annotations

import itertools
import random
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TOPIC_COUNT = 16
QUEUE_COUNT = 4
BODY_BYTES = 200
VARIED_BODY_BYTES = (136, 264)
PROPERTIES_BYTES = 68
POOL_BITS = 10
POOL_COUNT = 1 << POOL_BITS
RECORD_BYTES = 373
MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194
TOPICS = [f"bench-topic-{number:02d}" for number in range(TOPIC_COUNT)]

HEAD = struct.Struct(
    ">"
    "i"  # total size
    "I"  # magic
    "I"  # CRC-32 of the body, without its top bit
    "i"  # queue id
    "i"  # flag
    "q"  # queue offset
    "q"  # physical offset
    "i"  # system flag
    "q"  # born timestamp
    "4si"  # born host
    "q"  # store timestamp
    "4si"  # store host
    "i"  # reconsume times
    "q"  # prepared transaction offset
    "i"  # body length
)
assert HEAD.size == 88

BORN_HOST = (bytes((10, 0, 0, 1)), 50000)
STORE_HOST = (bytes((10, 0, 0, 2)), 10911)


def encode_properties(key: bytes) -> bytes:
    """The properties of one message with the one key that is indexed: name, 0x01, value, 0x02 each."""
    return b"KEYS\x01%b\x02TAGS\x01TagABCD\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster\x02" % key


assert len(encode_properties(b"0" * 16)) == PROPERTIES_BYTES
assert HEAD.size + BODY_BYTES + 1 + len(TOPICS[0]) + 2 + PROPERTIES_BYTES == RECORD_BYTES


def keys(seed: int, count: int) -> list[bytes]:
    """Distinct-looking keys of 16 hexadecimal characters."""
    source = random.Random(seed)
    return [b"%016x" % source.getrandbits(64) for _ in range(count)]


def bodies(seed: int, count: int) -> list[bytes]:
    """Random bodies of 200 bytes."""
    source = random.Random(seed)
    return [source.randbytes(BODY_BYTES) for _ in range(count)]


def queue_of(number: int) -> tuple[str, int]:
    """Topic and queue id of the n-th message: every queue in turn."""
    return TOPICS[number % TOPIC_COUNT], number // TOPIC_COUNT % QUEUE_COUNT


class Row(NamedTuple):
    """One message of a full log: its number, its body and the one key that is indexed."""

    number: int
    body: bytes
    key: bytes

    @property
    def record_bytes(self) -> int:
        """Bytes of its record."""
        return RECORD_BYTES - BODY_BYTES + len(self.body)


def rows_of_log(size: int, varied: bool) -> Iterator[Row]:
    """The messages that fill one log file of `size` bytes but for its blank record.

    `varied` bodies have 136 to 264 bytes in an order without period, as real ones: a walk over records that are all
    alike flatters a walk, because the processor learns the way.
    """
    source = random.Random(7)
    lengths = [source.randint(*VARIED_BODY_BYTES) if varied else BODY_BYTES for _ in range(POOL_COUNT)]
    some_bodies = [source.randbytes(length) for length in lengths]
    left, bits = size - 8, source.getrandbits
    for number in itertools.count():
        row = Row(number, some_bodies[bits(POOL_BITS)], b"%016x" % bits(64))
        left -= row.record_bytes
        if left < 0:
            return
        yield row


def encode_rows(rows: Iterable[Row], timestamp_ms: int) -> Iterator[bytes]:
    """The rows as records, from physical offset 0."""
    tails = [bytes([len(topic)]) + topic.encode() + struct.pack(">h", PROPERTIES_BYTES) for topic in TOPICS]
    physical_offset = 0
    for row in rows:
        number, body = row.number, row.body
        head = HEAD.pack(
            row.record_bytes, MAGIC, zlib.crc32(body) & 0x7FFFFFFF, number // TOPIC_COUNT % QUEUE_COUNT, 0,
            number // (TOPIC_COUNT * QUEUE_COUNT), physical_offset, 0, timestamp_ms, *BORN_HOST,
            timestamp_ms, *STORE_HOST, 0, 0, len(body),
        )  # fmt: skip
        yield b"".join((head, body, tails[number % TOPIC_COUNT], encode_properties(row.key)))
        physical_offset += row.record_bytes


def write_log(path: Path, size: int, varied: bool, timestamp_ms: int = 1_700_000_000_000) -> int:
    """Write one full log file with its closing blank record; returns the number of records."""
    count = used = 0
    with path.open("wb", buffering=4 << 20) as file:
        for record in encode_rows(rows_of_log(size, varied), timestamp_ms):
            file.write(record)
            used += len(record)
            count += 1
        file.write(struct.pack(">iI", size - used, BLANK_MAGIC))
        file.truncate(size)
    return count


def decode_log(data: bytes | memoryview, count: int) -> Iterator[tuple[str, int, int, int, bytes]]:
    """Check `count` records and yield topic, queue id, queue offset, physical offset and body of each."""
    at = 0
    for _ in range(count):
        fields = HEAD.unpack_from(data, at)
        size, body_at, topic_at = fields[0], at + HEAD.size, at + HEAD.size + fields[16]
        if fields[1] != MAGIC or size != RECORD_BYTES - BODY_BYTES + fields[16]:
            raise ValueError(f"expected a record of the workload at {at}, found magic {fields[1]:#x}, size {size}")
        body = bytes(data[body_at:topic_at])
        if zlib.crc32(body) & 0x7FFFFFFF != fields[2]:
            raise ValueError(f"the body at {at} does not match its CRC")
        topic = bytes(data[topic_at + 1 : topic_at + 1 + data[topic_at]]).decode()
        yield topic, fields[3], fields[5], fields[6], body
        at += size
