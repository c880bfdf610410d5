"""Popping in order: one batch of a queue at a time, and again from the first that was not acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.consuming import put, running, until
from broker.pop.pop_peer import MINUTE_MS, PopPeer, got_of, pops
from simulation.manual_clock import ManualClock
from tiermq.broker.broker import Broker
from tiermq.broker.pop.order_infos import OrderInfo, OrderInfos, decode_order_infos, encode_order_infos
from tiermq.errors import RequestRefused
from tiermq.remoting.codes import ResponseCode

OFFSETS = st.lists(st.integers(0, 2**40), min_size=1, max_size=6, unique=True).map(sorted).map(tuple)
ORDER = {"order": "true", "queueId": 0}


@st.composite
def infos(draw: st.DrawFn) -> OrderInfo:
    offsets = draw(OFFSETS)
    some = st.sampled_from(offsets)
    return OrderInfo(
        offsets,
        draw(st.integers(0, 2**42)),
        draw(st.integers(0, 2**30)),
        draw(st.text()),
        draw(st.dictionaries(some, st.integers(0, 99))),
        draw(st.dictionaries(some, st.integers(0, 2**42))),
        draw(st.sets(some)),
    )


@given(st.dictionaries(st.tuples(st.text("abc%"), st.text("abc", min_size=1), st.integers(0, 9)), infos(), max_size=3))
def test_what_is_written_is_read(table: dict[tuple[str, str, int], OrderInfo]) -> None:
    assert decode_order_infos(encode_order_infos(table)) == table


def test_the_file_is_rocketmq_s(tmp_path: Path, manual_clock: ManualClock) -> None:
    made = OrderInfos(str(tmp_path), manual_clock)
    made.popped(("T", "G", 0), (12, 13, 15), 1000, 60_000, "try")
    made.acknowledge(("T", "G", 0), 13, 1000)
    assert made.flush()
    assert not made.flush()
    assert Path(made.path).read_text() == (
        '{"table":{"T@G":{0:{"popTime":1000,"i":60000,"o":[12,1,3],"ot":{},"oc":{},"l":1000,"cm":2,"a":"try"}}}}'
    )
    again = OrderInfos(str(tmp_path), manual_clock)
    assert again.acknowledge(("T", "G", 0), 12, 1000) == 15


def test_nobody_gets_more_of_a_queue_until_all_before_is_acknowledged(broker: Broker, peer: PopPeer) -> None:
    put(broker, "one", "two", "three")
    first = peer.pop(maxMsgNums=2, **ORDER)
    assert [got.body for got in first] == ["one", "two"]
    assert first[0].receipt.split(" ")[3] == "999"
    assert peer.pop(**ORDER) == []
    peer.ack(first[1])
    assert peer.pop(**ORDER) == []
    assert broker.parts.offsets.query("G", "T", 0) == 0, "the offset follows without a hole"
    peer.ack(first[0])
    assert broker.parts.offsets.query("G", "T", 0) == 2
    assert [got.body for got in peer.pop(**ORDER)] == ["three"]


def test_what_is_not_acknowledged_in_time_comes_again_in_order_and_counted(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock
) -> None:
    put(broker, "one", "two")
    first = peer.pop(**ORDER)
    peer.ack(first[0])
    manual_clock.advance_ms(MINUTE_MS)
    again = peer.pop_raw(**ORDER)
    assert [got.body for got in got_of(again)] == ["two"]
    assert again.ext["orderCountInfo"] == "0 qo0%1 1;0 0 1"
    assert peer.ack(first[1]).code == 0, "a receipt that is over does nothing"
    assert peer.pop(**ORDER) == []
    manual_clock.advance_ms(MINUTE_MS)
    put(broker, "three")
    third = peer.pop_raw(**ORDER)
    assert [got.body for got in got_of(third)] == ["two", "three"]
    assert third.ext["orderCountInfo"] == "0 qo0%1 2;0 0 0"


def test_a_waiting_pop_goes_on_when_the_queue_is_free(broker: Broker, peer: PopPeer, manual_clock: ManualClock) -> None:
    put(broker, "one", "two", "three")
    (first,) = peer.pop(maxMsgNums=1, **ORDER)
    later = peer.pop_later(pollTime=100_000, maxMsgNums=1, **ORDER)
    until(broker, lambda: pops(broker).waiting.held)
    peer.ack(first)
    assert [got.body for got in got_of(later.result(60))] == ["two"]
    later = peer.pop_later(pollTime=100_000, maxMsgNums=1, **ORDER)
    until(broker, lambda: pops(broker).waiting.held)
    manual_clock.advance_ms(MINUTE_MS)
    assert [got.body for got in got_of(later.result(60))] == ["two"], "its time is over"


def test_the_same_attempt_gets_the_same_again(broker: Broker, peer: PopPeer) -> None:
    put(broker, "one")
    assert len(peer.pop(attemptId="a1", **ORDER)) == 1
    assert peer.pop(attemptId="a2", **ORDER) == []
    assert len(peer.pop(attemptId="a1", **ORDER)) == 1


def test_the_same_attempt_is_not_counted_as_another_delivery(
    broker: Broker, peer: PopPeer, manual_clock: ManualClock
) -> None:
    put(broker, "one", "two")
    assert peer.pop_raw(attemptId="a1", **ORDER).ext["orderCountInfo"] == "0 0 0"
    assert peer.pop_raw(attemptId="a1", **ORDER).ext["orderCountInfo"] == "0 0 0"
    manual_clock.advance_ms(MINUTE_MS)
    assert peer.pop_raw(attemptId="a2", **ORDER).ext["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 0 1"
    assert peer.pop_raw(attemptId="a2", **ORDER).ext["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 0 1"
    manual_clock.advance_ms(MINUTE_MS)
    assert peer.pop_raw(**ORDER).ext["orderCountInfo"] == "0 qo0%0 2;0 qo0%1 2;0 0 2"
    manual_clock.advance_ms(MINUTE_MS)
    assert peer.pop_raw(**ORDER).ext["orderCountInfo"] == "0 qo0%0 3;0 qo0%1 3;0 0 3", "no attempt id is no attempt"


def test_more_or_less_time_is_given_in_order_too(broker: Broker, peer: PopPeer, manual_clock: ManualClock) -> None:
    put(broker, "one")
    (got,) = peer.pop(**ORDER)
    answer = peer.change_time(got, 2 * MINUTE_MS)
    assert (answer.code, answer.ext["reviveQid"], answer.ext["popTime"]) == (0, "999", got.receipt.split(" ")[1])
    manual_clock.advance_ms(MINUTE_MS)
    assert peer.pop(**ORDER) == []
    assert peer.change_time(got, 0).code == 0
    assert len(peer.pop(**ORDER)) == 1
    assert peer.change_time(got, 0).code == ResponseCode.MESSAGE_ILLEGAL, "it was given out anew"


def test_a_queue_stays_blocked_over_a_restart(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one")
        assert len(peer.pop(**ORDER)) == 1
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        assert peer.pop_raw(**ORDER).code == ResponseCode.POLLING_TIMEOUT
        manual_clock.advance_ms(MINUTE_MS)
        assert [got.body for got in peer.pop(**ORDER)] == ["one"]


@pytest.mark.parametrize("offsets", [b"7", b"true", b'"12"', b'{"a":1}'])
def test_offsets_that_are_no_list_are_refused(offsets: bytes) -> None:
    with pytest.raises(RequestRefused, match="list of offsets"):
        decode_order_infos(b'{"table":{"T@g":{"0":{"o":%b}}}}' % offsets)
