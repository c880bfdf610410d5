"""The constants of the record against a record."""

from __future__ import annotations

import struct

import pytest

from tiermq.message import RecordVersion, encode_record, record_size
from tiermq.message import layout as at

RECORD = encode_record(
    topic="Topic",
    body=b"body",
    queue_id=11,
    flag=12,
    queue_offset=13,
    physical_offset=14,
    sys_flag=0x04,
    born_timestamp_ms=15,
    born_host="1.2.3.4:16",
    store_timestamp_ms=17,
    store_host="5.6.7.8:18",
    reconsume_times=19,
    prepared_transaction_offset=20,
    properties={"a": "b"},
)


@pytest.mark.parametrize(
    ("position", "form", "expected"),
    [
        (at.TOTAL_SIZE_AT, ">i", len(RECORD)),
        (at.MAGIC_AT, ">I", 0xDAA320A7),
        (at.QUEUE_ID_AT, ">i", 11),
        (at.FLAG_AT, ">i", 12),
        (at.QUEUE_OFFSET_AT, ">q", 13),
        (at.PHYSICAL_OFFSET_AT, ">q", 14),
        (at.SYS_FLAG_AT, ">i", 4),
        (at.SYS_FLAG_LOW_BYTE_AT, ">B", 4),
        (at.BORN_TIMESTAMP_AT, ">q", 15),
        (at.BORN_HOST_AT, ">Q", 0x0102030400000010),
        (at.STORE_TIMESTAMP_AT, ">q", 17),
        (at.STORE_HOST_AT, ">Q", 0x0506070800000012),
        (at.RECONSUME_TIMES_AT, ">i", 19),
        (at.PREPARED_TRANSACTION_OFFSET_AT, ">q", 20),
        (at.BODY_LENGTH_AT, ">i", 4),
        (at.BODY_AT, ">4s", b"body"),
    ],
)
def test_every_offset_points_at_its_field(position: int, form: str, expected: object) -> None:
    assert struct.unpack_from(form, RECORD, position) == (expected,)


@pytest.mark.parametrize("shape", range(4))
def test_the_fixed_part_of_each_shape_grows_with_its_hosts(shape: int) -> None:
    extra = 12 * ((shape & 1) + (shape >> 1))
    assert at.FIXED_SIZES[shape] == at.FIXED_PARTS[shape].size == 88 + extra
    assert record_size(4, 5, 6, shape << at.SHAPE_SHIFT) == 91 + 15 + extra
    assert record_size(4, 5, 6, shape << at.SHAPE_SHIFT, RecordVersion.V2) == 92 + 15 + extra


def test_each_field_of_the_fixed_part_has_a_name() -> None:
    assert len(at.FIXED_PARTS[0].unpack_from(RECORD)) == len(at.FIXED_FIELDS)
