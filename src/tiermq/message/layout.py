"""The bytes of a message record, and of the consume-queue unit that points at it: offsets, sizes, magics, Structs.

    offset (both hosts IPv4)
    0    4     8    12      16   20          28         36      40           48        56            64
    +----+-----+----+-------+----+-----------+----------+-------+------------+---------+-------------+
    |size|magic|crc |queueId|flag|queueOffset|physOffset|sysFlag|bornTime    |bornHost |storeTime    |
    +----+-----+----+-------+----+-----------+----------+-------+------------+---------+-------------+
    64        72        76         84      88
    +---------+---------+----------+-------+----+--------+-----+-------+----------+
    |storeHost|reconsume|preparedTx|bodyLen|body|topicLen|topic|propLen|properties|
    +---------+---------+----------+-------+----+--------+-----+-------+----------+

Big-endian, signed. A host is address (4 or 16 bytes) + i32 port; `sysFlag` has a bit for each host.
`topicLen` is one byte in a V1 record and two in a V2 record; `propLen` is two bytes. All lengths are signed: a
negative one is damage.

Invariants: size is the sum of everything; a commit-log file ends with a blank record (size, blank magic) that
covers the rest of the file; no record spans two files.

`consumequeue/unit.py` describes the fields of a unit.
"""

from __future__ import annotations

import enum
import struct

from tiermq.message.system_flag import BORN_HOST_V6, STORE_HOST_V6

ReadableBuffer = bytes | bytearray | memoryview
"""What decoders accept. An mmap is wrapped in a memoryview first."""

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
MAGIC_BLANK = 0xCBD43194 - (1 << 32)
assert (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) == (-626843481, -626843477, -875286124)


class RecordVersion(enum.IntEnum):
    """V1 writes the topic's length in one byte, V2 in two."""

    V1 = 1
    V2 = 2


MAGIC_OF_VERSION = {RecordVersion.V1: MAGIC_V1, RecordVersion.V2: MAGIC_V2}

# Offsets that do not depend on the hosts.
TOTAL_SIZE_AT = 0
MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
SYS_FLAG_LOW_BYTE_AT = 39  # The byte that holds the bits of both host shapes.
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48

HOST_V4_BYTES = 8
HOST_V6_BYTES = 20
V6_EXTRA_BYTES = HOST_V6_BYTES - HOST_V4_BYTES

# Offsets when both hosts are IPv4. Add V6_EXTRA_BYTES for each IPv6 host that comes before.
STORE_TIMESTAMP_AT = BORN_HOST_AT + HOST_V4_BYTES
STORE_HOST_AT = STORE_TIMESTAMP_AT + 8
RECONSUME_TIMES_AT = STORE_HOST_AT + HOST_V4_BYTES
PREPARED_TRANSACTION_OFFSET_AT = RECONSUME_TIMES_AT + 4
BODY_LENGTH_AT = PREPARED_TRANSACTION_OFFSET_AT + 8
BODY_AT = BODY_LENGTH_AT + 4
assert (STORE_TIMESTAMP_AT, STORE_HOST_AT, RECONSUME_TIMES_AT, BODY_LENGTH_AT, BODY_AT) == (56, 64, 72, 84, 88)


def _fixed_part(born_address_bytes: int, store_address_bytes: int) -> struct.Struct:
    """Everything before the body, for one pair of address sizes."""
    return struct.Struct(
        ">"
        "i"  # total_size
        "i"  # magic
        "i"  # body_crc
        "i"  # queue_id
        "i"  # flag
        "q"  # queue_offset
        "q"  # physical_offset
        "i"  # sys_flag
        "q"  # born_timestamp_ms
        f"{born_address_bytes}s"
        "I"  # born_port                     unsigned, so that one comparison finds a damaged one
        "q"  # store_timestamp_ms
        f"{store_address_bytes}s"
        "I"  # store_port
        "i"  # reconsume_times
        "q"  # prepared_transaction_offset
        "i"  # body_length
    )


