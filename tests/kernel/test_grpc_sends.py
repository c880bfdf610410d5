"""Plain sends of gRPC: read from their bytes by both kernels as the general path reads them, or left to it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.kernel_world import KERNELS
from tiermq.broker.grpc.grpc_message import (
    RESERVED,
    SENT_BODY_BYTES_MAX,
    USER_BYTES_MAX,
    check_message,
    properties_of,
    timestamp_ms,
    type_of,
)
from tiermq.grpc.messages import Code, MessageType, message_class, status
from tiermq.message.properties import decode_properties

Request, Response = message_class("SendMessageRequest"), message_class("SendMessageResponse")
PEER, NOW_MS = b"10.0.0.1:4711", 1_700_000_000_000
TEXT = st.sampled_from(["a", "b c", " x ", " ", "", "é", "q|", "\x01", "\x7f", "KEYS", "UNIQ_KEY", "x" * 70])
TIME = st.tuples(st.sampled_from([0, 1, 1_700_000_000, -1, 1 << 40]), st.sampled_from([0, 999_999_999, -1, 1 << 30]))
both = pytest.mark.parametrize("kernel", KERNELS)
SYSTEM = st.fixed_dictionaries(
    {"message_id": st.just("id-1") | TEXT},
    optional={
        "tag": TEXT, "keys": st.lists(TEXT, max_size=3), "body_encoding": st.integers(0, 2),
        "message_type": st.integers(0, 6), "born_host": TEXT, "queue_id": st.integers(-1, 7), "trace_context": TEXT,
        "message_group": TEXT, "lite_topic": TEXT, "priority": st.integers(-1, 3), "store_host": TEXT,
        "delivery_attempt": st.integers(0, 2), "receipt_handle": TEXT,
    },
)  # fmt: skip


def reader_of(kernel: Any, user_bytes_max: int = USER_BYTES_MAX, body_bytes_max: int = SENT_BODY_BYTES_MAX) -> Any:
    return kernel.GrpcSendReader(frozenset(name.encode() for name in RESERVED), user_bytes_max, body_bytes_max)


def request_of(**changed: Any) -> Any:
    """A usual request, but for `changed`: fields of the message's system properties, or the message's own."""
    made = Request()
    message = made.messages.add()
    message.topic.name = changed.pop("topic", "orders")
    message.body = changed.pop("body", b"two coffees")
    for name, value in changed.pop("user", {}).items():
        message.user_properties[name] = value
    for field, times in (("born_timestamp", changed.pop("born", (1_700_000_000, 5_000_000))),):
        if times is not None:
            getattr(message.system_properties, field).seconds, getattr(message.system_properties, field).nanos = times
    for name, value in {"message_id": "0123456789ABCDEF", **changed}.items():
        if name == "keys":
            message.system_properties.keys.extend(value)
        else:
            setattr(message.system_properties, name, value)
    return made


def read(kernel: Any, data: bytes) -> Any:
    found = reader_of(kernel).read(data, PEER, NOW_MS)
    if found is None:
        return None
    send, key = found
    properties = decode_properties(send.properties)
    assert properties["UNIQ_KEY"].encode() == key
    return send.topic, send.body, properties, send.born_ms, send.queue_id, send.sys_flag, send.batch, send.code


@both
def test_a_plain_send_is_read(kernel: ModuleType) -> None:
    data = request_of(tag="paid", keys=["order-42", "x"], user={"a": "b"}, trace_context="t", queue_id=3)
    assert read(kernel, data.SerializeToString()) == (
        "orders",
        b"two coffees",
        {
            "a": "b", "UNIQ_KEY": "0123456789ABCDEF", "TAGS": "paid", "KEYS": "order-42 x", "TRACE_CONTEXT": "t",
            "BORN_TIMESTAMP": "1700000000005", "__BORNHOST": PEER.decode(),
        },
        1_700_000_000_005, -1, 0, False, 310,
    )  # fmt: skip


@both
def test_a_message_without_a_time_is_of_now(kernel: ModuleType) -> None:
    _, _, properties, born_ms, *_ = read(kernel, request_of(born=None).SerializeToString())
    assert born_ms == NOW_MS
    assert "BORN_TIMESTAMP" not in properties


@settings(max_examples=300)
@given(
    system=SYSTEM, born=st.none() | TIME, user=st.dictionaries(TEXT, TEXT, max_size=2), topic=st.just("orders") | TEXT,
    body=st.sampled_from([b"", b"x", b"y" * 300]),
)  # fmt: skip
def test_what_is_read_is_what_the_general_path_reads(
    system: dict[str, Any], born: tuple[int, int] | None, user: dict[str, str], topic: str, body: bytes
) -> None:
    request = request_of(**system, born=born, user=user, topic=topic, body=body)
    results = [read(kernel.values[0], request.SerializeToString()) for kernel in KERNELS if kernel.values[0]]
    assert all(found == results[0] for found in results)
    if results[0] is None:
        return
    [message] = request.messages
    check_message(message)
    assert type_of(message) == MessageType.NORMAL
    assert message.system_properties.body_encoding in (0, 1)
    expected = properties_of(message, topic, PEER.decode())
    born_ms = NOW_MS if born is None else timestamp_ms(message.system_properties.born_timestamp)
    assert results[0] == (topic, body, decode_properties(expected), born_ms, -1, 0, False, 310)


@both
def test_what_is_not_plain_is_left_to_the_general_path(kernel: ModuleType) -> None:
    two = Request()
    two.messages.extend([request_of().messages[0], request_of().messages[0]])
    wrong = [
        two, Request(), request_of(message_group="g"), request_of(lite_topic="l"), request_of(priority=1),
        request_of(message_type=4), request_of(body_encoding=2), request_of(user={"KEYS": "x"}), request_of(body=b""),
        request_of(keys=["é"]), request_of(tag="a|b"), request_of(message_id=" "), request_of(user={"a": "\x02"}),
        request_of(user={"a": ""}), request_of(keys=["k"] * 17), request_of(topic="é"),
        request_of(user={str(number): "x" for number in range(17)}), request_of(born=(-1, 0)),
    ]  # fmt: skip
    later = request_of()
    later.messages[0].system_properties.delivery_timestamp.seconds = 1
    for each in (*wrong, later):
        assert read(kernel, each.SerializeToString()) is None, each
    plain = request_of().SerializeToString()
    assert reader_of(kernel, body_bytes_max=10).read(plain, PEER, NOW_MS) is None
    assert reader_of(kernel, user_bytes_max=3).read(request_of(tag="four").SerializeToString(), PEER, NOW_MS) is None
    assert reader_of(kernel, user_bytes_max=4).read(request_of(tag="four").SerializeToString(), PEER, NOW_MS)


@given(data=st.binary(max_size=60) | st.tuples(st.integers(0, 120), st.integers(0, 255)))
def test_damaged_bytes_are_read_alike_or_left(data: bytes | tuple[int, int]) -> None:
    if isinstance(data, tuple):
        whole = bytearray(request_of(tag="paid", user={"a": "b"}).SerializeToString())
        whole[data[0] % len(whole)] = data[1]
        data = bytes(whole)
    results = [read_or_broken(kernel.values[0], data) for kernel in KERNELS if kernel.values[0]]
    assert all(found == results[0] for found in results)
    if results[0] is not None:
        [message] = Request.FromString(data).messages
        check_message(message)


def read_or_broken(kernel: Any, data: bytes) -> Any:
    found = reader_of(kernel).read(data, PEER, NOW_MS)
    return None if found is None else (found[0].topic, found[0].body, found[0].properties, found[0].born_ms, found[1])


@both
@given(
    key=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=200),
    offset=st.integers(0, 1 << 62),
)
def test_the_answer_is_that_of_protobuf(kernel: ModuleType, key: str, offset: int) -> None:
    expected = Response(status=status(Code.OK))
    entry = expected.entries.add(message_id=key, transaction_id=key, offset=offset)
    entry.status.CopyFrom(status(Code.OK))
    assert kernel.grpc_send_answer(key.encode(), offset) == expected.SerializeToString()
