"""Acknowledging what was popped: one, many, and what cannot be."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.consuming import put
from broker.pop.pop_peer import MINUTE_MS, Got, PopPeer, pops, receipt_fields, revive
from remoting.peers import RawPeer
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.pop.pop_acks import Receipt
from tiermq.errors import RequestRefused
from tiermq.kernel import KERNEL
from tiermq.message.properties import decode_properties
from tiermq.remoting.codes import RequestCode, ResponseCode
from tiermq.remoting.command import HeaderType, RemotingCommand

NUMBERS = st.integers(0, 2**63 - 1)
RECEIPTS = st.builds(
    Receipt, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from("012"), st.text("ab-_1", min_size=1), NUMBERS, NUMBERS
)


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


def test_an_entry_that_names_no_queue_is_refused_and_the_others_are_acknowledged(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock
) -> None:
    put(broker, "one", "two")
    got = peer.pop()
    acks = [entry(got, 0b01, q=77_777), entry(got, 0b11)]
    assert peer.ask(RequestCode.BATCH_ACK_MESSAGE, {"acks": acks}).code == ResponseCode.MESSAGE_ILLEGAL
    manual_clock.advance_ms(MINUTE_MS)
    revive(broker)
    assert peer.pop() == []


def test_many_that_were_popped_in_order_move_the_offset(broker: Broker, peer: PopPeer) -> None:
    put(broker, "one", "two", "three")
    got = peer.pop(order="true", queueId=0)
    assert peer.ask(RequestCode.BATCH_ACK_MESSAGE, {"acks": [entry(got, 0b011)]}).code == 0
    assert broker.parts.offsets.query("G", "T", 0) == 2


def ack_command(got: Got, opaque: int, **changes: Any) -> RemotingCommand:
    ext = {name: str(value) for name, value in {**receipt_fields(got), **changes}.items()}
    return RemotingCommand(RequestCode.ACK_MESSAGE, opaque=opaque, ext=ext)


def records_of(broker: Broker) -> int:
    log = pops(broker).log
    return sum(log._ends)


@pytest.mark.parametrize("header_type", HeaderType)
def test_acknowledgements_of_one_read_are_answered_each_and_counted_each(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock, header_type: HeaderType
) -> None:
    put(broker, *(f"m{number}" for number in range(10)))
    got = peer.pop()
    before = records_of(broker)
    asked = [ack_command(each, number) for number, each in enumerate(got[:6])]
    asked += [ack_command(got[0], 6), ack_command(got[6], 7, topic="none"), ack_command(got[7], 8, offset=99)]
    for each in asked:
        each.header_type = header_type
    with RawPeer(broker.port) as raw:
        raw.send(*asked)
        answers = {answer.opaque: answer.code for answer in (raw.read() for _ in asked)}
    refused = {7: ResponseCode.TOPIC_NOT_EXIST, 8: ResponseCode.NO_MESSAGE}
    assert answers == {**dict.fromkeys(range(7), ResponseCode.SUCCESS), **refused}
    assert records_of(broker) - before == (1 if KERNEL == "compiled" else 6)
    manual_clock.advance_ms(MINUTE_MS)
    revive(broker)
    assert [each.body for each in peer.pop()] == ["m6", "m7", "m8", "m9"]


def test_acknowledgements_of_one_read_move_the_offset_of_an_orderly_group(broker: Broker, peer: PopPeer) -> None:
    put(broker, "one", "two", "three")
    got = peer.pop(order="true", queueId=0)
    with RawPeer(broker.port) as raw:
        raw.send(*(ack_command(each, number) for number, each in enumerate(got[:2])))
        assert [raw.read().code for _ in range(2)] == [0, 0]
    assert broker.parts.offsets.query("G", "T", 0) == 2


def test_acknowledgements_of_one_read_are_refused_each_when_the_store_takes_none(
    broker: Broker, peer: PopPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(broker, "one", "two")
    got = peer.pop()

    def refuse(*_arguments: object) -> int:
        raise RequestRefused("full", ResponseCode.SYSTEM_BUSY)

    monkeypatch.setattr(pops(broker).log, "_append", refuse)
    with RawPeer(broker.port) as raw:
        raw.send(*(ack_command(each, number) for number, each in enumerate(got)))
        assert [raw.read().code for _ in range(2)] == [ResponseCode.SYSTEM_BUSY] * 2
    assert len(pops(broker).log.points) == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, ResponseCode.SYSTEM_ERROR),
        ({"acks": [7]}, ResponseCode.SYSTEM_ERROR),
        ({"acks": [{"c": "G", "t": "T", "b": "not base64!"}]}, ResponseCode.SYSTEM_ERROR),
        ({"acks": [{"c": "G", "t": "T", "b": base64.b64encode(bytes(200)).decode()}]}, ResponseCode.SYSTEM_ERROR),
        ({"acks": [{"c": "G", "t": "deleted", "b": "AQ=="}]}, ResponseCode.TOPIC_NOT_EXIST),
        ({"acks": [{"c": "G", "t": "T", "q": -1, "b": "AQ=="}]}, ResponseCode.MESSAGE_ILLEGAL),
        ({"acks": [{"c": "G", "t": "T", "q": 77_777, "b": "AQ=="}]}, ResponseCode.MESSAGE_ILLEGAL),
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


@given(RECEIPTS)
def test_a_receipt_is_read_as_it_was_written(receipt: Receipt) -> None:
    assert Receipt.decode(receipt.encode(), 0) == receipt
    without_offset = receipt.encode().rpartition(" ")[0]
    assert Receipt.decode(without_offset, receipt.offset) == receipt


@given(st.text())
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused):
        Receipt.decode("x " + text, 0)


def test_a_receipt_of_rocketmq_is_understood() -> None:
    found = Receipt.decode("5 1700000000000 60000 999 1 broker-a 0 7", 7)
    assert found == Receipt(5, 1_700_000_000_000, 60_000, 999, "1", "broker-a", 0, 7)
    assert found.is_ordered


@given(RECEIPTS, st.lists(st.text("ab1-", min_size=1), min_size=1, max_size=3))
def test_words_after_the_eighth_are_ignored(receipt: Receipt, more: list[str]) -> None:
    assert Receipt.decode(" ".join([receipt.encode(), *more]), 0) == receipt


@pytest.mark.parametrize(
    ("size", "found"), [(32_600, {"pad", "1ST_POP_TIME", "TIERMQ_GIVEN_BACK", "POP_CK"}), (32_740, {"pad", "POP_CK"})]
)
def test_a_receipt_takes_the_place_of_what_only_brokers_read(size: int, found: set[str]) -> None:
    given_back = b"1ST_POP_TIME\x011700000000000\x02TIERMQ_GIVEN_BACK\x01G T 0 0 1700000000000 0\x02pad\x01"
    receipt = Receipt(0, 1_700_000_000_000, 60_000, 0, "1", "b", 0, 0)
    added = receipt.added_to(given_back.ljust(size - 1, b"x") + b"\x02")
    assert added is not None
    assert set(decode_properties(added)) == found


def test_a_receipt_that_no_record_can_hold_is_not_added() -> None:
    receipt = Receipt(0, 1_700_000_000_000, 60_000, 0, "1", "b", 0, 0)
    assert receipt.added_to(b"pad\x01".ljust(32_740, b"x") + b"\x02") is None
