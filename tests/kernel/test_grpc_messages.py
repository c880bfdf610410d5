"""Plain records as answers of gRPC's receives: protobuf reads from them what the general path fills in."""

from __future__ import annotations

import hashlib
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.kernel_world import KERNELS
from tiermq.broker.grpc.grpc_message import APART, RESERVED, fill_message
from tiermq.grpc.messages import message_class
from tiermq.message import crc
from tiermq.message.layout import RecordVersion
from tiermq.message.properties import encode_properties
from tiermq.message.record import decode_records, reencode
from tiermq.message.stored_message import StoredMessage

Response = message_class("ReceiveMessageResponse")
I32 = st.integers(0, (1 << 31) - 1)
both = pytest.mark.parametrize("kernel", KERNELS)
NAMES = st.sampled_from(
    ["UNIQ_KEY", "TAGS", "KEYS", "__BORNHOST", "CLUSTER", "MSG_REGION", "POP_CK", "own", "x" * 200, "é",
     "__SHARDINGKEY", "DELAY", "TRAN_MSG", "BORN_TIMESTAMP", "TIMER_OUT_MS", "a b"]
)  # fmt: skip
VALUES = st.sampled_from(["1", "a b  c", " ", "", "é", "y" * 200, "127.0.0.1:9", "\x7f"])
PROPERTIES = st.dictionaries(NAMES, VALUES, max_size=6).map(encode_properties) | st.binary(max_size=20)


def record(properties: bytes, **changed: Any) -> StoredMessage:
    values: dict[str, Any] = {
        "topic": "orders", "body": b"two coffees", "encoded_properties": properties, "version": RecordVersion.V1,
        "size": 100, "body_crc": 0, "queue_id": 3, "flag": 0, "queue_offset": 42, "physical_offset": 4711,
        "sys_flag": 0,
        "born_timestamp_ms": 1_700_000_000_123, "born_address": bytes((10, 0, 0, 1)), "born_port": 4711,
        "store_timestamp_ms": 1_700_000_000_456, "store_address": bytes((10, 0, 0, 2)), "store_port": 10911,
        "reconsume_times": 0, "prepared_transaction_offset": 0,
    }  # fmt: skip
    return StoredMessage(**{**values, **changed})


def written(kernel: Any, message: StoredMessage, handle: str = "h 1", attempt: int = 1) -> bytes | None:
    writer = kernel.GrpcMessageWriter(
        frozenset(name.encode() for name in RESERVED), frozenset(name.encode() for name in APART)
    )
    digest = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper().encode()
    found: bytes | None = writer.write(b"orders", message, digest, handle.encode(), attempt)
    return found


def general(message: StoredMessage, handle: str = "h 1", attempt: int = 1) -> Any:
    made = Response()
    fill_message(made.message, message, "orders", handle=handle, attempt=attempt)
    return made


@both
def test_a_plain_record_is_written(kernel: ModuleType) -> None:
    message = record(encode_properties({"UNIQ_KEY": "K", "TAGS": "paid", "KEYS": "a  b", "own": "1", "CLUSTER": "c"}))
    found = written(kernel, message)
    assert found is not None
    assert Response.FromString(found) == general(message)
    assert dict(Response.FromString(found).message.user_properties) == {"own": "1"}


@settings(max_examples=300)
@given(
    properties=PROPERTIES, body=st.binary(max_size=300), sys_flag=st.sampled_from([0, 1, 0x100, 0x30, 1 << 30]),
    queue=I32, offset=st.integers(0, 1 << 62), handle=st.sampled_from(["", "1 2 3", "h" * 300]),
    attempt=st.integers(0, 300), born=st.integers(0, 1 << 45), host=st.sampled_from([bytes(4), bytes(16)]),
)  # fmt: skip
def test_protobuf_reads_what_the_general_path_fills_in(
    properties: bytes, body: bytes, sys_flag: int, queue: int, offset: int, handle: str, attempt: int, born: int,
    host: bytes,
) -> None:  # fmt: skip
    message = record(
        properties, body=body, sys_flag=sys_flag, queue_id=queue, queue_offset=offset, born_timestamp_ms=born,
        born_address=host,
    )  # fmt: skip
    results = [written(kernel.values[0], message, handle, attempt) for kernel in KERNELS if kernel.values[0]]
    messages = [None if found is None else Response.FromString(found) for found in results]
    assert all(found == messages[0] for found in messages)
    if messages[0] is not None:
        assert messages[0] == general(message, handle, attempt)


