"""Pops that wait: woken by their queues, ended by their time, dropped with their connection."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.consuming import on_loop, put, running, until
from broker.pop.pop_peer import PopPeer, got_of, pop_fields, pops
from simulation.manual_clock import ManualClock
from tiermq.broker.pop.pop_waiting import Pop
from tiermq.broker.pull.long_polling import HOLD_MS_MAX
from tiermq.errors import RequestRefused
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode
from tiermq.remoting.command import RemotingCommand
from tiermq.remoting.connection import Connection

ABSENT = cast(Connection, SimpleNamespace(attributes={}))


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


def test_every_pop_is_in_the_histogram_and_one_that_was_held_under_its_label(
    tmp_path: Path, manual_clock: ManualClock
) -> None:
    with running(tmp_path, clock=manual_clock) as broker, PopPeer(broker) as peer:
        put(broker, "one")
        assert [got.body for got in peer.pop()] == ["one"]
        held = peer.pop_later(pollTime=15_000)
        until(broker, lambda: pops(broker).waiting.held == 1)
        put(broker, "two")
        assert [got.body for got in got_of(held.result(60))] == ["two"]
        lines = broker.render_metrics().splitlines()
        counts = [line for line in lines if line.startswith("rocketmq_rpc_latency_count") and '"pop_message"' in line]
        found = sorted(("true" if '_polling="true"' in line else "false", line.split()[-1]) for line in counts)
        assert found == [("false", "1"), ("true", "1")]


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


def made(code: int = RequestCode.POP_MESSAGE, **changes: object) -> Pop:
    ext = {name: str(value) for name, value in {**pop_fields(), **changes}.items()}
    return Pop(ABSENT, RemotingCommand(code, ext=ext), 1000)


def test_a_pop_waits_as_long_as_it_reports_and_no_longer_than_may_be() -> None:
    assert made(pollTime=500).deadline_ms == 1500
    assert made(pollTime=-5).deadline_ms == 1000
    assert made(pollTime=10**12).deadline_ms == 1000 + HOLD_MS_MAX


def test_a_pop_watches_its_queues_and_its_retry_topics() -> None:
    assert made().watched == (("T", -1), ("%RETRY%G_T", -1), ("%RETRY%G+T", -1))
    assert made(queueId=3).watched[0] == ("T", 3)
    assert made(order="true").watched == (("T", -1),)
    assert made(topic="%RETRY%G_T").watched == (("%RETRY%G_T", -1),)


@pytest.mark.parametrize("name", ["consumerGroup", "topic", "queueId", "maxMsgNums", "invisibleTime", "pollTime"])
def test_what_is_needed_must_be_there(name: str) -> None:
    fields: dict[str, Any] = {each: str(value) for each, value in pop_fields().items() if each != name}
    with pytest.raises(RequestRefused, match=name):
        Pop(ABSENT, RemotingCommand(RequestCode.POP_MESSAGE, ext=fields), 0)


def test_a_notification_needs_less() -> None:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "pollTime": "0"}
    assert Pop(ABSENT, RemotingCommand(RequestCode.NOTIFICATION, ext=fields), 0).is_notification
