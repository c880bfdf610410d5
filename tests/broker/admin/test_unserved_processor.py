"""Requests that mean nothing here are answered with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.consuming import Peer, running
from interop.mqadmin_commands import BROKER, SILENT, outcome
from tiermq.broker.admin.unserved_processor import REASONS
from tiermq.remoting.codes import RequestCode, ResponseCode


@pytest.mark.parametrize("is_slave", [False, True])
def test_each_is_refused_with_its_sentence(tmp_path: Path, is_slave: bool) -> None:
    nowhere: dict[str, Any] = {"broker_id": 1, "ha_master_address": "127.0.0.1:1"} if is_slave else {}
    role = "SLAVE" if is_slave else "ASYNC_MASTER"
    with running(tmp_path, store={"broker_role": role}, **nowhere) as broker, Peer(broker) as peer:
        assert broker.replication.is_slave is is_slave
        for code, reason in REASONS.items():
            answer = peer.ask(code)
            assert (answer.code, answer.remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, reason)
            assert "is a master" not in reason, "a slave refuses with the same words"


@pytest.mark.parametrize("command", SILENT)
def test_a_refusal_that_mqadmin_prints_without_its_reason_is_not_called_the_same_answer(command: str) -> None:
    for printed in (f"[{BROKER}] error.", f"Group And Topic Info: [G] [T]\n{BROKER} error"):
        assert outcome(command, printed, printed) == f"not applicable: {REASONS[SILENT[command]]}"


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
