"""Records that wait in another topic: both kernels read the same of them, and make the same message for delivery."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import examples
from kernel.kernel_world import COMPILED, KERNELS, World, needs_both
from tiermq.kernel import pure
from tiermq.kernel.deferred_record import CANCELS, CHECKED, DEFERRED, STAMPED
from tiermq.message.properties import decode_properties
from tiermq.message.record import decode_record

FIELDS = (
    "physical_offset", "size", "queue_id", "queue_offset", "store_timestamp_ms", "born_timestamp_ms", "body_crc",
    "sys_flag", "properties_bytes", "real_topic", "real_queue", "unique_key", "group", "out_ms", "has",
)  # fmt: skip
MESSAGE_FIELDS = (
    "topic", "body", "queue_id", "encoded_properties", "flag", "sys_flag", "born_timestamp_ms", "born_host",
    "reconsume_times", "prepared_transaction_offset", "waits_for_store", "needs_offset",
)  # fmt: skip
REAL = b"REAL_TOPIC\x01orders\x02REAL_QID\x013\x02"
NAMES = st.sampled_from(
    ["REAL_TOPIC", "REAL_QID", "UNIQ_KEY", "PGROUP", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_ENQUEUE_MS", "DELAY",
     "TIMER_DEQUEUE_MS", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS",
     "TIERMQ_SENDER", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "WAIT", "TAGS", "", "é", "INNER_NUM",
     "__CRC32#"]
)  # fmt: skip
VALUES = st.sampled_from(
    ["orders", "0", "3", "007", "-1", "123456789", "1234567890", "1" * 18, "1" * 19, "true", "false", "", "é", "a\x01b"]
)
PROPERTIES = st.tuples(
    st.sampled_from([b"", REAL]),
    st.lists(st.tuples(NAMES, VALUES), max_size=4).map(
        lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    ),
    st.sampled_from([b"", b"open", b"\x02"]),
).map(b"".join)


def with_record(kernel: Any, properties: bytes, **fields: Any) -> World:
    """A log with one record before the one that is read, as no put would refuse it."""
    world = World(kernel, host=fields.pop("host", "127.0.0.1:10911"))
    message = {"topic": "W", "body": b"body", "queue_id": 2, "flag": 7, "born_timestamp_ms": 5, **fields}
    for each in (kernel.Message("W", b"first"), kernel.Message(encoded_properties=properties, **message)):
        assert world.appender.put(each).ok
    return world


def second(world: World) -> int:
    return int.from_bytes(world.log()[:4], "big")


def read(world: World, topic: str = "W", size: int = 0) -> Any:
    return world.kernel.read_deferred(world.segments(), second(world), size, topic)


def values_of(record: Any) -> Any:
    if record is None:
        return None
    again = record.message("orders", 3, b"A\x01b\x02", 8, 77)
    return [getattr(record, name) for name in FIELDS] + [getattr(again, name) for name in MESSAGE_FIELDS]


@needs_both
@examples(80)
@given(
    PROPERTIES,
    st.sampled_from(["127.0.0.1:10911", "[::1]:10911"]),
    st.sampled_from([0, 1, 4, 8]),
    st.sampled_from([b"", b"body"]),
)
def test_both_kernels_read_the_same_of_a_record(properties: bytes, host: str, sys_flag: int, body: bytes) -> None:
    found = []
    for kernel in (pure, COMPILED):
        try:
            world = with_record(kernel, properties, host=host, sys_flag=sys_flag, body=body)
        except Exception as error:  # noqa: BLE001 - what no message may have is refused by both
            found.append((type(error).__name__, None))
            continue
        found.append((values_of(read(world)), values_of(read(world, size=world.tails[0].position - second(world)))))
    assert found[0] == found[1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_deferred_record_has_what_its_delivery_needs(kernel: ModuleType) -> None:
    properties = b"UNIQ_KEY\x01K\x02PGROUP\x01G\x02TIMER_OUT_MS\x0112\x02REAL_TOPIC\x01no\x02" + REAL
    record = read(with_record(kernel, properties))
    assert (record.real_topic, record.real_queue, record.unique_key) == ("orders", 3, "K")
    assert (record.group, record.out_ms, record.has) == ("G", 12, 0)
    stored = decode_record(with_record(kernel, properties).log(), record.physical_offset)
    assert (record.queue_offset, record.body_crc, record.size) == (0, stored.body_crc, stored.size)
    again = record.message("orders", 3, b"A\x01b\x02", 8, 77)
    assert (again.topic, again.queue_id, again.body, again.flag) == ("orders", 3, b"body", 7)
    assert (again.sys_flag, again.prepared_transaction_offset, again.born_timestamp_ms) == (8, 77, 5)
    assert decode_properties(again.encoded_properties) == {**decode_properties(properties), "A": "b"}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("name", "bit"),
    [("TIMER_DEL_UNIQKEY", CANCELS), ("TIMER_ENQUEUE_MS", STAMPED), ("TIMER_DEQUEUE_MS", STAMPED),
     ("TRAN_PREPARED_QUEUE_OFFSET", CHECKED), ("TRANSACTION_CHECK_TIMES", CHECKED), ("TIERMQ_SENDER", CHECKED),
     ("CHECK_IMMUNITY_TIME_IN_SECONDS", CHECKED), ("DELAY", DEFERRED), ("TIMER_DELIVER_MS", DEFERRED),
     ("TIMER_DELAY_SEC", DEFERRED), ("TIMER_DELAY_MS", DEFERRED), ("TIMER_ROLL_TIMES", 0)],
)  # fmt: skip
def test_properties_that_change_a_delivery_are_known(kernel: ModuleType, name: str, bit: int) -> None:
    assert read(with_record(kernel, f"{name}\x011\x02".encode() + REAL)).has == bit


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "properties",
    [b"", REAL[:-1], b"REAL_TOPIC\x01T\x02", b"REAL_QID\x011\x02", b"REAL_TOPIC\x01T\x02REAL_QID\x01x\x02",
     b"REAL_TOPIC\x01T\x02REAL_QID\x011234567890\x02", b"WAIT\x01false\x02" + REAL, b"a\x01\xc3\xa9\x02" + REAL],
)  # fmt: skip
def test_other_records_are_left_to_the_general_decoder(kernel: ModuleType, properties: bytes) -> None:
    assert read(with_record(kernel, properties)) is None


@pytest.mark.parametrize("kernel", KERNELS)
def test_damage_another_topic_and_other_places_give_nothing(kernel: ModuleType) -> None:
    world = with_record(kernel, REAL)
    size = read(world).size
    assert read(world, topic="X") is None
    assert read(world, size=size + 1) is None
    assert read(world, size=size - 1) is None
    for place in (second(world) + 1, 1 << 40, -1, world.tails[0].position):
        assert kernel.read_deferred(world.segments(), place, 0, "W") is None
    world.buffers[0][second(world) + 90] ^= 1  # In the body.
    assert read(world) is None
