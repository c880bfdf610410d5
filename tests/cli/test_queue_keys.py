"""Queues as keys of tables that brokers send."""

from __future__ import annotations

import pytest

from tiermq.cli.queue_keys import queue_of_key
from tiermq.errors import RequestRefused
from tiermq.remoting.json_dialect import ObjectKeyed, decode_object, encode_body


def test_a_queue_is_read_from_the_key_that_a_broker_writes() -> None:
    queue = {"brokerName": "b", "queueId": 3, "topic": "T"}
    [key] = decode_object(encode_body({"table": ObjectKeyed([(queue, 7)])}))["table"]
    assert queue_of_key(key) == ("T", 3, "b")


@pytest.mark.parametrize("key", ["", "T", "{}", "[1]", '{"topic":"T","queueId":1}'])
def test_a_key_that_is_no_queue_is_refused(key: str) -> None:
    with pytest.raises(RequestRefused, match="expected a queue"):
        queue_of_key(key)
