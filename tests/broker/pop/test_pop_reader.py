"""What a pop takes from which queues."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.consuming import messages_of, on_loop, put, running, until
from broker.pop.pop_peer import PopPeer, got_of, pops
from tiermq.broker.pop.pop_reader import queue_offsets_of
from tiermq.message.record import encode_record
from tiermq.remoting.codes import ResponseCode


@given(st.lists(st.tuples(st.integers(0, 2**62), st.binary(max_size=50)), max_size=10))
def test_offsets_are_read_from_records(records: list[tuple[int, bytes]]) -> None:
    page = b"".join(encode_record(topic="T", body=body, queue_offset=offset) for offset, body in records)
    assert list(queue_offsets_of(page)) == [offset for offset, _ in records]


def test_a_queue_that_somebody_takes_from_is_left_alone_and_looked_at_again(tmp_path: Path) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        put(broker, "one")
        taken = pops(broker).reader._taken
        on_loop(broker, taken.add, ("G", "T", 0))
        assert peer.pop() == []
        later = peer.pop_later(pollTime=60_000)
        on_loop(broker, taken.discard, ("G", "T", 0))
        assert later.result(60).code == 0


def test_nothing_more_is_given_out_while_too_much_is_open(tmp_path: Path) -> None:
    with running(tmp_path, pop_ck_max_buffer_size=2) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two", "three", "four")
        open_ones = peer.pop(maxMsgNums=1) + peer.pop(maxMsgNums=1)
        assert [each.body for each in open_ones] == ["one", "two"]
        answer = peer.pop_raw(maxMsgNums=1)
        assert (answer.code, answer.ext["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "2")
        later = peer.pop_later(maxMsgNums=1, pollTime=60_000)
        until(broker, lambda: pops(broker).waiting.held == 1)
        assert peer.ack(open_ones[0]).code == 0
        assert [each.body for each in got_of(later.result(60))] == ["three"]
        assert len(pops(broker).log.points) == 2


def test_who_keeps_order_is_not_held_up_by_what_others_have_open(tmp_path: Path) -> None:
    with running(tmp_path, pop_ck_max_buffer_size=1) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two")
        assert [each.body for each in peer.pop(maxMsgNums=1)] == ["one"]
        ordered = peer.pop_raw(consumerGroup="Ordered", order="true", maxMsgNums=1)
        assert [each.body.decode() for each in messages_of(ordered)] == ["one"]


def test_many_messages_that_a_filter_keeps_back_are_passed_over(tmp_path: Path) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        for number in range(700):
            put(broker, f"b{number}", tags="B")
        put(broker, "a", tags="A")
        answer = peer.pop_raw(exp="A", expType="TAG", pollTime=60_000)
        assert answer.ext["msgOffsetInfo"] == "0 0 700"


def test_what_is_left_is_reported(tmp_path: Path) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two", "three", queue_id=0)
        put(broker, "four", queue_id=1)
        assert peer.pop_raw(maxMsgNums=1, queueId=0).ext["restNum"] == "2"


@pytest.mark.parametrize(("mode", "bodies"), [(0, ["m0", "m1", "m2"]), (1, ["m2"])])
def test_a_new_group_begins_where_it_wants_on_a_queue_that_is_not_young(
    tmp_path: Path, mode: int, bodies: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        put(broker, "m0", "m1", "m2")
        monkeypatch.setattr(type(broker.parts.local), "memory_window_bytes", property(lambda _self: 0))
        assert [got.body for got in peer.pop(initMode=mode, queueId=0)] == bodies
