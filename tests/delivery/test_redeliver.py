"""A stored message that is put once more is the same in another place."""

from __future__ import annotations

import pytest

from small_store import on_simulation
from tiermq import Message
from tiermq.delivery.redeliver import put_again, undeliverable


def test_everything_of_a_message_stays_but_its_place() -> None:
    store = on_simulation()
    sent = Message(
        "T", b"body", 3, properties={"KEYS": "k", "X": "y"}, flag=7, sys_flag=0x02, born_timestamp_ms=5,
        reconsume_times=2,
    )  # fmt: skip
    stored = store.message_at(store.put(sent).physical_offset)
    assert stored is not None
    again = store.message_at(store.put(put_again(stored, "U", 1)).physical_offset)
    assert again is not None
    assert (again.topic, again.queue_id) == ("U", 1)
    for name in ("body", "encoded_properties", "flag", "sys_flag", "born_timestamp_ms", "born_host", "reconsume_times"):
        assert getattr(again, name) == getattr(stored, name), name
    assert put_again(stored, "U", 1, b"A\x01b\x02").encoded_properties == b"A\x01b\x02"


@pytest.mark.parametrize(
    ("topic", "queue_id", "why"),
    [
        (None, "0", "names no topic"),
        ("a/b", "0", "illegal characters"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", "0", "half messages"),
        ("T", "x", "names the queue"),
        ("T", "", "names the queue"),
        ("T", "2147483648", "names the queue"),
    ],
)
def test_a_message_for_no_place_says_why(topic: str | None, queue_id: str, why: str) -> None:
    assert why in (undeliverable(topic, queue_id) or "")
    assert undeliverable("T", "0") is None
