"""Appending without waiting: for callers that must not block."""

from __future__ import annotations

import threading

import pytest

from simulation.simulated_files import SimulatedFileAccess
from small_store import bodies, on_simulation, power_cut
from tiermq import Message
from tiermq.consumequeue.queue_table import QueueType
from tiermq.errors import StoreError
from tiermq.message.client_batch import BatchElement, encode_client_batch
from tiermq.status import PutStatus


def batch(count: int, **fields: int) -> Message:
    elements = (BatchElement(0, b"%d" % number, b"") for number in range(count))
    return Message("T", encode_client_batch(elements), **fields)  # type: ignore[arg-type]


def test_an_append_under_sync_flush_returns_before_anything_is_flushed() -> None:
    with on_simulation(flush_disk_type="SYNC_FLUSH") as store:
        flushed = store.flushed_where
        one = store.append(Message("T", b"one"))
        many = store.append_batch(batch(3))
        assert (one.status, [each.status for each in many]) == (PutStatus.PUT_OK, [PutStatus.PUT_OK] * 3)
        assert store.flushed_where == flushed < one.end_offset
        assert [one.queue_offset, *(each.queue_offset for each in many)] == [0, 1, 2, 3]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_what_when_durable_has_called_back_for_survives_a_power_cut(flush: str) -> None:
    access = SimulatedFileAccess()
    store = on_simulation(access, flush_disk_type=flush)
    first = store.append(Message("T", b"first"))
    rest = store.append_batch(batch(2))
    durable, statuses, disks = threading.Event(), [], []

    def called(status: PutStatus) -> None:
        statuses.append(status)
        store.append(Message("T", b"not waited for"))
        disks.append(power_cut(access))  # Here, on the thread that flushes: a moment later it would flush this as well.
        durable.set()

    store.when_durable(rest.end_offset, called)
    assert durable.wait(60)
    with on_simulation(disks[0], flush_disk_type=flush) as after:
        assert bodies(after) == [b"first", b"0", b"1"]
        assert after.message_at(first.physical_offset) is not None
    assert statuses == [PutStatus.PUT_OK]
    store.close()  # Its thread would be found by tests that count threads.


def test_appends_are_refused_like_puts() -> None:
    store = on_simulation(max_message_size=100)
    assert store.append(Message("T", bytes(101))).status is PutStatus.MESSAGE_ILLEGAL
    assert [each.status for each in store.append_batch(batch(2, sys_flag=4))] == [PutStatus.MESSAGE_ILLEGAL] * 2
    store.close()
    assert store.append(Message("T", b"late")).status is PutStatus.SERVICE_NOT_AVAILABLE


def test_the_kind_of_a_topic_s_queues_is_reported_before_anything_is_put() -> None:
    with on_simulation() as store:
        store.set_queue_type("New", QueueType.BATCH)
        elements = batch(3)
        inner = Message("New", elements.body, encoded_properties=b"INNER_NUM\x013\x02", sys_flag=0xC0)
        assert [store.append(inner).queue_offset for _ in range(2)] == [0, 3]
        store.put(Message("T", b"x"))
        store.dispatch_now()
        store.set_queue_type("T", QueueType.SIMPLE)
        for topic, kind in (("T", QueueType.BATCH), ("New", QueueType.SIMPLE)):
            with pytest.raises(StoreError, match="another type"):
                store.set_queue_type(topic, kind)
