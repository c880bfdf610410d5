"""DispatchRequest: what dispatchers learn about a record, also when a client wrote nonsense into it."""

from __future__ import annotations

import pytest

from tiermq.commitlog.dispatch_request import DispatchRequest, request_at
from tiermq.config import StoreConfig
from tiermq.errors import CorruptRecord
from tiermq.kernel import WriteCursor
from tiermq.message.java_hash import java_hash
from tiermq.message.record import encode_record

CONFIG = StoreConfig()


def requested(record: bytes, position: int = 0, base: int = 0) -> DispatchRequest:
    view = WriteCursor(bytearray(bytes(position) + record), base, position + len(record))
    view.position = view.size
    return request_at(view, position, CONFIG)


def record_of(topic: str = "T", properties: bytes = b"", **fields: object) -> bytes:
    return encode_record(topic=topic, body=b"body", properties=properties, **fields)  # type: ignore[arg-type]


def test_everything_that_a_dispatcher_may_want_to_know() -> None:
    record = record_of(
        properties=b"KEYS\x01a b\x02TAGS\x01t\x02UNIQ_KEY\x01u\x02", queue_id=3, queue_offset=7, physical_offset=1010,
        store_timestamp_ms=99, sys_flag=4, prepared_transaction_offset=55,
    )  # fmt: skip
    request = requested(record, 10, 1000)
    assert (request.topic, request.queue_id, request.queue_offset, request.batch_size) == ("T", 3, 7, 1)
    assert (request.physical_offset, request.size, request.store_timestamp_ms) == (1010, len(record), 99)
    assert (request.sys_flag, request.prepared_transaction_offset) == (4, 55)
    assert (request.tags_code, request.keys) == (java_hash("t"), ("u", "a", "b"))
    assert request.properties == {"KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "u"}


@pytest.mark.parametrize(
    ("properties", "span"),
    [
        (b"INNER_BASE\x01100\x02INNER_NUM\x015\x02", (100, 5)),
        (b"INNER_NUM\x015\x02", (7, 1)),
        (b"INNER_BASE\x01100\x02", (7, 1)),
        (b"INNER_BASE\x01x\x02INNER_NUM\x015\x02", (7, 1)),
        (b"INNER_BASE\x01100\x02INNER_NUM\x01-5\x02", (7, 1)),
        (b"INNER_BASE\x01100\x02INNER_NUM\x010\x02", (7, 1)),
        (b"INNER_BASE\x01100\x02INNER_NUM\x0199999\x02", (7, 1)),
        (b"", (7, 1)),
    ],
)
def test_the_span_of_an_inner_batch(properties: bytes, span: tuple[int, int]) -> None:
    request = requested(record_of(properties=properties, queue_offset=7, sys_flag=0xC0))
    assert (request.queue_offset, request.batch_size) == span


@pytest.mark.parametrize(
    ("level", "due_ms"),
    [
        (b"1", 1_000),
        (b"18", 7_200_000),
        (b"19", 7_200_000),
        (b"9999999999", 7_200_000),
        (b"0", None),
        (b"-1", None),
        ("٣".encode(), None),
    ],
)
def test_the_due_time_of_a_delayed_message(level: bytes, due_ms: int | None) -> None:
    record = record_of("SCHEDULE_TOPIC_XXXX", b"DELAY\x01" + level + b"\x02TAGS\x01t\x02", store_timestamp_ms=5)
    assert requested(record).tags_code == (java_hash("t") if due_ms is None else 5 + due_ms)


def test_properties_that_are_no_text_are_read_as_java_does() -> None:
    request = requested(record_of(properties=b"TAGS\x01\xff\x02KEYS\x01k\x02"))
    assert request.keys == ("k",)
    assert request.tags_code == java_hash("�")


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0", bytes(100), b"\0\0\0\x64" + bytes(96), b"\x7f\xff\xff\xff" + bytes(96)]
)
def test_what_is_no_record_is_an_error_with_its_place(data: bytes) -> None:
    view = WriteCursor(bytearray(100 + len(data)), 4096, 100 + len(data))
    view.limit = 100 + len(data)
    view.append(bytes(100) + data)
    with pytest.raises(CorruptRecord, match="physical offset 4196"):
        request_at(view, 100, CONFIG)
