"""Pops of topics with as many queues as a topic may have: they give way, answer what they have, and miss nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import on_loop, put, running, until
from broker.pop.pop_peer import PopPeer, pop_fields, pops
from tiermq.broker.broker import Broker
from tiermq.broker.pop import pop_processor
from tiermq.broker.pop.pop_reader import QUEUES_A_STEP, PopReader
from tiermq.broker.pop.pop_waiting import Pop
from tiermq.message.topic_name import TOPIC_QUEUES_MAX
from tiermq.namesrv.topic_config import TopicConfig
from tiermq.remoting.codes import RequestCode

WIDE: dict[str, Any] = {**pop_fields(), "topic": "wide"}


class Turns:
    """How many queues a read of the broker visits in each turn of the loop; `on_turn` is called in each."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.visits = [0]
        self.on_turn: Callable[[], object] = lambda: None
        self._loop = broker.parts.server.loop
        begin = PopReader._begin

        def counted(*arguments: Any, **named: Any) -> int:
            if self.visits[-1] == 0:
                self._loop.call_soon(self._next)
            self.visits[-1] += 1
            return begin(*arguments, **named)

        monkeypatch.setattr(PopReader, "_begin", counted)
        monkeypatch.setattr(pop_processor, "SLICE_S", 0.0)

    def _next(self) -> None:
        self.visits.append(0)
        self.on_turn()


def widen(broker: Broker, attributes: dict[str, str], name: str = "wide") -> None:
    broker.parts.topics.put(TopicConfig(name, TOPIC_QUEUES_MAX, TOPIC_QUEUES_MAX, attributes=attributes))


@pytest.mark.parametrize("attributes", [{}, {"message.type": "PRIORITY"}], ids=["random", "priority"])
@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.POP_MESSAGE, WIDE),
        (RequestCode.POP_MESSAGE, {**WIDE, "order": "true"}),
        (RequestCode.POP_MESSAGE, {**WIDE, "topic": "narrow"}),
        (RequestCode.NOTIFICATION, WIDE),
    ],
    ids=["pop", "ordered", "retries", "notification"],
)
def test_a_read_of_all_queues_gives_way_after_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fields: dict[str, Any], attributes: dict[str, str]
) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        widen(broker, attributes)
        broker.parts.topics.put(TopicConfig("narrow", 1, 1, attributes=attributes))
        widen(broker, {}, "%RETRY%G_narrow")
        turns = Turns(broker, monkeypatch)
        assert peer.ask(code, **fields).ext.get("hasMsg") in (None, "false")
        assert sum(turns.visits) == TOPIC_QUEUES_MAX + (fields["topic"] == "narrow")
        assert max(turns.visits) <= QUEUES_A_STEP


def test_a_wide_pop_answers_what_it_has_and_the_next_ones_the_rest(tmp_path: Path) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        widen(broker, {"message.type": "PRIORITY"})
        for queue_id in (0, 40_000, 40_001, TOPIC_QUEUES_MAX - 1):
            put(broker, str(queue_id), topic="wide", queue_id=queue_id)
        found = [[got.body for got in peer.pop(topic="wide")] for _ in range(4)]
        assert found == [["65535"], ["40001", "40000"], ["0"], []]


def test_what_arrives_in_a_queue_that_was_read_wakes_the_pop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        widen(broker, {"message.type": "PRIORITY"})
        turns = Turns(broker, monkeypatch)

        def arrive() -> None:
            if len(turns.visits) == 10:
                put(broker, "behind", topic="wide", queue_id=TOPIC_QUEUES_MAX - 1)

        turns.on_turn = arrive
        assert [got.body for got in peer.pop(topic="wide", pollTime=60_000)] == ["behind"]
        assert sum(turns.visits) > TOPIC_QUEUES_MAX, "it was behind what was read"
        notified = peer.ask(RequestCode.NOTIFICATION, **{**WIDE, "consumerGroup": "H", "pollTime": 60_000})
        assert notified.ext["hasMsg"] == "true"


def test_a_read_ends_with_its_connection_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as broker:
        widen(broker, {})
        turns = Turns(broker, monkeypatch)
        waiting = pops(broker).waiting
        with PopPeer(broker) as peer:

            def close() -> None:
                if len(turns.visits) == 10:
                    [connection] = broker.parts.server.connections
                    connection.close()

            turns.on_turn = close
            peer.pop_later(topic="wide", pollTime=60_000)
            until(broker, lambda: len(turns.visits) >= 10 and not broker.parts.server.is_busy)
        assert (waiting._watchers, waiting._read, waiting._held) == ({}, {}, {})
        assert sum(turns.visits) < TOPIC_QUEUES_MAX


def test_pops_that_are_woken_together_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may wait for one queue: the loop reads for some of them in each slice."""
    with running(tmp_path) as broker, PopPeer(broker) as peer:
        later = [peer.pop_later(pollTime=60_000) for _ in range(50)]
        waiting = pops(broker).waiting
        until(broker, lambda: waiting.held == 50)
        read: list[Pop] = []
        ask = pop_processor.PopProcessor._ask

        def counted(processor: pop_processor.PopProcessor, pop: Pop) -> None:
            read.append(pop)
            ask(processor, pop)

        monkeypatch.setattr(pop_processor.PopProcessor, "_ask", counted)

        def wake() -> int:
            waiting.wake(("T", -1))
            return len(read)

        assert on_loop(broker, wake) == 0
        until(broker, lambda: len(read) == 50 and waiting.held == 50)
        assert not any(each.done() for each in later)
