"""What the broker's loop has put it dispatches itself, and wakes no other thread, while there is little of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.brokers import Producer, running
from tiermq.broker.broker import Broker
from tiermq.store.dispatch import SHORT_BYTES_MAX
from waiting import until


def wakes_of_reput(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    reput = broker.parts.local._parts.reput
    wakes: list[str] = []
    wake = reput.wake

    def noted() -> None:
        wakes.append("woken")
        wake()

    monkeypatch.setattr(reput, "wake", noted)
    return wakes


def await_end(broker: Broker, queue_id: int, end: int) -> None:
    until(lambda: broker.parts.local.max_offset("T", queue_id) == end)


def test_a_send_is_dispatched_without_waking_the_reput_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        local = broker.parts.local
        producer.send()  # Its queue is new, which is for reput.
        until(lambda: local.max_offset("T", 0) == 1)
        until(lambda: local.appender.reput_idle)
        wakes = wakes_of_reput(broker, monkeypatch)
        for number in range(2, 10):
            assert producer.send().code == 0
            await_end(broker, 0, number)
        assert wakes == []
        assert local.appender.reput_idle


def test_a_new_queue_and_a_large_message_are_left_to_the_reput_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as broker, Producer(broker) as producer:
        local = broker.parts.local
        producer.send()
        until(lambda: local.max_offset("T", 0) == 1)
        until(lambda: local.appender.reput_idle)
        wakes = wakes_of_reput(broker, monkeypatch)
        producer.send(queue=1)
        until(lambda: local.max_offset("T", 1) == 1)
        until(lambda: local.appender.reput_idle)
        assert wakes
        wakes.clear()
        producer.send(body=b"x" * (SHORT_BYTES_MAX + 1))
        until(lambda: local.max_offset("T", 0) == 2)
        assert wakes


def test_puts_of_other_threads_wake_the_reput_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiermq import Message

    with running(tmp_path) as broker, Producer(broker) as producer:
        local = broker.parts.local
        producer.send()
        until(lambda: local.max_offset("T", 0) == 1)
        until(lambda: local.appender.reput_idle)
        wakes = wakes_of_reput(broker, monkeypatch)
        assert local.put(Message("T", b"x", 0)).ok
        assert wakes
        until(lambda: local.max_offset("T", 0) == 2)
