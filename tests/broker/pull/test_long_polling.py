"""Pulls that wait: woken by messages, by time, ended with their connection, and never forgotten."""

from __future__ import annotations

import re
from pathlib import Path

from broker.consuming import Peer, bodies_of, on_loop, part, put, running, until
from simulation.manual_clock import ManualClock
from small_store import pause_dispatch, resume_dispatch
from tiermq import Message
from tiermq.broker.broker import Broker
from tiermq.broker.pull.long_polling import LongPolling
from tiermq.broker.pull.pull_processor import PullProcessor
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import ResponseCode

HOLD = 2


def polling(broker: Broker) -> LongPolling:
    found: LongPolling = part(broker, PullProcessor).long_polling
    return found


def leaves_nothing(held: LongPolling) -> bool:
    return not (held.held or held._queues or held._slots or held._connections)


def test_a_held_pull_is_answered_when_a_message_comes(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        peer.join()
        held = peer.pull_later(0, sysFlag=HOLD)
        until(broker, lambda: polling(broker).held == 1)
        broker.parts.local.put(Message("T", b"other", 1))
        broker.parts.local.put(Message("T", b"a", 0))
        assert bodies_of(held.result(60)) == ["a"]
        assert on_loop(broker, leaves_nothing, polling(broker))
        assert polling(broker).woken == 1


def test_every_pull_is_in_the_histogram_and_one_that_was_held_under_its_label(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a")
        for _ in range(3):
            assert bodies_of(peer.pull_later(0).result(60)) == ["a"]
        assert peer.pull_later(1).result(60).code == ResponseCode.PULL_NOT_FOUND
        held = peer.pull_later(1, sysFlag=HOLD)
        until(broker, lambda: polling(broker).held == 1)
        put(broker, "b")
        assert bodies_of(held.result(60)) == ["b"]
        assert pulls_counted(broker) == {("0", "false"): 3, ("19", "false"): 1, ("0", "true"): 1}


def pulls_counted(broker: Broker) -> dict[tuple[str, str], int]:
    """By answer, and whether it was held."""
    lines = broker.render_metrics().splitlines()
    counts = [line for line in lines if line.startswith("rocketmq_rpc_latency_count") and '"pull_message"' in line]
    pattern = re.compile(r'response_code="(\d+)",is_long_polling="(\w+)".* (\d+)$')
    found = [pattern.search(line) for line in counts]
    return {(each[1], each[2]): int(each[3]) for each in found if each is not None}


def test_a_pull_of_a_message_that_is_not_in_its_queue_yet_waits_and_is_not_sent_back(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        peer.join()
        put(broker, "a")
        pause_dispatch(broker.parts.local)
        for body in (b"b", b"c", b"d"):
            broker.parts.local.put(Message("T", body, 0))
        held = peer.pull_later(3, sysFlag=HOLD)
        until(broker, lambda: held.done() or polling(broker).held == 1)
        assert not held.done(), "a consumer that goes on at the end of what was acknowledged is not sent back"
        resume_dispatch(broker.parts.local)
        assert bodies_of(held.result(60)) == ["d"]
        answer = peer.pull_later(9, sysFlag=HOLD).result(60)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "4")


def test_messages_and_pulls_that_cross_each_other_always_meet(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        for number in range(300):
            held = peer.pull_later(number, sysFlag=HOLD)
            broker.parts.local.put(Message("T", str(number).encode(), 0))
            assert bodies_of(held.result(60)) == [str(number)]


def test_a_held_pull_is_answered_when_its_time_is_over_by_the_clock(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        peer.join()
        held = peer.pull_later(0, sysFlag=HOLD, suspendTimeoutMillis=15_000)
        until(broker, lambda: polling(broker).held == 1)
        manual_clock.advance_ms(14_900)
        assert on_loop(broker, polling(broker).end_overdue) == 0
        assert not held.done()
        manual_clock.advance_ms(600)
        answer = held.result(60)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
        assert on_loop(broker, leaves_nothing, polling(broker))
        assert polling(broker).timed_out == 1


def test_without_long_polling_a_pull_waits_for_a_short_time(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock, long_polling_enable=False) as broker, Peer(broker) as peer:
        peer.join()
        held = peer.pull_later(0, sysFlag=HOLD)
        until(broker, lambda: polling(broker).held == 1)
        manual_clock.advance_ms(1_500)
        assert held.result(60).code == ResponseCode.PULL_NOT_FOUND


def test_a_held_pull_ends_with_its_connection(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        with Peer(broker) as peer:
            peer.join()
            peer.pull_later(0, sysFlag=HOLD)
            until(broker, lambda: polling(broker).held == 1)
        until(broker, lambda: leaves_nothing(polling(broker)))
        put(broker, "a")


def test_a_message_that_the_filter_refuses_does_not_wake(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        peer.join(expression="B")
        held = peer.pull_later(0, sysFlag=HOLD)
        until(broker, lambda: polling(broker).held == 1)
        put(broker, "a", tags="A")
        assert on_loop(broker, lambda: polling(broker).held) == 1
        put(broker, "b", tags="B")
        assert bodies_of(held.result(60)) == ["b"]


def test_a_pull_beyond_what_may_wait_is_answered_at_once(tmp_path: Path) -> None:
    with running(tmp_path, pull_held_max=1) as broker, Peer(broker) as peer:
        peer.join()
        held = peer.pull_later(0, sysFlag=HOLD)
        until(broker, lambda: polling(broker).held == 1)
        assert peer.pull(0, sysFlag=HOLD).code == ResponseCode.PULL_NOT_FOUND
        put(broker, "a")
        assert bodies_of(held.result(60)) == ["a"]


def test_a_thousand_pulls_of_one_consumer_wait_and_each_is_woken_by_its_own_queue(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        broker.parts.topics.put(TopicConfig("wide", 1024, 1024))
        peer.join(topic="wide")
        held = [
            peer.pull_later(0, sysFlag=HOLD, topic="wide", queueId=number, suspendTimeoutMillis=15_000)
            for number in range(1024)
        ]
        until(broker, lambda: polling(broker).held == 1024)
        for number in range(0, 1024, 64):
            broker.parts.local.put(Message("wide", str(number).encode(), number))
        for number in range(0, 1024, 64):
            assert bodies_of(held[number].result(60)) == [str(number)]
        assert on_loop(broker, lambda: polling(broker).held) == 1024 - 16
        manual_clock.advance_ms(16_000)
        assert {each.result(60).code for number, each in enumerate(held) if number % 64} == {19}
        assert on_loop(broker, leaves_nothing, polling(broker))


def test_several_groups_that_wait_on_one_queue_are_all_woken(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as one, Peer(broker) as two:
        one.join("G")
        two.join("H")
        held = [one.pull_later(0, sysFlag=HOLD), two.pull_later(0, sysFlag=HOLD, consumerGroup="H")]
        until(broker, lambda: polling(broker).held == 2)
        put(broker, "a")
        assert [bodies_of(each.result(60)) for each in held] == [["a"], ["a"]]


def test_a_pull_that_is_no_longer_allowed_when_it_is_woken_is_notified(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        peer.join()
        held = peer.pull_later(0, sysFlag=HOLD)
        until(broker, lambda: polling(broker).held == 1)
        broker.parts.topics.delete(["T"])
        put(broker, "a")
        assert held.result(60).code == ResponseCode.TOPIC_NOT_EXIST
        assert broker.parts.server.handler_errors == 0
