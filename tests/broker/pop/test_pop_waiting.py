"""Pops that wait: woken by their queues, ended by their time, dropped with their connection."""

from __future__ import annotations

from pathlib import Path

from broker.consuming import on_loop, put, running, until
from broker.popping_peer import PopPeer, got_of, pops
from tiermq.clock import ManualClock
from tiermq.namesrv.topic_config import TopicConfig


def test_a_pop_dies_with_its_connection_and_leaves_nothing(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker:
        waiting = pops(broker).waiting
        with PopPeer(broker) as peer:
            for topic in ("T", "T", "TBW102"):
                peer.pop_later(pollTime=15_000, topic=topic)
            until(broker, lambda: waiting.held == 3)
        until(broker, lambda: waiting.held == 0)
        assert (waiting._watchers, waiting._owners, waiting._connections) == ({}, {}, {})
        put(broker, "one")
        with PopPeer(broker) as peer:
            assert [got.body for got in peer.pop()] == ["one"], "nobody took it who is gone"


def test_only_those_are_woken_that_watch_the_queue(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        broker.parts.topics.put(TopicConfig("U", 1, 1))
        first = peer.pop_later(pollTime=15_000, queueId=1)
        second = peer.pop_later(pollTime=15_000, topic="U")
        until(broker, lambda: pops(broker).waiting.held == 2)
        put(broker, "elsewhere", queue_id=0)
        put(broker, "here", queue_id=1)
        assert [got.body for got in got_of(first.result(60))] == ["here"]
        assert on_loop(broker, lambda: pops(broker).waiting.held) == 1
        assert not second.done()


def test_many_who_wait_share_what_comes(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        waiting = [peer.pop_later(pollTime=15_000, maxMsgNums=1) for _ in range(20)]
        until(broker, lambda: pops(broker).waiting.held == 20)
        put(broker, *(f"m{number}" for number in range(20)))
        bodies = [got.body for each in waiting for got in got_of(each.result(60))]
        assert sorted(bodies) == sorted(f"m{number}" for number in range(20))
