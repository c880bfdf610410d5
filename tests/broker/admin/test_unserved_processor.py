"""Requests that mean nothing here are answered with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.consuming import Peer, running
from tiermq.broker.admin.unserved_processor import REASONS
from tiermq.remoting.codes import RequestCode, ResponseCode


def test_each_is_refused_with_its_sentence(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        for code, reason in REASONS.items():
            answer = peer.ask(code)
            assert (answer.code, answer.remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason)


@pytest.mark.parametrize(
    ("engine", "wheel", "code", "words"),
    [
        ("F", True, 0, "success"),
        ("R", True, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "no RocksDB engine"),
        ("X", True, ResponseCode.INVALID_PARAMETER, "expected engine F"),
        ("F", False, ResponseCode.SYSTEM_ERROR, "timerWheelEnable is false"),
    ],
)
def test_the_timer_engine_is_the_wheel(tmp_path: Path, engine: str, wheel: bool, code: int, words: str) -> None:
    with running(tmp_path, timer_wheel_enable=wheel) as broker, Peer(broker) as peer:
        answer = peer.ask(RequestCode.SWITCH_TIMER_ENGINE, E_T=engine)
        assert answer.code == code
        assert words in (answer.remark or "")


def test_records_of_pop_are_in_their_topic_already(tmp_path: Path) -> None:
    with running(tmp_path) as broker, Peer(broker) as peer:
        assert peer.ask(RequestCode.POP_ROLLBACK).code == 0
