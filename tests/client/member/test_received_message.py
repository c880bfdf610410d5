"""A received message: a copy without its receipt, and times that any peer may have written."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from tiermq.client.member.assigned_queue import AssignedQueue
from tiermq.client.member.message_queue import MessageQueue
from tiermq.client.member.received_message import ReceivedMessage
from tiermq.message.properties import encode_properties
from tiermq.message.record import decode_record, encode_record

NAME = MessageQueue("orders", "broker-a", 0)


def received(born_ms: int = 0) -> ReceivedMessage:
    properties = encode_properties({"KEYS": "order-42", "TAGS": "paid"})
    record = encode_record(topic="orders", body=b"tea", properties=properties, born_timestamp_ms=born_ms)
    return ReceivedMessage(decode_record(record), NAME)


def test_a_message_can_be_sent_to_another_process_without_its_receipt() -> None:
    message = received()
    AssignedQueue(NAME, 0).add([message], 1)
    assert message.receipt is not None
    copy = pickle.loads(pickle.dumps(message))
    assert (copy.body, copy.keys, copy.tags, copy.queue) == (b"tea", ["order-42"], "paid", NAME)
    assert copy.receipt is None


@pytest.mark.parametrize(
    ("born_ms", "expected"),
    [
        (1_500, datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        (2**62, datetime.max.replace(tzinfo=UTC)),
        (-(2**62), datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_any_time_of_birth_is_the_nearest_that_there_is(born_ms: int, expected: datetime) -> None:
    assert received(born_ms).born_at == expected