@both
def test_what_makes_a_message_another_is_left_to_the_general_path(kernel: ModuleType) -> None:
    for name in APART:
        assert written(kernel, record(encode_properties({"UNIQ_KEY": "K", name: "1"}))) is None
    plain = encode_properties({"UNIQ_KEY": "K"})
    assert written(kernel, record(plain, sys_flag=1)) is None, "compressed"
    assert written(kernel, record(encode_properties({"TAGS": "x"}))) is None, "without an id"
    assert written(kernel, record(plain)) is not None


# Pages.

HANDLES = {3: b"0 1 60000 0 0 b1 3"}


def page_of(kernel: Any, data: bytes, *tags: bytes) -> list[bytes] | None:
    hidden, apart = (frozenset(name.encode() for name in names) for names in (RESERVED, {*APART, "POP_CK", "__CRC32#"}))
    found: list[bytes] | None = kernel.GrpcMessageWriter(hidden, apart).write_page(
        b"orders", data, HANDLES, frozenset(tags) or None
    )
    return found


def stored(properties: bytes = b"UNIQ_KEY\x01K\x02", **changed: Any) -> bytes:
    message = record(properties, **changed)
    return reencode(replace(message, body_crc=crc.body_crc(message.body)))


def replace(message: StoredMessage, **changed: Any) -> StoredMessage:
    values = {name: getattr(message, name) for name in StoredMessage.__slots__ if not name.startswith("_")}
    return StoredMessage(**{**values, **changed})


@both
def test_the_records_of_a_pop_are_written_as_one_by_one(kernel: ModuleType) -> None:
    data = b"".join(stored(body=b"%d" % at, queue_offset=at, physical_offset=1_000 * at) for at in range(5))
    found = page_of(kernel, data)
    assert found is not None
    assert [Response.FromString(each) for each in found] == [
        general(message, f"0 1 60000 0 0 b1 3 {at} {1_000 * at}") for at, message in enumerate(decode_records(data))
    ]
    assert page_of(kernel, b"") == []


@both
@pytest.mark.parametrize(
    "other",
    [
        stored(reconsume_times=1),
        stored(queue_id=4),
        stored(sys_flag=1),
        stored(sys_flag=0x10, born_address=bytes(16)),
        stored(version=RecordVersion.V2),
        stored(queue_offset=-1),
        stored(b"UNIQ_KEY\x01K\x02POP_CK\x010 1 2\x02"),
        stored()[:-1],
        stored()[:60],
        stored().replace(b"coffees", b"coffeeS"),
    ],
    ids=["again", "queue", "compressed", "v6", "version", "offset", "receipt", "cut", "short", "damaged"],
)
def test_a_page_with_a_record_of_another_kind_is_left_to_the_general_path(kernel: ModuleType, other: bytes) -> None:
    assert page_of(kernel, stored()) is not None
    assert page_of(kernel, stored() + other) is None


@settings(max_examples=300)
@given(
    properties=PROPERTIES, body=st.binary(max_size=300), offset=st.integers(0, 1 << 62), place=st.integers(0, 1 << 62),
    born=st.integers(-(1 << 62), 1 << 62), host=st.binary(min_size=4, max_size=4), port=st.integers(0, 65_535),
)  # fmt: skip
def test_both_kernels_write_what_protobuf_reads_of_a_page(
    properties: bytes, body: bytes, offset: int, place: int, born: int, host: bytes, port: int
) -> None:
    data = stored(
        properties, body=body, queue_offset=offset, physical_offset=place, born_timestamp_ms=born, born_address=host,
        store_address=host, store_port=port,
    )  # fmt: skip
    pages = [page_of(kernel.values[0], data) for kernel in KERNELS if kernel.values[0]]
    found = [None if page is None else [Response.FromString(each) for each in page] for page in pages]
    assert all(each == found[0] for each in found)
    if found[0] is not None:
        [message] = decode_records(data)
        assert found[0] == [general(message, f"{HANDLES[3].decode()} {offset} {place}")]


@both
def test_a_page_by_tags_is_written_if_each_record_has_one_of_them(kernel: ModuleType) -> None:
    paid, sold, none = (stored(b"UNIQ_KEY\x01K\x02" + tag) for tag in (b"TAGS\x01paid\x02", b"TAGS\x01sold\x02", b""))
    assert page_of(kernel, paid + sold, b"paid", b"sold") == page_of(kernel, paid + sold)
    assert page_of(kernel, paid + sold, b"paid", b"sol") is None
    assert page_of(kernel, paid + none, b"paid") is None
    twice = stored(b"TAGS\x01paid\x02UNIQ_KEY\x01K\x02TAGS\x01sold\x02")
    assert page_of(kernel, twice, b"sold") == page_of(kernel, twice), "the last of equal names counts"
    assert page_of(kernel, twice, b"paid") is None
