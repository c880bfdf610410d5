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
from tiermq.message.layout import RecordVersion
from tiermq.message.properties import encode_properties
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
