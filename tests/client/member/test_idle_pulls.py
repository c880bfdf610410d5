"""Pulls that are answered at once and get no further: they slow down, and are reported once a minute."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from tiermq.client.member.assigned_queue import AssignedQueue
from tiermq.client.member.async_consumer import AsyncConsumer, ConsumerSettings
from tiermq.client.member.message_queue import MessageQueue
from tiermq.client.member.session import Session
from tiermq.client.member.subscription import Subscription
from tiermq.remoting.codes import ResponseCode
from tiermq.remoting.command import RemotingCommand

PULLS = 30


class LyingSession:
    """Answers every pull at once and in the same way."""

    def __init__(self, code: int, next_offset: int) -> None:
        self.answer = RemotingCommand(code=code, ext={"nextBeginOffset": str(next_offset), "maxOffset": "100"})

    async def ask(self, *_: object, **__: object) -> RemotingCommand:
        return self.answer

    def forget_route(self, _: str) -> None:
        """There is none."""


@pytest.mark.parametrize(
    ("code", "next_offset"),
    [
        (ResponseCode.PULL_NOT_FOUND, 5),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, 5),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, -7),
        (ResponseCode.PULL_OFFSET_MOVED, 9),
        (ResponseCode.PULL_OFFSET_MOVED, 101),
        (ResponseCode.PULL_OFFSET_MOVED, (1 << 63) - 1),
    ],
)
def test_pulls_that_get_no_further_slow_down_and_warn_seldom(
    code: int, next_offset: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subscription = Subscription.of("orders", None, None, 0)
    settings = ConsumerSettings()
    consumer = AsyncConsumer(cast(Session, LyingSession(code, next_offset)), "audit", [subscription], settings)
    queue = AssignedQueue(MessageQueue("orders", "broker-a", 0), 5)
    rests: list[float] = []

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        queue.is_dropped = len(rests) == PULLS

    async def nothing(*_: Any) -> str:
        return "127.0.0.1:1"

    monkeypatch.setattr(consumer, "_address_of", nothing)
    monkeypatch.setattr(consumer, "_wait_for_room", nothing)
    monkeypatch.setattr(consumer, "_commit", nothing)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with caplog.at_level(logging.WARNING):
        asyncio.run(consumer._pull_always(queue))
    assert rests == sorted(rests)
    assert (len(rests), rests[0] > 0, rests[-1] >= 1.0) == (PULLS, True, True)
    assert len(caplog.records) <= 3
    assert queue.position in (5, 9)
