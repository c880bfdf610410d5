"""Records of a broker of RocketMQ: they wait in its timer wheel, and come to the revive topic while ours runs."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import put, running, until
from broker.pop.pop_peer import MINUTE_MS, PopPeer, pops, receipt_fields
from broker.pop.test_pop_log import REVIVE_TOPIC, copy_as_killed
from present import present
from simulation.manual_clock import ManualClock
from tiermq import Message
from tiermq.broker.broker import Broker
from tiermq.broker.pop import pop_log
from tiermq.broker.pop.pop_checkpoints import CheckPoint, PoppedMessage
from tiermq.broker.pop.pop_revive import AGAIN_MS, PopRevive
from tiermq.broker.pop.pop_waiting import INVISIBLE_MS_MAX
from tiermq.message.topic_name import REVIVE_GROUP, TIMER_TOPIC
from tiermq.remoting.codes import RequestCode, ResponseCode

SECOND_MS = 1_000
QUEUES: dict[str, Any] = {"revive_queue_num": 1}


def check_point(pop_ms: int, offsets: list[int]) -> dict[str, object]:
    fields = {"bm": 0, "bn": "b", "c": "G", "d": offsets, "it": MINUTE_MS, "n": len(offsets), "pt": pop_ms}
    return {**fields, "q": 0, "ro": 0, "so": 0, "t": "T"}


def ack(pop_ms: int, offset: int) -> dict[str, object]:
    return {"ao": offset, "bn": "b", "c": "G", "pt": pop_ms, "q": 0, "so": 0, "t": "T"}


def record(broker: Broker, tag: str, value: dict[str, object], deliver_ms: int, *, waits: bool) -> None:
    """A record as RocketMQ makes it: in the revive topic, or in the wheel on its way there."""
    properties = {"UNIQ_KEY": f"{tag}{value}", "TIMER_DELIVER_MS": str(deliver_ms), "TIMER_OUT_MS": str(deliver_ms)}
    if waits:
        properties |= {"REAL_TOPIC": REVIVE_TOPIC, "REAL_QID": "0"}
    topic = TIMER_TOPIC if waits else REVIVE_TOPIC
    body = json.dumps(value).encode()
    assert broker.parts.local.put(Message(topic, body, 0, tags=tag, properties=properties)).ok
    broker.parts.local.dispatch_now()


def given_back(broker: Broker) -> list[str]:
    broker.parts.local.dispatch_now()
    page = broker.parts.local.get("%RETRY%G_T", 0, 0)
    return [each.body.decode() for each in page.messages] if page.count else []


def begin_as_rocketmq(broker: Broker, pop_ms: int) -> None:
    """Popped by a broker of RocketMQ, which acknowledged the second message."""
    put(broker, "one", "two", "three", "four")
    broker.parts.offsets.commit("G", "T", 0, 4)
    record(broker, "ck", check_point(pop_ms, [0, 1, 2, 3]), pop_ms + MINUTE_MS - SECOND_MS, waits=True)
    record(broker, "ack", ack(pop_ms, 1), pop_ms + MINUTE_MS, waits=True)


def came_back(broker: Broker, clock: ManualClock) -> list[str]:
    """What was given back. A check point that waits for its acknowledgements is looked at again a second later, and
    only the test moves the clock."""
    next_ms, now_ms = pops(broker).log.points.next_due_ms(), clock.now_ms()
    if next_ms is not None and now_ms < next_ms <= now_ms + AGAIN_MS:
        clock.advance_ms(next_ms - now_ms)
    return given_back(broker)


@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_rocketmq_popped_comes_back_and_what_was_acknowledged_at_either_does_not(
    tmp_path: Path, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch, is_killed: bool, is_early: bool
) -> None:
    """Also when the first look (`is_early`) comes between the check point and its acknowledgement."""
    real, looks = PopRevive._has_all_acks, []

    def has_all_acks(revive: PopRevive, point: CheckPoint) -> bool:
        looks.append(point)
        return real(revive, point) and not (is_early and len(looks) == 1)

    monkeypatch.setattr(PopRevive, "_has_all_acks", has_all_acks)
    pop_ms = manual_clock.now_ms() - 1
    with running(tmp_path / "alive", clock=manual_clock, **QUEUES) as broker, PopPeer(broker) as peer:
        begin_as_rocketmq(broker, pop_ms)
        timers = broker.delivery.timers
        assert timers is not None
        until(broker, lambda: timers.waiting_count == 2)
        fields: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0, "offset": 3}
        receipt = f"0 {pop_ms} {MINUTE_MS} 0 0 b 0 3"
        assert peer.ask(RequestCode.ACK_MESSAGE, **fields, extraInfo=receipt).code == 0
        longer: dict[str, Any] = {
            **fields,
            "offset": 2,
            "extraInfo": receipt[:-1] + "2",
            "invisibleTime": 2 * MINUTE_MS,
        }
        assert peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **longer).code == 0
        broker.parts.offsets.flush()
        if is_killed:
            copy_as_killed(tmp_path)
    with running(tmp_path / ("died" if is_killed else "alive"), clock=manual_clock, **QUEUES) as broker:
        assert [point.offsets for point in pops(broker).log.points] == [(2,)], "the others are in the wheel"
        manual_clock.advance_ms(MINUTE_MS + 3 * SECOND_MS)
        until(broker, lambda: came_back(broker, manual_clock) != [])
        assert given_back(broker) == ["one"]
        manual_clock.advance_ms(MINUTE_MS)
        until(broker, lambda: len(came_back(broker, manual_clock)) > 1)
        assert given_back(broker) == ["one", "three"]
        assert len(pops(broker).log.points) == 0


def test_the_log_is_needed_from_what_a_timer_brought_between_our_own_records(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    pop_ms = manual_clock.now_ms() - 1
    with running(tmp_path / "alive", clock=manual_clock, **QUEUES) as broker, PopPeer(broker) as peer:
        put(broker, "one", "two", "three")
        broker.parts.offsets.commit("G", "T", 0, 1)
        (first,) = peer.pop(maxMsgNums=1)
        record(broker, "ck", check_point(pop_ms, [0]), pop_ms, waits=False)
        (second,) = peer.pop(maxMsgNums=1)
        log = pops(broker).log
        peer.ack(first)
        log.commit()
        assert broker.parts.offsets.query(REVIVE_GROUP, REVIVE_TOPIC, 0) == 0
        log.take_delivered()
        peer.ack(second)
        log.commit()
        assert broker.parts.offsets.query(REVIVE_GROUP, REVIVE_TOPIC, 0) == 0
        broker.parts.offsets.flush()
        copy_as_killed(tmp_path)
    with running(tmp_path / "died", clock=manual_clock, **QUEUES) as broker:
        assert [point.popped for point in pops(broker).log.points] == [PoppedMessage("G", "T", 0, 0, pop_ms)]


def test_what_rocketmq_has_given_back_is_not_given_back_again(tmp_path: Path, manual_clock: ManualClock) -> None:
    """Its offset is the last record that is done, and it acknowledges nothing that it gave back."""
    pop_ms = manual_clock.now_ms() - 1
    with running(tmp_path, clock=manual_clock, **QUEUES) as broker:
        put(broker, "one", "two")
        for offset in range(2):
            done = {**check_point(pop_ms, [0]), "so": offset}
            record(broker, "ck", done, pop_ms, waits=False)
        broker.parts.local.dispatch_now()
        broker.parts.offsets.commit(REVIVE_GROUP, REVIVE_TOPIC, 0, 0)
    with running(tmp_path, clock=manual_clock, **QUEUES) as broker:
        assert [point.popped.start_offset for point in pops(broker).log.points] == [1]


def test_a_receipt_that_is_over_is_not_awaited(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock, **QUEUES) as broker, PopPeer(broker) as peer:
        put(broker, "one")
        (got,) = peer.pop()
        peer.ack(got)
    manual_clock.advance_ms(1)
    with running(tmp_path, clock=manual_clock, **QUEUES) as broker, PopPeer(broker) as peer:
        before = broker.parts.local.max_offset(REVIVE_TOPIC, 0)
        assert peer.ask(RequestCode.ACK_MESSAGE, **receipt_fields(got)).code == 0
        broker.parts.local.dispatch_now()
        assert broker.parts.local.max_offset(REVIVE_TOPIC, 0) == before


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"so": 9 * 10**18}, ResponseCode.NO_MESSAGE),
        ({"so": 4}, ResponseCode.NO_MESSAGE),
        ({"q": 3}, ResponseCode.NO_MESSAGE),
        ({"b": base64.b64encode(b"\xff" * 128).decode()}, ResponseCode.NO_MESSAGE),
        ({"it": 9 * 10**17}, ResponseCode.INVALID_PARAMETER),
        ({"it": INVISIBLE_MS_MAX + 1}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_acknowledgements_of_what_no_pop_gave_out_are_refused_and_not_kept(
    tmp_path: Path, manual_clock: ManualClock, changes: dict[str, object], code: ResponseCode
) -> None:
    pop_ms = manual_clock.now_ms() - 1
    with running(tmp_path, clock=manual_clock, **QUEUES) as broker, PopPeer(broker) as peer:
        begin_as_rocketmq(broker, pop_ms)
        until(broker, lambda: present(broker.delivery.timers).waiting_count == 2)
        entry = {"c": "G", "t": "T", "r": "0", "q": 0, "so": 0, "pt": pop_ms, "it": MINUTE_MS, "rq": 0, "b": "AQ=="}
        log = pops(broker).log
        before = broker.parts.local.max_offset(REVIVE_TOPIC, 0)
        reported = peer.ask(RequestCode.BATCH_ACK_MESSAGE, {"acks": [{**entry, **changes}]})
        assert (reported.code, "expected" in (reported.remark or "")) == (code, True)
        broker.parts.local.dispatch_now()
        assert broker.parts.local.max_offset(REVIVE_TOPIC, 0) == before
        assert log._early == [{}]
        assert peer.ask(RequestCode.BATCH_ACK_MESSAGE, {"acks": [entry]}).code == 0
        assert [each.offsets for each in log._early[0].values()] == [{0}]


def test_early_acknowledgements_of_a_group_are_bounded_also_when_they_are_read_again(
    tmp_path: Path, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_log, "EARLY_ACKS_MAX", 3)
    now_ms = manual_clock.now_ms()
    entry = {"c": "G", "t": "T", "r": "0", "q": 0, "so": 0, "it": MINUTE_MS, "rq": 0, "b": "AQ=="}
    with running(tmp_path, clock=manual_clock, **QUEUES) as broker, PopPeer(broker) as peer:
        begin_as_rocketmq(broker, now_ms - 1)
        until(broker, lambda: present(broker.delivery.timers).waiting_count == 2)
        reported = peer.ask(
            RequestCode.BATCH_ACK_MESSAGE, {"acks": [{**entry, "pt": now_ms - at} for at in range(1, 6)]}
        )
        assert (reported.code, "at most 3" in (reported.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
        later = {"acks": [{**entry, "pt": now_ms - 1, "b": "Ag=="}]}
        assert peer.ask(RequestCode.BATCH_ACK_MESSAGE, later).code == 0, "of a check point that is kept"
        assert len(pops(broker).log._early[0]) == 3
        fields: dict[str, Any] = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": 0,
            "offset": 2,
            "invisibleTime": MINUTE_MS,
        }
        receipt = f"0 {now_ms - 9} {MINUTE_MS} 0 0 b 0 2"
        reported = peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, **fields, extraInfo=receipt)
        assert reported.code == ResponseCode.SYSTEM_BUSY
        assert len(pops(broker).log.points) == 0
    monkeypatch.setattr(pop_log, "EARLY_ACKS_MAX", 2)
    with running(tmp_path, clock=manual_clock, **QUEUES) as broker:
        log = pops(broker).log
        assert (len(log._early[0]), log._early_counts["G"]) == (2, 2)
        manual_clock.advance_ms(2 * MINUTE_MS)
        until(broker, lambda: not log._early[0])
        assert not log._early_counts


def test_what_was_acknowledged_early_waits_for_a_check_point_that_is_stored_and_not_dispatched(
    tmp_path: Path, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pop_ms = manual_clock.now_ms() - 1
    with running(tmp_path / "alive", clock=manual_clock, **QUEUES) as broker:
        put(broker, "one", "two")
        broker.parts.offsets.commit("G", "T", 0, 2)
        log, local = pops(broker).log, broker.parts.local
        popped = PoppedMessage("G", "T", 0, 0, pop_ms)
        log.acknowledge_early(0, popped, [0, 1], pop_ms + MINUTE_MS)
        local.dispatch_now()
        end, dispatch, look = local.max_offset(REVIVE_TOPIC, 0), local.dispatch_now, local.max_offset
        behind = True

        def dispatch_now() -> None:
            nonlocal behind
            behind = False
            dispatch()

        def max_offset(topic: str, queue_id: int, *, committed: bool = True) -> int:
            is_held = behind and topic == REVIVE_TOPIC
            return end if is_held else look(topic, queue_id, committed=committed)

        monkeypatch.setattr(local, "max_offset", max_offset)
        properties = {"UNIQ_KEY": "ck", "TIMER_DELIVER_MS": str(pop_ms)}
        body = json.dumps(check_point(pop_ms, [0, 1])).encode()
        assert local.put(Message(REVIVE_TOPIC, body, 0, tags="ck", properties=properties)).ok
        monkeypatch.setattr(local, "dispatch_now", dispatch_now)
        manual_clock.advance_ms(MINUTE_MS + 3 * SECOND_MS)
        pops(broker).revive.run_once()
        monkeypatch.undo()
        dispatch()
        pops(broker).revive.run_once()
        assert given_back(broker) == []
        assert len(log.points) == 0