FIXED_FIELDS = (
    "size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag",
    "born_timestamp_ms", "born_address", "born_port", "store_timestamp_ms", "store_address", "store_port",
    "reconsume_times", "prepared_transaction_offset", "body_length",
)  # fmt: skip
SHAPE_MASK = BORN_HOST_V6 | STORE_HOST_V6
SHAPE_SHIFT = 4
FIXED_PARTS = (_fixed_part(4, 4), _fixed_part(16, 4), _fixed_part(4, 16), _fixed_part(16, 16))
"""Indexed by `(sys_flag & SHAPE_MASK) >> SHAPE_SHIFT`."""
FIXED_SIZES = tuple(fixed.size for fixed in FIXED_PARTS)
assert (BORN_HOST_V6 >> SHAPE_SHIFT, STORE_HOST_V6 >> SHAPE_SHIFT) == (1, 2)
assert FIXED_SIZES == (88, 100, 100, 112)
assert FIXED_PARTS[0].size == BODY_AT

TOPIC_LENGTH_V1 = struct.Struct(">b")
TOPIC_LENGTH_V2 = struct.Struct(">h")
PROPERTIES_LENGTH = struct.Struct(">h")
I32 = struct.Struct(">i")
I64 = struct.Struct(">q")

TOPIC_BYTES_MAX_V1 = 127
TOPIC_BYTES_MAX_V2 = 32767
PROPERTIES_BYTES_MAX = 32767
RECORD_BYTES_MAX = (1 << 31) - 1
PORT_MAX = 65535

OVERHEAD_V1_BYTES = BODY_AT + TOPIC_LENGTH_V1.size + PROPERTIES_LENGTH.size
"""Size of a V1 record between IPv4 hosts with an empty body, topic and property string."""
OVERHEAD_V2_BYTES = BODY_AT + TOPIC_LENGTH_V2.size + PROPERTIES_LENGTH.size
RECORD_BYTES_MIN = OVERHEAD_V1_BYTES
assert (OVERHEAD_V1_BYTES, OVERHEAD_V2_BYTES) == (91, 92)

SIZE_AND_MAGIC = struct.Struct(
    ">"
    "i"  # total_size
    "i"  # magic
)
BLANK_BYTES_MIN = SIZE_AND_MAGIC.size
assert BLANK_BYTES_MIN == 8

UNIT = struct.Struct(
    ">"
    "q"  # physical_offset  absolute byte position of the record in the commit log
    "i"  # size             bytes of the whole record
    "q"  # tags_code        Java hash of the tag, delivery time, or ext address
)
UNIT_BYTES = UNIT.size
assert UNIT_BYTES == 20
PRE_BLANK_SIZE = 0x7FFFFFFF
"""The size in a pre-blank unit, which has no message."""


def record_size(
    body_bytes: int, topic_bytes: int, properties_bytes: int, sys_flag: int, version: RecordVersion = RecordVersion.V1
) -> int:
    """TOTALSIZE of a record with these parts."""
    overhead = OVERHEAD_V1_BYTES if version is RecordVersion.V1 else OVERHEAD_V2_BYTES
    if sys_flag & BORN_HOST_V6:
        overhead += V6_EXTRA_BYTES
    if sys_flag & STORE_HOST_V6:
        overhead += V6_EXTRA_BYTES
    return overhead + body_bytes + topic_bytes + properties_bytes


def encode_blank(size_bytes: int) -> bytes:
    """The 8 bytes that mark the rest of a file, `size_bytes` long including these 8, as empty."""
    if size_bytes < BLANK_BYTES_MIN:
        raise ValueError(f"a blank record needs at least {BLANK_BYTES_MIN} bytes, only {size_bytes} are left")
    return SIZE_AND_MAGIC.pack(size_bytes, MAGIC_BLANK)
