"""Acknowledging what was popped: one, many, and what cannot be."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import put, running
from broker.popping_peer import MINUTE_MS, Got, PopPeer, pops, revive
from tiermq.broker.broker import Broker
from tiermq.clock import ManualClock
from tiermq.remoting.codes import RequestCode, ResponseCode


@pytest.fixture
def broker(tmp_path: Path, manual_clock: ManualClock) -> Iterator[Broker]:
    with running(tmp_path, clock=manual_clock) as made:
        yield made


@pytest.fixture
def peer(broker: Broker) -> Iterator[PopPeer]:
    with PopPeer(broker) as made:
        yield made


def entry(got: list[Got], bits: int, **changes: Any) -> dict[str, Any]:
    start, pop_ms, invisible_ms, revive_queue, mark, _, queue_id, _ = got[0].receipt.split(" ")
    return {
        "c": "G",
        "t": "T",
        "r": mark,
        "so": int(start),
        "q": int(queue_id),
        "rq": int(revive_queue),
        "pt": int(pop_ms),
        "it": int(invisible_ms),
        "b": base64.b64encode(bits.to_bytes(4, "little")).decode(),
        **changes,
    }


def test_many_are_acknowledged_by_their_bits(broker: Broker, peer: PopPeer, manual_clock: ManualClock) -> None:
    put(broker, *(f"m{number}" for number in range(10)))
    got = peer.pop()
    body = {"brokerName": "b", "acks": [entry(got, 0b10_1100_0001)]}
    assert peer.ask(RequestCode.BATCH_ACK_MESSAGE, body).code == 0
    manual_clock.advance_ms(MINUTE_MS)
    revive(broker)
    assert [each.body for each in peer.pop()] == ["m1", "m2", "m3", "m4", "m5", "m8"]


def test_many_that_were_popped_in_order_move_the_offset(broker: Broker, peer: PopPeer) -> None:
    put(broker, "one", "two", "three")
    got = peer.pop(order="true", queueId=0)
    assert peer.ask(RequestCode.BATCH_ACK_MESSAGE, {"acks": [entry(got, 0b011)]}).code == 0
    assert broker.parts.offsets.query("G", "T", 0) == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, ResponseCode.SYSTEM_ERROR),
        ({"acks": [7]}, ResponseCode.SYSTEM_ERROR),
        ({"acks": [{"c": "G", "t": "T", "b": "not base64!"}]}, ResponseCode.SYSTEM_ERROR),
        ({"acks": [{"c": "G", "t": "T", "b": base64.b64encode(bytes(200)).decode()}]}, ResponseCode.SYSTEM_ERROR),
        ({"acks": [{"c": "G", "t": "deleted", "b": "AQ=="}]}, ResponseCode.SUCCESS),
        ({"acks": []}, ResponseCode.SUCCESS),
    ],
)
def test_batches_that_are_none_are_refused(peer: PopPeer, body: dict[str, Any], code: ResponseCode) -> None:
    assert peer.ask(RequestCode.BATCH_ACK_MESSAGE, body).code == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 9}, ResponseCode.MESSAGE_ILLEGAL),
        ({"queueId": 1}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 99}, ResponseCode.NO_MESSAGE),
        ({"extraInfo": "nonsense"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_receipt_that_does_not_fit_is_refused(
    broker: Broker, peer: PopPeer, changes: dict[str, object], code: ResponseCode
) -> None:
    put(broker, "one")
    (got,) = peer.pop()
    assert peer.ack(got, **changes).code == code
    assert peer.change_time(got, 1000, **changes).code == code
    assert len(pops(broker).log.points) == 1


def test_a_receipt_that_is_over_is_taken_and_the_message_comes_all_the_same(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock
) -> None:
    put(broker, "late")
    (got,) = peer.pop()
    manual_clock.advance_ms(MINUTE_MS)
    revive(broker)
    assert peer.ack(got).code == 0
    assert [each.message.reconsume_times for each in peer.pop()] == [1]
    assert peer.change_time(got, 1000).code == ResponseCode.MESSAGE_ILLEGAL
    assert peer.change_time(got, -1).code == ResponseCode.INVALID_PARAMETER
