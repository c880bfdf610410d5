"""Locking queues over the wire, for consumers that consume in order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.consuming import Peer, running
from simulation.manual_clock import ManualClock
from tiermq.remoting.codes import RequestCode, ResponseCode

QUEUES = [{"brokerName": "b", "queueId": number, "topic": "T"} for number in range(3)]


def body(client_id: str, *queues: dict[str, Any]) -> dict[str, Any]:
    return {"clientId": client_id, "consumerGroup": "G", "mqSet": list(queues), "onlyThisBroker": False}


def locked(peer: Peer, client_id: str, *queues: dict[str, Any]) -> list[dict[str, Any]]:
    answer = peer.ask(RequestCode.LOCK_BATCH_MQ, body(client_id, *queues))
    assert answer.code == 0
    found: list[dict[str, Any]] = json.loads(bytes(answer.body))["lockOKMQSet"]
    return found


def test_what_another_holds_is_missing_from_the_answer(tmp_path: Path, manual_clock: ManualClock) -> None:
    with running(tmp_path, clock=manual_clock) as broker, Peer(broker) as peer:
        assert locked(peer, "one", *QUEUES[:2]) == QUEUES[:2]
        assert locked(peer, "two", *QUEUES) == QUEUES[2:]
        assert broker.parts.clients.locks.holds_any("G")
        peer.ask(RequestCode.UNLOCK_BATCH_MQ, body("one", QUEUES[0]))
        assert locked(peer, "two", *QUEUES) == [QUEUES[0], QUEUES[2]]
        manual_clock.advance_ms(60_001)
        assert not broker.parts.clients.locks.holds_any("G")
        assert locked(peer, "three", *QUEUES) == QUEUES


@pytest.mark.parametrize(
    "reported",
    [{}, {"clientId": "c"}, {**body("c"), "mqSet": 5}, body("c", {"topic": 5}), {**body("c"), "clientId": ""}],
)
def test_a_body_that_names_nothing_to_lock_is_refused(tmp_path: Path, reported: dict[str, Any]) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        assert peer.ask(RequestCode.LOCK_BATCH_MQ, reported).code == ResponseCode.SYSTEM_ERROR
        assert broker.parts.server.handler_errors == 0


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize(
    "reported",
    [
        *({**body("c", *QUEUES), "consumerGroup": name} for name in ("G\0", "..", "a/b", "x" * 300)),
        *(body("c", {**QUEUES[0], "topic": name}) for name in ("", "T\0", "..", "a/b", "x" * 300)),
        body("c", QUEUES[0], {**QUEUES[0], "queueId": -9}),
    ],
)
def test_names_and_queues_that_cannot_be_are_not_locked(tmp_path: Path, code: int, reported: dict[str, Any]) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        assert peer.ask(code, reported).code == ResponseCode.INVALID_PARAMETER
        assert not broker.parts.clients.locks.holds_any(reported["consumerGroup"])
